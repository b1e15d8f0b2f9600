"""Answers others' questions on how good architectures are, in what a person's limits leave (docs/protocol.md, section 26).

It measures one architecture at a time, in a process of low priority with one thread, which is there only while somebody asks. After each
one it rests, so that it works no more than its share of the time. While the peer is to compute nothing, the process is ended; weights are
held as long as somebody asks about them, and some minutes more.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Endpoint
from manta_swarm.peer.features.evaluation.measurer import Measured
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.evaluations import MAX_QUESTION_BYTES, METHOD, Answer, EvaluationWord, Question, QuestionFate, Result
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.child import ChildLost
from manta_swarm.runtime.on_demand import OnDemandProcess
from manta_swarm.runtime.tasks import wait_within

MAX_OPEN = 8  # questions that wait, or are measured
MAX_ANSWERED = 16  # answers that are kept in case they are asked for again
MAX_STATES = 2  # that are measured
KEPT_S = 600.0  # a state, after it was asked about last
ABANDONED_S = 120.0  # a question, after it was asked last: who still wants the answer asks every few seconds
IDLE_S = 60.0  # the process, after the last question
_DEATHS = 3  # in a row, until nothing is measured any more
_SOON_MS, _LATER_MS = 2_000, 20_000

NOT_WANTED, PAUSED = "its person does not want it", "nothing is computed there now"

logger = logging.getLogger("manta.evaluation")


class MeasuringProcess(Protocol):
    """Measures architectures (``peer.features.evaluation.measurer.Measurer``)."""

    async def load(self, weights: bytes) -> None:
        """Measure with these parameters from now on."""

    async def measure(self, architecture: str, part: str) -> Measured:
        """Return how good an architecture is."""

    async def close(self) -> None:
        """End the measuring."""


class EvaluationHost(Protocol):
    """What the service needs of the peer that is asked: the states that it holds, what it starts and shows."""

    @property
    def held_round(self) -> int:
        """The round of the newest state that is held."""

    def weights(self, state: bytes) -> bytes | None:
        """Return a committed state's parameters by its digest; None: they are not here."""

    async def start(self) -> MeasuringProcess:
        """Start the process that measures."""

    def measured(self, count: int) -> None:
        """Show how many architectures were measured in all."""


@dataclass(frozen=True, slots=True)
class EvaluationSubject:
    """The run whose architectures a member may ask about, and why it cannot be measured here, if so."""

    run: bytes
    data: bytes  # the manifest's digest
    space: SearchSpace
    refusal: str = ""  # why nothing can be measured here, where that is so


@dataclass(slots=True)
class _Job:
    caller: PublicKey
    question: Question
    weights: bytes
    asked_s: float  # last
    word: EvaluationWord | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _State:
    weights: bytes
    asked_s: float


class EvaluationService:
    """Answers questions of other members on how good architectures are."""

    def __init__(self, identity: Identity, subject: EvaluationSubject, host: EvaluationHost) -> None:
        """Answer nothing yet.

        Args:
            identity: signs the answers.
            subject: what may be asked.
            host: the peer.
        """
        self._identity = identity
        self._subject = subject
        self._host = host
        self._child = OnDemandProcess(host.start)
        self._refusal = subject.refusal
        self._jobs: OrderedDict[tuple[PublicKey, bytes], _Job] = OrderedDict()  # that wait, or are measured
        self._answered: OrderedDict[tuple[PublicKey, bytes], EvaluationWord] = OrderedDict()
        self._states: OrderedDict[bytes, _State] = OrderedDict()
        self._changed = self._child.changed
        self._deaths = 0
        self._num_measured = 0

    def limit(self, share: int, duty: int) -> None:
        """Work at most so many hundredths of the time, and no more than microbatches may; with 0 answer nobody."""
        self._child.limit(share, duty)
        if not self._child.share:
            self._end_all(_word(QuestionFate.NEVER, NOT_WANTED))

    def pause(self) -> None:
        """Measure nothing, and have no process, until ``resume``."""
        self._child.pause()
        self._end_all(_word(QuestionFate.LATER, PAUSED, _LATER_MS))

    def resume(self) -> None:
        """Go on."""
        self._child.resume()

    @contextlib.asynccontextmanager
    async def open(self, endpoint: Endpoint) -> AsyncIterator[None]:
        """Answer, for as long as the context is entered."""
        await endpoint.serve(METHOD, self._on_question)
        working = asyncio.create_task(self._work())
        try:
            yield
        finally:
            self._give_up("it leaves")
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

    # Being asked.

    async def _on_question(self, caller: PublicKey, request: bytes) -> bytes:
        question = unpack(Question, request, max_bytes=MAX_QUESTION_BYTES)
        which = caller, question.digest
        found = self._answered.get(which) or self._jobs.get(which) or self._taken(caller, question)
        if isinstance(found, EvaluationWord):
            return pack(found)
        job = found
        job.asked_s = asyncio.get_running_loop().time()
        await wait_within(job.done, timeouts.EVALUATION_HELD_S)
        return pack(job.word or EvaluationWord(int(QuestionFate.HELD), "", 0, ()))

    def _taken(self, caller: PublicKey, question: Question) -> "_Job | EvaluationWord":
        """Return the work that a new question is, or why it is none."""
        refusal = self._why_never(question)
        if refusal:
            return _word(QuestionFate.NEVER, refusal)
        if self._child.is_paused:
            return _word(QuestionFate.LATER, PAUSED, _LATER_MS)
        for other in list(self._jobs.values()):  # who asks anew has given up what it asked before
            if other.caller == caller:
                self._end(other, _word(QuestionFate.LATER, "another question came after it", _SOON_MS))
        if len(self._jobs) >= MAX_OPEN:
            return _word(QuestionFate.LATER, "it has enough questions", _LATER_MS)
        weights = self._weights(question)
        if isinstance(weights, EvaluationWord):
            return weights
        job = self._jobs[caller, question.digest] = _Job(caller, question, weights, asyncio.get_running_loop().time())
        self._changed.set()
        return job

    def _why_never(self, question: Question) -> str:
        if self._refusal or not self._child.share:
            return self._refusal or NOT_WANTED
        if question.run != self._subject.run:
            return "it is in another run"
        for text in question.architectures:
            try:
                Architecture.parse(text, self._subject.space)
            except ValueError as error:
                return f"no architecture of {self._subject.space.name}: {error}"[:150]
        return ""

    def _weights(self, question: Question) -> bytes | EvaluationWord:
        """Return a state's parameters, which stay from now on."""
        now_s = asyncio.get_running_loop().time()
        self._states = OrderedDict((digest, each) for digest, each in self._states.items() if now_s - each.asked_s < KEPT_S)
        state = self._states.get(question.state)
        if state is None:
            if len(self._states) >= MAX_STATES:  # before a large copy is made for anybody who asks
                return _word(QuestionFate.LATER, "it measures other states", _LATER_MS)
            weights = self._host.weights(question.state)
            if weights is None and self._host.held_round < question.round:
                return _word(QuestionFate.LATER, "it has not got that state yet", _SOON_MS)
            if weights is None:
                return _word(QuestionFate.NEVER, "it has not got that state any more")
            state = self._states[question.state] = _State(weights, now_s)
        state.asked_s = now_s
        return state.weights

    def _end(self, job: _Job, word: EvaluationWord) -> None:
        """Answer a question, unless it was; answers are kept for a while, in case their callers have not got them."""
        if job.word is not None:
            return
        job.word = word
        job.done.set()
        which = job.caller, job.question.digest
        del self._jobs[which]
        if word.fate == QuestionFate.DONE:
            self._answered[which] = word
            while len(self._answered) > MAX_ANSWERED:
                self._answered.popitem(last=False)

    def _end_all(self, word: EvaluationWord) -> None:
        for job in list(self._jobs.values()):
            self._end(job, word)

    def _give_up(self, reason: str) -> None:
        """Measure nothing any more."""
        self._refusal = reason
        self._end_all(_word(QuestionFate.NEVER, reason))

    # Measuring.

    async def _work(self) -> None:
        try:
            while True:
                self._changed.clear()
                job = next(iter(self._jobs.values()), None)
                if job is not None and self._child.may_work:
                    await self._do(job)
                    continue
                if self._child.may_work:
                    await wait_within(self._changed, IDLE_S)
                if not self._child.may_work or not self._changed.is_set():
                    await self._child.release()
                    await wait_within(self._changed, KEPT_S)
                if not self._changed.is_set():
                    self._states.clear()
                    self._answered.clear()
                    await self._changed.wait()
        finally:
            await self._child.release()

    async def _do(self, job: _Job) -> None:
        """Measure a question's architectures; give up where nothing is to be computed now, or nobody wants the rest any more."""
        results: list[Result] = []
        for architecture in job.question.architectures:
            began_s = asyncio.get_running_loop().time()
            if began_s - job.asked_s > ABANDONED_S:
                self._end(job, _word(QuestionFate.LATER, "nobody asked for it any more", _SOON_MS))
                return
            measured = await self._measured(job, architecture)
            if measured is None:
                return
            results.append(measured.result)
            if len(results) == len(job.question.architectures):
                answer = Answer(self._subject.run, self._identity.public_key, job.question.digest, self._subject.data, tuple(results))
                self._end(job, EvaluationWord(int(QuestionFate.DONE), "", 0, (Signed.sign(answer, self._identity),)))
            await self._child.rest(began_s, measured.cpu_ms / 1000)
            if job.word is not None:
                return

    async def _measured(self, job: _Job, architecture: str) -> Measured | None:
        """Return what came of one architecture; None: nothing, and its job is over."""
        try:
            measured = await self._child.work(self._measure(job, architecture))
        except (UserError, ChildLost) as error:
            logger.warning("nothing measured for others reason=%s", error)
            await self._child.release()
            self._deaths += 1
            if isinstance(error, UserError):
                self._give_up("it cannot: its data are not all there")
            elif self._deaths >= _DEATHS:
                self._give_up("it cannot: what measures ends again and again")
            else:
                self._end(job, _word(QuestionFate.LATER, "what measures has ended", _LATER_MS))
            return None
        if measured is None:  # its job is ended by whoever said that nothing is to be computed
            return None
        self._deaths = 0
        self._num_measured += 1
        self._host.measured(self._num_measured)
        return measured

    async def _measure(self, job: _Job, architecture: str) -> Measured:
        measurer = await self._child.process()
        if self._child.loaded != job.question.state:
            await measurer.load(job.weights)
            self._child.loaded = job.question.state
        return await measurer.measure(architecture, job.question.part)


def _word(fate: QuestionFate, reason: str, wait_ms: int = 0) -> EvaluationWord:
    return EvaluationWord(int(fate), reason, wait_ms, ())
