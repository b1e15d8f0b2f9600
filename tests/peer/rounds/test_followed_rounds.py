"""What real peers keep and hand in, alone and as a cohort, is all that an audit needs, and whatever step it looks at, it holds."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from automl.training.following import follow
from automl.training.given import Given
from protocol.audits import AUDITED, LOT, SUM, Trust
from protocol.evidence import Records
from protocol.trust import lots_audited
from protocol.vectors import step_asked
from protocol.wanted import Asked, wanted

from automl.training.lots import Lot, LotResult, project
from automl.training.update import State
from exact.coding import parse
from exact.residuals import Vector
from protocol.exchange import Exchange
from protocol.records import Header, SignedClaim
from tests.memory_log import DEADLINE_S, SMALL_EXCHANGE, until
from tests.peer.cohort.test_cohort_rounds import THIN, TOKEN, cohort_is_in, met, num_claims
from tests.peer.scene import Member, Scene, play

pytestmark = pytest.mark.usefixtures("quick_pauses")

ROUNDS = 4
SPARSE = replace(SMALL_EXCHANGE, codec="topk-256-4", first_floor=-24)


def projected(member: Member) -> None:
    """Let a member's lots have the projections of their gradients."""
    train = member.worker.train

    def with_projection(lot: Lot) -> LotResult:
        result = train(lot)
        return replace(result, projection=project(result.gradient))

    member.worker.train = with_projection  # type: ignore[method-assign]


class Audit:
    """What an auditor finds of the claims in a scene, by what their keys keep."""

    def __init__(self, scene: Scene, states: dict[int, State]) -> None:
        self._scene = scene
        self._states = states
        self._loops = {member.identity.public_key: member.loop for member in scene.members}

    def records_of(self, signed: SignedClaim) -> Records:
        own = self._loops[signed.open().key]._records
        assert own is not None
        records = own.folder.records(signed)
        assert records is not None
        return records

    def vector(self, signed: SignedClaim, digest: bytes) -> Vector:
        own = self._loops[signed.open().key]._vectors
        assert own is not None
        found = own._folder.read(signed.digest, digest)
        assert found is not None
        return found

    def given(self, header: Header) -> Given:
        log, claims = self._scene.log, tuple(signed.open() for signed in header.claims)
        floor = log.ledger.floor_at(claims[0].round - 1)
        data = log.handed[header.contribution.digest][1].join()
        body = parse(log.manifest.exchange.codec, data, log.num_weights)
        coverage = log.course.coverage(claims[0].round, claims[0].cohort)
        return Given(header.contribution.open(), data, body, floor, claims, tuple(map(self.records_of, header.claims)), coverage)

    def look(self, header: Header, table: int) -> None:
        """Have all of a contribution's claims hold, each by the vectors that the beacon asks for and by no others."""
        log, given = self._scene.log, self.given(header)
        if given.is_alone and not given.is_sparse and len(given.claims[0].steps) == 1:
            return  # there no vector is asked for
        every = list(zip(header.claims, given.claims, strict=True))
        founder, beacon = given.contribution.founder, log.ledger.standing.asked[table].beacon
        for signed, claim in every:
            records, digest = self.records_of(signed), signed.digest
            step = step_asked(beacon, digest, len(claim.steps))
            asked = [Asked(SUM, 0, step, True)]
            asked += [Asked(LOT, lot, step, False) for lot in lots_audited(log.manifest.trust, beacon, digest, claim.lots)]
            needs = [wanted(each, signed, every, founder, records, is_sparse=given.is_sparse) for each in asked]
            shown = {named: self.vector(each, named) for need in needs for each, named in need}
            state = self._states[claim.round - 1]
            found = follow(log.manifest, log.plan, given, claim, state, lambda _, named, shown=shown: shown[named], step)
            assert found.holds, found.reason


@pytest.mark.parametrize(
    ("exchange", "algorithm"),
    [(SMALL_EXCHANGE, "data-parallel"), (SPARSE, "data-parallel"), (THIN, "data-parallel"), (THIN, "model-parallel")],
    ids=["dense", "sparse", "thin", "parts"],
)
def test_whatever_an_audit_asks_of_honest_peers_is_there_and_holds(tmp_path: Path, exchange: Exchange, algorithm: str) -> None:
    async def story(scene: Scene) -> None:
        scene.log.left_ms = 10_000
        mates = [scene.join(number, token=TOKEN, prepare=projected) for number in range(2)]
        members = [*mates, scene.join(2, prepare=projected)]
        await met(*mates)
        states = {0: scene.log.state}
        had_cohort = 0
        async with asyncio.timeout(DEADLINE_S):
            while had_cohort < ROUNDS:
                await until(lambda: num_claims(scene) >= 3)
                had_cohort += cohort_is_in(scene, 2)
                scene.log.commit()
                states[scene.log.ledger.round] = scene.log.state
        newest = scene.log.ledger.round
        await until(lambda: all(len(member.loop._vectors._open) <= 3 and member.status.round == newest for member in members))  # type: ignore[union-attr]
        audit, headers = Audit(scene, states), list(scene.log.handed.values())
        looked = 0
        for header, _ in headers:
            table = scene.log.rounds.get(header.contribution.digest, 0)
            claims = [each.digest for each in header.claims]
            is_listed = scene.log.ledger.standing.claimed(table, claims[0]) is not None
            is_ready = not any(claim in member.loop._vectors._open for member in members for claim in claims)  # type: ignore[union-attr]
            if is_listed and is_ready and table in scene.log.ledger.standing.asked:
                audit.look(header, table)
                looked += len(claims) > 1
        assert looked > 0

    torch.manual_seed(0)
    play(tmp_path, story, exchange=exchange, algorithm=algorithm, trust=Trust(AUDITED, whole_percent=0))
