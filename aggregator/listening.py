"""Where an aggregator listens: an address that stays the same over restarts, for the line that volunteers were given names it."""

import contextlib
import re
from pathlib import Path

from manta_swarm.aggregator.log.contents import LISTEN
from manta_swarm.runtime.disk import replace_file

_DEFAULT = "/ip4/0.0.0.0/tcp/0"
_WRITTEN = re.compile(r"(/[A-Za-z0-9.:_%-]+){2,16}")  # an address, else nobody wrote it
_FREE_PORT = "/tcp/0"


class LastAddress:
    """The address that is kept in DIR/listen."""

    def __init__(self, directory: Path) -> None:
        """Keep it in ``directory``."""
        self._path = directory / LISTEN
        self._asked = _DEFAULT

    def choose(self, listen: str | None) -> str:
        """Return where to listen: as asked, else as the last time; a free port is chosen once, and is the same after a restart."""
        self._asked = listen or _DEFAULT
        if self._asked.endswith(_FREE_PORT):
            with contextlib.suppress(FileNotFoundError):
                last = self._path.read_text(errors="replace")
                if _WRITTEN.fullmatch(last) and (listen is None or last.startswith(self._asked.removesuffix("0"))):
                    self._asked = last
        return self._asked

    def remember(self, addresses: tuple[str, ...]) -> None:
        """Keep what was chosen, with the port that it came to in ``addresses``."""
        used = self._asked
        if used.endswith(_FREE_PORT):
            used = used.removesuffix("0") + addresses[0].split("/tcp/")[1].split("/")[0]
        replace_file(self._path, used.encode())


def best_first(addresses: tuple[str, ...]) -> list[str]:
    """Return the addresses, those that others can reach before those of this computer alone."""
    return sorted(addresses, key=lambda address: "/ip4/127." in address)
