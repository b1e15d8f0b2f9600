"""What real peers hand in, alone and as a cohort, and bring to their operator, is all that an audit needs, and what it finds good."""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor

from manta_swarm.automl.training.audit import GOOD, Recomputation, Submission
from manta_swarm.automl.training.audited_step import AuditedMicrobatches
from manta_swarm.automl.training.microbatches import Worker
from manta_swarm.automl.training.update import State
from manta_swarm.peer.features.audit.process import FetchedVectors
from manta_swarm.protocol.exchange import Exchange
from manta_swarm.protocol.listed import left_by, was_left
from manta_swarm.protocol.records import Claim, Header
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import AuditRules
from tests.memory_log import DEADLINE_S, SMALL_EXCHANGE, until
from tests.peer.cohort.test_cohort_rounds import THIN, TOKEN, cohort_is_in, met, num_claims
from tests.peer.scene import QuickWorker, Scene, scene_in

pytestmark = pytest.mark.usefixtures("quick_pauses")

ROUNDS = 2
AUDITOR = Identity(b"\x78" * 32)
RULES = AuditRules((AUDITOR.public_key,), proven_after=2, audit_percent=100, newcomer_percent=100)


class QuickMicrobatches(AuditedMicrobatches):
    """Computes what ``QuickWorker`` does."""

    def __init__(self, scene: Scene) -> None:
        log = scene.log
        self._manifest, self._plan, self._quick = log.manifest, log.plan, QuickWorker(log.num_weights)

    @property
    def num_weights(self) -> int:
        return self._quick.num_weights

    def _worker_of(self, claim: Claim, weights: Tensor, teacher: Tensor | None) -> Worker:
        del claim, weights, teacher
        return self._quick  # type: ignore[return-value]


class Audit:
    """What an auditor finds of the contributions in a scene, by what was brought."""

    def __init__(self, scene: Scene, states: dict[int, State]) -> None:
        self._scene = scene
        self._states = states

    def is_brought(self, header: Header) -> bool:
        """Whether all that an audit asks for at first is there."""
        return self._recomputed(header)._lacks(self._vectors(header)) is None

    def look(self, header: Header) -> None:
        """Have all that a contribution's claims say be good, and all that could be asked for be there."""
        found = self._recomputed(header).run(self._vectors(header))
        assert found == (GOOD,) * len(header.claims), found

    def _vectors(self, header: Header) -> FetchedVectors:
        log, digest = self._scene.log, header.contribution.digest
        audit, (brought,) = log.ledger.reputation.audits[digest], log.brought.values()
        claims = tuple(signed.open() for signed in header.claims)
        return FetchedVectors(brought._directory, audit.round, digest, header.contribution.open(), claims, log.num_weights)

    def _recomputed(self, header: Header) -> Recomputation:
        log, contribution = self._scene.log, header.contribution.open()
        claims, min_exponent = tuple(signed.open() for signed in header.claims), log.ledger.min_exponent_at(contribution.round - 1)
        left = tuple(
            was_left(claim, log.rounds[header.contribution.digest], log.training_spec.sorts_after, self._left_by) for claim in claims
        )
        submission = Submission(contribution, claims, log.handed[header.contribution.digest][1].join(), min_exponent, left)
        state = State(contribution.round - 1, self._states[contribution.round - 1].parameters, ())
        return Recomputation(log.manifest, log.plan, submission, QuickMicrobatches(self._scene), state, None)

    def _left_by(self, round_: int) -> dict[bytes, bytes]:
        log = self._scene.log
        return dict(left_by(log.handed[listed.contribution][0] for listed in log.tables.get(round_, ())))


@pytest.mark.parametrize(
    ("exchange", "algorithm"),
    [(SMALL_EXCHANGE, "data-parallel"), (THIN, "data-parallel"), (THIN, "model-parallel")],
    ids=["dense", "thin", "parts"],
)
async def test_whatever_an_audit_asks_of_honest_peers_is_there_and_holds(tmp_path: Path, exchange: Exchange, algorithm: str) -> None:
    torch.manual_seed(0)
    async with scene_in(tmp_path, exchange=exchange, algorithm=algorithm, audits=(RULES,)) as scene:
        scene.log.left_ms = 10_000
        cohort_peers = [scene.join(number, token=TOKEN) for number in range(2)]
        scene.join(2)
        await met(*cohort_peers)
        states, had_cohort = {0: scene.log.state}, 0
        async with asyncio.timeout(DEADLINE_S):
            while had_cohort < ROUNDS:
                await until(lambda: num_claims(scene) >= 3)
                had_cohort += cohort_is_in(scene, 2)
                scene.log.commit()
                states[scene.log.ledger.round] = scene.log.state
        audit = Audit(scene, states)
        audited = [scene.log.handed[digest][0] for digest in scene.log.ledger.reputation.audits]
        for header in audited:
            await until(lambda header=header: audit.is_brought(header))
            audit.look(header)
        assert sum(len(header.claims) > 1 for header in audited) >= ROUNDS - 1
        assert any(signed.open().residual for header in audited for signed in header.claims) == (exchange is not SMALL_EXCHANGE)
