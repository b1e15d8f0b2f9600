"""What claims' keys have to show before anything can be found of a claim: its records, and the vectors that a question needs.

Each is asked of the claim's key, then of its founder, then of mates that had the same vector, once a round. Who says in three rounds that
it has not got them, or hands out others, and who does not answer for nearly as long as it has to keep them, withholds them; what that
costs one that has left says the log (``protocol.standing``). What was got stays for others who ask.
"""

import asyncio
import logging
from dataclasses import dataclass

from aggregator.audits.doubts import OpenClaim
from protocol.audits import SUM
from protocol.errors import RemoteFault, Weather
from protocol.exchange import codec_named
from protocol.manifest import Manifest
from protocol.records import SignedClaim
from protocol.signing import PublicKey
from protocol.trust import Question
from protocol.vectors import step_asked
from protocol.wanted import Asked, wanted
from swarm.records import RecordsFolder, fetch_records
from swarm.round_folders import NoRoom
from swarm.rpc import Endpoint
from swarm.vectors import VectorsFolder, fetch_vector

REFUSALS = 3  # rounds in which a key says that it has not got what it has to show
_MATES = 3  # that are asked for a vector which its own key does not hand out

Want = tuple[SignedClaim, bytes]  # a vector by its digest, and the claim that names it

logger = logging.getLogger("manta.audits")


@dataclass(frozen=True, slots=True)
class Lost:
    """What has to be said of a claim of which nothing more can be found."""

    withheld: Question | None  # what is not to be found for want of what its key has to show; None: that is nobody's fault


class Shown:
    """What is on the disk of one log, and what is asked for."""

    def __init__(self, endpoint: Endpoint, manifest: Manifest, records: RecordsFolder, vectors: VectorsFolder, num_weights: int) -> None:
        """Ask over ``endpoint``; keep what comes in these folders. A vector has ``num_weights`` values."""
        self._endpoint = endpoint
        self._is_sparse = codec_named(manifest.exchange.codec).is_sparse
        self._is_stepped = manifest.exchange.local_steps > 1
        self._trust = manifest.trust
        self.records = records
        self.vectors = vectors
        self._num_weights = num_weights

    @property
    def is_by_vectors(self) -> bool:
        """Whether it takes a claim's vectors to find whether its lots lead to what it gave; else the records of lots say so first."""
        return self._is_sparse or self._is_stepped

    def step_of(self, one: OpenClaim) -> int:
        """Return the step of a claim whose gradient is looked at."""
        return step_asked(one.beacon, one.claim.digest, len(one.opened.steps))

    def is_ready(self, one: OpenClaim, question: Question) -> bool:
        """Return whether all is here that a question needs; reads files."""
        if not self.records.has(one.claim):
            return False
        if question.check == SUM and not self.is_by_vectors and not one.is_deep:
            return all(self.records.has(each) for each, _ in one.every)
        return not self._lacking(one, question)

    def lacks(self, one: OpenClaim) -> bool:
        """Return whether something has to be asked of a claim's key; reads files."""
        return not self.records.has(one.claim) or bool(self._wants(one))

    def prune(self, newest: int) -> None:
        """Remove what is too old.

        Raises:
            StorageError: the disk refuses.
        """
        self.records.prune(newest)
        self.vectors.prune(newest)

    async def get(self, one: OpenClaim, round_: int, *, is_accused: bool) -> Lost | None:
        """Ask for what lacks of a claim; return what is to be said of it, if it is not waited for any longer after the commit ``round_``.

        Whose claim ``is_accused`` has more time: so have findings on it.

        Raises:
            StorageError: the disk refuses.
        """
        found = await self._get_records(one)
        if found and (wants := await asyncio.to_thread(self._wants, one)):
            found = await self._get_vectors(one, [want for each in wants.values() for want in each])
        last = self._trust.shown_rounds if is_accused else self._trust.kept_rounds
        is_late = round_ - one.round >= last - 1  # what is found has to be in the log in time
        if found or not (one.refusals >= REFUSALS or is_late):
            return None
        return Lost(None if one.has_no_room else await asyncio.to_thread(self._unanswered, one))

    def _unanswered(self, one: OpenClaim) -> Question | None:
        """Return the question that cannot be answered; of records alone, none that nobody was due to ask."""
        if not self.records.has(one.claim):
            return min((each for each in one.questions if each.check != SUM), default=None)
        return min(self._wants(one), default=None)

    async def _get_records(self, one: OpenClaim) -> bool:
        if await asyncio.to_thread(self.records.has, one.claim):
            return True
        for key in dict.fromkeys((one.opened.key, one.opened.founder)):
            try:
                for page in await fetch_records(self._endpoint, PublicKey(key), one.claim):
                    await asyncio.to_thread(self.records.keep, page)
            except NoRoom as error:
                one.has_no_room = True
                logger.info("no records round=%d reason=%s", one.round, error)
            except Weather as error:
                logger.info("no records round=%d reason=%s", one.round, error)
            except RemoteFault as error:
                logger.info("no records round=%d reason=%s", one.round, error)
                one.refusals += key == one.opened.key
            else:
                return True
        return False

    async def _get_vectors(self, one: OpenClaim, wants: list[Want]) -> bool:
        """Get what lacks, one after the other; False: something is not to be had now. A refusal counts once a round."""
        has_all, is_refused = True, False
        for _, digest in dict.fromkeys(wants):
            got, refused = await self._get_vector(one, digest)
            has_all, is_refused = has_all and got, is_refused or refused
            if one.has_no_room:
                break
        one.refusals += is_refused and not has_all
        return has_all

    async def _get_vector(self, one: OpenClaim, digest: bytes) -> tuple[bool, bool]:
        """Return whether a vector came, and whether the claim's own key said that it has not got it."""
        own, founder = one.opened.key, one.opened.founder
        mates = [(opened.key, signed) for signed, opened in one.every if opened.key != own]
        sources = [(own, one.claim), *([(founder, one.claim)] if founder != own else []), *mates[:_MATES]]
        is_refused = False
        for place, (key, signed) in enumerate(sources):
            try:
                await fetch_vector(self._endpoint, PublicKey(key), signed, digest, self._num_weights, self.vectors)
            except NoRoom as error:
                one.has_no_room = True
                logger.info("no vector round=%d reason=%s", one.round, error)
                break
            except Weather as error:
                logger.info("no vector round=%d reason=%s", one.round, error)
            except RemoteFault as error:
                logger.info("no vector round=%d reason=%s", one.round, error)
                is_refused = is_refused or place == 0
            else:
                one.has_no_room = False
                return True, is_refused
        return False, is_refused

    def _wants(self, one: OpenClaim) -> dict[Question, list[Want]]:
        """Return what lacks that a claim's own key has to show, by question; those that lack nothing are left out."""
        found = {}
        for question in one.questions:
            if lacking := [want for want in self._lacking(one, question) if want[0] == one.claim]:
                found[question] = lacking
        return found

    def _lacking(self, one: OpenClaim, question: Question) -> list[Want]:
        """Return the vectors that a question needs and that are not here, under whichever claim of the contribution."""
        asked = Asked(question.check, question.lot, self.step_of(one), one.is_deep)
        if asked not in one.needs:
            records = self.records.records(one.claim)
            if records is None:
                return []
            founder = one.header.contribution.open().founder
            one.needs[asked] = wanted(asked, one.claim, one.every, founder, records, is_sparse=self._is_sparse)
        return [want for want in one.needs[asked] if not any(self.vectors.has(each.digest, want[1]) for each, _ in one.every)]
