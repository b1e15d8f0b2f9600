"""The operator's own copy of the run: checks where a proposal leads before the log takes it, keeps snapshots, evaluates subnets.

It has no weight in the mean: it gets the mean by digest, like a member that missed the end, and computes the next state itself.
"""

from dataclasses import dataclass
from pathlib import Path

from aggregator.snapshots import Snapshots
from automl.data.dataset import Dataset
from automl.evaluation import QualityReport, quality_report
from automl.schedule import Plan
from automl.update import State, next_state, state_digest
from protocol.errors import EncodingError, LedgerError
from protocol.ledger import Ledger
from protocol.notes import TreeHead
from protocol.records import Manifest, Statement
from swarm.mean import Mean

NUM_RANDOM = 8  # random subnets in a report


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good subnets are on held-out data after a round."""

    round: int
    quality: QualityReport


class Follower:
    """The state after the log's last round, and what is derived from it."""

    def __init__(self, directory: Path, manifest: Manifest, run: bytes, dataset: Dataset, *, keep_snapshots: int) -> None:
        """Keep snapshots in ``directory``; ``restore`` or ``adopt`` gives the first state."""
        self._manifest = manifest
        self._dataset = dataset
        self.plan = Plan.of(manifest)
        self._snapshots = Snapshots(directory, manifest, self.plan, run, keep=keep_snapshots)
        self.state: State | None = None
        self.num_weights = 0

    def restore(self, ledger: Ledger) -> None:
        """Take up the state of the log's last round from its snapshot.

        Raises:
            StorageError: the snapshot is gone or is not that state.
        """
        self.adopt(self._snapshots.load(ledger.round, ledger.state))

    def teacher(self, ledger: Ledger) -> State | None:
        """Return the state that the rounds to come learn from too, from its snapshot; None where there is none, or none yet.

        Raises:
            StorageError: the snapshot is gone or is not that state.
        """
        round_ = self.plan.teacher_round
        committed = None if round_ is None or ledger.finished else ledger.round_at(round_)
        return None if committed is None else self._snapshots.load(committed.statement.round, committed.statement.state)

    def save(self, state: State) -> None:
        """Write the snapshot of a state, durable when this returns; to be done before its round is committed."""
        self._snapshots.save(state)

    def adopt(self, state: State) -> None:
        """Make ``state``, which the log has, the current one."""
        self.state = state
        self.num_weights = state.parameters.numel()

    def certify(self, head: TreeHead, note: str) -> None:
        """Write down what the log said once it had the current state's round; remove snapshots that are too old.

        Raises:
            StorageError: the disk refuses.
        """
        assert self.state is not None
        self._snapshots.certify(self.state.round, head, note)
        self._snapshots.prune()

    def follow(self, statement: Statement, mean_data: bytes) -> State:
        """Return the state that a proposal leads to; nothing is changed.

        Raises:
            EncodingError: the mean is malformed.
            LedgerError: the mean or the next state does not have the statement's digest.
        """
        assert self.state is not None
        mean = Mean.parse(mean_data, self.num_weights, self._manifest.swarm_codec)
        if mean.digest != statement.mean:
            raise LedgerError("the mean does not have the statement's digest")
        state = next_state(self.state, mean.values, self.plan)
        if not all(bool(vector.isfinite().all()) for vector in (state.parameters, *state.moments)):
            raise EncodingError("the mean leads to a state that is not finite")
        if state_digest(state) != statement.state:
            raise LedgerError("the mean does not lead to the state that the statement names")
        return state

    def evaluate(self) -> Evaluation:
        """Return how good the largest, the smallest and some random subnets of the current state are (seconds of work, or more)."""
        state, manifest = self.state, self._manifest
        assert state is not None
        report = quality_report(state.parameters, manifest.supernet, self._dataset, num_random=NUM_RANDOM, seed=manifest.seed)
        return Evaluation(state.round, report)
