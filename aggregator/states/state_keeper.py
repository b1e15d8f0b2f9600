"""The operator's own copy of the run: what a table leads to, snapshots on the disk, and how good subnets are.

It has no weight in the mean: it computes each round's mean and state from the table, as every peer could.

Snapshots are the newest states, the teacher's for as long as the run lives, and what the log said when each was committed:

DIR/round-00000040.safetensors   a state (``automl.training.snapshot``); a missing one is computed again from an older one and the bodies
DIR/round-00000040.json          size, root and signed tree head of the log that has the round, written after the commit
DIR/round-00000040.statistics    of ``manta-search``, where somebody exported or calibrated right here; it goes with its state
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.status import Quality
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.evaluation.held_out import QualityReport, quality_report
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.snapshot import load_snapshot, save_snapshot
from manta_swarm.automl.training.update import State, next_state, state_digest, state_pieces
from manta_swarm.codec.coding import Body
from manta_swarm.codec.mean import TableMean, table_mean
from manta_swarm.codec.vectors import vector_groups
from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed, weighed_in
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.protocol.records import Threshold
from manta_swarm.protocol.table import Weighed
from manta_swarm.runtime.disk import make_parent, write_durably
from manta_swarm.runtime.round_folder import RoundFolder

_SUFFIX = ".safetensors"

logger = logging.getLogger("manta.states")

NUM_RANDOM = 8  # random subnets in a report


class Snapshots:
    """The snapshot files of one run."""

    def __init__(self, directory: Path, manifest: Manifest, plan: Plan, run: bytes, *, keep: int, keep_rounds: int) -> None:
        """Use ``directory``, which is made with the first snapshot.

        Args:
            directory: for the files.
            manifest: of the run.
            plan: of the run.
            run: its id.
            keep: so many of the newest stay, beside the teacher's.
            keep_rounds: bodies are kept of so many rounds: of these, now and then a snapshot stays, to compute the others from.
        """
        self._folder = RoundFolder(directory, prefix="round-")
        self._plan = plan
        self._keep = keep
        self._keep_rounds = keep_rounds
        self._metadata = {
            "run": run.hex(),
            "supernet": manifest.supernet,
            "dataset": manifest.dataset,
            "schedule": manifest.schedule,
        }

    def load(self, round_: int, digest: bytes) -> State:
        """Return the state of a round, whose digest the log names.

        Raises:
            StorageError: the snapshot is gone or is not that state.
        """
        path = self._path(round_)
        if not path.exists():
            raise StorageError(f"{path} is missing, a state that the run needs; restore it from a backup")
        try:
            state, _ = load_snapshot(path)
        except UserError as error:  # nobody chose this file
            raise StorageError(f"{error}; restore it from a backup") from error
        if state_digest(state) != digest:
            raise StorageError(f"{path} is not the state that the log names; restore it from a backup")
        return state

    def rounds(self) -> list[int]:
        """Return the rounds that have a snapshot, in order."""
        return self._folder.rounds(_SUFFIX)

    def save(self, state: State) -> None:
        """Write a state, durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        make_parent(self._path(state.round))
        metadata = {**self._metadata, "round": str(state.round), "state": state_digest(state).hex()}
        save_snapshot(self._path(state.round), state, metadata)

    def certify(self, round_: int, head: TreeHead, note: str) -> None:
        """Write beside a round's snapshot what proves that the log has it, unless it is there; durable when this returns.

        Args:
            round_: committed; 0: the run's start.
            head: a tree head of the log with that round in it.
            note: the same, signed.

        Raises:
            StorageError: the disk refuses.
        """
        path = self._path(round_).with_suffix(".json")
        if not path.exists():
            proof = {"ledger_size": head.size, "ledger_root": head.root.hex(), "tree_head": note}
            write_durably(path, json.dumps(proof, indent=1).encode())

    def prune(self, newest: int) -> None:
        """Remove what is older than the newest snapshots, but for the teacher's and those from which kept rounds are computed again."""
        every, rounds = max(1, self._keep_rounds // 2), self.rounds()
        pinned = {round_ for round_ in rounds if round_ % every == 0 and round_ >= newest - self._keep_rounds}
        if self._plan.teacher_round is not None:
            pinned.add(self._plan.teacher_round)
        try:
            self._folder.prune(rounds[-self._keep :][0] if rounds else 0, pinned)
        except StorageError as error:  # the round is committed all the same
            logger.warning("old snapshot not removed reason=%s", error)

    def _path(self, round_: int) -> Path:
        return self._folder.path(round_, _SUFFIX)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good subnets are on held-out data after a round."""

    round: int
    quality: QualityReport


@dataclass(frozen=True, slots=True)
class Next:
    """What a table leads to: the mean and the state after it, with their roots."""

    table_mean: TableMean
    weighed: tuple[Weighed, ...]  # what each contribution counted with
    mean: Blob
    state: State
    blob: Blob  # of the state


def after_table(
    state: State,
    listed: Sequence[Listed],
    bodies: Sequence[Body],
    *,
    min_exponents: Sequence[int],
    thresholds: Sequence[Threshold],
    min_exponent: int,
    training_spec: RunTrainingSpec,
) -> Next:
    """Return what a table leads to from ``state``, that of its base; the arguments are those of ``codec.mean.table_mean``.

    Of each body counts what its contribution is about, as ``training_spec`` says: the part of the weights that its cohort's architecture
    has.
    """
    table = [one.weighing for one in listed]
    coverage = cache(training_spec.coverage)  # those of one cohort share it
    masks = [coverage(one.round, one.cohort) for one in listed]
    found = table_mean(table, bodies, min_exponents, thresholds, min_exponent, state.parameters.numel(), masks)
    after = next_state(state, torch.from_numpy(found.mean), training_spec.plan)
    weighed = weighed_in(listed, found.weights, found.clipped)
    return Next(found, weighed, Blob.of(vector_groups(found.mean)), after, Blob.of(state_pieces(after)))


class StateKeeper:
    """The state after the log's last round, and what is derived from it."""

    def __init__(self, directory: Path, manifest: Manifest, run: bytes, dataset: Dataset, *, keep_snapshots: int, keep_rounds: int) -> None:
        """Keep snapshots in ``directory``; ``adopt`` gives the first state."""
        self._manifest = manifest
        self._dataset = dataset
        self.training_spec = RunTrainingSpec(manifest)
        self.plan = self.training_spec.plan
        self.snapshots = Snapshots(directory, manifest, self.plan, run, keep=keep_snapshots, keep_rounds=keep_rounds)
        self.state: State | None = None

    @property
    def num_weights(self) -> int:
        """N: values of a mean."""
        assert self.state is not None
        return self.state.parameters.numel()

    def teacher(self, ledger: Ledger) -> State | None:
        """Return the state that the rounds to come learn from too, from its snapshot; None where there is none, or none yet.

        Raises:
            StorageError: the snapshot is gone or is not that state.
        """
        round_ = self.plan.teacher_round
        if round_ is None or ledger.finished or ledger.round < round_:
            return None
        return self.snapshots.load(round_, ledger.state_at(round_))

    def save(self, state: State, head: TreeHead, note: str) -> None:
        """Write the snapshot of a state, and what the log said once it had its round; remove snapshots that are too old.

        Raises:
            StorageError: the disk refuses.
        """
        self.snapshots.save(state)
        self.snapshots.certify(state.round, head, note)
        self.snapshots.prune(state.round)

    def adopt(self, state: State) -> None:
        """Make ``state``, which the log has, the current one."""
        self.state = state

    def after_table(self, ledger: Ledger, listed: Sequence[Listed], bodies: Sequence[Body]) -> Next:
        """Return what a table of the next round leads to; nothing is changed."""
        assert self.state is not None
        min_exponents = [ledger.min_exponent_at(one.round - 1) for one in listed]
        return after_table(
            self.state,
            listed,
            bodies,
            min_exponents=min_exponents,
            thresholds=ledger.thresholds,
            min_exponent=ledger.min_exponent_at(ledger.round),
            training_spec=self.training_spec,
        )

    def evaluate(self) -> Evaluation:
        """Return how good the largest, the smallest and some random subnets of the current state are (seconds of work, or more)."""
        state, manifest = self.state, self._manifest
        assert state is not None
        report = quality_report(state.parameters, manifest.supernet, self._dataset, num_random=NUM_RANDOM, seed=manifest.seed)
        return Evaluation(state.round, report)


class DueEvaluations:
    """Has the newest state of a run evaluated when the run file says so, and at the run's end."""

    def __init__(self, log: Log, state_keeper: StateKeeper, every: int) -> None:
        """Evaluate what ``state_keeper`` holds each ``every`` rounds of ``log``; 0: only after the last one."""
        self._log = log
        self._state_keeper = state_keeper
        self._every = every
        self._due = asyncio.Event()
        self.quality: Quality | None = None
        self.round: int | None = None  # that was evaluated last, or could not be

    def look(self) -> None:
        """See whether the newest state is to be evaluated."""
        round_ = self._log.ledger.round
        if self._log.ledger.finished or (self._every and round_ and round_ % self._every == 0):
            self._due.set()

    @property
    def is_over(self) -> bool:
        """Whether the last round is committed and evaluated."""
        return self._log.ledger.finished and self.round == self._log.ledger.round

    async def next(self) -> str:
        """Wait until something is due, and evaluate it; return what to tell the person."""
        await self._due.wait()
        self._due.clear()
        try:
            evaluation = await asyncio.to_thread(self._state_keeper.evaluate)
        except UserError as error:  # samples are missing or damaged: only figures are lost by it, the log needs none
            self.quality, self.round = None, self._log.ledger.round
            return f"not evaluated round={self.round}: {error}"
        self.quality, self.round = Quality.of(evaluation.quality), evaluation.round
        return f"evaluated round={self.round} {self.quality.words()}"
