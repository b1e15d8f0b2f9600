"""The desk that audits others' lots, over a network in memory: what it takes up, what it says, and when it does nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from peer.aside.aside import AsideLost
from peer.audits.auditor import Rest
from peer.audits.desk import AGAIN_S, AuditDesk
from peer.audits.messages import Ask, Found
from peer.audits.needs import Known
from peer.status import PeerStatus, StatusBoard
from peer.store import PeerStore
from protocol.audits import DIFFERS, HOLDS, LOT, WHOLE, Finding, SignedFinding
from protocol.duties import ASK, Duties, Duty
from protocol.encoding import pack, unpack
from protocol.evidence import ASK as RECORDS
from protocol.evidence import Records, pages
from protocol.notes import TreeHead
from protocol.operators import Operators
from protocol.receipts import ProvenRound
from protocol.records import Included, Listing, LotRecord, Receipt, entry_of, open_entry
from protocol.signing import Digest, Identity, PublicKey, sha256
from protocol.trust import lots_audited
from protocol.vectors import ASK as VECTORS
from protocol.vectors import MAX_ASK_BYTES, AskVector
from swarm.log_client import Counted
from swarm.memory import MemoryNetwork
from swarm.operator_line import OperatorLine
from swarm.vectors import VectorsFolder
from swarm.voice import Voice
from tests.audited import LOTS, OPERATOR, audited_ledger, claimed_of, go_on, records_of, steps_of, work_of, works_of
from tests.contributions import PEERS
from tests.swarm.virtual_time import run_virtual

A, B = PEERS[:2]
WEIGHTS = torch.zeros(4)
BODY = b"the body"


class Auditor:
    """Finds what it is told to find."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self.is_closed = False

    def load(self, weights: torch.Tensor, teacher: torch.Tensor | None) -> None:
        self._scene.loaded.append(weights)

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        self._scene.asked.append(ask)
        for _ in ask.lots if ask.check == WHOLE else ():
            await asyncio.sleep(1.0)
            await rest(1.0)
        await asyncio.sleep(1.0)
        self._scene.fail()
        return Found(HOLDS if self._scene.holds else DIFFERS, b"p" * 32, "", 1000)

    async def close(self) -> None:
        self.is_closed = True


class Scene:
    """A log in memory, in which A has a claim that B is asked about, and B's desk."""

    def __init__(self, directory: Path, steps: int = 1, whole_percent: int = 0) -> None:
        audit_lots = 1 if steps == 1 else LOTS
        self.ledger = audited_ledger(proven=(B.public_key,), local_steps=steps, audit_lots=audit_lots, whole_percent=whole_percent)
        self.network = MemoryNetwork()
        self.claim = work_of(self.ledger, A)
        (self.header,) = works_of(self.ledger, [A])
        self.commits: dict[int, ProvenRound] = {}
        self.rounds: dict[int, bytes] = {}  # entries
        for _ in range(2):
            go_on(self.ledger, [A])
            newest = self.ledger.newest
            assert newest is not None
            self.rounds[newest.round] = entry_of(newest)
            self.commits[newest.round] = ProvenRound(newest, Digest(self.ledger.last_commit), TreeHead("log", 1, sha256(b"root")))
        claimed = claimed_of(self.ledger, A)
        assert claimed.digest == self.claim.digest
        beacon = self.commits[2].commit
        (*_, lot) = lots_audited(self.ledger.manifest.trust, beacon, claimed.digest, claimed.lots)
        self.duty = Duty(self.claim, claimed.round, claimed.row, LOT, lot)
        self.whole = replace(self.duty, check=WHOLE, lot=0)
        self.duties: tuple[Duty, ...] = (self.duty,)
        self.records = tuple(unpack(LotRecord, record, max_bytes=1024) for record in records_of(A.public_key, steps=steps))
        self.steps = steps_of(steps)
        self.holders: dict[Identity, bytes] = {}  # of vectors, with what they hand out
        self.asked_for: list[AskVector] = []
        self.extras: list[Finding] = []
        self.answered: list[bytes] = []  # who was asked for a vector
        self.asked: list[Ask] = []
        self.loaded: list[torch.Tensor] = []
        self.holds = True
        self.fail: Callable[[], None] = lambda: None
        self.auditors: list[Auditor] = []
        status = PeerStatus("12D", "k", "r", "n", "c", "cpu", 9)
        self.voice = Voice()
        self.board = StatusBoard(PeerStore(directory), status, self.voice)
        known = Known(lambda: self.ledger.round, self.commits.get, self._weights, self._listed, self._body)
        endpoint = self.network.endpoint(PublicKey(B.public_key))
        self.desk = AuditDesk(
            endpoint,
            OperatorLine(endpoint, Operators.of(self.ledger.manifest, self.ledger.run)),
            B,
            self.ledger.manifest,
            self.ledger.run,
            known,
            self._start,
            self.board,
            VectorsFolder(directory / "fetched", kept_rounds=100, max_bytes=1 << 20),
            len(WEIGHTS),
        )
        self.desk.limit(100, 100)
        self.states: list[bytes] = []

    async def _weights(self, digest: bytes) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.states.append(digest)
        return WEIGHTS, None

    async def _listed(self, round_: int, key: bytes) -> Counted:
        assert (round_, key) == (self.duty.round, A.public_key)
        signed = self.header.contribution
        return Counted(signed.digest, signed.open(), Listing(Receipt(self.rounds[round_], 0, (), ""), Included(b"", 0, ())))

    async def _body(self, root: bytes) -> bytes:
        assert root == self.header.contribution.open().body
        return BODY

    async def _start(self) -> Auditor:
        self.auditors.append(Auditor(self))
        return self.auditors[-1]

    async def _on_ask(self, _caller: PublicKey, _request: bytes) -> bytes:
        done = {(finding.claim, finding.check, finding.lot) for finding in self.extras}
        return pack(Duties(tuple(duty for duty in self.duties if (duty.claim.digest, duty.check, duty.lot) not in done)))

    async def _on_extra(self, _caller: PublicKey, request: bytes) -> bytes:
        signed = open_entry(request)
        assert isinstance(signed, SignedFinding)
        self.ledger.check_extra(signed)
        self.extras.append(signed.open())
        return b""

    async def _on_records(self, _caller: PublicKey, _request: bytes) -> bytes:
        (page,) = pages(self.claim, Records(self.records, self.steps))
        return pack(page)

    async def _serve_vectors(self) -> None:
        for who, data in self.holders.items():

            async def answer(_caller: PublicKey, request: bytes, who: Identity = who, data: bytes = data) -> bytes:
                self.answered.append(who.public_key)
                self.asked_for.append(unpack(AskVector, request, max_bytes=MAX_ASK_BYTES))
                return data

            key = PublicKey(who.public_key)
            await (self.network.endpoints.get(key) or self.network.endpoint(key)).serve(VECTORS, answer)

    def play(
        self, until: Callable[[], object], *, records_at: Identity = OPERATOR, virtual_s: float = 100.0, is_real: bool = False
    ) -> None:
        """Let the desk work until that holds, or so much time is over; ``is_real`` time goes by where it waits for a disk."""

        async def work() -> None:
            log = self.network.endpoint(PublicKey(OPERATOR.public_key))
            await log.serve(ASK, self._on_ask)
            await log.serve("extra", self._on_extra)
            who = log if records_at is OPERATOR else self.network.endpoint(PublicKey(records_at.public_key))
            await who.serve(RECORDS, self._on_records)
            await self._serve_vectors()
            keeping = asyncio.create_task(self.desk.keep())
            ends = asyncio.get_running_loop().time() + virtual_s
            while not until() and asyncio.get_running_loop().time() < ends and not keeping.done():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

        if is_real:
            asyncio.run(work())
        else:
            run_virtual(work())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("holds", [True, False])
def test_it_says_what_it_found_and_the_log_may_take_it(scene: Scene, holds: bool) -> None:
    scene.holds = holds
    scene.play(lambda: scene.extras)
    (found,) = scene.extras
    assert (found.outcome, found.auditor, found.claim) == (HOLDS if holds else DIFFERS, B.public_key, scene.claim.digest)
    assert scene.states == [scene.ledger.manifest.initial_state]
    assert (scene.asked[0].lots, scene.asked[0].place) == (scene.records, scene.duty.lot)
    assert (scene.board.status.audits, scene.board.status.audits_against) == (1, int(not holds))
    assert scene.auditors[0].is_closed


def test_records_that_the_log_has_not_got_come_from_who_made_them(scene: Scene) -> None:
    scene.play(lambda: scene.extras, records_at=A)
    assert len(scene.extras) == 1
    assert scene.asked[0].lots == scene.records


RIGHT, WRONG = (np.full(4, value, "<f4").tobytes() for value in (2.0, 3.0))


@pytest.mark.parametrize("holders", [{A: RIGHT}, {OPERATOR: RIGHT}, {A: WRONG, OPERATOR: RIGHT}, {A: RIGHT[:-4], OPERATOR: RIGHT}])
def test_a_lot_of_a_later_step_is_computed_on_the_weights_before_it(tmp_path: Path, holders: dict[Identity, bytes]) -> None:
    scene = Scene(tmp_path, steps=LOTS)
    assert scene.duty.lot == LOTS - 1
    scene.holders = holders
    scene.play(lambda: scene.extras, is_real=True)
    assert len(scene.extras) == 1
    assert {(ask.claim, ask.digest) for ask in scene.asked_for} == {(scene.claim.digest, scene.steps[2].state)}
    (weights,) = scene.loaded
    assert weights.tolist() == [2.0] * 4
    assert scene.answered == [holder.public_key for holder in holders]  # the last of them gave what is right
    assert [path for path in (tmp_path / "fetched").rglob("*") if path.is_file()] == []


def test_a_vector_that_is_here_already_is_asked_for_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, steps=LOTS)
    scene.holders = {A: RIGHT}

    async def twice() -> None:
        await scene._serve_vectors()
        for _ in range(2):
            await scene.desk._needs._get(scene.claim, scene.claim.open(), scene.steps[2].state)

    asyncio.run(twice())
    assert scene.answered == [A.public_key]


def test_without_these_weights_it_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "manta.audits")
    scene = Scene(tmp_path, steps=LOTS)
    scene.holders = {A: WRONG}
    scene.play(lambda: "not audited, or not handed in" in caplog.text, is_real=True)
    assert scene.asked_for
    assert scene.asked == scene.extras == []


def test_it_audits_nothing_that_the_beacon_does_not_ask(scene: Scene) -> None:
    other = work_of(scene.ledger, A)  # a claim on the newest base, of which no table is known
    scene.duties = (
        replace(scene.duty, lot=(scene.duty.lot + 1) % 3),
        replace(scene.duty, round=2),
        replace(scene.duty, check="whole", lot=0),
        replace(scene.duty, claim=other),
    )
    scene.play(lambda: False)
    assert scene.asked == scene.extras == []


@pytest.mark.parametrize("holds", [True, False])
def test_of_a_whole_claim_it_gets_the_body_and_says_what_it_found(tmp_path: Path, holds: bool) -> None:
    scene = Scene(tmp_path, whole_percent=100)
    scene.duties, scene.holds = (scene.whole,), holds
    scene.play(lambda: scene.extras)
    (found,), (ask,) = scene.extras, scene.asked
    assert (found.check, found.lot, found.outcome, found.evidence) == (WHOLE, 0, HOLDS if holds else DIFFERS, ())
    assert (ask.check, ask.lots, ask.is_alone, ask.body) == (WHOLE, scene.records, 1, BODY)
    assert ask.floor == scene.ledger.floor_at(0)
    status = scene.board.status
    assert (status.audits, status.whole_audits, status.audits_against, status.audits_missed) == (0, 1, int(not holds), 0)


def test_single_lots_come_before_a_whole_claim(tmp_path: Path) -> None:
    scene = Scene(tmp_path, whole_percent=100)
    scene.duties = (scene.whole, scene.duty)
    scene.play(lambda: len(scene.extras) == 2)
    assert [ask.check for ask in scene.asked] == [finding.check for finding in scene.extras] == [LOT, WHOLE]


def test_it_rests_after_each_lot_of_a_whole_claim(tmp_path: Path) -> None:
    scene = Scene(tmp_path, whole_percent=100)
    scene.duties, began_s = (scene.whole,), [0.0]
    scene.desk.limit(10, 100)
    ended_s: list[float] = []
    scene.play(lambda: scene.extras and (ended_s.append(asyncio.get_running_loop().time()) or True), virtual_s=1000.0)
    assert ended_s[0] - began_s[0] >= 10 * (LOTS + 1)


def test_what_would_not_be_over_in_time_is_left_and_nobody_is_accused(tmp_path: Path) -> None:
    scene = Scene(tmp_path, whole_percent=100)
    scene.duties = (scene.duty, scene.whole)
    scene.desk.limit(1, 100)  # a second in a hundred, and three lots: longer than three rounds
    newest = scene.ledger.newest
    assert newest is not None
    assert scene.ledger.manifest.trust.kept_rounds * newest.open_ms / 1000 < 100 * LOTS
    scene.play(lambda: False, virtual_s=1000.0)
    assert [ask.check for ask in scene.asked] == [finding.check for finding in scene.extras] == [LOT]
    assert scene.board.status.audits_missed == 1


def test_a_whole_claim_that_is_not_over_in_time_is_broken_off(tmp_path: Path) -> None:
    scene = Scene(tmp_path, whole_percent=100)
    scene.duties = (scene.whole,)
    scene.desk.limit(1, 100)  # nothing is known yet of how long a lot takes

    def turn() -> bool:
        if scene.asked and scene.ledger.round <= scene.duty.round + scene.ledger.manifest.trust.kept_rounds:
            go_on(scene.ledger, [B])
            scene.desk.committed()
        return bool(scene.board.status.audits_missed)

    scene.play(turn)
    assert scene.board.status.audits_missed == 1
    assert scene.auditors[0].is_closed
    assert scene.extras == []


def test_what_computes_may_end_at_a_whole_claim_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, whole_percent=100)
    scene.duties = (scene.whole,)

    def die() -> None:
        raise AsideLost("it has ended")

    scene.fail = die
    scene.play(lambda: False, virtual_s=10 * AGAIN_S)
    assert len(scene.auditors) == scene.board.status.audits_missed == 1


def test_of_a_claim_that_its_table_has_not_got_it_computes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "manta.audits")
    scene = Scene(tmp_path, whole_percent=100)
    scene.duties = (scene.whole,)
    (scene.header,) = works_of(scene.ledger, [B])
    scene.play(lambda: "table has not got" in caplog.text)
    assert "table has not got" in caplog.text
    assert scene.asked == scene.extras == []


def test_a_log_that_is_away_is_told_later_and_nothing_is_computed_twice(scene: Scene) -> None:
    scene.network.lost = lambda _caller, _key, method: method == "extra" and len(tries) < 3 and (tries.append(1) or True)
    tries: list[int] = []
    scene.play(lambda: scene.extras)
    assert len(scene.extras) == len(scene.asked) == 1
    assert len(tries) == 3


def test_without_a_share_or_while_it_is_paused_it_asks_nobody(scene: Scene) -> None:
    scene.desk.limit(0, 100)
    seen: list[int] = []

    def turn() -> bool:
        """Count what was asked of the process: with no share, while it is paused, and after that."""
        at = asyncio.get_running_loop().time()
        if len(seen) < 2 and at >= 20.0 * (1 + len(seen)):
            seen.append(len(scene.asked))
            if len(seen) == 1:
                scene.desk.pause()
                scene.desk.limit(50, 100)
            else:
                scene.desk.resume()
        return bool(scene.extras)

    scene.play(turn)
    assert seen == [0, 0]
    assert len(scene.extras) == 1


def test_what_computes_is_started_again_but_not_for_ever(scene: Scene) -> None:
    def die() -> None:
        raise AsideLost("it has ended")

    scene.fail = die
    scene.play(lambda: False, virtual_s=10 * AGAIN_S)
    assert len(scene.auditors) == 3
    assert all(auditor.is_closed for auditor in scene.auditors)
    assert any("audits no more" in line for line in scene.voice.last())
    assert scene.extras == []
