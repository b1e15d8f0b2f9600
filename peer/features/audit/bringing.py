"""Brings what audits want of this peer's contributions to the operators, and tells what has to be kept no longer.

It dials out, so a peer behind a NAT brings as well as any other. What is wanted the log says; each vector is known by its digest, so
whoever of a contribution's keys is there first brings it, and an operator believes none of them. Everything is brought to the operator
that the peer talks to; where that says that nothing is wanted of a contribution, others are asked too, until a quorum says so.

DIR/open/<digest of the contribution>   a contribution that may be audited: what is kept for it survives a restart
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from manta_swarm.network import timeouts
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.auditing import (
    BRING,
    MAX_ASKED,
    MAX_WANTED_BYTES,
    PAGE_BYTES,
    WANTED,
    AskWanted,
    PlacedContribution,
    VectorPage,
    WantedAnswer,
    WantedFate,
    WantedOf,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, RemoteFault, StorageError, Unreachable, Weather
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.atomic_file import AtomicFile, DamagedFile
from manta_swarm.runtime.disk import disk_errors
from manta_swarm.runtime.tasks import wait_within

FOLDER = "open"
AGAIN_S = 30.0  # until it is asked again what is wanted, where no round is committed meanwhile
_TRIES = 3  # of a page, where the operator does not answer, or is busy
_MAX_FILE_BYTES = 512

logger = logging.getLogger("manta.audits")


class Vectors(Protocol):
    """Has the vectors of a peer's work, by what they are kept by (``network.vectors.VectorsFolder``)."""

    def has(self, kept_by: bytes, digest: bytes) -> bool:
        """Return whether a vector is here."""

    def page(self, kept_by: bytes, digest: bytes, first: int) -> bytes | None:
        """Return a page of a vector."""

    def keep_only(self, kept_by: bytes, digests: Collection[bytes]) -> None:
        """Remove all vectors that are kept by this but these."""


class Rounds(Protocol):
    """Where a peer's work in the run stands (``peer.context.Progress``)."""

    @property
    def newest_round(self) -> int:
        """The newest committed round."""

    def is_looking_for(self, base: bytes) -> bool:
        """Return whether another contribution may have come to be listed that stands on a base."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A contribution that may be audited."""

    placed: PlacedContribution
    base: bytes  # the commit that it stands on: what the vectors of this peer's work are kept by
    key: bytes  # whose claim it has: this peer's, unless its person took another key since

    def __post_init__(self) -> None:
        check_digest(self.base, "base")
        check_digest(self.key, "key")


class Bringing:
    """Brings to the operators what audits want of this peer's contributions."""

    def __init__(
        self,
        endpoint: Endpoint,
        line: OperatorLine,
        vectors: Vectors,
        directory: Path,
        progress: Rounds,
        *,
        kept_rounds: int,
    ) -> None:
        """Take up what an earlier life of this peer left.

        Args:
            endpoint: calls the operators.
            line: knows them, and which of them is talked to.
            vectors: of this peer's work; those of a base go with the contribution that stands on it.
            directory: of this peer's run.
            progress: knows the newest round, and what may come to be listed.
            kept_rounds: for which something may be asked for.

        Raises:
            StorageError: the disk refuses.
        """
        self._endpoint = endpoint
        self._line = line
        self._vectors = vectors
        self._folder = directory / FOLDER
        self._progress = progress
        self._kept_rounds = kept_rounds
        self._changed = asyncio.Event()
        self._open = {one.placed.contribution: one for one in self._left()}
        self._unwritten = set[bytes]()
        self._writing = asyncio.Lock()  # a file is written by one at a time
        self._nothing: dict[bytes, set[bytes]] = {}  # by contribution: the operators who say that nothing of it is wanted
        self._wanted = set[bytes]()  # contributions of which something was asked for
        self.brought_bytes = 0

    @property
    def bases(self) -> frozenset[bytes]:
        """Commits that contributions stand on which may be audited: what is kept by them is needed."""
        return frozenset(one.base for one in self._open.values())

    @property
    def audited(self) -> int:
        """Contributions of which something was asked for, in this life."""
        return len(self._wanted)

    @property
    def asked_by(self) -> int:
        """The round whose commit says of all these contributions whether they are drawn."""
        return max((one.placed.round + 1 for one in self._open.values()), default=0)

    def found(self, round_: int, contribution: bytes, base: bytes) -> None:
        """A round has, or by the log's word will have, this contribution, which has a claim of this peer and stands on ``base``."""
        if contribution not in self._open:
            self._open[contribution] = _Open(PlacedContribution(round_, contribution), base, self._endpoint.key)
            self._unwritten.add(contribution)
            self._changed.set()

    async def listed(self, round_: int, contribution: bytes, base: bytes) -> None:
        """As ``found``, and it is on the disk when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        self.found(round_, contribution, base)
        await self._write()

    def committed(self) -> None:
        """The log has a new round."""
        self._changed.set()

    async def keep(self) -> None:
        """Bring what is wanted until this is cancelled."""
        while True:
            await self.bring_all()
            await self.pause()

    async def pause(self) -> None:
        """Return once there may be something else to bring."""
        await wait_within(self._changed, AGAIN_S)
        self._changed.clear()

    async def bring_all(self) -> bool:
        """Ask what is wanted of all contributions whose beacon is there, and bring it; return whether all of it could be done."""
        is_done, newest = True, self._progress.newest_round
        try:
            await self._write()
            for one in [one for one in self._open.values() if newest >= one.placed.round + self._kept_rounds]:
                await self._close(one)
        except StorageError as error:  # it is tried again
            logger.error("what audits may ask for is not written down reason=%s", error)
        ready = sorted((one for one in self._open.values() if one.placed.round < newest), key=lambda one: one.placed.round)
        for first in range(0, len(ready), MAX_ASKED):
            try:
                is_done &= await self._bring_some(ready[first : first + MAX_ASKED])
            except (MantaError, OSError) as error:  # it is asked again
                logger.info("not brought reason=%s", error)
                is_done = False
        return is_done

    # One question.

    async def _bring_some(self, some: Sequence[_Open]) -> bool:
        """Ask the operator that is talked to; of what it wants nothing, the others, until so many say so that it holds.

        Raises:
            MantaError: none answers, or the disk refuses.
        """
        operator, answers = await self._line.ask(lambda key: self._asked(key, some))
        is_done = await self._serve(operator, some, answers)
        for other in self._line.in_turn:
            left = [
                one for one in some if len(self._nothing.get(one.placed.contribution, ())) > 0 and one.placed.contribution in self._open
            ]
            left = [one for one in left if other not in self._nothing[one.placed.contribution]]
            if other == operator or not left:
                continue
            try:
                _, answers = await self._asked(other, left)
            except (Weather, RemoteFault) as error:
                logger.info("another operator does not say what is wanted reason=%s", error)
                continue
            is_done &= await self._serve(other, left, answers)
        return is_done

    async def _asked(self, operator: PublicKey, some: Sequence[_Open]) -> tuple[PublicKey, tuple[WantedOf, ...]]:
        request = pack(AskWanted(tuple(one.placed for one in some)))
        answer = await self._endpoint.call(operator, WANTED, request, timeout_s=timeouts.CALL_S, large_answer=True)
        answers = unpack(WantedAnswer, answer, max_bytes=MAX_WANTED_BYTES).answers
        if len(answers) != len(some):
            raise EncodingError("answers about other contributions than were asked about")
        return operator, answers

    async def _serve(self, operator: PublicKey, some: Sequence[_Open], answers: Sequence[WantedOf]) -> bool:
        """Do what an operator said; return whether it knew all of these contributions' fates, and took what it wants."""
        is_done = True
        for one, wanted in zip(some, answers, strict=True):
            if wanted.fate == WantedFate.NOTHING:
                said = self._nothing.setdefault(one.placed.contribution, set())
                said.add(operator)
                if len(said) >= self._line.operators.quorum and not self._progress.is_looking_for(one.base):
                    await self._close(one)
            if wanted.vectors:
                self._wanted.add(one.placed.contribution)
            for digest in wanted.vectors:
                is_done &= await self._bring(operator, one, digest)
            is_done &= wanted.fate != WantedFate.LATER
        return is_done

    async def _bring(self, operator: PublicKey, one: _Open, digest: bytes) -> bool:
        """Bring a vector, if it is here: another of the contribution's keys may have it; False: the operator may take it in a moment."""
        first = 0
        while self._vectors.has(one.base, digest):
            data = await asyncio.to_thread(self._vectors.page, one.base, digest, first)
            if not data:
                break
            try:
                await self._page(operator, VectorPage(one.placed.contribution, digest, first, data))
            except MantaError as error:
                logger.info("a vector is not taken now round=%d reason=%s", one.placed.round, error)
                return isinstance(error, RemoteFault)  # it said no, and would say it again
            self.brought_bytes += len(data)
            first += len(data)
            if len(data) < PAGE_BYTES:
                break
        return True

    async def _page(self, operator: PublicKey, page: VectorPage) -> None:
        for left in reversed(range(_TRIES)):
            try:
                with self._line.uploading():
                    await self._endpoint.call(operator, BRING, pack(page), timeout_s=timeouts.BODY_S)
                return
            except Unreachable:
                if not left:
                    raise
                await asyncio.sleep(timeouts.LOG_AGAIN_S[0])

    # What survives a restart.

    def _file(self, contribution: bytes) -> AtomicFile:
        return AtomicFile(self._folder / contribution.hex(), _MAX_FILE_BYTES)

    async def _write(self) -> None:
        async with self._writing:
            for contribution in list(self._unwritten):
                if (one := self._open.get(contribution)) is not None:
                    await asyncio.to_thread(self._file(contribution).save, one)
                self._unwritten.discard(contribution)

    async def _close(self, one: _Open) -> None:
        """Drop what is kept for a contribution of which nothing is wanted, or not any more."""
        contribution = one.placed.contribution
        self._open.pop(contribution, None)
        self._unwritten.discard(contribution)
        self._nothing.pop(contribution, None)
        await asyncio.to_thread(self._file(contribution).remove)
        if one.base not in self.bases:
            await asyncio.to_thread(self._vectors.keep_only, one.base, ())

    def _left(self) -> list[_Open]:
        found = []
        with disk_errors(self._folder):
            paths = list(self._folder.glob("[0-9a-f]*"))
        for path in paths:
            file = AtomicFile(path, _MAX_FILE_BYTES)
            try:
                one = file.load(_Open)
            except DamagedFile:
                one = None
            if one is not None and one.key == self._endpoint.key:
                found.append(one)
            else:
                file.remove()
        return found
