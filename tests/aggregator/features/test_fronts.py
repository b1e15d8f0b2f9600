"""Fronts that members in memory measure: what is written, who is asked, and what comes of those who are not there."""

import asyncio
import json
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manta_swarm.aggregator.features.front_file import FILE
from manta_swarm.aggregator.features.fronts import Fronts
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import TINY, Architecture
from manta_swarm.network import timeouts
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.evaluations import MAX_QUESTION_BYTES, METHOD, Answer, EvaluationWord, Question, QuestionFate, Result
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name, sha256
from tests.memory_log import until
from tests.runs import manifest_of

OPERATOR = Identity(b"\x09" * 32)
SIGNED = SignedManifest.sign(manifest_of(OPERATOR), OPERATOR)
STATES = [sha256(b"state %d" % number) for number in range(9)]
MEMBERS = [Identity(bytes([number]) * 32) for number in (1, 2, 3)]


def honest(text: str) -> Result:
    """Return losses that fall with the MACs, but for small resolutions, which gain from them less."""
    loss = 30_000 - round(12_000 * (macs(Architecture.parse(text, TINY), TINY) / 4e6) ** 0.3)
    return Result.of(array("i", [loss + place for place in range(20)]), array("i", [1]), ())


def liar(text: str) -> Result:
    """Return nothing but good."""
    return Result.of(array("i", [1] * 20), array("i"), ())


class Run:
    """A run in memory, and who asks its members."""

    def __init__(self, directory: Path, every: int = 2) -> None:
        self.network = MemoryNetwork()
        self.path = directory / "snapshots" / FILE
        self.asked: list[Question] = []
        self.ledger: Any = SimpleNamespace(round=0, state=STATES[0])
        self.fronts = Fronts(self.network.endpoint(OPERATOR.public_key), self, SIGNED, directory / "snapshots", every=every)

    def commit(self, round_: int) -> None:
        """Have a round committed by this operator."""
        self.ledger = SimpleNamespace(round=round_, state=STATES[round_])
        self.fronts.on_committed(is_leader=True)

    async def join(self, identity: Identity, measure: Callable[[str], Result]) -> None:
        """Have a member be there, and answer."""
        endpoint = self.network.endpoint(identity.public_key)

        async def answer(_caller: PublicKey, request: bytes) -> bytes:
            question = unpack(Question, request, max_bytes=MAX_QUESTION_BYTES)
            self.asked.append(question)
            results = tuple(map(measure, question.architectures))
            found = Answer(SIGNED.run, identity.public_key, question.digest, SIGNED.open().data_digest, results)
            return pack(EvaluationWord(int(QuestionFate.DONE), "", 0, (Signed.sign(found, identity),)))

        await endpoint.serve(METHOD, answer)
        await Neighbours(endpoint, SIGNED.run).announce(cohort="here", round_=0)

    @property
    def written(self) -> dict[str, Any]:
        """What is in the file."""
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


async def test_the_front_of_the_newest_state_is_kept_and_the_next_one_begins_with_it(run: Run) -> None:
    for identity in MEMBERS:
        await run.join(identity, honest)
    assert await run.fronts.measure(2, STATES[2])
    first = run.written
    assert (first["round"], first["state"], first["members"], first["not_believed"]) == (2, STATES[2].hex(), 3, [])
    costs, losses = ([point[name] for point in first["front"]] for name in ("macs", "loss"))
    assert costs == sorted(costs)
    assert losses == sorted(losses, reverse=True)
    assert first["front"][0]["text"] == TINY.smallest().text
    run.asked.clear()
    assert await run.fronts.measure(4, STATES[4])
    assert {question.state for question in run.asked} == {STATES[4]}
    asked = {text for question in run.asked for text in question.architectures}
    assert {point["text"] for point in first["front"]} - asked == set() or len(first["front"]) > 12


async def test_a_member_that_lies_is_named_and_not_in_the_front(run: Run) -> None:
    for identity, measure in zip(MEMBERS, (honest, liar, honest), strict=True):
        await run.join(identity, measure)
    assert await run.fronts.measure(2, STATES[2])
    assert run.written["not_believed"] == [peer_name(MEMBERS[1].public_key)]
    assert min(point["loss"] for point in run.written["front"]) > 1


async def test_it_is_due_every_so_many_rounds_and_a_damaged_file_is_no_hindrance(run: Run) -> None:
    run.path.parent.mkdir()
    run.path.write_text("{")
    await run.join(MEMBERS[0], honest)
    keeping = asyncio.create_task(run.fronts.run(()))
    run.commit(1)
    run.commit(2)
    await until(lambda: run.path.read_text() != "{")
    assert run.written["round"] == 2
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert {question.round for question in run.asked} == {2}


async def test_who_measured_a_front_is_counted_for_that_front(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(timeouts, "EVALUATION_AGAIN_S", 0.01)
    for identity in MEMBERS:
        await run.join(identity, honest)
    assert await run.fronts.measure(2, STATES[2])
    for identity in MEMBERS[1:]:
        del run.network.endpoints[identity.public_key]
    assert await run.fronts.measure(4, STATES[4])
    assert (run.written["round"], run.written["members"]) == (4, 1)


async def test_one_that_is_cut_off_ends_with_its_thread(run: Run) -> None:
    keeping = asyncio.create_task(run.fronts.run(()))
    run.commit(2)
    await until(lambda: len(asyncio.all_tasks()) > 2)  # nobody is there: it waits for members
    keeping.cancel()
    await asyncio.wait((keeping,))
    assert asyncio.all_tasks() == {asyncio.current_task()}
