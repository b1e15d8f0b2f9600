"""Where an aggregator listens, an address that stays the same over restarts, and what it prints when it begins: run, state, how to join."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from manta_swarm.aggregator.log.contents import LISTEN
from manta_swarm.aggregator.monitor.settings import address_to_show
from manta_swarm.aggregator.settings.forecast import held_bytes
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.protocol.admission import INVITATION, LIST
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.runtime.disk import replace_file

_DEFAULT = "/ip4/0.0.0.0/tcp/0"
_WRITTEN = re.compile(r"(/[A-Za-z0-9.:_%-]+){2,16}")  # an address, else nobody wrote it
_FREE_PORT = "/tcp/0"


class LastAddress:
    """Keeps in DIR/listen the address that the aggregator listens at."""

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


def join_lines(ledger: Ledger, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return what volunteers type to come to the run at ``addresses``, the line that most can use first."""
    own_data = " --private-data DIR" if ledger.manifest.is_private else ""
    invited = " --invitation FILE" if ledger.manifest.admission.how == INVITATION else ""
    run = ledger.run.hex()
    return tuple(
        f"manta-peer join --gpus all --initial-peers {address} --run {run}{own_data}{invited}" for address in best_first(addresses)
    )


def introduction(status: AggregatorStatus, ledger: Ledger, num_weights: int, keep_bodies: int) -> Iterator[str]:
    """Yield the lines that a started aggregator prints; bodies of ``keep_bodies`` rounds of ``num_weights`` weights stay on the disk."""
    exchange = ledger.manifest.exchange
    body, held = body_num_bytes(exchange.codec, num_weights), held_bytes(exchange.codec, num_weights, exchange.max_rows)
    kept = f"{in_words(body)} each, {in_words(keep_bodies * body)} for every contribution a round"
    yield f"run {status.name} id {status.run}"
    yield f"round {ledger.round} of {status.num_rounds}, {ledger.size} entries in the log"
    yield f"bodies of the newest {keep_bodies} rounds stay on the disk: {kept}"
    yield f"bodies of the open round and the next are in memory: {in_words(held)} at most"
    yield _on_audits(ledger.manifest)
    yield "volunteers join with:"
    yield from (f"  {line}" for line in status.join)
    if ledger.manifest.admission.how == INVITATION:
        yield "each needs an invitation, which manta-aggregator invite makes"
    elif ledger.manifest.admission.how == LIST:
        yield f"if they are among the {len(ledger.manifest.admission.keys)} that the run file lists"
    if status.monitor is not None:
        yield f"monitor: {address_to_show(status.monitor, status.run)}"


def _on_audits(manifest: Manifest) -> str:
    if (rules := manifest.audit_rules) is not None:
        named = "1 named auditor" if len(rules.named) == 1 else f"{len(rules.named)} named auditors"
        return (
            f"{rules.audit_percent} % of the contributions of proven peers are computed again, by {named}: a round is paid after "
            f"{rules.pending_rounds} rounds, or once the run is settled"
        )
    if manifest.is_private:
        return "nobody can compute private data's microbatches again: credit is for what peers say that they trained"
    return 'a run of friends: credit is for what peers say that they trained ([trust] mode = "audited" has some of it computed again)'
