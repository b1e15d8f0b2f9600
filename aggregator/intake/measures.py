"""What peers with private data say of the model on their own held-out images: taken, kept, summed up. Nobody can check it.

The newest word of each key that is in the log is kept, ``MAX_KEPT`` at most; on the disk too, in a file that nothing depends on.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.status import OwnQuality
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import LedgerError, RemoteFault, StorageError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.private import MAX_SIGNED_BYTES, AccuracySpread, Measure
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.atomic_file import AtomicFile

MAX_KEPT = 8192
_MAX_BYTES = MAX_KEPT * (MAX_SIGNED_BYTES + 8)

logger = logging.getLogger("manta.aggregator")


@dataclass(frozen=True, slots=True)
class _File:
    measures: tuple[Signed[Measure], ...]


class Measures:
    """The newest measure of each peer."""

    def __init__(self, path: Path) -> None:
        """Take up what the file has; one that is damaged is passed over, for peers measure again."""
        self._file = AtomicFile(path, _MAX_BYTES, "the peers measure again", is_synced=False)
        self._kept: dict[bytes, tuple[Signed[Measure], Measure]] = {}
        self._sum: OwnQuality | None = None  # None: not made since a peer said something new
        try:
            for signed in (self._file.load(_File) or _File(())).measures:
                measure = signed.open()
                self._kept[measure.key] = (signed, measure)
        except (StorageError, RemoteFault) as error:
            logger.warning("measures not read reason=%s", error)

    def take(self, caller: PublicKey, data: bytes, ledger: Ledger) -> None:
        """Keep the measure in ``data``, which ``caller`` sent, in place of that peer's last one.

        Raises:
            EncodingError, SignatureError: it is no measure, or not signed.
            LedgerError: it is not the caller's, of another run or of a state that is not committed, or its key has earned nothing here.
        """
        signed = unpack(Signed[Measure], data, max_bytes=MAX_SIGNED_BYTES)
        measure = signed.open()
        if (measure.run, measure.key) != (ledger.run, caller):
            raise LedgerError("a measure of another run, or in another's name")
        if not ledger.manifest.is_private:
            raise LedgerError("nobody has data of its own in this run")
        if measure.round > ledger.round:
            raise LedgerError("a measure of a state that is not committed")
        if not ledger.has_earned(measure.key):
            raise LedgerError("a measure by who has earned nothing")
        before = self._kept.get(measure.key)
        if before is not None and before[1].round > measure.round:
            return
        if before is None and len(self._kept) >= MAX_KEPT:
            raise LedgerError("too many have measured")
        self._kept[measure.key] = (signed, measure)
        self._sum = None

    def save(self) -> None:
        """Write the file. A disk that refuses it stops nothing here: where it matters, the log's own writes fail."""
        try:
            self._file.save(_File(tuple(signed for signed, _ in self._kept.values())))
        except StorageError as error:
            logger.error("measures not written reason=%s", error)

    def summed_up(self) -> OwnQuality | None:
        """Return what the measures come to; None: nobody has measured."""
        if self._sum is None and self._kept:
            self._sum = _summed_up([measure for _, measure in self._kept.values()])
        return self._sum


def _summed_up(measures: Sequence[Measure]) -> OwnQuality:
    return OwnQuality(
        peers=len(measures),
        samples=sum(each.samples for each in measures),
        first_round=min(each.round for each in measures),
        last_round=max(each.round for each in measures),
        largest=AccuracySpread.of([each.largest / each.samples for each in measures]),
        smallest=AccuracySpread.of([each.smallest / each.samples for each in measures]),
    )
