import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from automl.schedule import Plan
from automl.update import (
    State,
    initial_state,
    known_digest,
    next_state,
    num_moments,
    self_test,
    state_bytes,
    state_digest,
    state_from_bytes,
    state_num_bytes,
    teacher_digest,
)
from protocol.encoding import encode
from protocol.errors import EncodingError, OwnFault
from protocol.records import Optimizer
from protocol.signing import sha256

ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20)
SGD = Optimizer("sgd", "0.1", "0.9", "0", "0", "0.0005", 20)
ROUNDS = 30


def plan_of(optimizer: Optimizer, schedule: str = "sandwich", seed: int = 3) -> Plan:
    return Plan("classifier-tiny", schedule, "data-parallel", optimizer, ROUNDS, seed)


def first_state(optimizer: Optimizer, count: int = 1000) -> State:
    weights = torch.randn(count, generator=torch.Generator().manual_seed(1))
    return State(0, weights, tuple(torch.zeros(count) for _ in range(num_moments(optimizer))))


def means(count: int = 1000) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    gradients = [torch.randn(count, generator=generator) for _ in range(ROUNDS)]
    return [gradient * (torch.arange(count) % 3 > 0) for gradient in gradients]  # inactive slices have zeros


def torch_optimizer(weights: Tensor, optimizer: Optimizer) -> torch.optim.Optimizer:
    decay = float(optimizer.weight_decay)
    if optimizer.name == "sgd":
        return torch.optim.SGD([weights], lr=1.0, momentum=float(optimizer.beta1), weight_decay=decay)
    return torch.optim.AdamW(
        [weights], betas=(float(optimizer.beta1), float(optimizer.beta2)), eps=float(optimizer.epsilon), weight_decay=decay
    )


@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=lambda o: o.name)
def test_the_update_is_the_one_of_torch_optim(optimizer: Optimizer) -> None:
    state = first_state(optimizer)
    weights = torch.nn.Parameter(state.parameters.double())  # the reference computes in double precision
    reference = torch_optimizer(weights, optimizer)
    for mean in means():
        reference.param_groups[0]["lr"] = plan_of(optimizer).learning_rate(state.round + 1)
        weights.grad = mean.double()
        reference.step()
        state = next_state(state, mean, plan_of(optimizer))
    assert state.round == ROUNDS
    torch.testing.assert_close(state.parameters, weights.detach().float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=lambda o: o.name)
def test_an_update_makes_new_tensors_and_leaves_the_state_and_the_mean_alone(optimizer: Optimizer) -> None:
    state, mean = first_state(optimizer), means()[0]
    before, mean_before = state_digest(state), mean.clone()
    following = next_state(state, mean, plan_of(optimizer))
    for vector in (following.parameters, *following.moments):
        vector.fill_(7.0)
    assert state_digest(state) == before
    assert torch.equal(mean, mean_before)


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_one_update_has_the_same_digest_on_every_instruction_set(capability: str) -> None:
    program = """
import torch
from automl.update import known_digest
print(torch.backends.cpu.get_cpu_capability())
for threads in (1, 2):
    torch.set_num_threads(threads)
    print(known_digest())
"""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    used, *digests = output.split()
    if used.lower() != capability:
        pytest.skip(f"this machine has no {capability}")
    self_test()
    assert digests == [known_digest()] * 2


def test_every_operation_of_an_update_is_rounded_as_ieee_754_says() -> None:
    # An operation on float32 done in float64 and then rounded is correctly rounded: 53 bits are enough for 24 (Figueroa 1995).
    def f32(value: "np.ndarray | float") -> "np.ndarray":
        return np.asarray(value, dtype=np.float64).astype(np.float32).astype(np.float64)

    state = State(0, torch.rand(20_000) - 0.5, (torch.rand(20_000) - 0.5, torch.rand(20_000)))
    mean = torch.rand(20_000) - 0.5
    p, m, v, g = (f32(vector.numpy()) for vector in (state.parameters, *state.moments, mean))
    beta1, beta2 = float(ADAMW.beta1), float(ADAMW.beta2)
    m = f32(f32(m * f32(beta1)) + f32(g * f32(1.0 - beta1)))
    v = f32(f32(v * f32(beta2)) + f32(f32(g * g) * f32(1.0 - beta2)))
    corrected = f32(f32(np.sqrt(f32(v / f32(1.0 - beta2)))) + f32(float(ADAMW.epsilon)))
    rate = plan_of(ADAMW).learning_rate(1)
    decayed = f32(p * f32(1.0 - rate * float(ADAMW.weight_decay)))
    p = f32(decayed - f32(f32(f32(m / f32(1.0 - beta1)) / corrected) * f32(rate)))
    found = next_state(state, mean, plan_of(ADAMW))
    for mine, theirs in zip((found.parameters, *found.moments), (p, m, v), strict=True):
        assert np.array_equal(mine.numpy(), theirs.astype(np.float32))


def test_an_update_keeps_denormals() -> None:
    tiny = torch.finfo(torch.float32).tiny
    smallest = torch.full((5,), 2.0**-149)
    state = State(0, smallest * 3, (smallest * 5, smallest * 7))
    following = next_state(state, smallest, plan_of(replace(ADAMW, weight_decay="0")))
    assert all((vector > 0).all() and (vector < tiny).all() for vector in following.moments)


@pytest.fixture
def _flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("_flushing")
def test_a_thread_that_flushes_denormals_updates_nothing() -> None:
    with pytest.raises(OwnFault, match="denormal"):
        self_test()
    with pytest.raises(OwnFault, match="denormal"):
        next_state(first_state(SGD), means()[0], plan_of(SGD))


@pytest.mark.usefixtures("_flushing")
def test_the_self_tests_digest_would_show_flushed_denormals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("automl.update._check_denormals", lambda: None)
    with pytest.raises(OwnFault, match="other bits"):
        self_test()


def test_a_mean_or_moments_that_do_not_fit_are_refused() -> None:
    state = first_state(ADAMW)
    with pytest.raises(ValueError, match="mean"):
        next_state(state, torch.zeros(999), plan_of(ADAMW))
    with pytest.raises(ValueError, match="mean"):
        next_state(state, torch.zeros(1000, dtype=torch.float64), plan_of(ADAMW))
    with pytest.raises(ValueError, match="moments"):
        next_state(state, torch.zeros(1000), plan_of(SGD))


def test_the_first_state_is_of_round_zero_with_empty_moments() -> None:
    state = initial_state(plan_of(ADAMW))
    assert (state.round, len(state.moments), len(initial_state(plan_of(SGD)).moments)) == (0, 2, 1)
    assert not any(moment.any() for moment in state.moments)
    assert state_digest(state) == state_digest(initial_state(plan_of(ADAMW)))
    assert state_digest(state) != state_digest(initial_state(plan_of(ADAMW, seed=4)))


@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=lambda o: o.name)
def test_a_state_survives_its_bytes_and_its_digest_is_theirs(optimizer: Optimizer) -> None:
    state = next_state(first_state(optimizer), means()[0], plan_of(optimizer))
    data = state_bytes(state)
    again = state_from_bytes(data, 1000)
    assert again.round == 1
    assert all(torch.equal(a, b) for a, b in zip((state.parameters, *state.moments), (again.parameters, *again.moments), strict=True))
    assert state_bytes(again) == data
    assert state_digest(state) == sha256(data)
    assert len(data) <= state_num_bytes(1000, optimizer)


def header(*fields: int | str | bytes) -> bytes:
    encoded = encode(fields)
    return bytes([len(encoded)]) + encoded


GOOD = header("manta/state/v2", 3, 2, 1, b"")
VECTORS = torch.tensor([1.0, 2.0, 3.0, 4.0]).numpy().tobytes()


def test_hand_made_bytes_are_read_as_the_format_says() -> None:
    state = state_from_bytes(GOOD + VECTORS, 2)
    assert (state.round, state.parameters.tolist(), [moment.tolist() for moment in state.moments]) == (3, [1.0, 2.0], [[3.0, 4.0]])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff",
        GOOD,
        GOOD[:-1],
        GOOD + VECTORS[:-1],
        GOOD + VECTORS + b"\x00",
        GOOD + VECTORS[:8] + torch.tensor([float("nan"), 0.0]).numpy().tobytes(),
        GOOD + VECTORS[:8] + torch.tensor([float("-inf"), 0.0]).numpy().tobytes(),
        header("manta/state/v1", 3, 2, 1, b"") + VECTORS,
        header("manta/state/v2", -1, 2, 1, b"") + VECTORS,
        header("manta/state/v2", 2**50, 2, 1, b"") + VECTORS,
        header("manta/state/v2", 3, 1, 3, b"") + VECTORS,
        header("manta/state/v2", 3, 2, 0, b"") + VECTORS[:8],
        header("manta/state/v2", 3, 2, 3, b"") + VECTORS + VECTORS,
        header("manta/state/v2", 3, "2", 1, b"") + VECTORS,
        header("manta/state/v2", 3, 2, 1) + VECTORS,
        header("manta/state/v2", 3, 2, 1, 0) + VECTORS,
        header("manta/state/v2", 3, 2, 1, bytes(31)) + VECTORS,
        header("manta/state/v2", 3, 2, 1, b"", 0) + VECTORS,
        bytes([GOOD[0] + 1, 0x98, 5]) + GOOD[2:] + VECTORS,  # the array's length in more bytes than it needs
        bytes([GOOD[0] + 1]) + GOOD[1:] + VECTORS,
    ],
)
def test_bytes_that_are_not_the_canonical_form_of_a_state_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        state_from_bytes(data, 2)


def test_every_state_after_the_full_phase_names_the_state_that_ended_it_as_its_teacher() -> None:
    plan = plan_of(SGD, "shrinking")
    state = initial_state(plan)
    mean = torch.zeros_like(state.parameters)
    teacher = None
    for round_ in range(1, ROUNDS + 1):
        taught = teacher_digest(state, plan)
        assert (taught is not None) == plan.phase(round_).distils
        if round_ - 1 == plan.teacher_round:
            teacher = state_digest(state)
        assert taught in (None, teacher)
        state = next_state(state, mean, plan)
        assert state.teacher == (teacher or b"")
        assert state_digest(state_from_bytes(state_bytes(state), state.parameters.numel())) == state_digest(state)
    assert teacher is not None


def test_the_update_that_ends_the_depth_phase_sorts_channels_and_no_other_does() -> None:
    plan = plan_of(SGD, "shrinking")
    state = replace(initial_state(plan), round=plan.phases[2].last - 2)
    mean = torch.zeros_like(state.parameters)
    plain = plan_of(SGD)
    for sorts in (False, True, False):
        following, unsorted = next_state(state, mean, plan), next_state(state, mean, plain)
        assert torch.equal(following.parameters.sort().values, unsorted.parameters.sort().values) or plan.phase(state.round + 1).peak != 1
        step = following.parameters - state.parameters
        assert (float(step.abs().max()) > 0.1) == sorts  # the rate moves a weight a little, a sort moves it far
        state = following
