"""The records of this peer's lots, where audits may want them: kept on the disk, given to the log, and handed to whoever asks.

They are on the disk before the claim is handed in, and are given to the log as soon as that has the contribution. What a log that was away
did not get it asks for by itself, also after a restart of this peer.
"""

import asyncio
import logging
from pathlib import Path

from protocol.encoding import pack
from protocol.errors import RemoteFault, StorageError, Weather
from protocol.evidence import GIVE, Records, pages
from protocol.footprint import MAX_RECORDS_BYTES, kept_rounds
from protocol.manifest import Manifest
from protocol.records import SignedClaim
from swarm import waits
from swarm.operator_line import OperatorLine
from swarm.records import RecordsFolder, serve_records
from swarm.round_folders import NoRoom
from swarm.rpc import Endpoint
from swarm.tasks import within

_TRIES = 8  # of the log, while it does not take them; then it has to ask

logger = logging.getLogger("manta.peer")


class OwnRecords:
    """One peer's."""

    def __init__(self, endpoint: Endpoint, line: OperatorLine, folder: RecordsFolder) -> None:
        """Keep them in ``folder``, and give them to the log over ``line``."""
        self._endpoint = endpoint
        self._line = line
        self._folder = folder
        self._waiting: dict[SignedClaim, int] = {}  # that were handed in, and how often the log was offered their records
        self._kept: list[SignedClaim] = []  # that were not handed in yet
        self._told = asyncio.Event()
        self._given = asyncio.Event()
        self._given.set()

    @classmethod
    def of(cls, endpoint: Endpoint, line: OperatorLine, manifest: Manifest, directory: Path) -> "OwnRecords | None":
        """Return those in ``directory``, kept for as long as audits of the run may ask for them; None: it has no audits."""
        if not manifest.trust.is_audited:
            return None
        folder = RecordsFolder(directory, kept_rounds=kept_rounds(manifest.trust), max_bytes=MAX_RECORDS_BYTES)
        return cls(endpoint, line, folder)

    @property
    def folder(self) -> RecordsFolder:
        """Where they are."""
        return self._folder

    def round_of(self, claim: bytes) -> int | None:
        """Return the round of one of this peer's claims; None: it is none, or too old."""
        return self._folder.round_of(claim)

    async def serve(self) -> None:
        """Hand records to whoever asks, from now on."""
        await serve_records(self._endpoint, self._folder)

    async def keep(self, claim: SignedClaim, records: Records) -> None:
        """Keep the records of a claim; they are on the disk when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        try:
            await asyncio.to_thread(self._keep, claim, records)
        except NoRoom as error:
            raise StorageError(
                f"no room for the records of one round's lots ({error}): give each round fewer, or the peer more room"
            ) from error
        self._kept.append(claim)

    def _keep(self, claim: SignedClaim, records: Records) -> None:
        for page in pages(claim, records):
            self._folder.keep(page)
        self._folder.prune(claim.open().round)

    def handed_in(self) -> None:
        """The log has what was kept last: its records are given to the log now."""
        self._waiting.update(dict.fromkeys(self._kept, 0))
        self._kept.clear()
        if self._waiting:
            self._given.clear()
            self._told.set()

    async def give(self) -> None:
        """Give the log what was handed in, until this is cancelled."""
        while True:
            self._told.clear()
            for claim in list(self._waiting):
                await self._give(claim)
            if not self._waiting:
                self._given.set()
                await self._told.wait()
            else:
                await within(self._told, waits.RECORDS_AGAIN_S)

    async def settle(self) -> None:
        """Wait until the log has all, but not for long."""
        await within(self._given, waits.LAST_ROWS_S)

    async def _give(self, claim: SignedClaim) -> None:
        records = await asyncio.to_thread(self._folder.records, claim)
        self._waiting[claim] += 1
        try:
            for page in () if records is None else pages(claim, records):
                await self._line.call(GIVE, pack(page), timeout_s=waits.RECORDS_S)
        except (Weather, RemoteFault) as error:
            logger.info("records not given reason=%s", error)
            if self._waiting[claim] < _TRIES:
                return
        del self._waiting[claim]
