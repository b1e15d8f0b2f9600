"""What a log leaves to peers that audit, what it looks at itself, and that nobody is accused before others were asked. In one process."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from aggregator.audits.volunteers import WAIT
from protocol.audits import DIFFERS, HOLDS, LOT, SUM, WHOLE, Finding, SignedFinding
from protocol.duties import ASK, MAX_DUTIES_BYTES, AskDuties, Duties, Duty
from protocol.encoding import pack, unpack
from protocol.evidence import evidence_of
from protocol.records import entry_of
from protocol.signing import Identity, PublicKey, peer_name
from protocol.trust import Question
from tests.aggregator import real_run
from tests.aggregator.audits.real_lots import AUDITED, ONE, OTHER, THIRD, Scene, Work
from tests.aggregator.real_run import OPERATOR

TRUST = AUDITED.trust.model_copy(update={"proven": tuple(peer_name(each.public_key) for each in (OTHER, THIRD))})


class _Never(random.Random):
    """The operator looks at nothing itself."""

    def random(self) -> float:
        return 1.0


class _Always(random.Random):
    """It looks at everything."""

    def random(self) -> float:
        return 0.0


class Audited(Scene):
    """A log, and proven peers that ask it for work."""

    async def ask(self, peer: Identity) -> tuple[Duty, ...]:
        endpoint = self.network.endpoint(PublicKey(peer.public_key))
        answer = await endpoint.call(PublicKey(OPERATOR.public_key), ASK, pack(AskDuties(self.run.log.ledger.round)), timeout_s=60)
        return unpack(Duties, answer, max_bytes=MAX_DUTIES_BYTES).duties

    async def work(self, **changes: object) -> Work:
        """Commit a round with work of ONE's, whose records are given, and have both volunteers ask, while there is no beacon yet."""
        work = self.train(ONE, **changes)
        self.give(work)
        self.commit([work])
        assert await self.ask(OTHER) == await self.ask(THIRD) == ()
        return work

    def say(self, peer: Identity, work: Work, duty: Duty, outcome: str) -> SignedFinding:
        """Return a peer's finding, which may stand in the log."""
        evidence = (evidence_of(work.records, duty.lot),) if duty.check == LOT else ()
        claim, run = duty.claim.digest, self.run.log.ledger.run
        return SignedFinding.sign(
            Finding(run, peer.public_key, claim, duty.round, duty.row, duty.check, duty.lot, outcome, bytes(32), evidence), peer
        )

    def go_on(self, *findings: SignedFinding) -> None:
        """Commit a round of somebody whose records nobody has."""
        in_order = sorted(findings, key=lambda each: each.digest)
        for signed in in_order:
            self.run.log.ledger.check_extra(signed)
        made = real_run.made(self.run.log.ledger, OTHER, seed=self.run.log.ledger.round)
        real_run.commit(self.run, [made], extras=[entry_of(signed) for signed in in_order])
        self.audits.committed()


def play(directory: Path, rng: random.Random, story: Callable[[Audited], Coroutine[Any, Any, None]], *, whole_percent: int = 0) -> None:
    """Have a story happen at a log that tells peers what to audit."""
    trust = TRUST.model_copy(update={"whole_percent": whole_percent})
    scene = Audited(directory, AUDITED.model_copy(update={"trust": trust}), rng)

    async def at_work() -> None:
        await scene.audits.serve(scene.network.endpoint(PublicKey(OPERATOR.public_key)))
        async with scene.at_work():
            await story(scene)

    with scene.run.log:
        asyncio.run(at_work())


def of(duties: tuple[Duty, ...], peer: Identity) -> list[Duty]:
    return [duty for duty in duties if duty.claim.open().key == peer.public_key]


def test_what_two_volunteers_find_good_is_not_looked_at_by_the_operator(tmp_path: Path) -> None:
    async def story(scene: Audited) -> None:
        work = await scene.work()
        scene.go_on()
        (duty,) = of(await scene.ask(OTHER), ONE)
        assert await scene.ask(THIRD) == (duty,)
        assert await scene.ask(ONE) == ()  # who is not proven has no say
        await scene.wait(lambda: scene.audits.totals.left)
        scene.go_on(scene.say(OTHER, work, duty, HOLDS), scene.say(THIRD, work, duty, HOLDS))
        assert of(await scene.ask(THIRD), ONE) == []
        assert scene.run.log.ledger.standing.samples[ONE.public_key] == 4 * 32
        asked = scene.audits.rounds_asked
        scene.go_on()
        await scene.wait(lambda: scene.audits.rounds_asked > asked)
        assert not scene.found(ONE)

    play(tmp_path, _Never(), story)


def test_what_volunteers_do_not_answer_the_operator_looks_at_itself(tmp_path: Path) -> None:
    async def story(scene: Audited) -> None:
        await scene.work()
        for _ in range(1 + WAIT):
            asked = scene.audits.rounds_asked
            scene.go_on()
            assert len(of(await scene.ask(OTHER), ONE)) == len(of(await scene.ask(THIRD), ONE)) == 1
            await scene.wait(lambda asked=asked: scene.audits.rounds_asked > asked)
        await scene.wait(lambda: scene.found(ONE))
        assert scene.found(ONE) == {(LOT, HOLDS): 1}
        assert scene.audits.totals.left >= 1

    play(tmp_path, _Never(), story)


@pytest.mark.parametrize("says", [DIFFERS, HOLDS])
def test_nobody_is_accused_before_others_were_asked_and_who_says_otherwise_is_found_out(tmp_path: Path, says: str) -> None:
    async def story(scene: Audited) -> None:
        work = await scene.work(seed=99)
        scene.go_on()
        await scene.wait(lambda: scene.audits.totals.lots)
        await scene.wait(lambda: scene.audits._doubts)
        assert scene.said == []
        (duty,) = of(await scene.ask(OTHER), ONE)
        scene.go_on(scene.say(OTHER, work, duty, says), scene.say(THIRD, work, duty, DIFFERS))
        assert set(scene.run.log.ledger.standing.guilty) == set()
        await scene.wait(lambda: scene.findings)
        (found,) = [finding for finding in scene.findings if finding.claim == work.claim.digest]
        assert found.outcome == DIFFERS
        assert scene.audits.totals.lots == (2 if says == HOLDS else 1)  # it looked again, where one contradicts
        scene.go_on(SignedFinding.sign(found, OPERATOR))
        guilty = {ONE.public_key, *((OTHER.public_key,) if says == HOLDS else ())}
        assert set(scene.run.log.ledger.standing.guilty) == guilty

    play(tmp_path, _Always(), story)


def test_an_operator_that_computed_wrongly_once_accuses_nobody(tmp_path: Path) -> None:
    async def story(scene: Audited) -> None:
        work = await scene.work()
        scene.errs = 1
        scene.go_on()
        await scene.wait(lambda: scene.audits._doubts)
        (duty,) = of(await scene.ask(OTHER), ONE)
        scene.go_on(scene.say(OTHER, work, duty, HOLDS), scene.say(THIRD, work, duty, HOLDS))
        await scene.wait(lambda: scene.found(ONE))
        assert scene.found(ONE) == {(LOT, HOLDS): 1}
        assert scene.said == []

    play(tmp_path, _Always(), story)


def test_whole_claims_are_left_to_volunteers_behind_all_single_lots(tmp_path: Path) -> None:
    async def story(scene: Audited) -> None:
        work = await scene.work()
        scene.go_on()
        scene.go_on()  # two tables are asked about, and the newer one's lots come before the older one's whole claims
        duties = await scene.ask(OTHER)
        assert [duty.check for duty in duties] == sorted((duty.check for duty in duties), key=lambda check: check != LOT)
        assert {duty.check for duty in duties} == {LOT, WHOLE}
        await scene.ask(THIRD)
        lot, whole = of(duties, ONE)
        assert (lot.check, whole.check, whole.lot) == (LOT, WHOLE, 0)
        findings = [scene.say(peer, work, duty, HOLDS) for peer in (OTHER, THIRD) for duty in (lot, whole)]
        scene.go_on(*findings)
        decided = scene.run.log.ledger.standing.decisions
        assert decided[Question(work.claim.digest, WHOLE, 0)].outcome == HOLDS
        assert of(await scene.ask(THIRD), ONE) == []
        paid = [scene.run.log.ledger.standing.account(peer.public_key).pending for peer in (OTHER, THIRD)]
        assert all(paid)
        asked = scene.audits.rounds_asked
        scene.go_on()
        await scene.wait(lambda: scene.audits.rounds_asked > asked)
        assert not scene.found(ONE)
        assert scene.audits.totals.left >= 2

    play(tmp_path, _Never(), story, whole_percent=100)


def test_nobody_is_accused_of_a_whole_claim_before_others_looked(tmp_path: Path) -> None:
    async def story(scene: Audited) -> None:
        work = await scene.work(body="hidden")
        scene.go_on()
        await scene.wait(lambda: scene.audits._doubts)
        duties = of(await scene.ask(OTHER), ONE)
        assert duties == of(await scene.ask(THIRD), ONE)
        whole = next(duty for duty in duties if duty.check == WHOLE)
        await scene.wait(lambda: scene.found(ONE).get((LOT, HOLDS)))
        assert scene.said == []
        scene.go_on(scene.say(OTHER, work, whole, DIFFERS), scene.say(THIRD, work, whole, DIFFERS))
        await scene.wait(lambda: (WHOLE, DIFFERS) in scene.found(ONE))
        assert (SUM, DIFFERS) not in scene.found(ONE)
        whole_ones = [found for found in scene.findings if found.check == WHOLE and found.claim == work.claim.digest]
        scene.go_on(*(SignedFinding.sign(found, OPERATOR) for found in whole_ones))
        guilty = scene.run.log.ledger.standing.guilty
        assert {key: fault.reason for key, fault in guilty.items()} == {ONE.public_key: DIFFERS}

    play(tmp_path, _Always(), story, whole_percent=100)
