"""What a log finds of real lots: honest ones hold, false ones differ, those that nobody shows are withheld. In one process."""

import asyncio
from pathlib import Path

import pytest

from aggregator.audits.jobs import FOLDER as JOBS
from aggregator.audits.jobs import Found, Job
from aggregator.audits.shown import REFUSALS
from protocol.audits import DIFFERS, HOLDS, LOT, SUM, WITHHELD, SignedFinding
from protocol.errors import LedgerError, StorageError
from protocol.evidence import pages
from protocol.signing import PublicKey
from swarm.memory import MemoryEndpoint
from swarm.records import RecordsFolder, serve_records
from tests.aggregator.audits.real_lots import ONE, OTHER, THIRD, Scene


@pytest.fixture
def scene(tmp_path: Path) -> "object":
    scene = Scene(tmp_path / "run")
    with scene.run.log:
        yield scene


def test_honest_lots_hold_and_false_ones_and_a_false_body_differ(scene: Scene) -> None:
    first = [scene.train(ONE), scene.train(OTHER, seed=99), scene.train(THIRD, body="false")]
    scene.give(*first)
    scene.commit(first)
    scene.commit([scene.train(ONE)])
    asyncio.run(scene.until(lambda: len(scene.findings) >= 4))
    assert scene.found(ONE) == {(LOT, HOLDS): 1}
    assert scene.found(OTHER) == {(LOT, DIFFERS): 1}
    assert scene.found(THIRD) == {(LOT, HOLDS): 1, (SUM, DIFFERS): 1}
    assert scene.audits.totals.against == 2
    assert scene.audits.totals.lots == 3
    assert len(scene.said) == 2


def test_a_fault_of_the_disk_under_the_audits_makes_them_pause_and_they_go_on_by_themselves(scene: Scene, tmp_path: Path) -> None:
    first = [scene.train(ONE)]
    scene.give(*first)
    scene.commit(first)
    scene.commit([scene.train(OTHER)])
    broken = tmp_path / "run" / JOBS
    broken.write_text("no folder")
    scene.audits.again_s = 0.01

    async def scenario() -> None:
        await scene.until(lambda: len(scene.said) >= 2)
        assert scene.said[0].startswith("audits pause, the run goes on: ")
        assert not scene.findings
        scene.commit([scene.train(OTHER)])  # the log takes what comes
        broken.unlink()
        await scene.until(lambda: scene.findings)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, HOLDS): 1}


def test_a_fault_of_the_log_s_own_disk_ends_the_audits_as_it_ends_the_run(scene: Scene) -> None:
    scene.commit([scene.train(ONE)])
    scene.commit([scene.train(OTHER)])
    scene.audits.again_s = 0.01
    scene.run.log.close()
    with pytest.raises(StorageError, match="has stopped"):
        asyncio.run(scene.until(lambda: False))
    assert not scene.said


def test_records_that_lack_are_got_from_their_key(scene: Scene, tmp_path: Path) -> None:
    work = scene.train(ONE)
    scene.commit([work])
    scene.commit([scene.train(OTHER)])
    own = RecordsFolder(tmp_path / "own", kept_rounds=8, max_bytes=1 << 20)
    for page in pages(work.claim, work.records):
        own.keep(page)
    at: MemoryEndpoint = scene.network.endpoint(PublicKey(ONE.public_key))

    async def scenario() -> None:
        await serve_records(at, own)
        await scene.until(lambda: scene.findings)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, HOLDS): 1}


def test_whoever_says_again_and_again_that_it_has_no_records_withholds_them(scene: Scene, tmp_path: Path) -> None:
    scene.commit([scene.train(ONE)])
    nothing = RecordsFolder(tmp_path / "own", kept_rounds=8, max_bytes=1 << 20)
    at: MemoryEndpoint = scene.network.endpoint(PublicKey(ONE.public_key))

    async def scenario() -> None:
        await serve_records(at, nothing)
        for _ in range(REFUSALS):
            later = scene.train(OTHER)
            scene.give(later)
            scene.commit([later])
            asked = scene.audits.rounds_asked
            await scene.until(lambda asked=asked: scene.audits.rounds_asked > asked)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, WITHHELD): 1}
    assert scene.found(OTHER).keys() <= {(LOT, HOLDS)}


def test_a_key_that_is_away_is_waited_for_as_long_as_its_records_have_to_be_kept(scene: Scene) -> None:
    scene.commit([scene.train(ONE)])

    async def scenario() -> None:
        kept = scene.run.log.ledger.manifest.trust.kept_rounds
        for _ in range(kept - 1):
            assert not scene.found(ONE)
            later = scene.train(OTHER)
            scene.give(later)
            scene.commit([later])
            asked = scene.audits.rounds_asked
            await scene.until(lambda asked=asked: scene.audits.rounds_asked > asked)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, WITHHELD): 1}


def test_a_finding_that_the_log_refuses_is_no_fault_of_anybodys(scene: Scene) -> None:
    async def refuse(_signed: SignedFinding) -> None:
        raise LedgerError("decided already")

    scene.audits._take = refuse
    work = scene.train(ONE, seed=99)
    scene.give(work)
    scene.commit([work])
    scene.commit([scene.train(OTHER)])
    asyncio.run(scene.until(lambda: scene.audits.totals.lots > 0))
    assert (scene.audits.totals.against, scene.said) == (0, [])


def test_an_answer_about_a_claim_that_was_given_up_meanwhile_is_passed_over(scene: Scene) -> None:
    job = Job(scene.train(ONE).claim, LOT, lot=0, round=1, contribution=bytes(32), floor=0, state=bytes(32), step=0, deep=0, left=1)
    asyncio.run(scene.audits._settle(job.name, Found(DIFFERS, b"", "", 1, 1)))
    assert not scene.found(ONE)
    assert scene.audits.totals.lots == 0
