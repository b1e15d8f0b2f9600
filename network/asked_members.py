"""Asks a run's members how good architectures of a state are: shares the work out, asks some of it twice, and leaves liars out.

A member's first answers are compared with another member's, and later ones at random, which it cannot foresee. Two that contradict each
other are settled by a third: whoever is alone then has lied, or computes wrongly, is named, and is not asked again; what only it answered
in the same call is asked of others. What takes long at one member is measured by another one as well that has nothing to do, so nobody who
stalls holds up the whole. The others' answers are not waited for where one is enough.

Against members that lie alike, and are more than the honest ones that are asked, this is no help.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Endpoint, Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import RemoteFault, Unreachable, Weather
from manta_swarm.protocol.evaluations import (
    MAX_ARCHITECTURES,
    MAX_WORD_BYTES,
    METHOD,
    Answer,
    EvaluationWord,
    Question,
    QuestionFate,
    Result,
    Shape,
    checked,
    differing,
)
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import wait_within

CHECKED_FIRST = 2  # answers of each member
CHECKED_SHARE = 8  # of the later ones one of so many
MAX_ASKED = 32  # members at a time
_MOST_ANSWERS = 5  # to one question
_TRIES = 3  # of a member that does not answer; then it is done without for this call
_LATERS = 12  # how often in a row it may say that it rests, or has others' questions
_NONCE_BYTES = 16
_KEPT_LIES = 16  # of more liars than that the reason alone is kept: an answer has up to 1.6 MB, and keys cost nothing

Results = tuple[Result, ...]


class Unsettled(RemoteFault):
    """Members contradict each other, and there are too few to tell who is right."""


@dataclass(frozen=True, slots=True)
class Lie:
    """A member's answer that others contradict, signed by it, where it is kept; or why it was none at all."""

    reason: str
    answer: Signed[Answer] | None


@dataclass(slots=True)
class _Task:
    """Some architectures, and what was said of them."""

    architectures: tuple[str, ...]
    wanted: int = 1  # answers
    answers: dict[PublicKey, tuple[Results, Signed[Answer]]] = field(default_factory=dict)
    working: set[PublicKey] = field(default_factory=set)
    began_s: float = 0.0
    settled: Results | None = None

    @property
    def is_alone(self) -> bool:
        """Whether one member's word is all there is."""
        return len(self.answers) == 1

    @property
    def shapes(self) -> set[Shape]:
        """The shapes of the samples that those who answered measured on; see ``Result.shape``."""
        return {results[0].shape for results, _ in self.answers.values()}


@dataclass(slots=True)
class _Call:
    """One call of ``AskedMembers.measure``."""

    round: int
    state: bytes
    part: str
    tasks: list[_Task]
    workers: dict[PublicKey, "asyncio.Task[None]"] = field(default_factory=dict)
    done_without: set[PublicKey] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_done(self) -> bool:
        return all(task.settled is not None for task in self.tasks)

    def tell(self) -> None:
        """Wake all who wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()


class Finder(Protocol):
    """Finds a run's members, as ``network.neighbours.Neighbours`` does."""

    async def find(self) -> Iterable[PublicKey]:
        """Return the members' keys, as far as they are known now."""
        ...


class AskedMembers:
    """Has members of a run measure architectures, and finds out who lies."""

    def __init__(
        self,
        endpoint: Endpoint,
        run: bytes,
        data: bytes,
        finder: Finder,
        *,
        rng: random.Random | None = None,
    ) -> None:
        """Ask nobody yet.

        Args:
            endpoint: this node's.
            run: the run's id.
            data: the digest of the data set, as in its manifest.
            finder: finds the members.
            rng: draws which answers are checked: nobody may foresee it.
        """
        self._endpoint = endpoint
        self._run = run
        self._data = data
        self._finder = finder
        self._lines: list[str] = []  # that a person should read
        self._rng = rng or random.SystemRandom()
        self._shapes: dict[str, Shape] = {}  # by part, of the results that were returned for this state
        self._state = b""  # that was asked about last
        self._agreed: Counter[PublicKey] = Counter()  # how often another one said the same
        self._given: Counter[PublicKey] = Counter()  # architectures whose results were returned on one member's word alone
        self.liars: dict[PublicKey, Lie] = {}
        self.unwilling: dict[PublicKey, str] = {}  # to measure this state, and why
        self.answered: Counter[PublicKey] = Counter()  # architectures
        self.num_checked = 0  # architectures that more than one member measured alike
        self.num_doubtful = 0  # architectures that were returned on the word of what turned out to be a liar

    async def measure(self, round_: int, state: bytes, architectures: Sequence[str], part: str) -> list[Result]:
        """Return what the members say of architectures with a state's weights, in this order; all at once, when all is settled.

        Raises:
            Unreachable: for long nobody answered.
            Unsettled: members contradict each other, and there is nobody to settle it.
        """
        if state != self._state:  # a member may have had the last one no more, or may rest no more
            self._state = state
            self.unwilling.clear()
            self._shapes.clear()
        find = [key for key in await self._finder.find() if self._is_welcome(key)]
        each = max(1, min(MAX_ARCHITECTURES, len(architectures) // (2 * max(1, len(find)))))
        cut = [tuple(architectures[start : start + each]) for start in range(0, len(architectures), each)]
        call = _Call(round_, state, part, [_Task(some) for some in cut])
        try:
            await self._answered(call, find)
        finally:
            for worker in call.workers.values():
                worker.cancel()
            ended = await asyncio.gather(*call.workers.values(), return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        self._check_shapes(call)
        for task in call.tasks:
            if task.is_alone:
                self._given.update(dict.fromkeys(task.answers, len(task.architectures)))
            else:
                self.num_checked += len(task.architectures)
        return [result for task in call.tasks for result in task.settled or ()]

    def take_lines(self) -> list[str]:
        """Return what a person should read that was not told yet: who is not asked any more, and why."""
        lines, self._lines = self._lines, []
        return lines

    def _check_shapes(self, call: _Call) -> None:
        """Return no results beside each other, or beside those of earlier calls, that are not of the same samples."""
        shapes = {task.settled[0].shape for task in call.tasks if task.settled}
        for shape in shapes:
            if self._shapes.setdefault(call.part, shape) != shape:
                raise Unsettled(
                    "the run's members do not agree on how many samples are held out, so what they said before is not to be relied on: "
                    "begin anew, in another folder, when more of them are there"
                )

    def _is_welcome(self, key: PublicKey) -> bool:
        return key != self._endpoint.key and key not in self.liars and key not in self.unwilling

    async def _answered(self, call: _Call, found: Iterable[PublicKey]) -> None:
        """Let members work until all is settled."""
        loop = asyncio.get_running_loop()
        idle_s, last_s = 0.0, loop.time()
        while True:
            for key in found:
                if key not in {*call.workers, *call.done_without} and self._is_welcome(key) and len(call.workers) < MAX_ASKED:
                    call.workers[key] = asyncio.create_task(self._work(key, call))
            changed = call.changed
            self._do_with_less(call)
            if call.is_done:
                return
            await wait_within(changed, timeouts.EVALUATION_LOOK_S)
            for key, worker in list(call.workers.items()):
                if worker.done():
                    worker.result()
                    del call.workers[key]
            now_s = loop.time()
            idle_s, last_s = (0.0 if call.workers else idle_s + now_s - last_s), now_s
            if idle_s > timeouts.EVALUATORS_S:
                raise Unreachable(self._nobody())
            found = await self._finder.find() if not call.workers or not changed.is_set() else ()

    def _nobody(self) -> str:
        reasons = Counter(self.unwilling.values()).most_common(3)
        why = "; ".join(f"{count} said: {reason}" for reason, count in reasons) or "nobody answers"
        return f"none of the run's members measures: {why}"

    def _do_with_less(self, call: _Call) -> None:
        """Where a task waits for more members than there are, take what there is, or give up."""
        for task in call.tasks:
            if task.settled is not None or not task.answers or task.working or any(key not in task.answers for key in call.workers):
                continue
            if not task.is_alone:
                raise Unsettled(
                    f"{len(task.answers)} of the run's members contradict each other, and there is nobody else to settle it: "
                    f"{self._contradiction(task)}; try again when more of them are there"
                )
            task.settled = next(iter(task.answers.values()))[0]

    def _contradiction(self, task: _Task) -> str:
        first, *others = (results for results, _ in task.answers.values())
        return next((found for other in others if (found := differing(first, other))), "")

    # One member.

    async def _work(self, key: PublicKey, call: _Call) -> None:
        """Let a member measure until there is nothing left for it, or it is of no use."""
        failures = laters = 0
        try:
            while self._is_welcome(key) and not call.is_done and failures < _TRIES and laters < _LATERS:
                changed = call.changed
                task = self._next(key, call)
                if task is None:
                    await wait_within(changed, timeouts.EVALUATION_LOOK_S)
                    continue
                try:
                    pause_s = await self._answer(key, task, call)
                    failures, laters = 0, laters + 1 if pause_s else 0
                except Weather:
                    failures += 1
                    pause_s = timeouts.EVALUATION_AGAIN_S
                except Refused as error:
                    self.unwilling[key] = str(error)
                    return
                except Unsettled:  # no fault of whoever answered last
                    raise
                except RemoteFault as error:
                    self._caught(key, Lie(f"its answer was none: {error}", None), call)
                    return
                if pause_s:
                    await asyncio.sleep(pause_s)
        finally:
            call.done_without.add(key)
            call.tell()

    def _next(self, key: PublicKey, call: _Call) -> _Task | None:
        open_tasks = [task for task in call.tasks if task.settled is None and key not in task.answers and key not in task.working]
        for task in open_tasks:
            if len(task.answers) + len(task.working) < task.wanted:
                return task
        now_s = asyncio.get_running_loop().time()
        slow = (task for task in open_tasks if len(task.working) == 1 and now_s - task.began_s > timeouts.EVALUATION_SLOW_S)
        return min(slow, key=lambda task: task.began_s, default=None)

    async def _answer(self, key: PublicKey, task: _Task, call: _Call) -> float:
        """Have a member do a task; return how many seconds it wants to be left alone then."""
        question = Question(self._run, call.round, call.state, call.part, task.architectures, secrets.token_bytes(_NONCE_BYTES))
        task.working.add(key)
        task.began_s = asyncio.get_running_loop().time()
        try:
            word = await self._word(key, question)
        finally:
            task.working.discard(key)
        if word.fate == QuestionFate.NEVER:
            self.unwilling[key] = word.reason
        elif word.fate == QuestionFate.LATER:
            return max(timeouts.EVALUATION_AGAIN_S, min(word.wait_ms / 1000, timeouts.EVALUATION_SLOW_S))
        else:
            self._take(key, task, checked(word.answer[0], question, key, self._data), word.answer[0], call)
        return 0.0

    async def _word(self, key: PublicKey, question: Question) -> EvaluationWord:
        """Return what a member says to a question in the end.

        Raises:
            Unreachable: it does not answer, or not in time.
            RemoteFault: what it says is no word.
        """
        request = pack(question)
        try:
            async with asyncio.timeout(timeouts.EVALUATION_S):
                while True:
                    said = await self._endpoint.call(key, METHOD, request, timeout_s=timeouts.EVALUATION_CALL_S, large_answer=True)
                    word = unpack(EvaluationWord, said, max_bytes=MAX_WORD_BYTES)
                    if word.fate != QuestionFate.HELD:
                        return word
                    await asyncio.sleep(max(timeouts.EVALUATION_POLL_S, min(word.wait_ms / 1000, timeouts.EVALUATION_SLOW_S)))
        except TimeoutError as error:
            raise Unreachable("a member has not measured in time") from error

    # What they said.

    def _take(self, key: PublicKey, task: _Task, results: Results, signed: Signed[Answer], call: _Call) -> None:
        if task.settled is not None:
            return
        task.answers[key] = results, signed
        self.answered[key] += len(task.architectures)
        if task.is_alone:
            odd = [each for each in call.tasks if each.shapes - task.shapes]
            for each in odd:  # and one of the two is wrong
                if each.is_alone:
                    each.settled, each.wanted = None, 2
            if odd or self._agreed[key] < CHECKED_FIRST or self._rng.randrange(CHECKED_SHARE) == 0:
                task.wanted = 2
            else:
                task.settled = results
        else:
            self._compare(task, call)
        call.tell()

    def _compare(self, task: _Task, call: _Call) -> None:
        """Settle a task by the word of more than half, or want another answer."""
        said = {key: results for key, (results, _) in task.answers.items()}
        agreeing = {key: [each for each in said if not differing(said[key], said[each])] for key in said}
        best = max(said, key=lambda key: len(agreeing[key]))
        if 2 * len(agreeing[best]) <= len(said):
            if len(said) >= _MOST_ANSWERS:
                raise Unsettled(f"{len(said)} of the run's members contradict each other: {self._contradiction(task)}")
            task.wanted = len(said) + 1
            return
        task.settled = said[best]
        for key in agreeing[best]:
            self._agreed[key] += 1
        for key in said.keys() - set(agreeing[best]):
            reason = f"{len(agreeing[best])} others contradict it: {differing(said[key], said[best])}"
            self._caught(key, Lie(reason, task.answers[key][1]), call)

    def _caught(self, key: PublicKey, lie: Lie, call: _Call) -> None:
        """Ask a member no more, and ask others for what only it has answered."""
        is_kept = sum(each.answer is not None for each in self.liars.values()) < _KEPT_LIES
        self.liars[key] = lie if is_kept else Lie(lie.reason, None)
        self.num_doubtful += self._given.pop(key, 0)
        for task in call.tasks:
            if key in task.answers:
                was_alone = task.is_alone
                del task.answers[key]
                if was_alone:
                    task.settled, task.wanted = None, 1
        self._lines.append(f"a member's answers are not believed, and it is not asked any more: {key.hex()} ({lie.reason})")
        call.tell()
