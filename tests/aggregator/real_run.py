"""A run with a real supernet, whose rounds are made without training: random vectors, honest claims. For the tests of this folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import AggregatorSection, ExchangeSection, RoundSection, RunSection
from manta_swarm.aggregator.states.opening import OpenedRun, open_run
from manta_swarm.aggregator.states.state_keeper import Next
from manta_swarm.automl.data.catalog import digits
from manta_swarm.automl.training.update import State, initial_state, state_digest
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.table import weights_root
from tests.aggregator.made import Made, made_of, made_of_cohort, values_of
from tests.contributions import PEERS as MANY_PEERS
from tests.contributions import round_of

OPERATOR = Identity(b"\x01" * 32)
STRANGER = Identity(b"\x03" * 32)
PEERS = MANY_PEERS[:3]
CONFIG = RunConfig(
    run=RunSection(name="real", rounds=9),
    round=RoundSection(target_batch=3 * 4 * 32, microbatch_samples=32, first_open_s=10, min_open_s=1, max_open_s=60),
    exchange=ExchangeSection(max_rows=8),
)
THIN_PARTS = CONFIG.model_copy(  # each cohort trains a part of the weights, for two steps, and hands in the largest changes
    update={
        "run": CONFIG.run.model_copy(update={"algorithm": "model-parallel"}),
        "exchange": CONFIG.exchange.model_copy(update={"local_steps": 2, "codec": "topk-512-4"}),
    }
)
SHRINKING = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"schedule": "shrinking"})})
DATASET = digits()
STATE = initial_state(CONFIG.plan(DATASET))
NUM_WEIGHTS = STATE.parameters.numel()


def with_aggregator(config: RunConfig, **changes: int) -> RunConfig:
    """Return the run file with another [aggregator]."""
    return config.model_copy(update={"aggregator": AggregatorSection(**changes)})


def signed_manifest(config: RunConfig = CONFIG) -> SignedManifest:
    """Return the manifest of a run that begins at ``STATE``."""
    return SignedManifest.sign(config.manifest(OPERATOR, state_digest(STATE), DATASET), OPERATOR)


def opened(directory: Path, config: RunConfig = CONFIG) -> OpenedRun:
    """Return the run in ``directory``, which is made where there is none."""
    return open_run(config, directory, OPERATOR, DATASET)


def made(ledger: Ledger, peer: Identity, *, seed: int = 0, **changes: Any) -> Made:
    """Return an honest contribution for the next round: a microbatch of each of its architectures; another seed makes it another one."""
    round_ = changes.get("round") or ledger.round + 1
    vector = values_of(NUM_WEIGHTS, 1_000 * seed + 10 * round_ + MANY_PEERS.index(peer))
    return made_of(ledger, peer, vector, **{"microbatches": microbatches_of(ledger, round_, changes), **changes})


def made_together(ledger: Ledger, members: Sequence[Identity], *, seed: int = 0, **changes: Any) -> Made:
    """Return an honest contribution of a cohort for the next round; its founder is the first."""
    round_ = changes.get("round") or ledger.round + 1
    vector = values_of(NUM_WEIGHTS, 1_000 * seed + 10 * round_ + 500 + MANY_PEERS.index(members[0]))
    return made_of_cohort(ledger, members, vector, **{"microbatches": microbatches_of(ledger, round_, changes), **changes})


def microbatches_of(ledger: Ledger, round_: int, changes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a microbatch of each of a round's architectures in each local step."""
    return (ledger.manifest.exchange.local_steps,) * len(ledger.training_spec.costs(round_, changes.get("cohort", "here")))


def everybodys(ledger: Ledger, *, seed: int = 0) -> list[Made]:
    """Return a contribution of each peer for the next round, in the table's order."""
    return [made(ledger, peer, seed=seed) for peer in PEERS]


def said_of(after: Next) -> dict[str, Any]:
    """Return what a round's entry says of what its table leads to."""
    found = after.table_mean
    return {
        "weights": weights_root(after.weighed),
        "mean": after.mean.root,
        "state": after.blob.root,
        "thresholds": found.thresholds,
        "min_exponent": found.min_exponent,
    }


def commit(run: OpenedRun, contributions: Sequence[Made], *, before: Sequence[bytes] = (), is_saved: bool = True, **lies: Any) -> Next:
    """Have a round of these committed as an aggregator does, but for the network; without ``is_saved`` it is killed right after that.

    ``before`` are entries before the round's. ``lies`` take the place of what is true of the round.
    """
    log, state_keeper = run.log, run.state_keeper
    round_ = log.ledger.round + 1
    run.bodies.append([(round_, one.kept) for one in contributions])
    listed = [log.ledger.listed(one.header, round_) for one in contributions]
    after = state_keeper.after_table(log.ledger, listed, [one.parsed for one in contributions])
    round_entry = entry_of(round_of(log.ledger, listed, before=len(before), **{**said_of(after), **lies}))
    log.commit([*before, *map(entry_of, [one.header for one in contributions]), round_entry])
    state_keeper.adopt(after.state)
    if is_saved:
        state_keeper.save(after.state, log.head, log.tree_head)
        run.bodies.prune(round_)
    return after


def play(run: OpenedRun, rounds: int) -> list[State]:
    """Have that many rounds of everybody committed; return the state after each."""
    return [commit(run, everybodys(run.log.ledger)).state for _ in range(rounds)]
