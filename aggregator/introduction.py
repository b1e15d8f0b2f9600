"""What an operator's program says when it begins: which run this is, where it stands, what it takes, and how others come to it."""

from collections.abc import Iterator

from manta_swarm.aggregator.listening import best_first
from manta_swarm.aggregator.monitor.listen_address import address_to_show
from manta_swarm.aggregator.settings.forecast import held_bytes
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.protocol.admission import INVITATION, LIST
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest


def join_lines(ledger: Ledger, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return what volunteers type to come to the run at ``addresses``, the line that most can use first."""
    own_data = " --private-data DIR" if ledger.manifest.is_private else ""
    invited = " --invitation FILE" if ledger.manifest.admission.how == INVITATION else ""
    run = ledger.run.hex()
    return tuple(
        f"manta-peer join --gpus all --initial-peers {address} --run {run}{own_data}{invited}" for address in best_first(addresses)
    )


def introduction(status: AggregatorStatus, ledger: Ledger, num_weights: int, keep_bodies: int) -> Iterator[str]:
    """Yield the lines; bodies of ``keep_bodies`` rounds of ``num_weights`` weights stay on the disk."""
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
