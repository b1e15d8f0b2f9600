"""The operator's own copy of the run: checks where a proposal leads before the log takes it, keeps snapshots, evaluates subnets.

It has no weight in the mean: it gets the mean by digest, like a member that missed the end, and computes the next state itself.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from automl.data.digits import load as load_dataset
from automl.evaluation import AccuracyReport, accuracy_report
from automl.snapshot import load_snapshot, save_snapshot
from automl.update import State, next_state, state_digest
from protocol.errors import EncodingError, LedgerError, StorageError, UserError
from protocol.ledger import Ledger
from protocol.records import Manifest, Statement
from swarm.disk import make_directory
from swarm.mean import Mean

logger = logging.getLogger("manta.follower")

NUM_RANDOM = 8  # random subnets in a report


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracies on held-out data after a round."""

    round: int
    accuracy: AccuracyReport


class Follower:
    """The state after the log's last round, and what is derived from it."""

    def __init__(self, directory: Path, manifest: Manifest, run: bytes, *, keep_snapshots: int) -> None:
        """Keep snapshots in ``directory``; ``restore`` or ``adopt`` gives the first state."""
        self._directory = directory
        self._manifest = manifest
        self._run = run
        self._keep = keep_snapshots
        self.state: State | None = None
        self.num_weights = 0

    def restore(self, ledger: Ledger) -> None:
        """Take up the state of the log's last round from its snapshot.

        Raises:
            StorageError: the snapshot is gone or is not that state.
        """
        path = self._path(ledger.round)
        if not path.exists():
            raise StorageError(f"{path} is missing, the state of the log's last round; restore it from a backup")
        try:
            state, _ = load_snapshot(path)
        except UserError as error:  # nobody chose this file
            raise StorageError(f"{error}; restore it from a backup") from error
        if state_digest(state) != ledger.state:
            raise StorageError(f"{path} is not the state that the log names; restore it from a backup")
        self._assign(state)

    def save(self, state: State) -> None:
        """Write the snapshot of a state, durable when this returns; to be done before its round is committed."""
        metadata = {
            "run": self._run.hex(),
            "round": str(state.round),
            "state": state_digest(state).hex(),
            "supernet": self._manifest.supernet,
        }
        make_directory(self._directory)
        save_snapshot(self._path(state.round), state, metadata)

    def adopt(self, state: State) -> None:
        """Make ``state``, which the log has, the current one; remove snapshots that are too old."""
        self._assign(state)
        for path in sorted(self._directory.glob("round-*.safetensors"))[: -self._keep]:
            try:
                path.unlink()
            except OSError as error:  # the round is committed all the same
                logger.warning("old snapshot not removed path=%s reason=%s", path, error.strerror)

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
        state = next_state(self.state, mean.values, self._manifest.optimizer, self._manifest.num_rounds)
        if not all(bool(vector.isfinite().all()) for vector in (state.parameters, *state.moments)):
            raise EncodingError("the mean leads to a state that is not finite")
        if state_digest(state) != statement.state:
            raise LedgerError("the mean does not lead to the state that the statement names")
        return state

    def evaluate(self) -> Evaluation:
        """Return the accuracies of the largest, the smallest and some random subnets of the current state (seconds of work)."""
        state = self.state
        assert state is not None
        dataset = load_dataset(self._manifest.dataset)
        report = accuracy_report(state.parameters, self._manifest.supernet, dataset, num_random=NUM_RANDOM, seed=self._manifest.seed)
        return Evaluation(state.round, report)

    def _assign(self, state: State) -> None:
        self.state = state
        self.num_weights = state.parameters.numel()

    def _path(self, round_: int) -> Path:
        return self._directory / f"round-{round_:08d}.safetensors"
