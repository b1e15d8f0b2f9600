"""Keeps on the disk what proves a peer's credit: a payout receipt for each round, and the newest word of the log.

DIR/manifest      the run's signed manifest: prices, pool and the operator's key, without which a payout receipt proves nothing
DIR/<round>       a payout receipt (``protocol.payout_receipts``), by the round that counted the work, 8 digits or more

Where there is no room the claims of the oldest rounds go first: what is left proves that the work counted, and no longer what it earned.
Then whole payout receipts go, the oldest first.
"""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from manta_swarm.network.log_client import CreditWord
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, StorageError
from manta_swarm.protocol.footprint import MAX_RECEIPTS_BYTES
from manta_swarm.protocol.ledger import KEPT_TABLES
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.payout_receipts import MAX_RECEIPT_BYTES, PayoutReceipt, payout_receipt_bytes, read_payout_receipt
from manta_swarm.runtime.atomic_file import AtomicFile, DamagedFile
from manta_swarm.runtime.disk import disk_errors, write_durably
from manta_swarm.runtime.round_folder import NoRoom, RoundFolder, round_path

MANIFEST = "manifest"

REMEMBERED = 64  # newest rounds that were computed: none is added twice


class PayoutReceiptFolder:
    """The payout receipts in one folder. Its methods block, each for a small file or two."""

    def __init__(self, directory: Path, max_bytes: int = MAX_RECEIPTS_BYTES) -> None:
        """Use ``directory``, which is made when it is first needed.

        Raises:
            StorageError: it cannot be read.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        self._folder = RoundFolder(directory, max_bytes=max_bytes)
        self._stripped = 0  # in no payout receipt before this round are there claims

    def begin(self, signed: SignedManifest) -> None:
        """Keep the run's manifest, also in place of a damaged one; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        file, data = AtomicFile(self._directory / MANIFEST, MAX_SIGNED_MANIFEST_BYTES), pack(signed)
        try:
            is_there = file.read() == data
        except DamagedFile:
            is_there = False
        if not is_there:
            file.write(data)

    def keep(self, round_: int, payout_receipt: PayoutReceipt) -> None:
        """Keep the payout receipt of a round, in the place of one that has less; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        self._write(round_, payout_receipt)
        *older, newest = self._folder.rounds()
        for old in older:
            if self._folder.num_bytes <= self._max_bytes:
                return
            if old >= self._stripped:
                self._strip(old)
        with contextlib.suppress(NoRoom):  # the newest stays, however large it is
            self._folder.make_room(newest, 0)

    def pending(self) -> dict[int, PayoutReceipt]:
        """Return those of the newest payout receipts, as far as they are whole, of which it is not known what their round paid."""
        found = {}
        for round_ in self._folder.rounds()[-KEPT_TABLES:]:
            try:
                payout_receipt = load_payout_receipt(self._directory, round_)
            except EncodingError:
                continue  # whoever looks at the payout receipts is told
            if not payout_receipt.paid:
                found[round_] = payout_receipt
        return found

    def _write(self, round_: int, payout_receipt: PayoutReceipt) -> None:
        path, data = self._folder.path(round_), payout_receipt_bytes(payout_receipt)
        before = path.stat().st_size if path.exists() else 0
        write_durably(path, data)
        self._folder.count(round_, len(data) - before)

    def _strip(self, round_: int) -> None:
        """Let the claims of a payout receipt go."""
        self._stripped = round_ + 1
        try:
            payout_receipt = load_payout_receipt(self._directory, round_)
        except EncodingError:
            return  # damaged: it goes with the others of its age
        if payout_receipt.claims:
            self._write(round_, replace(payout_receipt, claims=()))


def load_payout_receipt(directory: Path, round_: int) -> PayoutReceipt:
    """Return the payout receipt of a round; nothing of it is proven yet.

    Raises:
        EncodingError: it is damaged.
        StorageError: it cannot be read.
    """
    path = round_path(directory, round_)
    with disk_errors(path), path.open("rb") as file:
        return read_payout_receipt(file.read(MAX_RECEIPT_BYTES + 1))


def load_manifest(directory: Path) -> SignedManifest:
    """Return the manifest of the payout receipts in a folder; its signature is not checked yet.

    Raises:
        StorageError: it is not there, or cannot be read.
        OtherVersion, EncodingError: it is of another version, or none.
    """
    path = directory / MANIFEST
    try:
        return SignedManifest.read(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; without it nothing of these rounds can be checked") from error


@dataclass(frozen=True, slots=True)
class KeptCredit:
    """What a peer knows of its credit, as its file keeps it."""

    word: tuple[CreditWord, ...] = ()  # the log's newest, at most one; none: it said nothing yet
    checked: int = 0  # computed here: the sum over ...
    num_checked: int = 0  # ... so many rounds
    newest: tuple[int, ...] = ()  # of these rounds

    def __post_init__(self) -> None:
        if min(self.checked, self.num_checked) < 0 or len(self.newest) > REMEMBERED or len(self.word) > 1:
            raise ValueError("a credit that cannot be")

    def told(self, word: CreditWord) -> "KeptCredit":
        """Return it with what the log says, unless a newer word is there."""
        return self if self.word and word.round < self.word[0].round else replace(self, word=(word,))

    def computed(self, round_: int, earned: int) -> "KeptCredit":
        """Return it with what a round paid, computed here; once for each of the newest rounds."""
        if round_ in self.newest:
            return self
        newest = (*self.newest, round_)[-REMEMBERED:]
        return replace(self, checked=self.checked + earned, num_checked=self.num_checked + 1, newest=newest)
