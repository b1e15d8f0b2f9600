"""What an operator may never forget, on its disk: what it promised, accepted and signed, and for whom it keeps contributions.

DIR/operators/memory   a packed ``protocol.ballots.OperatorMemory``, replaced as a whole
DIR/operators/kept     packed ``protocol.ballots.KeptUnderBallot`` of rounds that the log does not have; contributions are in DIR/bodies
DIR/operators/newcomer a packed ``protocol.operators.Newcomer``, until this operator takes part

Each file is replaced before the answer that it is about leaves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.protocol.ballots import MAX_KEPT, KeptUnderBallot, OperatorMemory
from manta_swarm.protocol.operators import Newcomer
from manta_swarm.runtime.atomic_file import AtomicFile

FOLDER = "operators"
MAX_BATCH_BYTES = 256 * 1024 * 1024  # of a round's entries: a thousand contributions have 67 MB at most
_REMEDY = "this operator may not go on with it; see docs/operators.md"


@dataclass(frozen=True, slots=True)
class _AllKept:
    kept: tuple[KeptUnderBallot, ...]

    def __post_init__(self) -> None:
        if len(self.kept) > MAX_KEPT:
            raise ValueError(f"more than {MAX_KEPT} contributions")


class Store:
    """Keeps on the disk what one operator may never forget. It blocks for as long as the disk takes; one thread at a time writes."""

    def __init__(self, directory: Path) -> None:
        """Remember what was written before in the run's ``directory``.

        Raises:
            StorageError: it cannot be read, or is damaged.
        """
        self._memory = AtomicFile(directory / FOLDER / "memory", MAX_BATCH_BYTES, _REMEDY)
        self._kept_file = AtomicFile(directory / FOLDER / "kept", MAX_KEPT * 256, _REMEDY)
        self._newcomer = AtomicFile(directory / FOLDER / "newcomer", 4096, _REMEDY)
        self.memory = self._memory.load(OperatorMemory) or OperatorMemory()
        self._kept = {one.contribution: one for one in (self._kept_file.load(_AllKept) or _AllKept(())).kept}
        self.newcomer = self._newcomer.load(Newcomer)

    @property
    def kept(self) -> tuple[KeptUnderBallot, ...]:
        """All that is kept."""
        return tuple(self._kept.values())

    def remember(self, memory: OperatorMemory) -> None:
        """Replace what is remembered; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        if memory == self.memory:
            return
        self._memory.save(memory)
        self.memory = memory

    def keep(self, kept: Iterable[KeptUnderBallot]) -> None:
        """Note what is kept, beside what was before; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        self._write({**self._kept, **{one.contribution: one for one in kept}})

    def forget(self, round_: int) -> None:
        """Forget what was kept for rounds up to this one, which the log has.

        Raises:
            StorageError: the disk refuses.
        """
        newer = {digest: one for digest, one in self._kept.items() if one.round > round_}
        if len(newer) < len(self._kept):
            self._write(newer)

    def come(self, newcomer: Newcomer) -> None:
        """Become a newcomer, who has heard this; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        self._newcomer.save(newcomer)
        self.newcomer = newcomer

    def take_part(self) -> None:
        """Be no newcomer any more; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        if self.newcomer is None:
            return
        self.remember(self.memory.listening_to(self.newcomer.promised))
        self._newcomer.remove()
        self.newcomer = None

    def _write(self, kept: dict[bytes, KeptUnderBallot]) -> None:
        self._kept_file.save(_AllKept(tuple(kept.values())))
        self._kept = kept
