"""Questions shared out among members in memory: who lies, stalls, goes, or does not want to, and what comes out all the same."""

import asyncio
import random
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from manta_swarm.network.asked_members import AskedMembers, Unsettled
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.evaluations import MAX_QUESTION_BYTES, METHOD, Answer, EvaluationWord, Question, QuestionFate, Result
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.network.virtual_time import now

ASKER = Identity(b"\x50" * 32)
RUN, STATE, DATA = sha256(b"run"), sha256(b"state"), sha256(b"data")
TEXTS = tuple(f"r{size}" for size in range(10, 50))
AnswerOf = Callable[[str], Result]


def truth(text: str) -> Result:
    """Return what an honest member measures."""
    return Result.of(array("i", [int(text[1:]) * 100 + place for place in range(50)]), array("i", [1, 2]), ())


def lie(text: str) -> Result:
    """Return something better."""
    return Result.of(array("i", [7] * 50), array("i"), ())


def saying(loss: int) -> AnswerOf:
    """Return who says the same of all."""
    return lambda _text: Result.of(array("i", [loss] * 50), array("i"), ())


class NoChecks(random.Random):
    """Draws nothing to be checked that need not be."""

    def randrange(self, *_: object) -> int:
        return 1


class Members:
    """A run in memory."""

    def __init__(self, *measures: AnswerOf, took_s: float = 1.0) -> None:
        self.network = MemoryNetwork(delay_s=lambda *_: took_s)
        self.identities = [Identity(bytes([place + 1]) * 32) for place in range(len(measures))]
        self.asked: Counter[PublicKey] = Counter()
        self._measures = {identity.public_key: measure for identity, measure in zip(self.identities, measures, strict=True)}
        self.asking = AskedMembers(self.network.endpoint(ASKER.public_key), RUN, DATA, self, rng=random.Random(3))

    def key(self, place: int) -> PublicKey:
        """Return a member's key."""
        return self.identities[place].public_key

    async def start(self) -> None:
        """Have all members answer."""
        for identity in self.identities:
            await self.serve(identity, self._measures[identity.public_key])

    async def serve(self, identity: Identity, measure: AnswerOf, change: Callable[[Answer], Answer] = lambda answer: answer) -> None:
        """Have one answer, after its answer was changed."""

        async def handle(_caller: PublicKey, request: bytes) -> bytes:
            question = unpack(Question, request, max_bytes=MAX_QUESTION_BYTES)
            self.asked[identity.public_key] += len(question.architectures)
            results = tuple(map(measure, question.architectures))
            answer = change(Answer(RUN, identity.public_key, question.digest, DATA, results))
            return pack(EvaluationWord(int(QuestionFate.DONE), "", 0, (Signed.sign(answer, identity),)))

        await self.network.endpoint(identity.public_key).serve(METHOD, handle)

    async def say(self, place: int, word: EvaluationWord) -> None:
        """Have a member answer with this word alone."""

        async def handle(_caller: PublicKey, _request: bytes) -> bytes:
            self.asked[self.key(place)] += 1
            return pack(word)

        await self.network.endpoint(self.key(place)).serve(METHOD, handle)

    async def find(self) -> list[PublicKey]:
        return [identity.public_key for identity in self.identities]

    async def measured(self) -> list[Result]:
        """Return what comes of a whole call."""
        return await self.asking.measure(7, STATE, TEXTS, "search")


TRUTH = [truth(text) for text in TEXTS]
pytestmark = pytest.mark.virtual_time


async def test_work_is_shared_out_and_a_part_of_it_is_done_twice() -> None:
    members = Members(truth, truth, truth)
    await members.start()
    assert await members.measured() == TRUTH
    assert all(members.asked[members.key(place)] >= 8 for place in range(3))
    assert len(TEXTS) + 4 <= sum(members.asked.values()) < 2 * len(TEXTS)
    assert members.asking.num_checked > 0
    assert not members.asking.liars


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_liar_is_named_and_nothing_of_it_is_used(place: int) -> None:
    members = Members(*(lie if each == place else truth for each in range(3)))
    await members.start()
    assert await members.measured() == TRUTH
    liar = members.key(place)
    assert list(members.asking.liars) == [liar]
    signed = members.asking.liars[liar].answer
    assert signed is not None
    assert signed.open().key == liar  # its own word, for whoever wants to see it
    assert any(liar.hex() in line for line in members.asking.take_lines())
    asked = members.asked[liar]
    assert await members.measured() == TRUTH
    assert members.asked[liar] == asked
    assert members.asking.num_doubtful == 0


async def test_one_that_lies_later_on_is_found_by_chance() -> None:
    members = Members(truth, truth, truth)
    count = Counter[str]()

    def turncoat(text: str) -> Result:
        count["asked"] += 1
        return truth(text) if count["asked"] < 20 else lie(text)

    members._measures[members.key(1)] = turncoat
    await members.start()
    for _ in range(8):
        await members.measured()
    assert list(members.asking.liars) == [members.key(1)]


async def test_two_that_contradict_each_other_are_not_believed_where_there_is_no_third() -> None:
    members = Members(lie, truth)
    await members.start()
    with pytest.raises(Unsettled, match="nobody else"):
        await members.measured()
    assert not members.asking.liars


async def test_many_that_all_contradict_each_other_are_no_liars_for_that() -> None:
    members = Members(*(saying(loss) for loss in range(0, 70_000, 10_000)))
    await members.start()
    with pytest.raises(Unsettled, match="5 of the run's members contradict each other"):
        await members.measured()
    assert not members.asking.liars


@pytest.mark.parametrize("other", [Result.of(array("i", [7] * 49), array("i"), ()), Result.of(array("i", [7] * 50), None, (1, 2, 3))])
async def test_what_is_of_other_samples_is_never_taken_on_one_word(other: Result) -> None:
    """The member's first answers are right, so what it says later is taken unchecked for the most part."""
    members = Members(truth, truth, truth)
    count = Counter[str]()

    def turncoat(text: str) -> Result:
        count["asked"] += 1
        return truth(text) if count["asked"] < 13 else other

    members._measures[members.key(1)] = turncoat
    members.asking._rng = NoChecks()
    await members.start()
    for _ in range(4):
        assert await members.measured() == TRUTH
    assert list(members.asking.liars) == [members.key(1)]


async def test_results_of_other_samples_than_those_of_before_are_not_returned() -> None:
    members = Members(lie)
    members._measures[members.key(0)] = lambda text: Result.of(array("i", [7] * 49), array("i"), ())
    await members.start()
    await members.measured()
    await members.serve(members.identities[0], truth)
    with pytest.raises(Unsettled, match="how many samples"):
        await members.measured()
    assert await members.asking.measure(8, sha256(b"the next state"), TEXTS, "search") == TRUTH


async def test_who_does_not_want_to_is_asked_again_about_the_next_state() -> None:
    members = Members(truth, truth)
    await members.start()
    await members.say(0, EvaluationWord(int(QuestionFate.NEVER), "it has not got that state any more", 0, ()))
    assert await members.measured() == TRUTH
    assert await members.measured() == TRUTH
    assert members.asked[members.key(0)] == 1
    await members.serve(members.identities[0], truth)
    assert await members.asking.measure(8, sha256(b"the next state"), TEXTS, "search") == TRUTH
    assert members.asked[members.key(0)] > 1
    assert not members.asking.unwilling


async def test_signed_lies_are_kept_of_a_few_liars_alone() -> None:
    members = Members(*[truth] * 5)
    await members.start()
    for number in range(20):
        members.identities.append(Identity(bytes([number + 100]) * 32))
        await members.serve(members.identities[-1], saying(200_000 + 10_000 * number))
        while len(members.asking.liars) <= number:
            assert await members.measured() == TRUTH
    assert len(members.asking.liars) == 20
    assert sum(each.answer is not None for each in members.asking.liars.values()) == 16


async def test_one_member_alone_is_taken_at_its_word() -> None:
    members = Members(truth)
    await members.start()
    assert await members.measured() == TRUTH
    assert members.asking.num_checked == 0


async def test_who_stalls_goes_or_does_not_want_holds_nobody_up() -> None:
    members = Members(truth, truth, truth, truth, truth)
    await members.start()
    await members.say(0, EvaluationWord(int(QuestionFate.HELD), "", 100, ()))
    await members.say(1, EvaluationWord(int(QuestionFate.NEVER), "its person does not want it", 0, ()))
    await members.say(2, EvaluationWord(int(QuestionFate.LATER), "paused", 1000, ()))
    del members.network.endpoints[members.key(3)]
    members.identities.append(late := Identity(b"\x40" * 32))
    await members.serve(late, truth)
    assert await members.measured() == TRUTH
    assert now() < 200
    assert members.asking.unwilling == {members.key(1): "its person does not want it"}
    assert not members.asking.liars


async def test_where_nobody_measures_that_is_said() -> None:
    members = Members(truth, truth)
    await members.start()
    for place in range(2):
        await members.say(place, EvaluationWord(int(QuestionFate.NEVER), "its person does not want it", 0, ()))
    with pytest.raises(Unreachable, match="does not want it"):
        await members.measured()


@pytest.mark.parametrize("how", ["signature", "run", "replay", "data", "few", "bytes", "key"])
async def test_what_is_no_answer_is_none(how: str) -> None:
    """A bad signature, another run, an answer of before, other data, too few results, no record at all, another's answer."""
    members = Members(truth, truth, truth)
    await members.start()
    wicked, honest = members.identities[0], members.identities[1]
    changes: dict[str, Callable[[Answer], Answer]] = {
        "run": lambda answer: replace(answer, run=sha256(b"another")),
        "replay": lambda answer: replace(answer, question=sha256(b"of before")),
        "data": lambda answer: replace(answer, data=sha256(b"other data")),
        "few": lambda answer: replace(answer, results=answer.results[:1] * (1 + (len(answer.results) == 1))),
    }
    if how in changes:
        await members.serve(wicked, truth, changes[how])
    else:
        handler = members.network.endpoints[honest.public_key].handlers[METHOD]

        async def handle(caller: PublicKey, request: bytes) -> bytes:
            word = unpack(EvaluationWord, await handler(caller, request), max_bytes=10**6)
            signed = word.answer[0]
            if how == "signature":
                forged = replace(signed.open(), key=wicked.public_key)
                signed = Signed(Answer, pack(forged), signed.signature)
            return b"nonsense" if how == "bytes" else pack(replace(word, answer=(signed,)))

        members.network.endpoints[wicked.public_key].handlers[METHOD] = handle
    assert await members.measured() == TRUTH
    assert list(members.asking.liars) == [wicked.public_key]
    assert members.asking.liars[wicked.public_key].answer is None


async def test_a_call_that_is_given_up_leaves_nothing_behind() -> None:
    members = Members(truth, truth, took_s=50.0)
    await members.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await members.measured()
    assert len(asyncio.all_tasks()) <= 3  # answers that are under way in the network's own tasks
