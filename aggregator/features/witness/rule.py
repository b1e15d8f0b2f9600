"""The rule of a witness (C2SP tlog-witness): it cosigns a tree head of a log only if that goes on from the last one that it cosigned.

So it never signs two trees of one size. What it is about to sign is on the disk before anybody has the signature: killed at any moment it
remembers as much as it gave, or more.

DIR/head   the signed note of the last tree head that it cosigned, or was about to
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from manta_swarm.protocol.cosignatures import Cosignature, cosign
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, RemoteFault
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import EMPTY_ROOT, verify_consistency
from manta_swarm.protocol.notes import MAX_NOTE_BYTES, TreeHead, split_note
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime.atomic_file import AtomicFile
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.disk import write_durably

HEAD = "head"
PROOFS = "proofs"


class NotCosigned(RemoteFault):
    """A tree head that this witness does not sign."""


class OtherLog(NotCosigned):
    """The tree head belongs to a log that this witness does not know."""


class OtherSize(NotCosigned):
    """The proof that came with it does not begin where this witness stands."""


class OtherTree(NotCosigned):
    """The tree head has the size of the last cosigned head, but another tree: the log has two histories."""


class WitnessMemory:
    """One witness's memory of one log. Any thread may use it; it blocks for as long as the disk takes."""

    def __init__(self, directory: Path, witness: Identity, signed: SignedManifest, clock: Clock = SYSTEM_CLOCK) -> None:
        """Remember what was cosigned before in ``directory``, which nobody else uses.

        Raises:
            StorageError: that cannot be read, or is damaged: this witness must not sign, and a new one needs a new directory and key.
        """
        self.signed = signed
        self._directory = directory
        self._file = AtomicFile(directory / HEAD, MAX_NOTE_BYTES, "this witness may not sign any more; begin a new one in another --dir")
        self._witness = witness
        self._operators = Operators.of_signed(signed)
        self._clock = clock
        self.origin = self._operators.name
        self._mutex = Lock()
        self._held: tuple[str, TreeHead] | None = self._kept()

    @property
    def head(self) -> TreeHead:
        """The last head that this witness cosigned; that of an empty log before there was one."""
        return TreeHead(self.origin, 0, EMPTY_ROOT) if self._held is None else self._held[1]

    def cosign(self, note: str, old_size: int, proof: Sequence[bytes]) -> Cosignature:
        """Return the cosignature of the tree head in ``note``, which is remembered from then on.

        Args:
            note: signed by enough of the run's operators.
            old_size: of the head from which the proof leads to that one.
            proof: of consistency.

        Raises:
            EncodingError: it is no note of a tree head, or of fewer entries than ``old_size``.
            OtherLog: the head is of another log.
            SignatureError: too few of them signed it.
            OtherSize: ``old_size`` is not that of ``head``.
            OtherTree: it is as large as ``head``, and another; both are kept as a proof.
            ProofError: it does not go on from ``head``, or the proof does not show it.
            StorageError: it could not be remembered.
        """
        text, _ = split_note(note)
        if text.partition("\n")[0] != self.origin:
            raise OtherLog(f"this witness knows {self.origin} only")
        head = self._operators.open(note)
        if old_size > head.size:
            raise EncodingError(f"no proof leads from {old_size} entries to {head.size}")
        with self._mutex:
            held = self.head
            forked = self._keep_both(note) if head.size == held.size and head.root != held.root else None
            if old_size != held.size:
                raise OtherSize(f"the last head cosigned has {held.size} entries, not {old_size}")
            if forked is not None:
                raise OtherTree(f"another tree of {head.size} entries was cosigned before; the proof is in {forked}")
            verify_consistency(held.size, head.size, proof, held.root, head.root)
            if head.size > held.size:
                self._remember(note, head)
            return cosign(text, self._clock.unix_ms() // 1000, self._witness)

    def _remember(self, note: str, head: TreeHead) -> None:
        self._file.write(note.encode())  # durable from this line: only then is it signed
        self._held = note, head

    def _keep_both(self, note: str) -> Path:
        assert self._held is not None  # an empty log has one root
        path = self._directory / PROOFS / f"log-{self.head.size}-{self.head.size}.proof"
        write_durably(path, pack(Histories(self.signed, (self._held[0], note))))
        return path

    def _kept(self) -> tuple[str, TreeHead] | None:
        if (data := self._file.read()) is None:
            return None
        try:
            note = data.decode()
            head = self._operators.open(note)
        except (UnicodeDecodeError, RemoteFault) as error:
            raise self._file.damaged(str(error)) from error
        return note, head
