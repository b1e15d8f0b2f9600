"""An aggregator's snapshots: the newest states, the teacher's for as long as the run lives, and what the log said when each was committed.

DIR/round-00000040.safetensors   a state (``automl.training.snapshot``); a missing one is computed again from an older one and the bodies
DIR/round-00000040.json          size, root and signed tree head of the log that has the round, written after the commit
DIR/round-00000040.statistics    of ``manta-search``, where somebody exported or calibrated right here; it goes with its state
"""

import json
import logging
from pathlib import Path

from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.snapshot import load_snapshot, save_snapshot
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.notes import TreeHead
from manta_swarm.runtime.disk import make_parent, write_durably
from manta_swarm.runtime.round_folder import RoundFolder

_SUFFIX = ".safetensors"

logger = logging.getLogger("manta.follower")


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
