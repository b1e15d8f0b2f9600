"""A gateway for light contributors beside the log: a sidecar (``manta-peer join --gateway``) with credit of its own."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from manta_swarm.aggregator.features.sidecars.gateway_key import FOLDER
from manta_swarm.aggregator.features.sidecars.sidecar import Met, Sidecar
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.runtime.door import Door
from manta_swarm.runtime.signals import hearing

_EVERY_ADDRESS = "0.0.0.0"  # of IPv4


class Gateway:
    """One aggregator's gateway."""

    def __init__(
        self,
        door: Door,
        directory: Path,
        *,
        data_root: Path | None,
        threads: int | None,
        say: Callable[[str], None],
        shown: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            door: where it is to listen.
            directory: the aggregator's.
            data_root: folder of data sets that come with no library.
            threads: of the CPU that it uses; None: all.
            say: prints a line for the person.
            shown: is told the address that light contributors use, once it answers.

        Raises:
            UserError: nobody can listen there, or the certificate cannot be used.
        """
        listening, self._door = door.listen()  # so port 0 is the same one after each start of the gateway
        listening.close()
        self._sidecar = Sidecar(FOLDER, directory, _options(self._door, data_root, threads), say)
        self._say = say
        self._shown = shown

    async def run(self, met: Met) -> None:
        """See ``Sidecar.run``."""

        def is_up(status: PeerStatus) -> bool:
            if status.leases_at:
                self._show(status.peer, met)
            return bool(status.leases_at)

        try:
            await self._sidecar.run(met, is_up)
        finally:
            if self._sidecar.runs:  # a second Ctrl-C from the person ends it at once
                self._say("the gateway hands in what it has; press Ctrl-C again to stop it at once")
                with hearing(signal.SIGINT, signal.SIGTERM) as later:
                    await self._sidecar.end(later)

    def _show(self, peer: str, met: Met) -> None:
        self._shown(self._door.url)
        self._say("light contributors join with:")
        for door in self._doors(met.addresses):
            self._say(f"  manta-peer join --light --gateway {door.url}#{peer} --run {met.run}")

    def _doors(self, addresses: Sequence[str]) -> Iterator[Door]:
        """Yield where the gateway is to be found: if it listens on every address, at each of the node's, this computer's own last."""
        hosts = {address.split("/")[2] for address in addresses if address.startswith("/ip4/")}
        if self._door.host != _EVERY_ADDRESS or not hosts:
            yield self._door
            return
        for host in sorted(hosts, key=lambda host: (host.startswith("127."), host)):
            yield replace(self._door, host=host)


def _options(door: Door, data_root: Path | None, threads: int | None) -> list[str]:
    files = () if door.certificate is None else ("--gateway-cert", str(door.certificate), "--gateway-key", str(door.key))
    data = () if data_root is None else ("--data-root", str(data_root))
    cores = () if threads is None else ("--threads", str(threads))
    return ["--gateway", door.address, *files, "--lease-only", "--gpus", "none", *data, *cores]
