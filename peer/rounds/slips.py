"""The pay slips of one run on the disk: a file a round, whole or absent, under a budget; read by others while the peer writes.

DIR/manifest      the run's signed manifest: prices, pool and the operator's key, without which a slip proves nothing
DIR/<round>       a slip (``protocol.slips``), by the round that counted the work, 8 digits or more

Where there is no room the claims of the oldest rounds go first: what is left proves that the work counted, and no longer what it earned.
Then whole slips go, the oldest first.
"""

from dataclasses import replace
from pathlib import Path

from protocol.encoding import pack
from protocol.errors import EncodingError, StorageError
from protocol.footprint import MAX_SLIPS_BYTES
from protocol.ledger import KEPT_TABLES
from protocol.manifest import SignedManifest
from protocol.slips import MAX_SLIP_BYTES, Slip, read_slip, slip_bytes
from runtime.disk import disk_errors, make_directory, write_durably

MANIFEST = "manifest"
_ROUND = "{:08d}"


class SlipFolder:
    """The slips in one folder. Its methods block, each for a small file or two."""

    def __init__(self, directory: Path, max_bytes: int = MAX_SLIPS_BYTES) -> None:
        """Use ``directory``, which is made when it is first needed.

        Raises:
            StorageError: it cannot be read.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        with disk_errors(directory):
            self._sizes = {round_: (directory / _ROUND.format(round_)).stat().st_size for round_ in rounds_in(directory)}
        self._stripped = 0  # in no slip before this round are there claims

    def begin(self, signed: SignedManifest) -> None:
        """Keep the run's manifest, also in place of a damaged one; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        path, data = self._directory / MANIFEST, pack(signed)
        with disk_errors(path):
            is_there = path.exists() and path.read_bytes() == data
        if not is_there:
            make_directory(self._directory)
            write_durably(path, data)

    def keep(self, round_: int, slip: Slip) -> None:
        """Keep the slip of a round, in the place of one that has less; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        self._write(round_, slip)
        while sum(self._sizes.values()) > self._max_bytes and len(self._sizes) > 1:
            self._make_room()

    def unpaid(self) -> dict[int, Slip]:
        """Return those of the newest slips, as far as they are whole, of which it is not known what their round paid."""
        found = {}
        for round_ in sorted(self._sizes)[-KEPT_TABLES:]:
            try:
                slip = load_slip(self._directory, round_)
            except EncodingError:
                continue  # whoever looks at the slips is told
            if not slip.paid:
                found[round_] = slip
        return found

    def _write(self, round_: int, slip: Slip) -> None:
        data = slip_bytes(slip)
        write_durably(self._directory / _ROUND.format(round_), data)
        self._sizes[round_] = len(data)

    def _make_room(self) -> None:
        """Let the oldest claims go, or, where there are none, the oldest slip."""
        for round_ in sorted(each for each in self._sizes if each >= self._stripped)[:-1]:
            self._stripped = round_ + 1
            try:
                slip = load_slip(self._directory, round_)
            except EncodingError:
                continue  # damaged: it goes with the others of its age
            if slip.claims:
                self._write(round_, replace(slip, claims=()))
                return
        oldest = min(self._sizes)
        with disk_errors(self._directory):
            (self._directory / _ROUND.format(oldest)).unlink(missing_ok=True)
        del self._sizes[oldest]


def rounds_in(directory: Path) -> list[int]:
    """Return the rounds of which a folder has slips, ascending; none where there is no folder.

    Raises:
        StorageError: it cannot be read.
    """
    with disk_errors(directory):
        names = [path.name for path in directory.iterdir()] if directory.exists() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and name == _ROUND.format(int(name)))


def load_slip(directory: Path, round_: int) -> Slip:
    """Return the slip of a round; nothing of it is proven yet.

    Raises:
        EncodingError: it is damaged.
        StorageError: it cannot be read.
    """
    path = directory / _ROUND.format(round_)
    with disk_errors(path), path.open("rb") as file:
        return read_slip(file.read(MAX_SLIP_BYTES + 1))


def load_manifest(directory: Path) -> SignedManifest:
    """Return the manifest of the slips in a folder; its signature is not checked yet.

    Raises:
        StorageError: it is not there, or cannot be read.
        OtherVersion, EncodingError: it is of another version, or none.
    """
    path = directory / MANIFEST
    try:
        return SignedManifest.read(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; without it nothing of these rounds can be checked") from error
