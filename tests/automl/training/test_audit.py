"""Audits of contributions of real gradients: honest ones are good, and each lie is found, and found of the key that told it."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import SearchSpace
from manta_swarm.automl.training.audit import GOOD, Judgements, Lacks, Needs, NotJudged, Recomputation, Submission
from manta_swarm.automl.training.audited_step import AuditedMicrobatches, StepGradient
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import LocalSteps, State, initial_state
from manta_swarm.codec.coding import encode, parse
from manta_swarm.codec.residuals import Vector, given, left_over, near_mean, residual_digest, vector_digest
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.records import Claim, ClaimStep, Contribution, StepMean
from manta_swarm.protocol.rewards import architecture_cost
from manta_swarm.protocol.signing import Identity, sha256
from tests.automl.small import SMALL
from tests.runs import EXCHANGE, manifest_of

pytestmark = pytest.mark.usefixtures("small_known")

BASE, MIN_EXPONENT = b"b" * 32, -32
KEYS = (b"k" * 32, b"l" * 32, b"m" * 32)
COUNTS = (2, 3, 6)  # microbatches of a step; the last ones weigh as much as the cap allows
CAP = 80  # samples
Change = Callable[[Vector], Vector]


@dataclass(frozen=True)
class Run:
    """A run, its first state, and who computes in it."""

    manifest: Manifest
    plan: Plan
    state: State
    worker: Worker
    microbatches: AuditedMicrobatches

    @property
    def num_steps(self) -> int:
        return self.manifest.exchange.local_steps

    @property
    def is_sparse(self) -> bool:
        return codec_named(self.manifest.exchange.codec).is_sparse


class Remembered(AuditedMicrobatches):
    """Microbatches that are computed once for all tests: by what is the same, their outcome is the same."""

    def of_step(
        self, claim: Claim, step: int, weights: Tensor, teacher: Tensor | None, rest: Callable[[], None] = lambda: None
    ) -> StepGradient:
        """See ``AuditedMicrobatches.of_step``."""
        indices = tuple(claim.steps[step].indices())
        on = (vector_digest(weights.numpy()), b"" if teacher is None else vector_digest(teacher.numpy()))
        which = (id(self), on, step, indices, claim.base, claim.round, claim.key, claim.cohort, claim.shards)
        if which in _computed:
            for _ in indices:
                rest()
        else:
            _computed[which] = super().of_step(claim, step, weights, teacher, rest)
        return copy.deepcopy(_computed[which])


_computed: dict[object, StepGradient] = {}
_runs: dict[tuple[int, str, str], Run] = {}
_trained: dict[object, Vector] = {}


def run_of(digits: ImageDataset, steps: int, codec: str, space: SearchSpace = SMALL) -> Run:
    which = steps, codec, space.name
    if which not in _runs:
        exchange = replace(EXCHANGE, local_steps=steps, codec=codec, weight_cap=CAP, residual_percent=70)
        manifest = manifest_of(Identity(b"\x0b" * 32), exchange=exchange, supernet=space.name, costs=cost_table(space))
        plan = Plan.of(manifest)
        worker = Worker(space.name, digits)
        _runs[which] = Run(manifest, plan, initial_state(plan), worker, Remembered(manifest, plan, digits))
    return _runs[which]


@pytest.fixture(params=[(1, "int16"), (1, "topk-256-4"), (3, "int16"), (3, "topk-256-4")], ids=lambda param: f"{param[0]}-{param[1]}")
def run(request: pytest.FixtureRequest, digits: ImageDataset) -> Run:
    return run_of(digits, *request.param)


@pytest.fixture
def dense(digits: ImageDataset) -> Run:
    return run_of(digits, 1, "int16")


@pytest.fixture
def sparse(digits: ImageDataset) -> Run:
    return run_of(digits, 1, "topk-256-4")


@pytest.fixture
def stepped(digits: ImageDataset) -> Run:
    return run_of(digits, 3, "topk-256-4")


@dataclass
class Member:
    """What one key did, or says that it did."""

    key: bytes
    indices: list[list[int]]  # of each step that it takes
    residual: Vector | None
    was_left: bool | None = True  # whether that residual was left to it
    steps: list[ClaimStep] = field(default_factory=list)
    own: list[Vector] = field(default_factory=list)
    gives: Change = lambda vector: vector  # what it makes of the vector that it has to give for the body
    gave: Vector | None = None  # that
    names_given: bytes | None = None  # what its claim says that it gave, if not that


@dataclass
class Shown:
    """What is brought; tests take something away."""

    means: dict[int, Vector]
    residuals: dict[int, Vector]
    owns: dict[tuple[int, int], Vector]
    asked: list[tuple[int, int]] = field(default_factory=list)

    def mean(self, step: int) -> Vector | None:
        return self.means.get(step)

    def residual(self, place: int) -> Vector | None:
        return self.residuals.get(place)

    def own(self, place: int, step: int) -> Vector | None:
        self.asked.append((place, step))
        return self.owns.get((place, step))


class Cohort:
    """What members of one roster do in a round; the first one is the founder."""

    def __init__(self, run: Run, keys: Sequence[bytes] = KEYS, *, takes: Sequence[int] = (), counts: Sequence[int] = COUNTS) -> None:
        """``takes``: steps that each takes; by default all."""
        self.run = run
        residual = None
        if run.is_sparse:
            residual = (np.random.default_rng(3).normal(size=run.worker.num_weights) * 1e-2).astype(np.float32)
        steps = takes or [run.num_steps] * len(keys)
        self.members = list[Member]()
        for key, number, count in zip(keys, steps, counts, strict=False):
            indices = [list(range(step * count, (step + 1) * count)) for step in range(number)]
            self.members.append(Member(key, indices, residual))
        self.teacher = torch.empty(0)  # its parameters; none: there is no teacher
        self.means: list[Vector] = []
        self.learnt = np.zeros(0, np.float32)

    @staticmethod
    def digest(residual: Vector | None) -> bytes:
        return b"" if residual is None else vector_digest(residual)

    def work(self, *, own: dict[tuple[int, int], Change] | None = None, mean: dict[int, Change] | None = None) -> "Cohort":
        """Take all steps. ``own``, by place and step, changes what a member signs and gives; ``mean``, by step, what they go on with."""
        run, own, mean = self.run, own or {}, mean or {}
        local = LocalSteps(run.state, run.plan)
        for step in range(run.num_steps):
            gives, weights = [], []
            for place, member in enumerate(self.members):
                if step >= len(member.indices):
                    continue
                vector = own.get((place, step), _as_it_is)(self.trained(member, step, local.weights))
                indices = member.indices[step]
                skipped = tuple(index for index in range(indices[0], indices[-1]) if index not in indices)
                member.steps.append(ClaimStep(indices[0], indices[-1], skipped, vector_digest(vector)))
                member.own.append(vector)
                gives.append(self.gift(vector, member) if run.num_steps == 1 else vector)
                weights.append(min(CAP, len(indices) * run.manifest.microbatch_samples))
            with np.errstate(all="ignore"):
                self.means.append(mean.get(step, _as_it_is)(near_mean(gives, weights)))
            local.step(torch.tensor(self.means[-1]))
        self.learnt = local.learnt().numpy()
        if run.num_steps > 1:
            for member in self.staying:
                self.gift(self.learnt, member)
        return self

    def gift(self, learnt: Vector, member: Member) -> Vector:
        """Return what a member gives for the body, of what it learnt."""
        member.gave = member.gives(given(learnt, member.residual, self.run.manifest.exchange.residual_percent))
        return member.gave

    @property
    def staying(self) -> list[Member]:
        """Those that take all steps."""
        return [member for member in self.members if len(member.indices) == self.run.num_steps]

    def trained(self, member: Member, step: int, weights: Tensor) -> Vector:
        """Return the mean gradient of a member's step; each is trained once for all tests."""
        at = (vector_digest(weights.numpy()), vector_digest(self.teacher.numpy()), self.run.num_steps, step)
        which = (*at, member.key, tuple(member.indices[step]))
        if which not in _trained:
            self.run.worker.load(weights)
            self.run.worker.teach(self.teacher if self.teacher.numel() else None)
            _trained[which] = self.train(member, step)
        return _trained[which]

    def train(self, member: Member, step: int) -> Vector:
        manifest, plan = self.run.manifest, self.run.plan
        asked = plan.architectures(1, "home")
        total = torch.zeros(self.run.worker.num_weights)
        for index in member.indices[step]:
            architecture = asked[place_of_microbatch(len(asked), BASE, member.key, index)]
            strength = plan.augmentation(1, architecture)
            microbatch = Microbatch(manifest.seed, BASE, step, member.key, index, architecture, manifest.microbatch_samples, strength)
            total.add_(self.run.worker.train(microbatch).gradient, alpha=manifest.microbatch_samples)
        return (total / float(len(member.indices[step]) * manifest.microbatch_samples)).numpy()

    def claim(self, member: Member) -> Claim:
        work = [0] * len(self.run.plan.architectures(1, "home"))
        for index in (index for step in member.indices for index in step):
            work[place_of_microbatch(len(work), BASE, member.key, index)] += 1
        gave = b"" if member.gave is None else vector_digest(member.gave)
        residual = self.digest(member.residual) if gave else b""
        return Claim(
            bytes(32), 1, BASE, member.key, member.key, self.members[0].key, "home", tuple(member.steps), tuple(work),
            gave if member.names_given is None else member.names_given, residual, 10,
        )  # fmt: skip

    def submission(self, *, of_body: Change | None = None, left: bytes | None = None) -> Submission:
        """Return what they hand in, or another body, or what leaves something else."""
        run, codec = self.run, self.run.manifest.exchange.codec
        claims = tuple(map(self.claim, self.members))
        whole = self.means[0]
        if run.num_steps > 1:
            weights = [min(CAP, sum(step.count for step in member.steps) * run.manifest.microbatch_samples) for member in self.staying]
            whole = near_mean([member.gave for member in self.staying if member.gave is not None], weights)
        body = encode(codec, (of_body or _as_it_is)(np.nan_to_num(whole)), MIN_EXPONENT)
        leaves = residual_digest(left_over(whole, parse(codec, body, whole.size), MIN_EXPONENT)) if run.is_sparse else b""
        counted = [sum((len(member.steps) > step) << place for place, member in enumerate(self.members)) for step in range(run.num_steps)]
        means = tuple(StepMean(vector_digest(mean), bits) for mean, bits in zip(self.means, counted, strict=True))
        digests = tuple(sha256(pack(claim)) for claim in claims)
        in_body, founder = counted[-1], self.members[0].key
        contribution = Contribution(bytes(32), 1, BASE, founder, digests, in_body, means, bytes(32), leaves if left is None else left)
        return Submission(contribution, claims, body, MIN_EXPONENT, tuple(member.was_left for member in self.members))

    def shown(self) -> Shown:
        owns = {(place, step): vector for place, member in enumerate(self.members) for step, vector in enumerate(member.own)}
        residuals = {place: member.residual for place, member in enumerate(self.members) if member.residual is not None}
        return Shown(dict(enumerate(self.means)), residuals, owns)

    def audit(self, submission: Submission | None = None, teacher: Tensor | None = None) -> Recomputation:
        run = self.run
        return Recomputation(run.manifest, run.plan, submission or self.submission(), run.microbatches, run.state, teacher)

    def judgements(self, submission: Submission | None = None, shown: Shown | None = None) -> Judgements:
        """Return what is found once all that is shown was brought."""
        return settled(self.audit(submission), shown or self.shown())


def settled(audit: Recomputation, shown: Shown) -> Judgements:
    found = audit.run(shown, over=range(3))
    assert isinstance(found, tuple), found
    return found


def outcomes(judgements: Judgements | Lacks | Needs) -> list[str]:
    assert isinstance(judgements, tuple)
    return ["not judged" if isinstance(one, NotJudged) else one.outcome.name.lower() for one in judgements]


def _as_it_is(vector: Vector) -> Vector:
    return vector


def reversed_(vector: Vector) -> Vector:
    return -vector


def halved(vector: Vector) -> Vector:
    return vector * np.float32(0.5)


def doubled(vector: Vector) -> Vector:
    return vector * np.float32(2)


def zeroed(vector: Vector) -> Vector:
    return vector * np.float32(0)


def noise(vector: Vector) -> Vector:
    values = np.random.default_rng(1).normal(size=len(vector))
    scaled: Vector = (values * np.linalg.norm(vector) / np.linalg.norm(values)).astype(np.float32)
    return scaled


def huge(vector: Vector) -> Vector:
    return np.where(np.arange(len(vector)) == 7, np.float32(1e30), vector)


def nowhere(vector: Vector) -> Vector:
    return np.where(np.arange(len(vector)) == 7, np.float32("nan"), vector)


def signs(count: int) -> NDArray[np.float64]:
    """Return (8, N) the signs of eight public sums of a vector's values."""
    kinds = np.frombuffer(hashlib.shake_256(b"manta/projection/v1").digest(count), np.uint8)
    return np.unpackbits(kinds[None, :], axis=0).astype(np.float64) * 2.0 - 1.0


def hidden(vector: Vector) -> Vector:
    """Return the reversed vector, changed only where eight public sums cancel."""
    of = signs(len(vector))
    change = -2.0 * vector.astype(np.float64)
    change -= of.T @ np.linalg.solve(of @ of.T, of @ change)
    return (vector + change).astype(np.float32)


def shifted(vector: Vector) -> Vector:
    """Return it with all coordinates shifted by 5 % of their root mean square: the small ones are turned round."""
    by = np.float32(0.05 * np.linalg.norm(vector) / np.sqrt(len(vector)))
    moved: Vector = np.add(vector, by, dtype=np.float32)
    return moved


def sprinkled(vector: Vector) -> Vector:
    """Return it with a trace where it is zero: an optimiser that divides by each coordinate's own size makes a whole step of it."""
    trace = 1e-4 * np.linalg.norm(vector) / np.sqrt(len(vector))
    return np.where(vector == 0, np.float32(trace), vector)


CHEATS = [reversed_, halved, doubled, zeroed, noise, huge, nowhere, hidden]


@pytest.mark.parametrize("keys", [KEYS[:1], KEYS], ids=["alone", "three"])
def test_honest_work_is_good_and_nobody_is_asked_for_an_own_vector(run: Run, keys: Sequence[bytes]) -> None:
    cohort = Cohort(run, keys).work()
    shown = cohort.shown()
    rests: list[None] = []
    assert cohort.audit().run(shown, lambda: rests.append(None)) == (GOOD,) * len(keys)
    assert shown.asked == []
    assert len(rests) == sum(COUNTS[: len(keys)]) * run.num_steps


@pytest.mark.parametrize("left", [1, 2])
def test_who_dropped_out_after_a_step_is_good_up_to_there(digits: ImageDataset, left: int) -> None:
    cohort = Cohort(run_of(digits, 3, "topk-256-4"), takes=(3, left, 3)).work()
    assert cohort.judgements() == (GOOD,) * 3


def test_a_lie_of_who_dropped_out_is_found(stepped: Run) -> None:
    cohort = Cohort(stepped, takes=(3, 2, 3)).work(own={(1, 1): reversed_})
    assert outcomes(cohort.judgements()) == ["good", "void", "good"]


def test_of_two_sites_with_a_view_each_nobody_is_guilty(dense: Run) -> None:
    cohort = Cohort(dense).work(own={(1, 0): reversed_, (2, 0): reversed_})
    submission = cohort.submission()
    claims = tuple(replace(claim, partner=KEYS[2]) if claim.key == KEYS[1] else claim for claim in submission.claims)
    assert outcomes(cohort.judgements(replace(submission, claims=claims))) == ["good", "demoted", "void"]


@pytest.mark.parametrize(("place", "cheat"), [(number % 3, cheat) for number, cheat in enumerate(CHEATS)])
def test_an_own_vector_that_its_microbatches_do_not_give_is_its_members_fault(run: Run, place: int, cheat: Change) -> None:
    step = run.num_steps - 1
    if cheat is nowhere:  # an honest founder makes no mean of it
        cohort = Cohort(run).work()
        cohort.members[place].own[step] = nowhere(cohort.members[place].own[step])
        cohort.means[step] = nowhere(cohort.means[step])
    else:
        cohort = Cohort(run).work(own={(place, step): cheat})
    found = outcomes(cohort.judgements())
    assert found[place] == "void"
    if cheat is not nowhere:
        assert found == ["void" if other == place else "good" for other in range(3)]


def test_poison_hidden_from_eight_public_sums_is_hidden_from_them(dense: Run) -> None:
    gradient = Cohort(dense, KEYS[:1]).work().means[0]
    of, poison = signs(len(gradient)), hidden(gradient)
    np.testing.assert_allclose(of @ poison, of @ gradient, atol=1e-4)
    assert poison @ gradient < 0


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_mean_that_does_not_follow_is_the_founders_fault(run: Run, cheat: Change) -> None:
    cohort = Cohort(run).work(mean={run.num_steps - 1: cheat})
    if cheat is nowhere:
        cohort.learnt = np.nan_to_num(cohort.learnt)
    found = cohort.judgements()
    assert outcomes(found) == ["void", "good", "good"]
    assert "mean" in found[0].reason


def test_a_founder_alone_that_hands_in_another_mean_than_its_own_vector_is_found(run: Run) -> None:
    for step in range(run.num_steps):
        assert outcomes(Cohort(run, KEYS[:1]).work(mean={step: reversed_}).judgements()) == ["void"]


@pytest.mark.parametrize(("poison", "count"), [(shifted, 16), (sprinkled, 2)])
def test_small_coordinates_that_are_changed_are_found_though_the_norm_hardly_moves(dense: Run, poison: Change, count: int) -> None:
    alone = Cohort(dense, KEYS[:1], counts=(count,)).work()
    gradient = alone.means[0]
    assert np.linalg.norm(poison(gradient) - gradient) < 0.051 * np.linalg.norm(gradient)
    assert (np.sign(poison(gradient)) != np.sign(gradient)).mean() > 0.1
    assert alone.judgements() == (GOOD,)
    assert outcomes(Cohort(dense, KEYS[:1], counts=(count,)).work(own={(0, 0): poison}).judgements()) == ["void"]


def test_only_the_members_of_a_step_that_fails_are_asked(stepped: Run) -> None:
    cohort = Cohort(stepped).work(own={(2, 1): noise})
    audit, shown = cohort.audit(), cohort.shown()
    owns, shown.owns = shown.owns, {}
    assert audit.run(shown, over=(0,)) == Needs(1, (0, 1, 2))
    assert shown.asked == [(0, 1), (1, 1), (2, 1)]
    shown.owns = {which: vector for which, vector in owns.items() if which != (0, 1)}
    assert audit.run(shown) == Needs(1, (0,))
    shown.owns = owns
    assert outcomes(audit.run(shown)) == ["good", "good", "void"]


def test_each_step_that_fails_is_looked_at(stepped: Run) -> None:
    cohort = Cohort(stepped).work(own={(1, 0): noise, (2, 2): noise}, mean={1: reversed_})
    assert outcomes(cohort.judgements()) == ["void"] * 3


@pytest.mark.parametrize("cheat", [reversed_, huge])
def test_an_own_vector_that_is_not_brought_demotes_its_key_and_its_founder_is_not_paid(run: Run, cheat: Change) -> None:
    """Nobody can say what the founder made its mean of: else it could count a key that never works, and whatever it likes with it."""
    step = run.num_steps - 1
    cohort = Cohort(run).work(own={(1, step): cheat})
    shown = cohort.shown()
    del shown.owns[1, step]
    assert outcomes(cohort.judgements(shown=shown)) == ["unpaid", "demoted", "good"]


def test_who_is_guilty_stays_so_whatever_else_is_not_brought(run: Run) -> None:
    step = run.num_steps - 1
    cohort = Cohort(run).work(own={(1, step): noise})
    shown = cohort.shown()
    del shown.owns[2, step]
    assert outcomes(cohort.judgements(shown=shown)) == ["unpaid", "void", "demoted"]


@pytest.mark.parametrize("gives", [reversed_, noise, halved])
def test_who_gives_another_vector_than_follows_from_its_work_frames_no_founder(run: Run, gives: Change) -> None:
    """It signed what it gave: the founder counted that, and its body follows from it."""
    cohort = Cohort(run)
    cohort.members[2].gives = gives
    found = cohort.work().judgements()
    assert outcomes(found) == ["unpaid", "good", "void"]
    assert "gave" in found[2].reason


def test_a_founder_that_gives_another_vector_than_follows_is_found(run: Run) -> None:
    for keys in (KEYS[:1], KEYS):
        cohort = Cohort(run, keys)
        cohort.members[0].gives = reversed_
        assert outcomes(cohort.work().judgements()) == ["void", "good", "good"][: len(keys)]


def test_a_claim_that_names_another_vector_than_it_gave_is_false(stepped: Run) -> None:
    cohort = Cohort(stepped)
    cohort.members[1].names_given = b"g" * 32
    assert outcomes(cohort.work().judgements()) == ["unpaid", "void", "good"]


@pytest.mark.parametrize(("codec", "keys"), [("int16", KEYS), ("int16", KEYS[:1]), ("topk-256-4", KEYS[:1])])
def test_of_one_step_it_is_false_where_digests_alone_say_so(digits: ImageDataset, codec: str, keys: Sequence[bytes]) -> None:
    cohort = Cohort(run_of(digits, 1, codec), keys)
    cohort.members[-1].names_given = b"g" * 32
    assert outcomes(cohort.work().judgements()) == [*["good"] * (len(keys) - 1), "void"]


def test_a_founder_that_made_another_body_of_what_it_was_given_is_found_though_a_mean_cannot_be_checked(stepped: Run) -> None:
    cohort = Cohort(stepped).work(own={(1, 0): noise})
    shown = cohort.shown()
    del shown.owns[1, 0]
    assert outcomes(cohort.judgements(cohort.submission(of_body=noise), shown)) == ["void", "demoted", "good"]


def test_a_body_that_does_not_follow_be_it_in_one_integer_is_the_founders_fault(run: Run) -> None:
    def nudged(whole: Vector) -> Vector:
        return np.where(np.arange(len(whole)) == int(np.abs(whole).argmax()), np.float32(0), whole)

    cohort = Cohort(run).work()
    for poison in (reversed_, noise, huge, nudged):
        found = cohort.judgements(cohort.submission(of_body=poison))
        assert outcomes(found) == ["void", "good", "good"]
        assert "body" in found[0].reason


def test_a_residual_that_coding_did_not_leave_is_the_founders_fault(run: Run) -> None:
    cohort = Cohort(run).work()
    for left in (b"r" * 32, *([b""] if run.is_sparse else [])):
        assert outcomes(cohort.judgements(cohort.submission(left=left))) == ["void", "good", "good"]


def test_a_body_that_saturates_is_good_only_where_the_gradients_do(dense: Run) -> None:
    """A larger state of the same network: its gradients are too large for the last window of exponents on this min exponent."""
    cohort = Cohort(dense, KEYS[:1]).work()
    low = replace(cohort.submission(), min_exponent=-80)
    honest = replace(low, body=encode("int16", cohort.means[0], -80))
    assert (np.abs(parse("int16", honest.body, len(cohort.means[0])).values(-80)) < np.abs(cohort.means[0])).any()
    assert cohort.judgements(honest) == (GOOD,)
    elsewhere = np.where(np.arange(len(cohort.means[0])) == np.argmin(np.abs(cohort.means[0])), np.float32(1e30), cohort.means[0])
    assert outcomes(cohort.judgements(replace(low, body=encode("int16", elsewhere, -80)))) == ["void"]


def test_a_ghost_that_never_trained_is_found_whatever_it_signs(run: Run) -> None:
    honest = Cohort(run).work()
    for step in range(run.num_steps):
        copied = honest.members[0].own[step]
        cohort = Cohort(run).work(own={(1, step): lambda _: copied})  # noqa: B023  (called in this turn)
        assert outcomes(cohort.judgements()) == ["good", "void", "good"]
        shown = cohort.shown()
        shown.owns = {key: vector for key, vector in shown.owns.items() if key[0] != 1}
        assert outcomes(cohort.judgements(shown=shown)) == ["unpaid", "demoted", "good"]


def test_a_mean_that_nobody_brings_demotes_all_who_counted_in_it(stepped: Run) -> None:
    cohort = Cohort(stepped, takes=(3, 1, 3)).work()
    audit, shown = cohort.audit(), cohort.shown()
    mean = shown.means.pop(2)
    lacks = audit.run(shown)
    assert isinstance(lacks, Lacks)
    assert (lacks.means, lacks.residuals) == ((2,), ())
    assert outcomes(lacks.judgements) == ["demoted", "unpaid", "demoted"]
    shown.means[2] = mean
    assert audit.run(shown) == (GOOD,) * 3


def test_a_mean_that_nobody_brings_demotes_all(run: Run) -> None:
    cohort = Cohort(run).work()
    shown = cohort.shown()
    shown.means.clear()
    lacks = cohort.audit().run(shown)
    assert isinstance(lacks, Lacks)
    assert lacks.means == tuple(range(run.num_steps))
    assert outcomes(lacks.judgements) == ["demoted"] * 3


@pytest.mark.parametrize("steps", [1, 3])
def test_a_residual_that_is_not_brought_demotes_its_key_and_nobody_is_paid(digits: ImageDataset, steps: int) -> None:
    cohort = Cohort(run_of(digits, steps, "topk-256-4")).work()
    shown = cohort.shown()
    del shown.residuals[2]
    lacks = cohort.audit().run(shown)
    assert isinstance(lacks, Lacks)
    assert lacks.residuals == (2,)
    assert outcomes(lacks.judgements) == ["unpaid", "unpaid", "demoted"]


def test_nobody_asks_for_the_residual_of_who_dropped_out(stepped: Run) -> None:
    cohort = Cohort(stepped, takes=(3, 3, 2)).work()
    cohort.members[2].was_left = False
    shown = cohort.shown()
    del shown.residuals[2]
    assert cohort.judgements(shown=shown) == (GOOD,) * 3


@pytest.mark.parametrize("steps", [1, 3])
def test_a_residual_that_was_not_left_to_its_key_is_its_keys_fault(digits: ImageDataset, steps: int) -> None:
    cohort = Cohort(run_of(digits, steps, "topk-256-4"))
    cohort.members[1].residual = noise(np.ones(cohort.run.worker.num_weights, np.float32))
    cohort.members[1].was_left = False
    assert outcomes(cohort.work().judgements()) == ["good", "void", "good"]


def test_a_member_may_forget_its_residual(sparse: Run) -> None:
    cohort = Cohort(sparse)
    cohort.members[1].residual = None
    assert cohort.work().judgements() == (GOOD,) * 3


def test_a_residual_of_which_nothing_is_known_is_not_judged(sparse: Run) -> None:
    cohort = Cohort(sparse).work()
    cohort.members[1].was_left = None
    assert outcomes(cohort.judgements()) == ["good", "not judged", "good"]


def test_microbatches_skipped_by_their_price_are_the_keys_fault(dense: Run) -> None:
    manifest, asked = dense.manifest, dense.plan.architectures(1, "home")
    costs = [architecture_cost(each.text, manifest.cost_table()) for each in asked]
    dearest = [index for index in range(32) if costs[place_of_microbatch(len(asked), BASE, KEYS[1], index)] == max(costs)]
    cohort = Cohort(dense)
    cohort.members[1].indices = [dearest]
    found = cohort.work().judgements()
    assert outcomes(found) == ["good", "void", "good"]
    assert "pay less" in found[1].reason
    gaps = Cohort(dense)
    gaps.members[1].indices = [[index for index in range(20) if index % 3]]
    assert gaps.work().judgements() == (GOOD,) * 3


def test_where_no_gradient_is_finite_nothing_is_good(dense: Run) -> None:
    cohort = Cohort(dense).work()
    broken = State(0, dense.state.parameters * 1e38, dense.state.moments)
    audit = Recomputation(dense.manifest, dense.plan, cohort.submission(), dense.microbatches, broken, None)
    assert outcomes(settled(audit, cohort.shown())) == ["not judged"] * 3


def test_an_audit_that_is_given_up_says_nothing_but_what_is_known(sparse: Run) -> None:
    cohort = Cohort(sparse)
    cohort.members[1].was_left = False
    audit = cohort.work().audit()
    found = audit.not_judged("there was no time for it")
    assert outcomes(found) == ["not judged", "void", "not judged"]
    assert found[0].reason == "there was no time for it"


def test_members_that_are_off_together_frame_no_founder(dense: Run) -> None:
    """Each is as far off as an honest one may be, all in one direction: together they are farther off than honest ones may be."""
    counts = (1, 1, 1)

    def less(vector: Vector) -> Vector:
        return vector * np.float32(0.81)

    cohort = Cohort(dense, counts=counts).work(own={(place, 0): less for place in range(3)})
    audit, shown = cohort.audit(), cohort.shown()
    assert settled(audit, shown) == (GOOD,) * 3
    assert shown.asked == [(0, 0), (1, 0), (2, 0)]


def test_a_teacher_is_part_of_what_is_computed(dense: Run) -> None:
    cohort = Cohort(dense)
    cohort.teacher = dense.state.parameters * 0.9
    cohort.work()
    assert settled(cohort.audit(teacher=cohort.teacher), cohort.shown()) == (GOOD,) * 3
    assert "void" in outcomes(cohort.judgements())


def test_a_step_that_counts_nobody_who_has_it_is_no_contribution(stepped: Run) -> None:
    cohort = Cohort(stepped, takes=(3, 1, 3)).work()
    submission = cohort.submission()
    steps = submission.contribution.steps
    with pytest.raises(ValueError, match="not those that have it"):
        cohort.audit(replace(submission, contribution=replace(submission.contribution, steps=(*steps[:2], replace(steps[2], included=7)))))
