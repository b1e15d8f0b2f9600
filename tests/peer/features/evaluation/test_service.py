"""The service that answers others' questions, over a network in memory: whom it answers what, within which limits."""

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.automl.spaces.space import TINY
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.features.evaluation import service
from manta_swarm.peer.features.evaluation.measurer import Measured
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, UserError
from manta_swarm.protocol.evaluations import MAX_WORD_BYTES, METHOD, EvaluationWord, Question, QuestionFate, Result, checked
from manta_swarm.protocol.signing import Digest, Identity, PublicKey, sha256
from manta_swarm.runtime.child import ChildLost
from tests.network.virtual_time import now

pytestmark = pytest.mark.virtual_time

PEER, ASKER = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
RUN, DATA, STATE = sha256(b"run"), sha256(b"data"), sha256(b"state")
LARGEST, SMALLEST = TINY.largest().text, TINY.smallest().text
QUESTION = Question(RUN, 7, STATE, "search", (SMALLEST, LARGEST), b"n" * 16)
RESULT = Result.of(array("i", [5, 6]), array("i", [1]), ())
CPU_S = 2.0  # that an architecture takes, and as long by the clock


class Measurer:
    """Measures as slowly as it says, and says the same of all."""

    def __init__(self, scene: "Scene") -> None:
        self.loaded: list[bytes] = []
        self.asked: list[tuple[str, str]] = []
        self.is_closed = False
        self._scene = scene

    async def load(self, weights: bytes) -> None:
        self.loaded.append(weights)

    async def measure(self, architecture: str, part: str) -> Measured:
        if self._scene.fault is not None:
            raise self._scene.fault
        self.asked.append((architecture, part))
        await asyncio.sleep(CPU_S)
        return Measured(RESULT, round(CPU_S * 1000))

    async def close(self) -> None:
        self.is_closed = True


class Scene:
    """A member that may be asked, whose service has this as its host, and one who asks."""

    def __init__(self, refusal: str = "") -> None:
        self.network = MemoryNetwork()
        self.asker = self.network.endpoint(ASKER.public_key)
        self.states = {STATE: b"weights", sha256(b"other"): b"other", sha256(b"third"): b"third"}
        self.round = 7
        self.num_measured = 0
        self.measurers: list[Measurer] = []
        self.fault: Exception | None = None  # that whatever measures ends with
        self.copied: list[bytes] = []
        self.service = service.EvaluationService(PEER, service.EvaluationSubject(RUN, DATA, TINY, refusal), self)
        self.service.limit(100, 100)

    @property
    def held_round(self) -> int:
        return self.round

    def weights(self, state: bytes) -> bytes | None:
        self.copied.append(state)
        return self.states.get(Digest(state))

    def measured(self, count: int) -> None:
        self.num_measured = count

    async def start(self) -> Measurer:
        self.measurers.append(Measurer(self))
        return self.measurers[-1]

    async def ask(self, question: Question = QUESTION, asker: MemoryEndpoint | None = None) -> EvaluationWord:
        """Return the first word."""
        said = await (asker or self.asker).call(PEER.public_key, METHOD, pack(question), timeout_s=60)
        return unpack(EvaluationWord, said, max_bytes=MAX_WORD_BYTES)

    async def answer(self, question: Question = QUESTION, asker: MemoryEndpoint | None = None) -> EvaluationWord:
        """Return the last word."""
        while (word := await self.ask(question, asker)).fate == QuestionFate.HELD:
            pass
        return word

    def other(self, number: int) -> MemoryEndpoint:
        """Return somebody else who asks."""
        return self.network.endpoint(PublicKey(sha256(b"asker %d" % number)))


@asynccontextmanager
async def scene_with(**settings: Any) -> AsyncIterator[Scene]:
    """Yield a scene whose service leaves nothing behind."""
    scene = Scene(**settings)
    async with scene.service.open(scene.network.endpoint(PEER.public_key)):
        yield scene
    assert all(each.is_closed for each in scene.measurers)


@pytest.fixture
def scene() -> AbstractAsyncContextManager[Scene]:
    return scene_with()


async def test_a_question_is_answered_with_a_signature(scene: Scene) -> None:
    word = await scene.answer()
    assert checked(word.answer[0], QUESTION, PEER.public_key, DATA) == (RESULT, RESULT)
    assert scene.measurers[0].asked == [(SMALLEST, "search"), (LARGEST, "search")]
    assert scene.num_measured == 2
    assert scene.measurers[0].loaded == [b"weights"]
    again = await scene.ask()  # as if the answer had been lost
    assert again == word
    assert len(scene.measurers[0].asked) == 2


async def test_it_works_no_more_than_its_share_of_the_time(scene: Scene) -> None:
    scene.service.limit(10, 5)
    began_s, count = now(), 5
    for number in range(count):
        await scene.answer(replace(QUESTION, architectures=(SMALLEST,), nonce=bytes([number]) * 16))
    assert now() - began_s == pytest.approx((count - 1) * CPU_S / 0.05 + CPU_S, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": sha256(b"another")}, "another run"),
        ({"architectures": ("r32",)}, "no architecture of classifier-tiny"),
        ({"architectures": (SMALLEST, LARGEST.replace("k5", "k9"))}, "no architecture of classifier-tiny"),
        ({"state": sha256(b"unknown")}, "not got that state any more"),
    ],
)
async def test_what_it_cannot_measure_it_never_will(scene: Scene, changes: dict[str, Any], reason: str) -> None:
    word = await scene.ask(replace(QUESTION, **changes))
    assert (word.fate, reason in word.reason) == (QuestionFate.NEVER, True), word.reason
    assert not scene.measurers


@pytest.mark.parametrize("request_", [b"", b"\x80", b"\xff" * 5000, pack(RESULT)])
async def test_what_is_no_question_is_refused(scene: Scene, request_: bytes) -> None:
    with pytest.raises(Refused):
        await scene.asker.call(PEER.public_key, METHOD, request_, timeout_s=60)


async def test_a_state_that_is_on_its_way_is_for_later_and_one_that_was_asked_about_stays(scene: Scene) -> None:
    weights, scene.round = scene.states.pop(STATE), 6
    assert (await scene.ask()).fate == QuestionFate.LATER
    scene.states[STATE], scene.round = weights, 7
    assert (await scene.answer()).fate == QuestionFate.DONE
    del scene.states[STATE]
    assert (await scene.answer(replace(QUESTION, nonce=b"m" * 16))).fate == QuestionFate.DONE
    others = [replace(QUESTION, state=sha256(name), nonce=b"o" * 16) for name in (b"other", b"third")]
    assert (await scene.answer(others[0])).fate == QuestionFate.DONE
    assert (await scene.ask(others[1])).fate == QuestionFate.LATER  # two are kept, and no more
    assert others[1].state not in scene.copied
    assert [weights for each in scene.measurers for weights in each.loaded] == [b"weights", b"other"]


async def test_a_person_who_wants_it_no_more_has_it_end_at_once_and_is_asked_nothing(scene: Scene) -> None:
    asking = asyncio.create_task(scene.answer())
    await asyncio.sleep(CPU_S / 2)
    scene.service.limit(0, 100)
    assert (await asking).reason == service.NOT_WANTED
    await asyncio.sleep(CPU_S / 10)
    assert scene.measurers[0].is_closed
    assert (await scene.ask(replace(QUESTION, nonce=b"m" * 16))).reason == service.NOT_WANTED
    scene.service.limit(100, 100)
    assert (await scene.answer(replace(QUESTION, nonce=b"k" * 16))).fate == QuestionFate.DONE


async def test_private_data_are_not_measured_on() -> None:
    async with scene_with(refusal="the run's data are private") as scene:
        word = await scene.ask()
        assert (word.fate, word.reason) == (QuestionFate.NEVER, "the run's data are private")


async def test_while_it_is_paused_nothing_is_computed_no_memory_is_held_and_questions_that_wait_are_for_later(scene: Scene) -> None:
    asking = [asyncio.create_task(scene.answer(asker=scene.other(number))) for number in range(3)]
    await asyncio.sleep(CPU_S / 2)
    scene.service.pause()
    assert {(await each).reason for each in asking} == {service.PAUSED}
    await asyncio.sleep(0.1)
    assert scene.measurers[0].is_closed
    assert (await scene.ask()).fate == QuestionFate.LATER
    assert len(scene.measurers) == 1
    scene.service.resume()
    assert (await scene.answer()).fate == QuestionFate.DONE


async def test_a_pause_while_it_rests_frees_the_memory_too(scene: Scene) -> None:
    scene.service.limit(1, 100)
    assert (await scene.answer(replace(QUESTION, architectures=(SMALLEST,)))).fate == QuestionFate.DONE
    scene.service.pause()
    await asyncio.sleep(0.1)
    assert scene.measurers[0].is_closed


async def test_a_caller_has_one_question_and_all_together_a_few(scene: Scene) -> None:
    scene.service.limit(1, 100)
    asking = [asyncio.create_task(scene.answer(asker=scene.other(number))) for number in range(service.MAX_OPEN)]
    await asyncio.sleep(0.1)
    assert (await scene.ask()).fate == QuestionFate.LATER
    newer = asyncio.create_task(scene.answer(replace(QUESTION, nonce=b"m" * 16), scene.network.endpoints[scene.other(1).key]))
    assert (await asking[1]).fate == QuestionFate.LATER  # it asked anew
    scene.service.limit(100, 100)
    assert (await newer).fate == QuestionFate.DONE
    assert {(await each).fate for each in asking[2:]} == {QuestionFate.DONE}


async def test_what_measures_is_ended_when_nobody_asks_any_more(scene: Scene) -> None:
    await scene.answer()
    await asyncio.sleep(service.IDLE_S + 2 * CPU_S)
    assert scene.measurers[0].is_closed
    assert (await scene.answer(replace(QUESTION, nonce=b"m" * 16))).fate == QuestionFate.DONE
    assert len(scene.measurers) == 2


@pytest.mark.parametrize("others_ask", [False, True])
async def test_weights_are_let_go_when_nobody_asks_about_them_any_more(scene: Scene, others_ask: bool) -> None:
    weights = scene.states[STATE] = b"weights of a state"[: 10 + scene.round]
    at_first = sys.getrefcount(weights)
    await scene.answer()
    until_s, number = now() + service.KEPT_S + service.IDLE_S + 10, 0
    while now() < until_s:
        await asyncio.sleep(service.IDLE_S if others_ask else service.KEPT_S)
        if others_ask:
            number += 1
            await scene.answer(replace(QUESTION, state=sha256(b"other"), nonce=bytes([number]) * 16))
    for each in scene.measurers:
        each.loaded.clear()
    assert sys.getrefcount(weights) == at_first


async def test_a_question_of_somebody_who_has_gone_is_not_measured_to_its_end(scene: Scene) -> None:
    scene.service.limit(1, 100)
    await scene.ask()  # and never again
    await asyncio.sleep(CPU_S / 0.01 + service.ABANDONED_S)
    assert scene.measurers[0].asked == [(SMALLEST, "search")]


@pytest.mark.parametrize(
    ("fault", "fates", "count"),
    [
        (ChildLost("it has ended"), [QuestionFate.LATER, QuestionFate.LATER, QuestionFate.NEVER, QuestionFate.NEVER], 3),
        (UserError("a shard is missing"), [QuestionFate.NEVER, QuestionFate.NEVER], 1),
    ],
)
async def test_one_that_dies_is_started_again_but_not_for_ever_and_for_missing_samples_never(
    scene: Scene, fault: Exception, fates: list[QuestionFate], count: int
) -> None:
    scene.fault = fault
    nonces = [bytes([number]) * 16 for number in range(len(fates))]
    assert [(await scene.answer(replace(QUESTION, nonce=nonce))).fate for nonce in nonces] == fates
    assert len(scene.measurers) == count


async def test_one_who_replays_a_question_of_somebody_else_gets_its_own_answer(scene: Scene) -> None:
    mine, theirs = await asyncio.gather(scene.answer(), scene.answer(asker=scene.other(3)))
    assert mine == theirs  # the same measurements, signed for the same question
    assert len(scene.measurers[0].asked) == 4
    with pytest.raises(EncodingError):
        checked(theirs.answer[0], replace(QUESTION, nonce=b"m" * 16), PEER.public_key, DATA)
