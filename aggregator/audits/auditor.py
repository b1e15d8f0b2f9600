"""The process that computes claimed lots again, beside an aggregator and at low priority: it answers the questions in DIR/audits.

It reads what the aggregator writes anyway: snapshots, the kept contributions, and the records that peers gave. It needs no key and no
network, and signs nothing; what its answers lead to is ``aggregator.audits.desk``'s.
"""

import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from aggregator.attendants.computing import be
from aggregator.audits.jobs import MISSED, Found, Job, JobFolder
from aggregator.audits.records import FOLDER as RECORDS
from aggregator.rounds.bodies import Bodies, Kept
from aggregator.rounds.replay import BODIES, SNAPSHOTS
from automl.data.dataset import Dataset
from automl.training.auditing import Mismatch
from automl.training.course import RunCourse
from automl.training.recomputing import Finding, Given, Recomputer, Recomputers
from automl.training.snapshot import load_snapshot
from automl.training.update import State, state_digest, teacher_digest
from exact.coding import body_num_bytes, parse
from protocol.audits import DIFFERS, HOLDS, LOT, MAX_KEPT_ROUNDS, SUM
from protocol.errors import SamplesMissing, UserError
from protocol.manifest import Manifest
from protocol.records import Claim, LotRecord, SignedClaim
from swarm.records import RecordsFolder

_LOOK_S = 0.25


class Gone(Exception):
    """What a question needs is not here any more; the message is what."""


class Auditor:
    """Answers questions about one run's claims."""

    def __init__(self, manifest: Manifest, dataset: Dataset, directory: Path) -> None:
        """Look for what questions need in the run's ``directory``."""
        self._manifest = manifest
        self._directory = directory
        self._course = RunCourse(manifest)
        self._codec = manifest.exchange.codec
        self._recomputers = Recomputers(manifest, dataset)
        self._num_weights = self._recomputers.num_weights
        self._records = RecordsFolder(directory / RECORDS, kept_rounds=MAX_KEPT_ROUNDS, max_bytes=0)
        self._bodies = Bodies(directory / BODIES, body_bytes=body_num_bytes(self._codec, self._num_weights), keep=1)
        self._kept: tuple[int, dict[bytes, Kept]] = (0, {})  # the contributions of the round that was read last

    def answer(self, job: Job) -> Found:
        """Return what comes of a question."""
        began_s = time.process_time()
        claim = job.claim.open()
        try:
            found, lots = self._found(job, claim)
        except (Gone, Mismatch, SamplesMissing) as error:
            return Found(MISSED, b"", str(error)[:200], round(1000 * (time.process_time() - began_s)), 0)
        cpu_ms = round(1000 * (time.process_time() - began_s))
        return Found(HOLDS if found.holds else DIFFERS, found.projection, found.reason[:200], cpu_ms, 0 if found.mismatch else lots)

    def _found(self, job: Job, claim: Claim) -> tuple[Finding, int]:
        """Return what was found, and how many lots that takes."""
        records = self._records_of(job.claim)
        recomputer = self._recomputer(job, claim)
        if job.check == LOT:
            return recomputer.lot(claim, records, job.lot), 1
        if job.check == SUM:
            return recomputer.sum(self._given(job, self._records_of), claim), 0
        return recomputer.whole(self._given(job, lambda _: records), claim, records), len(records)

    def _records_of(self, signed: SignedClaim) -> tuple[LotRecord, ...]:
        records = self._records.records(signed)
        if records is None:
            raise Gone("its records are not here any more")
        return records.lots

    def _recomputer(self, job: Job, claim: Claim) -> Recomputer:
        """Return what computes lots of the claim's key on the claim's base."""

        def weights() -> tuple[Tensor, Tensor | None]:
            state = self._state(claim.round - 1, job.state)
            teacher = teacher_digest(state, self._course.plan)
            return state.parameters, None if teacher is None else self._state(self._course.plan.teacher_round or 0, teacher).parameters

        return self._recomputers.of(claim, job.state, weights)

    def _state(self, round_: int, digest: bytes) -> State:
        """Return a committed state, from its snapshot.

        Raises:
            Gone: there is none, or another one.
        """
        path = self._directory / SNAPSHOTS / f"round-{round_:08d}.safetensors"
        try:
            state, _ = load_snapshot(path)
        except UserError as error:
            raise Gone(f"the state of round {round_} is not here any more") from error
        if state_digest(state) != digest:
            raise Gone(f"{path.name} is another state than the log has")
        return state

    def _given(self, job: Job, records_of: Callable[[SignedClaim], tuple[LotRecord, ...]]) -> Given:
        """Return the contribution that lists the claim."""
        round_, kept = self._kept
        if round_ != job.round:
            kept = {one.header.contribution.digest: one for one in self._bodies.read(job.round)}
            self._kept = job.round, kept
        one = kept.get(job.contribution)
        if one is None:
            raise Gone("its contribution is not here any more")
        claims = tuple(signed.open() for signed in one.header.claims)
        records = tuple(records_of(signed) for signed in one.header.claims)
        coverage = self._course.coverage(claims[0].round, claims[0].cohort)
        return Given(parse(self._codec, one.body, self._num_weights), job.floor, claims, records, coverage)


def work(auditor: Auditor, jobs: JobFolder, share: float) -> None:
    """Answer questions, rest after each, and so on for ever.

    Raises:
        StorageError: the disk refuses.
    """
    while True:
        names = jobs.open()
        if not names:
            time.sleep(_LOOK_S)
        for name in names:
            job = jobs.job(name)
            if job is None:
                continue
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            found = auditor.answer(job)
            jobs.answer(name, found)
            worked_s = time.process_time() - began_cpu_s
            time.sleep(max(0.0, worked_s / share - (time.monotonic() - began_s)))


def main() -> None:
    """Be the program."""
    be("auditor", lambda manifest, dataset, directory, share: work(Auditor(manifest, dataset, directory), JobFolder(directory), share))


if __name__ == "__main__":
    main()
