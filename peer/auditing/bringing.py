"""Brings what audits want of this peer's contributions to an operator, and tells what has to be kept no longer.

It dials out, so a peer behind a NAT brings as well as any other. What is wanted the log says; each vector is known by its digest, so
whoever of a contribution's keys is there first brings it, and an operator believes none of them.

DIR/open/<digest of the contribution>   a contribution that may be audited: what is kept for it survives a restart
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.auditing import (
    BRING,
    MAX_ASKED,
    MAX_WANTED_BYTES,
    PAGE_BYTES,
    WANTED,
    AskWanted,
    Fate,
    Page,
    Placed,
    Wanted,
)
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, RemoteFault, Weather
from protocol.fields import check_digest
from swarm import waits
from swarm.disk import disk_errors, make_directory, replace_file
from swarm.tasks import within

FOLDER = "open"
AGAIN_S = 30.0  # until it is asked again what is wanted, where no round is committed meanwhile
_MAX_FILE_BYTES = 512

logger = logging.getLogger("manta.audits")


class Line(Protocol):
    """Calls an operator (``swarm.operator_line.OperatorLine``)."""

    async def call(self, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        """Return an operator's answer."""


class Vectors(Protocol):
    """Has a peer's own vectors, by claim (``swarm.vectors.VectorsFolder``)."""

    def has(self, claim: bytes, digest: bytes) -> bool:
        """Return whether a vector is here."""

    def page(self, claim: bytes, digest: bytes, first: int) -> bytes | None:
        """Return a page of it."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A contribution that may be audited."""

    placed: Placed
    claim: bytes  # this peer's own in it: what its vectors are kept by

    def __post_init__(self) -> None:
        check_digest(self.claim, "claim")


class Bringing:
    """One peer's."""

    def __init__(
        self, line: Line, vectors: Vectors, directory: Path, *, round: Callable[[], int], kept_rounds: int, is_last_word: bool
    ) -> None:
        """Take up what an earlier life of this peer left.

        Args:
            line: to the operators.
            vectors: of this peer's claims.
            directory: of this peer's run.
            round: returns the newest committed one.
            kept_rounds: for which something may be asked for.
            is_last_word: what one operator says of a contribution holds: the run has no other.

        Raises:
            StorageError: the disk refuses.
        """
        self._line = line
        self._vectors = vectors
        self._folder = directory / FOLDER
        self._round = round
        self._kept_rounds = kept_rounds
        self._is_last_word = is_last_word
        self._changed = asyncio.Event()
        self._open = {one.placed.contribution: one for one in self._left()}
        self.brought_bytes = 0
        self.audited = 0  # contributions of which something was asked for

    @property
    def claims(self) -> frozenset[bytes]:
        """Own claims whose vectors have to be kept."""
        return frozenset(one.claim for one in self._open.values())

    async def listed(self, round_: int, contribution: bytes, claim: bytes) -> None:
        """A round has this contribution, and in it this own claim.

        Raises:
            StorageError: the disk refuses.
        """
        one = _Open(Placed(round_, contribution), claim)
        self._open[contribution] = one
        await asyncio.to_thread(self._keep, one)
        self._changed.set()

    def committed(self) -> None:
        """The log has a new round."""
        self._changed.set()

    async def keep(self) -> None:
        """Bring what is wanted until this is cancelled.

        Raises:
            StorageError: the disk refuses.
        """
        while True:
            self._changed.clear()
            await self.bring_all()
            await within(self._changed, AGAIN_S)

    async def bring_all(self) -> None:
        """Ask what is wanted of all contributions whose beacon is there, and bring it.

        Raises:
            StorageError: the disk refuses.
        """
        newest = self._round()
        for one in [one for one in self._open.values() if newest >= one.placed.round + self._kept_rounds]:
            await self._close(one)
        ready = sorted((one for one in self._open.values() if one.placed.round < newest), key=lambda one: one.placed.round)
        for first in range(0, len(ready), MAX_ASKED):
            await self._bring_some(ready[first : first + MAX_ASKED])

    async def _bring_some(self, some: list[_Open]) -> None:
        try:
            request = pack(AskWanted(tuple(one.placed for one in some)))
            answer = await self._line.call(WANTED, request, timeout_s=waits.CALL_S, large_answer=True)
            answers = unpack(Wanted, answer, max_bytes=MAX_WANTED_BYTES).answers
            if len(answers) != len(some):
                raise EncodingError("answers about other contributions than were asked about")
            for one, wanted in zip(some, answers, strict=True):
                if wanted.fate == Fate.NOTHING and self._is_last_word:
                    await self._close(one)
                for digest in wanted.vectors:
                    await self._bring(one, digest)
                self.audited += bool(wanted.vectors)
        except (Weather, RemoteFault) as error:  # it is asked again
            logger.info("not brought reason=%s", error)

    async def _bring(self, one: _Open, digest: bytes) -> None:
        """Bring a vector, if it is here; another of the contribution's keys may have it."""
        first = 0
        while self._vectors.has(one.claim, digest):
            data = await asyncio.to_thread(self._vectors.page, one.claim, digest, first)
            if not data:
                return
            page = Page(one.placed.contribution, digest, first, data)
            try:
                await self._line.call(BRING, pack(page), timeout_s=waits.BODY_S)
            except MantaError as error:
                logger.info("a vector is not taken now round=%d reason=%s", one.placed.round, error)
                return
            self.brought_bytes += len(data)
            first += len(data)
            if len(data) < PAGE_BYTES:
                return

    # What survives a restart.

    def _path(self, one: _Open) -> Path:
        return self._folder / one.placed.contribution.hex()

    def _keep(self, one: _Open) -> None:
        if not self._folder.exists():
            make_directory(self._folder)
        replace_file(self._path(one), pack(one))

    async def _close(self, one: _Open) -> None:
        self._open.pop(one.placed.contribution, None)
        await asyncio.to_thread(self._path(one).unlink, missing_ok=True)

    def _left(self) -> list[_Open]:
        found = []
        with disk_errors(self._folder):
            for path in self._folder.glob("[0-9a-f]*"):
                try:
                    found.append(unpack(_Open, path.read_bytes(), max_bytes=_MAX_FILE_BYTES))
                except EncodingError:
                    path.unlink(missing_ok=True)
        return found
