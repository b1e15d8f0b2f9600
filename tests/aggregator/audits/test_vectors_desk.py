"""What a log finds of claims whose vectors it has to be shown: it gets them of their keys, and each lie is its own key's."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.audits.jobs import VECTORS
from aggregator.audits.repeating import repeat
from aggregator.audits.shown import REFUSALS
from exact.coding import parse
from exact.residuals import left_over, near_mean
from protocol.audits import CHECKS, DIFFERS, HOLDS, LOT, SUM, WHOLE, WITHHELD, SignedFinding, Trust
from protocol.records import entry_of
from protocol.signing import Identity, sha256
from protocol.standing import LEFT
from protocol.trust import is_whole, lots_audited
from protocol.vectors import step_asked, vectors_asked
from protocol.wanted import Asked, wanted
from tests.aggregator import real_run
from tests.aggregator.audits.real_lots import AUDITED, ONE, OTHER, THIRD
from tests.aggregator.audits.vector_lots import Share, Together, noise
from tests.aggregator.audits.vector_scene import STEPPED, WHOLES, VectorScene
from tests.aggregator.real_run import OPERATOR


def scene_of(directory: Path, config: object) -> Iterator[VectorScene]:
    scene = VectorScene(directory, config)  # type: ignore[arg-type]
    with scene.run.log:
        yield scene


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[VectorScene]:
    yield from scene_of(tmp_path / "run", STEPPED)


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[VectorScene]:
    yield from scene_of(tmp_path / "run", WHOLES)


@pytest.fixture
def dense(tmp_path: Path) -> Iterator[VectorScene]:
    yield from scene_of(tmp_path / "run", AUDITED)


def after(scene: VectorScene, tmp_path: Path, *works: Together) -> None:
    """Have these in a table, and then the next round committed, and audits go on until nothing is open."""
    scene.give_all(*works)
    scene.commit_all(*works)
    scene.go_on(ONE)

    async def scenario() -> None:
        await scene.show(tmp_path / "peers", *works)
        async with scene.at_work():
            await scene.wait(lambda: scene.is_quiet(*works) or scene.is_deep())
            if scene.is_deep():
                scene.go_on(THIRD)
            await scene.wait(lambda: scene.is_quiet(*works))

    asyncio.run(scenario())


def test_of_local_steps_honest_claims_hold_and_false_means_and_bodies_are_found(stepped: VectorScene, tmp_path: Path) -> None:
    works = [stepped.work(ONE), stepped.work(OTHER, of_mean=noise), stepped.work(THIRD, of_body=noise)]
    after(stepped, tmp_path, *works)
    assert stepped.found(ONE) == {(LOT, HOLDS): 1}
    assert stepped.found(OTHER) == {(LOT, HOLDS): 1, (SUM, DIFFERS): 1}
    assert stepped.found(THIRD) == {(LOT, HOLDS): 1, (SUM, DIFFERS): 1}
    assert stepped.audits.totals.missed == 0
    ledger = stepped.run.log.ledger
    for share in stepped.shares(*works):  # nothing was asked for that its key need not have kept
        got = {digest for digest in share.vectors if stepped.vectors.has(share.claim.digest, digest)}
        beacon = ledger.standing.asked[1].beacon
        kept = vectors_asked(ledger.manifest.trust, beacon, share.claim.digest, share.claim.open(), share.records)
        assert got <= set(kept)
        assert got or share.peer is OTHER  # whose records say enough


def test_a_residual_that_was_left_to_a_key_holds_and_one_out_of_nothing_is_found(stepped: VectorScene, tmp_path: Path) -> None:
    before = [stepped.work(ONE), stepped.work(OTHER)]
    stepped.give_all(*before)
    stepped.commit_all(*before)
    made = before[0].made
    mean = near_mean([share.vectors[share.claim.open().vector] for share in before[0].shares], [1])
    left = left_over(mean, parse(STEPPED.exchange.codec, made.body, len(mean)), stepped.run.log.ledger.floor_at(0))
    works = [stepped.work(ONE, residual=left), stepped.work(OTHER, residual=noise(left))]
    after(stepped, tmp_path, *works)
    assert stepped.against() == {OTHER.public_key: {(SUM, DIFFERS)}}


def test_whole_claims_of_local_steps_are_computed_on_the_weights_of_each_step(whole: VectorScene, tmp_path: Path) -> None:
    after(whole, tmp_path, whole.work(ONE), whole.work(OTHER, of_mean=noise))
    assert whole.found(ONE) == {(LOT, HOLDS): 1, (WHOLE, HOLDS): 1}
    assert whole.against() == {OTHER.public_key: {(SUM, DIFFERS), (WHOLE, DIFFERS)}}


def test_whoever_has_none_of_its_vectors_withholds_them(stepped: VectorScene, tmp_path: Path) -> None:
    works = [stepped.work(ONE), stepped.work(OTHER)]
    stepped.give_all(*works)
    stepped.commit_all(*works)

    async def scenario() -> None:
        await stepped.show(tmp_path / "peers", *works, without=[OTHER])
        async with stepped.at_work():
            for number in range(REFUSALS + 1):  # one more: in a round in which its lot is being computed nothing is said
                assert not (number < REFUSALS and stepped.against())
                stepped.go_on(THIRD)
                await stepped.wait(lambda number=number: stepped.has_asked(number + 1))
                if stepped.against():
                    break

    asyncio.run(scenario())
    (found,) = stepped.against().items()
    assert found[0] == OTHER.public_key
    assert {outcome for _, outcome in found[1]} == {WITHHELD}


@pytest.mark.parametrize("stays", [True, False])
def test_who_shows_no_vectors_is_said_to_withhold_them_and_one_that_left_loses_that_round_alone(stepped: VectorScene, stays: bool) -> None:
    away = stepped.work(OTHER)  # nobody answers for it
    stepped.give_all(away)
    stepped.commit_all(away)

    async def scenario() -> None:
        async with stepped.at_work():
            for number in range(stepped.run.log.ledger.manifest.trust.kept_rounds - 1):
                stepped.go_on(ONE, *([OTHER] if stays else []))
                await stepped.wait(lambda number=number: stepped.has_asked(number + 1))
            await stepped.wait(lambda: stepped.is_quiet(away))

    asyncio.run(scenario())
    outcomes = {key: {outcome for _, outcome in found} for key, found in stepped.against().items()}
    assert outcomes == {OTHER.public_key: {WITHHELD}}
    assert stepped.audits.totals.withheld == 1
    stepped.go_on(ONE, extras=[entry_of(signed) for signed in stepped.signed if signed.open().outcome == WITHHELD])
    account = stepped.run.log.ledger.standing.account(OTHER.public_key)
    assert {void.fault.reason for void in account.void} == {WITHHELD if stays else LEFT}


def test_members_that_lie_of_their_lots_frame_no_founder_and_a_founders_false_body_is_its_own(dense: VectorScene, tmp_path: Path) -> None:
    def triple(share: Share) -> None:
        share.lots = [replace(lot, projection=(3 * np.frombuffer(lot.projection, "<f4")).tobytes()) for lot in share.lots]

    works = [dense.work(ONE, OTHER, of_lots=triple), dense.work(THIRD)]
    after(dense, tmp_path, *works)
    assert dense.against() == {OTHER.public_key: {(LOT, DIFFERS), (SUM, DIFFERS)}}
    assert not any(dense.vectors.has(share.claim.digest, share.claim.open().vector) for share in works[1].shares)  # nothing was in doubt


def test_a_false_body_of_a_cohort_is_its_founders_and_the_verdict_can_be_repeated(dense: VectorScene, tmp_path: Path) -> None:
    after(dense, tmp_path, dense.work(ONE, OTHER, of_body=noise))
    assert dense.against() == {ONE.public_key: {(SUM, DIFFERS)}}
    signed = sorted((SignedFinding.sign(found, OPERATOR) for found in dense.findings), key=lambda each: each.digest)
    real_run.commit(dense.run, [real_run.made(dense.run.log.ledger, THIRD)], extras=[entry_of(each) for each in signed])
    dense.run.log.close()
    found = list(repeat(tmp_path / "run", None, all_of_them=True))
    assert all(one.agrees for one in found)
    assert [one.outcome for one in found if one.finding.check == SUM] == [DIFFERS]
    for path in (tmp_path / "run" / VECTORS).rglob("*"):
        if path.is_file():
            path.unlink()
    assert [one.agrees for one in repeat(tmp_path / "run", None)] == [None]


@pytest.mark.parametrize("config", [AUDITED, STEPPED], ids=["dense", "stepped"])
@pytest.mark.parametrize("peers", [(ONE,), (ONE, OTHER)], ids=["alone", "two"])
def test_a_key_keeps_whatever_any_question_needs(tmp_path: Path, config: object, peers: Sequence[Identity]) -> None:
    for scene in scene_of(tmp_path / "run", config):
        work, is_sparse = scene.work(*peers), "topk" in scene.run.log.ledger.manifest.exchange.codec
        claims = [(share.claim, share.claim.open()) for share in work.shares if share.claim is not None]
        for number in range(40):
            beacon, trust = sha256(bytes([number])), Trust("audited", whole_percent=50)
            for share in work.shares:
                assert share.claim is not None
                digest, claim = share.claim.digest, share.claim.open()
                kept = vectors_asked(trust, beacon, digest, claim, share.records)
                step, lots = step_asked(beacon, digest, len(claim.steps)), lots_audited(trust, beacon, digest, claim.lots)
                for check in CHECKS if is_whole(trust, beacon, digest) else (LOT, SUM):
                    for lot in lots if check == LOT else (0,):
                        asked = Asked(check, lot, step, True)
                        needs = wanted(asked, share.claim, claims, ONE.public_key, share.records, is_sparse=is_sparse)
                        assert {vector for each, vector in needs if each == share.claim} <= set(kept)
