"""The process that computes claimed lots again, beside an aggregator and at low priority: it answers the questions in DIR/audits.

It reads what the aggregator writes anyway: snapshots, the kept contributions, and the records that peers gave. It needs no key and no
network, and signs nothing; what its answers lead to is ``aggregator.audits.desk``'s.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from aggregator.attendants.computing import be
from aggregator.audits.jobs import MISSED, VECTORS, Found, Job, JobFolder
from aggregator.audits.records import FOLDER as RECORDS
from aggregator.rounds.bodies import Bodies, Kept
from aggregator.rounds.replay import BODIES, SNAPSHOTS
from automl.data.dataset import Dataset
from automl.training.auditing import Mismatch, check_records, check_steps
from automl.training.course import RunCourse
from automl.training.following import follow, tensor_of
from automl.training.given import NOTHING, Finding, Given, Vectors
from automl.training.recomputing import Recomputer, Recomputers
from automl.training.snapshot import load_snapshot
from automl.training.update import State, state_digest, teacher_digest
from exact.coding import body_num_bytes, parse
from exact.residuals import Vector
from protocol.audits import DIFFERS, HOLDS, LOT, MAX_KEPT_ROUNDS, SUM
from protocol.errors import SamplesMissing, UserError
from protocol.evidence import Records
from protocol.exchange import codec_named
from protocol.manifest import Manifest
from protocol.records import Claim, SignedClaim
from swarm.records import RecordsFolder
from swarm.vectors import read_vector

_LOOK_S = 0.25
_NONE = Records((), ())


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
        self._is_sparse = codec_named(self._codec).is_sparse
        self._recomputers = Recomputers(manifest, dataset)
        self._num_weights = self._recomputers.num_weights
        self._records = RecordsFolder(directory / RECORDS, kept_rounds=MAX_KEPT_ROUNDS, max_bytes=0)
        self._bodies = Bodies(directory / BODIES, body_bytes=body_num_bytes(self._codec, self._num_weights), keep=1)
        self._last: tuple[bytes, State] | None = None  # the state that was read last, by its digest
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
        try:
            check_records(self._manifest, self._course.plan, claim, records.lots)
            check_steps(claim, records)
        except Mismatch as error:
            return Finding(False, NOTHING, math.inf, str(error)), 0
        if job.check == LOT:
            return self._recomputer(job, claim, self._weights(job, records)).lot(claim, records.lots, job.lot), 1
        if job.check == SUM and not job.left:
            return Finding(False, NOTHING, math.inf, "no contribution left its key the residual that it names"), 0
        is_by_records = job.check == SUM and len(claim.steps) == 1 and not self._is_sparse and not job.deep
        given = self._given(job, self._records_of if is_by_records else {job.claim: records}.get)
        if is_by_records:
            return self._recomputer(job, claim, job.state).sum(given, claim), 0
        state, vectors = self._state(claim.round - 1, job.state), self._vectors(job, claim)
        if job.check == SUM:
            return follow(self._manifest, self._course.plan, given, claim, state, vectors, job.step), 0
        try:
            return self._recomputer(job, claim, job.state).whole(given.one(claim), state, vectors), len(records.lots)
        finally:
            self._recomputers.forget()  # what is loaded now are the weights of some step

    def _records_of(self, signed: SignedClaim) -> Records:
        records = self._records.records(signed)
        if records is None:
            raise Gone("its records are not here any more")
        return records

    def _vectors(self, job: Job, claim: Claim) -> Vectors:
        """Return what reads a vector that was shown, whichever claim of the contribution has it."""
        every = self._listed(job).header.contribution.open().claims

        def read(named: bytes, digest: bytes) -> Vector:
            for each in dict.fromkeys((named, *every)):
                vector = read_vector(self._directory / VECTORS, claim.round, each, digest)
                if vector is not None and len(vector) == self._num_weights:
                    return vector
            raise Gone("a vector that it names is not here any more")

        return read

    @staticmethod
    def _weights(job: Job, records: Records) -> bytes:
        """Return the digest of the weights of a lot's step, where they are others than the base's; else of the base's state."""
        step = records.lots[job.lot].step
        return records.steps[step].state if step else job.state

    def _recomputer(self, job: Job, claim: Claim, weights: bytes) -> Recomputer:
        """Return what computes lots of the claim's key: on the claim's base, or on the weights of this digest."""

        def loaded() -> tuple[Tensor, Tensor | None]:
            state = self._state(claim.round - 1, job.state)
            taught = self._teacher(state)
            if weights == job.state:
                return state.parameters, taught
            return tensor_of(self._vectors(job, claim)(job.claim.digest, weights)), taught

        return self._recomputers.of(claim, (job.state, weights), loaded)

    def _teacher(self, state: State) -> Tensor | None:
        """Return the parameters of what the round after ``state`` learns from too; None: from the samples alone.

        Raises:
            Gone: its snapshot is.
        """
        plan = self._course.plan
        if plan.phase(state.round + 1).teaches_itself:
            return state.parameters
        teacher = teacher_digest(state, plan)
        if teacher is None:
            return None
        return self._state(plan.teacher_round or 0, teacher).parameters

    def _state(self, round_: int, digest: bytes) -> State:
        """Return a committed state, from its snapshot.

        Raises:
            Gone: there is none, or another one.
        """
        if self._last is not None and self._last[0] == digest:
            return self._last[1]
        path = self._directory / SNAPSHOTS / f"round-{round_:08d}.safetensors"
        try:
            state, _ = load_snapshot(path)
        except UserError as error:
            raise Gone(f"the state of round {round_} is not here any more") from error
        if state_digest(state) != digest:
            raise Gone(f"{path.name} is another state than the log has")
        self._last = digest, state
        return state

    def _listed(self, job: Job) -> Kept:
        """Return the contribution that lists the claim.

        Raises:
            Gone: it is not here any more.
        """
        round_, kept = self._kept
        if round_ != job.round:
            kept = {one.header.contribution.digest: one for one in self._bodies.read(job.round)}
            self._kept = job.round, kept
        one = kept.get(job.contribution)
        if one is None:
            raise Gone("its contribution is not here any more")
        return one

    def _given(self, job: Job, records_of: Callable[[SignedClaim], Records | None]) -> Given:
        """Return the contribution that lists the claim."""
        one = self._listed(job)
        claims = tuple(signed.open() for signed in one.header.claims)
        records = tuple(records_of(signed) or _NONE for signed in one.header.claims)
        coverage = self._course.coverage(claims[0].round, claims[0].cohort)
        body = parse(self._codec, one.body, self._num_weights)
        return Given(one.header.contribution.open(), one.body, body, job.floor, claims, records, coverage)


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
