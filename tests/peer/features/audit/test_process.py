"""The process that computes audits, forked: real gradients, vectors from files, one answer after the other."""

from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.automl.data.catalog import digits as load_digits
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.vectors import VectorsFolder
from manta_swarm.peer.features.audit.computing import AskAudit, AuditAnswer, AuditAnswerKind, Process
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Outcome
from tests.automl.training.test_audit import MIN_EXPONENT, Cohort, Run, reversed_, run_of
from tests.runtime.forked_child import forked_children

__all__ = ["forked_children"]

pytestmark = pytest.mark.swarm

PEERS = sorted((Identity(sha256(name)) for name in (b"one", b"other")), key=lambda each: each.public_key)


@pytest.mark.usefixtures("forked_children")
async def test_a_process_judges_what_was_brought_and_says_what_lacks_and_what_it_needs(tmp_path: Path) -> None:
    digits = load_digits()
    run = run_of(digits, 1, "int16", TINY)  # which another process knows
    operator = Identity(b"\x0b" * 32)
    signed = SignedManifest.sign(replace(run.manifest, data_digest=digits.digest), operator)
    honest, lying = of_two(run), of_two(run, lies=True)
    folder = VectorsFolder(tmp_path / "fetched", kept_rounds=10, max_bytes=1 << 30)
    process = await Process.start(signed, tmp_path / "fetched", None)
    worked = list[float]()

    async def answer(what: tuple[Cohort, AskAudit]) -> AuditAnswer:
        found = await process.answer(what[1])
        while found.said == AuditAnswerKind.WORKING:
            worked.append(found.cpu_ms / 1000)
            found = await process.go_on()
        return found

    try:
        lacks = await answer(honest)  # which takes no weights
        assert (lacks.said, lacks.outcomes, worked) == (AuditAnswerKind.LACKS, (Outcome.DEMOTED, Outcome.DEMOTED), [])
        await process.load(run.state.parameters, None)
        keep(folder, honest)
        good = await answer(honest)
        assert (good.said, good.outcomes) == (AuditAnswerKind.DONE, (Outcome.GOOD, Outcome.GOOD))
        assert len(worked) == honest[0].members[0].steps[0].count + honest[0].members[1].steps[0].count
        keep(folder, lying)
        needs = await answer(lying)
        assert (needs.said, needs.step) == (AuditAnswerKind.NEEDS, 0)
        done = len(worked)
        assert (await answer(lying)).said == AuditAnswerKind.NEEDS  # nothing was brought since
        keep(folder, lying, own=True)
        found = await answer(lying)
        assert (found.said, found.outcomes) == (AuditAnswerKind.DONE, (Outcome.GOOD, Outcome.VOID))
        assert len(worked) == done  # nothing is computed twice
        folder.keep_only(lying[1].header.contribution.digest, [vector_digest(mean) for mean in lying[0].means])
        cohort, ask = lying
        await process.load(run.state.parameters, None)  # it begins anew
        withheld = await answer((cohort, replace(ask, over=(0,))))
        assert (withheld.said, withheld.outcomes) == (AuditAnswerKind.DONE, (Outcome.DEMOTED, Outcome.DEMOTED))
    finally:
        await process.close()


def of_two(run: Run, *, lies: bool = False) -> tuple[Cohort, AskAudit]:
    """Return what two peers hand in, of whom the second one may sign and give the opposite of what it learnt."""
    cohort = Cohort(run, [each.public_key for each in PEERS], counts=(2, 3))
    cohort.work(own={(1, 0): reversed_} if lies else {})
    submission = cohort.submission()
    claims = tuple(Signed.sign(claim, identity) for claim, identity in zip(submission.claims, PEERS, strict=True))
    contribution = replace(submission.contribution, claims=tuple(signed.digest for signed in claims))
    header = Header(Signed.sign(contribution, PEERS[0]), claims)
    return cohort, AskAudit(1, header, submission.body, MIN_EXPONENT, (1, 1), ())


def keep(folder: VectorsFolder, what: tuple[Cohort, AskAudit], *, own: bool = False) -> None:
    """Have vectors of a contribution here: its means, or its members' own ones."""
    cohort, ask = what
    vectors = [vector for member in cohort.members for vector in member.own] if own else cohort.means
    for vector in vectors:
        folder.keep(1, ask.header.contribution.digest, vector_digest(vector), vector)
