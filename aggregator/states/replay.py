"""Computes a run again: from a snapshot, the log and the kept bodies to every committed state, bit for bit.

An aggregator does so at its start, from its newest snapshot to the log's last round; anybody can do it with a directory
(``manta-aggregator ledger replay``). Needs no private key, and writes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.intake.bodies import Bodies, StoredContribution
from manta_swarm.aggregator.log.contents import BODIES, SNAPSHOTS
from manta_swarm.aggregator.log.storage import read_manifest
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.states.state_keeper import Snapshots, after_table
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.update import State
from manta_swarm.codec.coding import Body, body_groups, body_num_bytes, parse
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.errors import EncodingError, StorageError
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.records import Round, Threshold
from manta_swarm.protocol.table import weights_root


@dataclass(frozen=True, slots=True)
class RoundToReplay:
    """What the log says of a round, as far as its computation needs it."""

    entry: Round
    listed: tuple[Listed, ...]
    min_exponents: tuple[int, ...]  # of each contribution's base
    min_exponent: int  # of the base of the round
    thresholds: tuple[Threshold, ...]  # of the entry before


class TableCollector:
    """Collects what the log says of its rounds while it is read; give ``take`` to whoever reads it."""

    def __init__(self) -> None:
        """Begin without any round."""
        self.rounds: dict[int, RoundToReplay] = {}
        self._thresholds: tuple[Threshold, ...] = ()

    def take(self, ledger: Ledger) -> None:
        """Remember the ledger's newest round."""
        entry, listed = ledger.newest, ledger.table_at(ledger.round)
        assert entry is not None
        assert listed is not None
        min_exponents = tuple(ledger.min_exponent_at(one.round - 1) for one in listed)
        self.rounds[ledger.round] = RoundToReplay(entry, listed, min_exponents, ledger.min_exponent_at(ledger.round - 1), self._thresholds)
        self._thresholds = entry.thresholds

    def forget_before(self, round: int) -> None:
        """Keep only rounds from ``round`` on."""
        self.rounds = {number: to_replay for number, to_replay in self.rounds.items() if number >= round}


def replayed(state: State, rounds: Sequence[RoundToReplay], bodies: Bodies, training_spec: RunTrainingSpec, codec: str) -> Iterator[State]:
    """Yield the state after each of ``rounds``, which follow ``state``, each compared with what the log says of it.

    Raises:
        StorageError: a body is missing, or a round does not come to what the log says.
    """
    for to_replay in rounds:
        round_ = to_replay.entry.round
        parsed = parsed_bodies(bodies, to_replay.listed, codec, state.parameters.numel(), round_)
        after = after_table(
            state,
            to_replay.listed,
            parsed,
            min_exponents=to_replay.min_exponents,
            thresholds=to_replay.thresholds,
            min_exponent=to_replay.min_exponent,
            training_spec=training_spec,
        )
        entry, found = to_replay.entry, after.table_mean
        said = (entry.mean, entry.weights, entry.state, entry.thresholds, entry.min_exponent)
        if (after.mean.root, weights_root(after.weighed), after.blob.root, found.thresholds, found.min_exponent) != said:
            raise StorageError(f"round {round_} does not come to what the log says of it: the log, or this machine, is wrong")
        state = after.state
        yield state


def parsed_bodies(bodies: Bodies, listed: Sequence[Listed], codec: str, num_weights: int, round_: int) -> list[Body]:
    """Return the bodies of a committed round's table, in its order, each checked against its contribution.

    Raises:
        StorageError: one is missing or damaged.
    """
    kept: dict[bytes, StoredContribution] = {one.header.contribution.digest: one for one in bodies.read(round_)}
    return [_body(kept.get(one.contribution), one, codec, num_weights, round_) for one in listed]


def _body(kept: StoredContribution | None, listed: Listed, codec: str, num_weights: int, round_: int) -> Body:
    if kept is None:
        raise StorageError(f"a body of round {round_} is missing; restore the bodies from a backup")
    try:
        if Blob.of(body_groups(codec, kept.body, num_weights)).root != listed.body:
            raise EncodingError("it is another one than the log lists")
        return parse(codec, kept.body, num_weights)
    except EncodingError as error:
        raise StorageError(f"a body of round {round_} is damaged ({error}); restore the bodies from a backup") from error


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay of a directory showed."""

    run: bytes
    rounds: int  # committed
    first: int  # the round of the snapshot that it began with
    size: int  # entries of the log
    state: bytes  # digest of the last state


def replay_directory(directory: Path, show: Callable[[int, bytes], None] = lambda _round, _state: None) -> Replayed:
    """Compute the run in ``directory`` again, from its oldest usable snapshot on; ``show`` is told of each round's state.

    Raises:
        UserError: there is no log.
        StorageError: something does not hold, or is missing.
    """
    signed = read_manifest(directory)
    manifest, tables = signed.open(), TableCollector()
    states = {0: manifest.initial_state}
    kept_rounds = _rounds_in(directory / BODIES)
    oldest = min(kept_rounds, default=MAX_ROUND)

    def on_round(ledger: Ledger) -> None:
        tables.take(ledger)
        tables.forget_before(oldest)  # what cannot be computed again anyway
        states[ledger.round] = ledger.state

    verified = verify_directory(directory, on_round=on_round)
    training_spec = RunTrainingSpec(manifest)
    snapshots = Snapshots(directory / SNAPSHOTS, manifest, training_spec.plan, signed.run, keep=1, keep_rounds=1)
    first = _first(snapshots.rounds(), kept_rounds, verified.rounds)
    state = snapshots.load(first, states[first])
    codec = manifest.exchange.codec
    bodies = Bodies(directory / BODIES, body_bytes=body_num_bytes(codec, state.parameters.numel()), keep=len(kept_rounds) + 1)
    rounds = [tables.rounds[number] for number in range(first + 1, verified.rounds + 1)]
    for after in replayed(state, rounds, bodies, training_spec, codec):
        show(after.round, states[after.round])
    return Replayed(signed.run, verified.rounds, first, verified.size, states[verified.rounds])


def _rounds_in(directory: Path) -> frozenset[int]:
    return frozenset(Bodies(directory, body_bytes=1, keep=1).rounds()) if directory.exists() else frozenset()


def _first(snapshots: Sequence[int], bodies: frozenset[int], newest: int) -> int:
    """Return the oldest round with a snapshot from which all later bodies are here.

    Raises:
        StorageError: there is none.
    """
    for round_ in snapshots:
        if round_ <= newest and bodies.issuperset(range(round_ + 1, newest + 1)):
            return round_
    raise StorageError("no snapshot is here from which the bodies of all later rounds are kept; restore them from a backup")
