"""Audits contributions of others: the work of a named auditor, and of a volunteer, in what the person's limits leave.

After each commit it asks the log what waits for it, gets what was brought, has a process of low priority compute it all again, and says
what came out: a named auditor by a verdict for the log, a volunteer by a finding for the named one. A named one leaves a contribution to
the volunteer that is drawn for it, for some rounds, and takes over its finding that all is good; but for a part of them, which nobody
else knows, and for each of a volunteer that was wrong before. What takes something away it has always computed, or asked for, itself.

What cannot be judged, by nobody's fault, is left: no verdict is said of it.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from peer.aside.aside import Aside, AsideLost
from peer.aside.messages import Kind
from peer.aside.turns import Turns
from peer.auditing.messages import MAX_ANSWER_BYTES, Ask, Found, Said
from peer.status import StatusBoard
from protocol.auditing import (
    DUTIES,
    FINDING,
    MAX_DUTIES_BYTES,
    NEED,
    PAGE_BYTES,
    VECTOR,
    VERDICT,
    AskDuties,
    AskVector,
    Duties,
    Duty,
    Finding,
    Need,
    SignedFinding,
    vectors_of,
)
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, RemoteFault, UserError, Weather
from protocol.manifest import SignedManifest
from protocol.records import Claim, Contribution
from protocol.signing import Identity, PublicKey, peer_name
from protocol.verdicts import AuditRules, SignedVerdict, Verdict
from swarm import waits
from swarm.operator_line import OperatorLine
from swarm.rpc import Endpoint
from swarm.tasks import within
from swarm.vectors import VectorsFolder

AGAIN_S = 10.0  # until the log is asked again
AGAIN_PART = 0.25  # of what volunteers found good, that a named auditor computes again
NICENESS = 5
_PROGRAM = "peer.auditing.process"
_ANSWER_S = 1800.0  # for one microbatch
_DEATHS = 3  # in a row, until nothing is audited any more
_VALUE_BYTES = 4
_VECTOR_GONE = "a vector of another length, or another than was asked for"

Rest = Callable[[float], Awaitable[None]]  # after so many seconds of the CPU

logger = logging.getLogger("manta.audits")


class Computing(Protocol):
    """What computes."""

    def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """Compute on these parameters, and those of the teacher where the round has one, from now on."""

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        """Return what comes of a contribution; ``rest`` is awaited after each microbatch."""

    async def close(self) -> None:
        """End it."""


class Process:
    """A process that computes; implements ``Computing``."""

    def __init__(self, aside: Aside) -> None:
        """Use ``start``."""
        self._aside = aside

    @classmethod
    async def start(cls, signed: SignedManifest, fetched: Path, root: Path | None) -> "Process":
        """Start a process for a run, which finds what was brought in the folder ``fetched``; see ``Aside.start``.

        Raises:
            AsideLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        arguments = [str(fetched), *([] if root is None else [str(root)])]
        return cls(await Aside.start(_PROGRAM, arguments, niceness=NICENESS, setup=pack(signed)))

    def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """See ``Computing``."""
        self._aside.tell(Kind.TEACHER, b"" if teacher is None else teacher.numpy().tobytes())
        self._aside.tell(Kind.WEIGHTS, weights.numpy().tobytes())

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        """See ``Computing``.

        Raises:
            AsideLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        self._aside.tell(Kind.ASK, pack(ask))
        while True:
            said = await self._aside.said(Kind.ANSWER, _ANSWER_S, max_bytes=MAX_ANSWER_BYTES)
            found = unpack(Found, said, max_bytes=MAX_ANSWER_BYTES)
            if found.said != Said.WORKING:
                return found
            await rest(found.cpu_ms / 1000)
            self._aside.tell(Kind.GO_ON, b"")

    async def close(self) -> None:
        """See ``Computing``."""
        await self._aside.close()


@dataclass(frozen=True, slots=True)
class Known:
    """What this peer knows of the run by itself, and gets as everybody does."""

    round: Callable[[], int]  # the newest commit
    weights: Callable[[bytes], Awaitable[tuple[Tensor, Tensor | None]]]  # of a committed state by its digest, and of its teacher
    body: Callable[[bytes], Awaitable[bytes]]  # of a committed contribution, by its root


class Auditor:
    """One peer's audits."""

    def __init__(
        self,
        endpoint: Endpoint,
        line: OperatorLine,
        identity: Identity,
        run: bytes,
        rules: AuditRules,
        known: Known,
        start: Callable[[], Awaitable[Computing]],
        board: StatusBoard,
        fetched: VectorsFolder,
        num_weights: int,
        rng: random.Random | None = None,
    ) -> None:
        """Audit nothing yet.

        Args:
            endpoint: asks those who handed a contribution in, where nobody brought it.
            line: to the log.
            identity: signs what is found.
            run: its id.
            rules: the run's.
            known: what this peer knows of the run.
            start: starts what computes.
            board: shows what was done.
            fetched: for what was brought, as long as it is needed.
            num_weights: N.
            rng: draws which findings of volunteers are computed again; None: nobody can foresee it.
        """
        self._endpoint = endpoint
        self._line = line
        self._identity = identity
        self._run = run
        self._is_named = identity.public_key in rules.named
        self._known = known
        self._start = start
        self._board = board
        self._fetched = fetched
        self._vector_bytes = _VALUE_BYTES * num_weights
        self._rng = rng or random.SystemRandom()
        self._turns = Turns()
        self._computing: Computing | None = None
        self._loaded = b""  # digest of the state that it has
        self._said: dict[bytes, SignedVerdict | SignedFinding] = {}  # by contribution, until the log asks no more
        self._given_up: dict[bytes, int] = {}  # contributions that cannot be judged now, with the newest round then
        self._again: dict[bytes, bool] = {}  # by contribution: whether a volunteer's work is computed again
        self._distrusted = set[bytes]()  # volunteers that found good what was not
        self._began_s = 0.0
        self._deaths = 0
        self.computed = 0  # contributions, and
        self.taken_over = 0  # of volunteers' findings
        self.against = 0  # that would take something away
        self.cpu_s = 0.0

    def limit(self, share: int, duty: int) -> None:
        """Work at most so many hundredths of the time, and no more than microbatches may; with 0 audit nothing."""
        self._turns.limit(share, duty)

    def pause(self) -> None:
        """Compute nothing, and have no process, until ``resume``."""
        self._turns.pause()

    def resume(self) -> None:
        """Go on."""
        self._turns.resume()

    def committed(self) -> None:
        """The log has a new round."""
        self._turns.changed.set()

    async def keep(self) -> None:
        """Audit what waits for it, until this is cancelled."""
        try:
            while self._deaths < _DEATHS:
                self._turns.changed.clear()
                if not self._turns.may_work:
                    await self._release()
                    await self._turns.changed.wait()
                    continue
                round_ = self._known.round()
                has_done = await self.do_one(await self._duties())
                if self._known.round() == round_ and not has_done:
                    await within(self._turns.changed, AGAIN_S)
        finally:
            await self._release()

    async def do_one(self, duties: tuple[Duty, ...]) -> bool:
        """Do the first of what waits that can be done; return whether there was one: meanwhile there may be something else."""
        for duty in duties:
            digest = bytes(duty.header.contribution.digest)
            if self._given_up.get(digest) == self._known.round() or self._is_left(duty):
                continue
            if not self._turns.may_work:
                return False
            try:
                if await self._do(duty, digest):
                    return True
            except AsideLost as error:
                await self._ended(digest, str(error))
                return False
            except UserError as error:
                self._board.say(f"audits no more: {error}")
                self._deaths = _DEATHS
                return False
            except MantaError as error:  # it is told again what waits
                self._give_up(digest, str(error))
        return False

    async def _duties(self) -> tuple[Duty, ...]:
        """Return what waits, as the log says; nothing, where it cannot be asked."""
        try:
            asked = pack(AskDuties(self._known.round()))
            answer = await self._line.call(DUTIES, asked, timeout_s=waits.CALL_S, large_answer=True)
            duties = unpack(Duties, answer, max_bytes=MAX_DUTIES_BYTES).duties
        except MantaError as error:
            logger.info("not told what to audit reason=%s", error)
            return ()
        waiting = {bytes(duty.header.contribution.digest) for duty in duties}
        for kept in (self._said, self._given_up, self._again):
            for digest in kept.keys() - waiting:
                kept.pop(digest)
        return duties

    def _is_left(self, duty: Duty) -> bool:
        """Return whether a contribution is left to a volunteer that has not found anything yet."""
        return bool(duty.volunteer) and not duty.finding and not self._looks_again(duty)

    def _looks_again(self, duty: Duty) -> bool:
        """Return whether this auditor computes itself what is a volunteer's."""
        digest = bytes(duty.header.contribution.digest)
        return self._again.setdefault(digest, self._rng.random() < AGAIN_PART) or duty.volunteer[0] in self._distrusted

    async def _do(self, duty: Duty, digest: bytes) -> bool:
        """Judge a contribution and say so; return whether that took work.

        Raises:
            AsideLost, UserError: what computes has ended.
            MantaError: it cannot be judged now, or the log does not take the word.
        """
        is_new = digest not in self._said
        if is_new:
            said = self._taken_over(duty, digest) or await self._judged(duty, digest)
            if said is None:
                return False
            self._said[digest] = said
        word = self._said[digest]
        method = VERDICT if isinstance(word, SignedVerdict) else FINDING
        await self._line.call(method, pack(word), timeout_s=waits.CALL_S)
        return is_new

    def _taken_over(self, duty: Duty, digest: bytes) -> SignedVerdict | None:
        """Return a verdict by a volunteer's finding that all is good; None: there is none, or it is not taken over."""
        if not self._is_named or not duty.finding or self._looks_again(duty):
            return None
        finding = duty.finding[0].open()
        expected = (self._run, digest, duty.round, len(duty.header.claims), duty.volunteer[0])
        if (finding.run, finding.contribution, finding.round, len(finding.outcomes), finding.by) != expected or any(finding.outcomes):
            return None
        self.taken_over += 1
        return self._verdict(duty, digest, finding.outcomes, finding.by)

    async def _judged(self, duty: Duty, digest: bytes) -> SignedVerdict | SignedFinding | None:
        working = await self._turns.work(self._computed(duty, digest))
        if working.cancelled():
            await self._release()
            return None
        outcomes, reason = working.result()
        self.computed += 1
        if any(outcomes):
            self.against += 1
            self._board.say(f"audit: a contribution of {peer_name(duty.header.contribution.open().founder)}, round {duty.round}: {reason}")
            if duty.finding and not any(duty.finding[0].open().outcomes):
                self._distrusted.add(duty.volunteer[0])
        if self._is_named:
            return self._verdict(duty, digest, outcomes, self._identity.public_key)
        finding = Finding(self._run, self._identity.public_key, duty.round, digest, outcomes)
        return SignedFinding.sign(finding, self._identity)

    def _verdict(self, duty: Duty, digest: bytes, outcomes: tuple[int, ...], by: bytes) -> SignedVerdict:
        verdict = Verdict(self._run, self._identity.public_key, duty.round, digest, outcomes, by)
        return SignedVerdict.sign(verdict, self._identity)

    # What it takes.

    async def _computed(self, duty: Duty, digest: bytes) -> tuple[tuple[int, ...], str]:
        """Return what is found of each claim of a contribution, and why, for people.

        Raises:
            EncodingError: it cannot be judged, by nobody's fault, or not yet.
            AsideLost, UserError: what computes has ended.
            MantaError: something that it takes is not to be had now.
        """
        contribution = duty.header.contribution.open()
        claims = tuple(signed.open() for signed in duty.header.claims)
        if contribution.claims != tuple(signed.digest for signed in duty.header.claims):
            raise EncodingError("other claims than the contribution lists")
        body = await self._known.body(contribution.body)
        ask = Ask(duty.round, duty.header, body, duty.floor, duty.residuals)
        failed: tuple[int, ...] = ()
        try:
            while True:
                has_all = await self._fetch(duty, contribution, claims, vectors_of(contribution, claims, failed))
                if not has_all:
                    self._check_late(duty)
                found = await self._answered(duty, ask)
                if found.said == Said.DONE:
                    return found.outcomes, found.reason
                if found.said == Said.LACKS:
                    self._check_late(duty)
                    return found.outcomes, found.reason
                if found.said == Said.NOTHING or found.step in failed:
                    raise EncodingError(f"it cannot be judged: {found.reason}")
                if not self._is_named:
                    raise EncodingError("a step does not fit, which is a named auditor's to look at")
                failed = (*failed, found.step)
                await self._need(digest, found.step)
        finally:
            await asyncio.to_thread(self._fetched.keep_only, digest, ())

    def _check_late(self, duty: Duty) -> None:
        """Go on without what was not brought only where its time is over, and the log had room for it.

        Raises:
            EncodingError: so it is not.
        """
        if duty.lacks_room:
            raise EncodingError("the log had no room for what was to be brought")
        if not duty.is_late or not self._is_named:
            raise EncodingError("not all of it was brought yet")

    async def _answered(self, duty: Duty, ask: Ask) -> Found:
        if duty.state != self._loaded:
            weights, teacher = await self._known.weights(duty.state)
            if self._computing is None:
                self._computing = await self._start()
            self._computing.load(weights, teacher)
            self._loaded = duty.state
        assert self._computing is not None
        self._began_s = asyncio.get_running_loop().time()
        found = await self._computing.answer(ask, self._rest)
        self._deaths = 0
        await self._rest(found.cpu_ms / 1000)
        return found

    async def _need(self, digest: bytes, step: int) -> None:
        """Tell all operators that own vectors of a step are needed."""
        for operator in self._line.operators.keys:
            with self._passing_over("an operator was not told what is needed"):
                await self._endpoint.call(operator, NEED, pack(Need(digest, step)), timeout_s=waits.CALL_S)

    async def _fetch(self, duty: Duty, contribution: Contribution, claims: tuple[Claim, ...], vectors: tuple[bytes, ...]) -> bool:
        """Get what was brought, of any operator, and where its time is over of whoever handed it in; return whether all is here."""
        digest = bytes(duty.header.contribution.digest)
        sources = dict.fromkeys(self._line.in_turn, digest)  # what each keeps them by
        if duty.is_late:
            sources |= {PublicKey(claim.key): contribution.base for claim in claims}
        lacking = [vector for vector in vectors if not self._fetched.has(digest, vector)]
        for source, kept_by in sources.items():
            for vector in list(lacking):
                with self._passing_over("a vector is not to be had there"):
                    await self._fetch_one(source, kept_by, duty.round, digest, vector)
                    lacking.remove(vector)
        return not lacking

    async def _fetch_one(self, source: PublicKey, kept_by: bytes, round_: int, digest: bytes, vector: bytes) -> None:
        part = await asyncio.to_thread(self._fetched.begin, round_, digest, vector, self._vector_bytes)
        try:
            for first in range(0, self._vector_bytes, PAGE_BYTES):
                request = pack(AskVector(kept_by, vector, first))
                page = await self._endpoint.call(source, VECTOR, request, timeout_s=waits.PIECE_S, large_answer=True)
                if len(page) != min(PAGE_BYTES, self._vector_bytes - first):
                    raise EncodingError(_VECTOR_GONE)
                await asyncio.to_thread(part.write, page)
            if part.digest != vector:
                raise EncodingError(_VECTOR_GONE)
            await asyncio.to_thread(part.finish)
        finally:
            part.close()

    @contextmanager
    def _passing_over(self, what: str) -> Iterator[None]:
        try:
            yield
        except (Weather, RemoteFault) as error:
            logger.info("%s reason=%s", what, error)

    async def _rest(self, cpu_s: float) -> None:
        """A microbatch took so long: rest until the share is kept."""
        self.cpu_s += cpu_s
        await self._turns.rest(self._began_s, cpu_s)
        self._began_s = asyncio.get_running_loop().time()

    # What comes to nothing.

    def _give_up(self, digest: bytes, reason: str) -> None:
        self._given_up[digest] = self._known.round()
        logger.info("not judged now contribution=%s reason=%s", digest.hex()[:8], reason)

    async def _ended(self, digest: bytes, reason: str) -> None:
        """What computes has ended at a contribution."""
        await self._release()
        self._give_up(digest, reason)
        self._deaths += 1
        if self._deaths >= _DEATHS:
            self._board.say("audits no more: what computes has ended again and again")

    async def _release(self) -> None:
        computing, self._computing, self._loaded = self._computing, None, b""
        if computing is not None:
            await computing.close()
