"""Claims of real local steps, and of sparse bodies: honest ones hold, and each lie is found, and found of the key that told it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from automl.data.images import ImageDataset
from automl.training.auditing import lot_of
from automl.training.following import follow
from automl.training.given import Finding, Given
from automl.training.local import LocalSteps
from automl.training.lots import Worker
from automl.training.recomputing import Recomputer
from automl.training.schedule import Plan
from automl.training.update import State, initial_state
from exact.coding import encode, parse
from exact.residuals import Vector, given, left_over, near_mean, residual_digest, vector_digest
from protocol.encoding import pack
from protocol.evidence import Records
from protocol.exchange import codec_named
from protocol.lots import place_of_lot
from protocol.manifest import Manifest
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, ClaimStep, Contribution, LotRecord, StepRecord
from protocol.signing import Identity, sha256
from protocol.vectors import are_answered_for
from tests.claim_steps import all_of, means_of
from tests.runs import EXCHANGE, manifest_of

BASE, FLOOR, LOTS = b"b" * 32, -32, 2  # of a step
KEYS = (b"k" * 32, b"l" * 32, b"m" * 32)


@dataclass(frozen=True)
class Run:
    """A run, its first state, and who computes in it."""

    manifest: Manifest
    plan: Plan
    state: State
    worker: Worker
    recomputer: Recomputer

    @property
    def steps(self) -> int:
        """H."""
        return self.manifest.exchange.local_steps


@dataclass
class Member:
    """One key's work; tests change it before it is handed in."""

    key: bytes
    lots: list[LotRecord]
    steps: list[StepRecord]
    learnt: Vector
    residual: Vector | None
    founder: bytes = KEYS[0]


Noise = Callable[[Vector], Vector]


def noise(vector: Vector) -> Vector:
    values = np.random.default_rng(1).normal(size=len(vector))
    return (values * np.linalg.norm(vector) / np.linalg.norm(values)).astype(np.float32)


class Cohort:
    """What members of one roster do in a round, and all vectors that their claims name."""

    def __init__(self, run: Run, keys: Sequence[bytes], residual: Vector | None = None) -> None:
        self.run = run
        self.vectors: dict[bytes, Vector] = {}
        self.members = [Member(key, [], [], np.zeros(0, np.float32), residual) for key in keys]

    def name(self, vector: Vector) -> bytes:
        digest = vector_digest(vector)
        self.vectors[digest] = vector
        return digest

    def work(self, *, of_mean: Noise | None = None, of_own: Noise | None = None, seed: int | None = None) -> "Cohort":
        """Take all steps; in the last one the mean, or the own vector of the first member, may be another one."""
        run = self.run
        local = LocalSteps(run.state, run.plan)
        for step in range(run.steps):
            run.worker.load(local.weights)
            own = [self.train(member, step, seed) for member in self.members]
            if step == run.steps - 1 and of_own is not None:
                own[0] = of_own(own[0])
            mean = near_mean(own, [LOTS * run.manifest.lot_samples] * len(own))
            if step == run.steps - 1 and of_mean is not None:
                mean = of_mean(mean)
            for member, vector in zip(self.members, own, strict=True):
                self.record(member, step, local, vector, mean)
            local.step(torch.from_numpy(mean))
        for member, vector in zip(self.members, own, strict=True):
            member.learnt = vector if run.steps == 1 else local.learnt().numpy()
        return self

    def train(self, member: Member, step: int, seed: int | None) -> Vector:
        manifest, plan = self.run.manifest, self.run.plan
        asked, blank = plan.architectures(1, "home"), self.claim(member, (1,))
        total = torch.zeros(self.run.worker.num_weights)
        for index in range(step * LOTS, (step + 1) * LOTS):
            place = place_of_lot(len(asked), BASE, member.key, index)
            record = LotRecord(step, index, asked[place].text, manifest.lot_samples, "1", bytes(32))
            lot = lot_of(manifest, plan, blank, record)
            result = self.run.worker.train(lot if seed is None else replace(lot, run_seed=seed))
            total.add_(result.gradient, alpha=result.samples)
            member.lots.append(replace(record, loss=f"{result.loss:.6g}", projection=result.projection))
        return (total / float(LOTS * manifest.lot_samples)).numpy()

    def record(self, member: Member, step: int, local: LocalSteps, own: Vector, mean: Vector) -> None:
        if self.run.steps > 1:
            samples = LOTS * self.run.manifest.lot_samples
            state = self.name(local.weights.numpy())
            member.steps.append(StepRecord(step, samples, state, self.name(own), self.name(mean)))

    def claim(self, member: Member, work: tuple[int, ...], lots: bytes = bytes(32), steps: bytes = bytes(32)) -> Claim:
        named, of_steps = self.name(member.learnt), steps if self.run.steps > 1 else b""
        residual = b"" if member.residual is None else self.name(member.residual)
        key, founder = member.key, member.founder
        of_step = LOTS if sum(work) == self.run.steps * LOTS else 1
        claimed = tuple(ClaimStep(LOTS * step, LOTS * step + of_step - 1, (), bytes(32)) for step in range(self.run.steps))
        counts = work if of_step == LOTS else (self.run.steps,)
        return Claim(bytes(32), 1, BASE, key, key, founder, "home", claimed, counts, lots, of_steps, named, residual, 10)

    def claimed(self, member: Member) -> Claim:
        counts = [0] * len(self.run.plan.architectures(1, "home"))
        for record in member.lots:
            counts[place_of_lot(len(counts), BASE, member.key, record.index)] += 1
        roots = (root([leaf_hash(pack(record)) for record in each]) for each in (member.lots, member.steps or [0]))
        return self.claim(member, tuple(counts), *roots)

    def handed_in(self, *, of_body: Noise | None = None, left: bytes | None = None) -> Given:
        """Return the contribution of all of them, or one of another body, or that leaves something else."""
        manifest, codec = self.run.manifest, self.run.manifest.exchange.codec
        claims = tuple(map(self.claimed, self.members))
        parts = [given(member.learnt, member.residual, manifest.exchange.residual_percent) for member in self.members]
        mean = near_mean(parts, [min(claim.lots * manifest.lot_samples, manifest.exchange.weight_cap) for claim in claims])
        data = encode(codec, mean if of_body is None else of_body(mean), FLOOR)
        body = parse(codec, data, len(mean))
        leaves = residual_digest(left_over(mean, body, FLOOR)) if codec_named(codec).is_sparse else b""
        digests = tuple(sha256(pack(claim)) for claim in claims)
        counted, steps = all_of(claims), means_of(claims)
        contribution = Contribution(bytes(32), 1, BASE, KEYS[0], digests, counted, steps, bytes(32), leaves if left is None else left)
        records = tuple(Records(tuple(member.lots), tuple(member.steps)) for member in self.members)
        return Given(contribution, data, body, FLOOR, claims, records)

    def found(self, handed: Given, place: int, step: int | None = None) -> Finding:
        """Return what an audit finds of a member's claim that looks at one step; None: the last one."""
        run = self.run
        asked = run.steps - 1 if step is None else step
        return follow(run.manifest, run.plan, handed, handed.claims[place], run.state, self.shown, asked)

    def as_a_whole(self, handed: Given, place: int) -> Finding:
        self.run.recomputer.load(self.run.state.parameters, None)
        return self.run.recomputer.whole(handed.one(handed.claims[place]), self.run.state, self.shown)

    def shown(self, _claim: bytes, digest: bytes) -> Vector:
        return self.vectors[digest]


_runs: dict[tuple[int, str], Run] = {}


def run_of(digits: ImageDataset, steps: int, codec: str) -> Run:
    if (steps, codec) not in _runs:
        exchange = replace(EXCHANGE, local_steps=steps, codec=codec)
        manifest = manifest_of(Identity(b"\x0b" * 32), exchange=exchange)
        plan = Plan.of(manifest)
        worker = Worker("classifier-tiny", digits)
        _runs[steps, codec] = Run(manifest, plan, initial_state(plan), worker, Recomputer(manifest, digits))
    return _runs[steps, codec]


@pytest.fixture(params=[(1, "int16"), (1, "topk-256-4"), (4, "int16"), (4, "topk-256-4")], ids=lambda param: f"{param[0]}-{param[1]}")
def run(request: pytest.FixtureRequest, digits: ImageDataset) -> Run:
    return run_of(digits, *request.param)


@pytest.fixture
def stepped(digits: ImageDataset) -> Run:
    return run_of(digits, 4, "topk-256-4")


@pytest.fixture
def residual(run: Run) -> Vector | None:
    is_sparse = codec_named(run.manifest.exchange.codec).is_sparse
    return np.random.default_rng(3).normal(size=run.worker.num_weights).astype(np.float32) * np.float32(1e-3) if is_sparse else None


@pytest.mark.parametrize("keys", [KEYS[:1], KEYS], ids=["alone", "three"])
def test_honest_work_holds_whichever_step_is_looked_at(run: Run, residual: Vector | None, keys: Sequence[bytes]) -> None:
    cohort = Cohort(run, keys, residual).work()
    handed = cohort.handed_in()
    for place in range(len(keys)):
        for step in range(run.steps):
            found = cohort.found(handed, place, step)
            assert found.holds, found.reason
    found = cohort.as_a_whole(handed, len(keys) - 1)
    assert found.holds, found.reason


@pytest.mark.parametrize("keys", [KEYS[:1], KEYS], ids=["alone", "three"])
def test_a_body_that_does_not_follow_is_its_founders_and_nobody_elses(run: Run, residual: Vector | None, keys: Sequence[bytes]) -> None:
    cohort = Cohort(run, keys, residual).work()
    poisoned = cohort.handed_in(of_body=noise)
    if not are_answered_for(
        poisoned.claims, is_sparse=poisoned.is_sparse
    ):  # of one step and a sparse codec nobody can tell what members gave
        assert (run.steps, len(keys)) == (1, 3)
        assert cohort.found(poisoned, 0).holds
        return
    found = cohort.found(poisoned, 0)
    assert (found.holds, found.reason) == (False, "its body is not what follows from what its members learnt")
    for place in range(1, len(keys)):
        assert cohort.found(poisoned, place).holds


def test_one_integer_of_a_body_is_enough(run: Run) -> None:
    cohort = Cohort(run, KEYS[:1]).work()

    def nudged(mean: Vector) -> Vector:
        place = int(np.abs(mean).argmax())
        return np.where(np.arange(len(mean)) == place, np.float32(0), mean).astype(np.float32)

    assert not cohort.found(cohort.handed_in(of_body=nudged), 0).holds


def test_a_residual_that_coding_did_not_leave_is_its_founders(stepped: Run) -> None:
    cohort = Cohort(stepped, KEYS).work()
    for left in (b"", b"r" * 32):
        handed = cohort.handed_in(left=left)
        assert cohort.found(handed, 0).reason == "the residual that it leaves is not what its body leaves out"
        assert cohort.found(handed, 1).holds


def test_an_own_vector_that_the_lots_did_not_give_is_its_members(run: Run) -> None:
    cohort = Cohort(run, KEYS).work(of_own=noise)
    handed = cohort.handed_in()
    assert not cohort.found(handed, 0).holds
    assert not cohort.as_a_whole(handed, 0).holds
    for place in (1, 2):
        assert cohort.found(handed, place).holds
    if run.steps > 1:
        assert cohort.found(handed, 0, step=0).holds  # another step was looked at


def test_false_projections_are_their_own_members_and_frame_no_founder(run: Run) -> None:
    cohort = Cohort(run, KEYS).work()
    liar = cohort.members[1]
    liar.lots = [replace(record, projection=(3 * np.frombuffer(record.projection, "<f4")).tobytes()) for record in liar.lots]
    handed = cohort.handed_in()
    assert [cohort.found(handed, place).holds for place in range(3)] == [True, False, True]


def test_a_mean_that_is_not_its_own_is_a_lie_of_whoever_is_alone(stepped: Run) -> None:
    cohort = Cohort(stepped, KEYS[:1]).work(of_mean=noise)
    handed = cohort.handed_in()
    for step in range(stepped.steps):
        found = cohort.found(handed, 0, step)
        assert (found.holds, found.reason) == (False, "it handed in alone what it had learnt with others")
    together = Cohort(stepped, KEYS).work(of_mean=noise)  # whoever left may have given what lacks
    assert all(together.found(together.handed_in(), place).holds for place in range(3))


def test_what_was_learnt_has_to_follow_from_the_steps(stepped: Run) -> None:
    cohort = Cohort(stepped, KEYS[:1]).work()
    cohort.members[0].learnt = noise(cohort.members[0].learnt)
    handed = cohort.handed_in()
    assert cohort.found(handed, 0).reason == "what it learnt is not what its steps lead to"
    assert not cohort.as_a_whole(handed, 0).holds


def test_members_that_learnt_different_things_are_their_founders_fault(stepped: Run) -> None:
    cohort = Cohort(stepped, KEYS).work()
    cohort.members[2].learnt = noise(cohort.members[2].learnt)
    handed = cohort.handed_in()
    assert cohort.found(handed, 0).reason == "its members have learnt different things in the same steps"
    assert cohort.found(handed, 1).holds
    assert cohort.found(handed, 2).reason == "what it learnt is not what its steps lead to"


def test_a_founder_is_not_blamed_for_what_members_had_left_that_it_has_not(stepped: Run) -> None:
    cohort = Cohort(stepped, KEYS).work()
    cohort.members[1].residual = noise(cohort.members[0].learnt)
    handed = cohort.handed_in(of_body=noise)
    assert all(cohort.found(handed, place).holds for place in range(3))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": 5}, "the record of step 1 is one of step 5"),
        ({"samples": 7}, "step 1 has other samples than its lots"),
        ({"state": b""}, "the record of step 1 names its weights or vectors by no digest"),
        ({"mean": bytes(33)}, "the record of step 1 names its weights or vectors by no digest"),
        ({"state": b"s" * 32}, "the weights before step 1 are not those that its records name"),
    ],
)
def test_records_of_steps_that_no_honest_peer_makes_differ(stepped: Run, changes: dict[str, object], reason: str) -> None:
    cohort = Cohort(stepped, KEYS[:1]).work()
    (member,) = cohort.members
    member.steps[1] = replace(member.steps[1], **changes)
    found = cohort.found(cohort.handed_in(), 0, step=0)
    assert (found.holds, found.reason) == (False, reason)


def test_steps_that_begin_elsewhere_than_at_the_base_differ(stepped: Run) -> None:
    cohort = Cohort(stepped, KEYS[:1]).work()
    (member,) = cohort.members
    member.steps[0] = replace(member.steps[0], state=b"s" * 32)
    assert cohort.found(cohort.handed_in(), 0).reason == "its first step begins with other weights than the base's"


def test_vectors_that_are_not_finite_differ(stepped: Run) -> None:
    cohort = Cohort(stepped, KEYS[:1]).work()
    (member,) = cohort.members
    broken = np.full(stepped.worker.num_weights, np.nan, np.float32)
    member.steps[3] = replace(member.steps[3], vector=cohort.name(broken), mean=cohort.name(broken))
    assert not cohort.found(cohort.handed_in(), 0).holds


def test_lots_of_a_later_step_are_computed_on_its_own_weights(stepped: Run) -> None:
    honest, false = Cohort(stepped, KEYS[:1]).work(), Cohort(stepped, KEYS[:1]).work(seed=99)
    for cohort, holds in ((honest, True), (false, False)):
        (member,) = cohort.members
        claim = cohort.claimed(member)
        for place in range(LOTS, 2 * LOTS):
            stepped.recomputer.load(torch.from_numpy(cohort.vectors[member.steps[1].state]), None)
            assert stepped.recomputer.lot(claim, member.lots, place).holds is holds
    stepped.recomputer.load(stepped.state.parameters, None)
    assert not stepped.recomputer.lot(honest.claimed(honest.members[0]), honest.members[0].lots, 3 * LOTS).holds
    handed = false.handed_in()
    assert false.found(handed, 0).holds  # all is what its records say, and they are false
    assert not false.as_a_whole(handed, 0).holds
