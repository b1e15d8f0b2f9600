"""Keeps what peers bring of audited contributions, and hands it to auditors: steps' means, residuals, and own vectors where a step fails.

DIR/brought/<round, 8 digits>/<digest of the contribution>/<digest of the vector>   float32, little-endian
DIR/brought/<round, 8 digits>/<digest of the contribution>.full                     there was no room for it: nobody is to blame

What is brought is believed by its digest, which the signed contribution names. Nothing of it goes while it may be needed: where the room
is full a contribution ends as not judged.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aggregator.rounds.refusals import NotTheirs, is_too_much, noted
from protocol.auditing import (
    BRING,
    MAX_ASK_BYTES,
    MAX_PAGE_BYTES,
    MAX_WANTED,
    PAGE_BYTES,
    WANTED,
    AskWanted,
    Fate,
    Page,
    Placed,
    Wanted,
    WantedOf,
    vectors_of,
)
from protocol.closing import NotTaken
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.records import Claim, Contribution, Header
from protocol.reputation import Audit, Reputation
from protocol.signing import PublicKey
from swarm.budget import Faults
from swarm.disk import replace_file
from swarm.rpc import Busy, Endpoint
from swarm.vectors import VectorPart, VectorsFolder

FOLDER = "brought"
MAX_COMING = 16  # vectors that come at the same time
QUIET_S = 60.0  # after which one that does not come any more makes room for another
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Audited:
    """A contribution that is audited."""

    audit: Audit
    header: Header
    contribution: Contribution
    claims: tuple[Claim, ...]


@dataclass(slots=True)
class _Coming:
    part: VectorPart
    next: int  # place of the byte that comes next
    heard_s: float


class Brought:
    """One log's."""

    def __init__(
        self,
        directory: Path,
        *,
        num_weights: int,
        max_bytes: int,
        kept_rounds: int,
        reputation: Callable[[], Reputation],
        header: Callable[[int, bytes], Header],
        faults: Faults,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep it in the run's ``directory``; ``serve`` answers from then on.

        Args:
            directory: the run's.
            num_weights: N, values of a vector.
            max_bytes: on the disk.
            kept_rounds: that anything is kept.
            reputation: returns what the log says of audits.
            header: returns a listed contribution with its claims, by its round and digest.
            faults: counts what is nobody's to bring.
            clock: gives seconds and does not go back.
        """
        self._directory = directory / FOLDER
        self._vector_bytes = _VALUE_BYTES * num_weights
        self._max_bytes = max_bytes
        self.folder = VectorsFolder(self._directory, kept_rounds=kept_rounds, max_bytes=2 * max_bytes)
        self._reputation = reputation
        self._header = header
        self._faults = faults
        self._clock = clock
        self._coming: dict[tuple[bytes, bytes], _Coming] = {}  # by contribution and vector
        self._failed: dict[bytes, set[int]] = {}  # by contribution: steps of which own vectors are needed
        self._opened: dict[bytes, Audited] = {}
        self.num_bytes = sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer from now on."""
        await endpoint.serve(WANTED, self._on_wanted)
        await endpoint.serve(BRING, self._on_bring)

    # What there is.

    def audited(self, contribution: bytes) -> Audited | None:
        """Return a contribution that is audited; None: it is not, or not any more."""
        audit = self._reputation().audits.get(contribution)
        if audit is None:
            self._opened.pop(contribution, None)
            self._failed.pop(contribution, None)
            return None
        if (found := self._opened.get(contribution)) is None or found.audit is not audit:
            header = self._header(audit.round, contribution)
            claims = tuple(signed.unchecked() for signed in header.claims)
            found = self._opened[contribution] = Audited(audit, header, header.contribution.unchecked(), claims)
        return found

    def lacking(self, audited: Audited) -> list[bytes]:
        """Return the digests of what is asked for of a contribution and is not here."""
        digest = audited.audit.work.contribution
        wanted = vectors_of(audited.contribution, audited.claims, tuple(sorted(self._failed.get(digest, ()))))
        return [vector for vector in wanted if not self.folder.has(digest, vector)]

    def lacks_room(self, contribution: bytes, round_: int) -> bool:
        """Return whether something of a contribution was refused here for want of room."""
        return self._full(round_, contribution).exists()

    def need(self, contribution: bytes, step: int) -> None:
        """Ask for the own vectors of a step, too."""
        self._failed.setdefault(contribution, set()).add(step)

    def prune(self, newest: int) -> None:
        """Remove what is too old, ``newest`` being the last committed round.

        Raises:
            StorageError: the disk refuses.
        """
        self.folder.prune(newest)
        self.num_bytes = sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())

    # What comes.

    async def _on_wanted(self, caller: PublicKey, request: bytes) -> bytes:
        with self._held_to_account(caller):
            asked = unpack(AskWanted, request, max_bytes=MAX_ASK_BYTES)
            answers = tuple([self._wanted(caller, each) for each in asked.contributions])
        return pack(Wanted(answers))

    def _wanted(self, caller: PublicKey, placed: Placed) -> WantedOf:
        if placed.round >= self._reputation().round:
            return WantedOf(int(Fate.LATER), ())
        audited = self.audited(placed.contribution)
        if audited is None:
            return WantedOf(int(Fate.NOTHING), ())
        self._check_theirs(caller, audited)
        lacking = self.lacking(audited)[:MAX_WANTED]
        return WantedOf(int(Fate.BRING if lacking else Fate.HELD), tuple(lacking))

    async def _on_bring(self, caller: PublicKey, request: bytes) -> bytes:
        with self._held_to_account(caller):
            page = unpack(Page, request, max_bytes=MAX_PAGE_BYTES)
            audited = self.audited(page.contribution)
            if audited is None:
                raise NotTaken("this contribution is not audited, or not any more")
            self._check_theirs(caller, audited)
            if page.vector not in self.lacking(audited):
                return b""  # another of its keys was faster
            if len(page.data) != min(PAGE_BYTES, self._vector_bytes - page.first):
                raise EncodingError("a page of a vector of another length")
            await self._take(audited, page)
        return b""

    async def _take(self, audited: Audited, page: Page) -> None:
        which = page.contribution, page.vector
        coming = self._coming.get(which)
        if page.first == 0:
            if coming is not None and self._clock() - coming.heard_s < QUIET_S:
                raise Busy("another of its keys brings it")
            self._drop(which)
            coming = self._coming[which] = await self._begin(audited, page)
        if coming is None or page.first != coming.next:
            raise NotTaken("a vector is brought from its beginning, page by page")
        coming.heard_s, coming.next = self._clock(), coming.next + len(page.data)
        try:
            await asyncio.to_thread(coming.part.write, page.data)
            if coming.next == self._vector_bytes:
                if coming.part.digest != page.vector:
                    raise EncodingError("another vector than the contribution names")
                await asyncio.to_thread(coming.part.finish)
                self.num_bytes += self._vector_bytes
        except BaseException:
            self._drop(which)
            raise
        if coming.next == self._vector_bytes:
            self._drop(which)

    async def _begin(self, audited: Audited, page: Page) -> _Coming:
        now_s = self._clock()
        for which, coming in list(self._coming.items()):
            if now_s - coming.heard_s >= QUIET_S:
                self._drop(which)
        if len(self._coming) >= MAX_COMING:
            raise Busy("others bring their vectors")
        if self.num_bytes + (len(self._coming) + 1) * self._vector_bytes > self._max_bytes:
            path = self._full(audited.audit.round, page.contribution)
            path.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(replace_file, path, b"")
            raise NotTaken("there is no room for it")
        part = await asyncio.to_thread(self.folder.begin, audited.audit.round, page.contribution, page.vector, self._vector_bytes)
        return _Coming(part, 0, now_s)

    def _drop(self, which: tuple[bytes, bytes]) -> None:
        if (coming := self._coming.pop(which, None)) is not None:
            coming.part.close()

    def _full(self, round_: int, contribution: bytes) -> Path:
        return self._directory / f"{round_:08d}" / f"{contribution.hex()}.full"

    def _check_theirs(self, caller: PublicKey, audited: Audited) -> None:
        if caller not in audited.audit.work.keys:
            raise NotTheirs("another's contribution")

    @contextlib.contextmanager
    def _held_to_account(self, caller: PublicKey) -> Iterator[None]:
        if is_too_much(self._faults, caller):
            raise NotTaken("too much that was wrong came from there lately")
        with noted(self._faults, caller):
            yield
