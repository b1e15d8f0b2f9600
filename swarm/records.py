"""Records of claims in a folder, for as long as audits may want them, under a budget; handed to whoever asks, and got from who has them.

DIR/<round, 8 digits>/<digest of the claim>-<first>   a page (``protocol.evidence``), by the round of its claim

A peer keeps those of its own claims, the log those of all that are in its tables.
"""

import contextlib
import threading
from pathlib import Path

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, RemoteFault
from protocol.evidence import (
    ASK,
    MAX_ASK_BYTES,
    MAX_PAGE_BYTES,
    PAGE_LOTS,
    AskRecords,
    Records,
    RecordsPage,
    check_page,
    num_pages,
    records_of,
)
from protocol.records import SignedClaim
from protocol.signing import PublicKey
from swarm import waits
from swarm.disk import make_directory, replace_file
from swarm.round_folders import RoundFolders
from swarm.rpc import Endpoint


class RecordsFolder:
    """The pages in one folder. For any number of threads; its methods block, each for a small file or a few."""

    def __init__(self, directory: Path, *, kept_rounds: int, max_bytes: int) -> None:
        """Use ``directory``, which is made when it is first needed; pages of the newest rounds stay, at most so many bytes of them."""
        self._lock = threading.Lock()
        self._folders = RoundFolders(directory, kept_rounds=kept_rounds, max_bytes=max_bytes)

    def keep(self, page: RecordsPage) -> None:
        """Keep a page; whether it is its claim's is for the caller to check. A power cut may lose it.

        Raises:
            NoRoom: there is no room, not even in the place of older ones.
            StorageError: the disk refuses.
        """
        claim, data = page.claim.open(), pack(page)
        path = self._path(claim.round, page.claim.digest, page.first)
        with self._lock:
            if path.exists():
                return
            self._folders.make_room(claim.round, len(data))
            if not path.parent.exists():
                make_directory(path.parent)
            replace_file(path, data)
            self._folders.count(claim.round, len(data))

    def page(self, round_: int, claim: bytes, first: int) -> RecordsPage | None:
        """Return a page; None: it is not here, or damaged."""
        try:
            data = self._path(round_, claim, first).read_bytes()
            page = unpack(RecordsPage, data, max_bytes=MAX_PAGE_BYTES)
        except (OSError, RemoteFault):
            return None
        return page if (page.claim.digest, page.first) == (claim, first) else None

    def records(self, signed: SignedClaim) -> Records | None:
        """Return all records of a claim; None: they are not all here, or not the claim's."""
        claim = signed.open()
        found = [self.page(claim.round, signed.digest, number * PAGE_LOTS) for number in range(num_pages(claim))]
        with contextlib.suppress(EncodingError):
            return None if None in found else records_of([page for page in found if page is not None], claim)
        return None

    def has(self, signed: SignedClaim) -> bool:
        """Return whether there are as many pages as the claim has."""
        claim = signed.open()
        return all(self._path(claim.round, signed.digest, number * PAGE_LOTS).exists() for number in range(num_pages(claim)))

    def find(self, claim: bytes, first: int) -> RecordsPage | None:
        """Return a page of a claim whose round is not known; None: it is not here."""
        return next((page for round_ in self._folders.rounds if (page := self.page(round_, claim, first)) is not None), None)

    def round_of(self, claim: bytes) -> int | None:
        """Return the round of a claim whose first page is here; None: it is not."""
        return next((round_ for round_ in self._folders.rounds if self._path(round_, claim, 0).exists()), None)

    def prune(self, newest: int) -> None:
        """Remove what is too old, ``newest`` being the last committed round.

        Raises:
            StorageError: the disk refuses.
        """
        with self._lock:
            self._folders.prune(newest)

    def _path(self, round_: int, claim: bytes, first: int) -> Path:
        return self._folders.path(round_) / f"{claim.hex()}-{first}"


async def serve_records(endpoint: Endpoint, folder: RecordsFolder) -> None:
    """Hand pages to whoever asks."""

    async def answer(_caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(AskRecords, request, max_bytes=MAX_ASK_BYTES)
        page = folder.find(ask.claim, ask.first)
        if page is None:
            raise EncodingError("no such records are here")
        return pack(page)

    await endpoint.serve(ASK, answer)


async def fetch_records(endpoint: Endpoint, key: PublicKey, signed: SignedClaim) -> list[RecordsPage]:
    """Return the pages of a claim's records, got from a node, all of them under the claim's roots.

    Raises:
        Unreachable: it does not answer.
        RemoteFault: it has not got them, or what it sends is something else.
    """
    claim, found = signed.open(), []
    for number in range(num_pages(claim)):
        request = pack(AskRecords(signed.digest, number * PAGE_LOTS))
        page = unpack(
            RecordsPage,
            await endpoint.call(key, ASK, request, timeout_s=waits.RECORDS_S, large_answer=True),
            max_bytes=MAX_PAGE_BYTES,
        )
        if page.claim != signed or page.first != number * PAGE_LOTS:
            raise EncodingError("records of another claim than was asked for")
        check_page(page, claim)
        found.append(page)
    return found
