from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import LocalSteps, State, initial_state, next_state
from manta_swarm.protocol.errors import OwnFault
from manta_swarm.protocol.manifest import Optimizer, Recipe

ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20, "0.9", "0.5")
SGD = Optimizer("sgd", "0.1", "0.9", "0", "0", "0.0005", 20, "0.9", "0.5")
STEPS = 12
every_optimizer = pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=lambda o: o.name)


def plan_of(optimizer: Optimizer) -> Plan:
    return Plan("classifier-tiny", "sandwich", "data-parallel", optimizer, 30, 3, STEPS, Recipe(decay="all"))


def committed(round_: int = 6, count: int = 1000) -> State:
    generator = torch.Generator().manual_seed(1)
    return State(round_, torch.randn(count, generator=generator), (torch.randn(count, generator=generator),))


def gradients(count: int = 1000) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(count, generator=generator) * (torch.arange(count) % 3 > 0) for _ in range(STEPS)]


@every_optimizer
def test_local_steps_are_those_of_torch_optim_from_fresh_moments_at_the_rounds_rate(optimizer: Optimizer) -> None:
    state, plan = committed(), plan_of(optimizer)
    weights = torch.nn.Parameter(state.parameters.double())
    rate, decay = plan.learning_rate(7), float(optimizer.weight_decay)
    reference = (
        torch.optim.SGD([weights], lr=rate, momentum=float(optimizer.beta1), weight_decay=decay)
        if optimizer.name == "sgd"
        else torch.optim.AdamW([weights], lr=rate, betas=(0.9, 0.99), eps=float(optimizer.epsilon), weight_decay=decay)
    )
    local = LocalSteps(state, plan)
    for gradient in gradients():
        assert local.step(gradient)
        weights.grad = gradient.double()
        reference.step()
        torch.testing.assert_close(local.weights, weights.detach().float(), rtol=1e-5, atol=1e-6)
    assert (local.number, local.taken) == (STEPS, STEPS)


class Steady(Plan):
    """A plan with one rate for all rounds."""

    def learning_rate(self, round: int) -> float:
        return 0.003


@every_optimizer
def test_local_steps_have_the_bits_of_as_many_rounds_of_one_step_from_fresh_moments(optimizer: Optimizer) -> None:
    plan = Steady("classifier-tiny", "sandwich", "data-parallel", optimizer, 30, 3, STEPS, Recipe(decay="all"))
    local = LocalSteps(committed(), plan)
    moments = tuple(torch.zeros(1000) for _ in range(2 if optimizer.name == "adamw" else 1))
    run = State(0, committed().parameters, moments)
    for gradient in gradients():
        local.step(gradient)
        run = next_state(run, gradient, replace(plan, local_steps=1))
        assert torch.equal(local.weights, run.parameters)


def test_what_was_learnt_is_the_change_of_the_weights_rounded_once() -> None:
    state = committed()
    local = LocalSteps(state, plan_of(ADAMW))
    assert not local.learnt().any()
    for gradient in gradients():
        local.step(gradient)
    exact = state.parameters.double().numpy() - local.weights.double().numpy()
    assert np.array_equal(local.learnt().numpy(), exact.astype(np.float32))
    assert local.learnt().dtype == torch.float32


def test_local_steps_leave_the_state_and_the_gradients_alone() -> None:
    state, gradient = committed(), gradients()[0]
    before, gradient_before = state.parameters.clone(), gradient.clone()
    local = LocalSteps(state, plan_of(SGD))
    first = local.weights
    local.step(gradient)
    local.learnt().fill_(7.0)
    assert torch.equal(state.parameters, before)
    assert torch.equal(first, before)
    assert torch.equal(gradient, gradient_before)


@every_optimizer
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3.4e38])
def test_a_local_step_to_what_is_no_finite_number_is_not_taken_and_the_next_one_is(optimizer: Optimizer, value: float) -> None:
    plan = plan_of(replace(optimizer, learning_rate="9"))
    local, spared = LocalSteps(committed(), plan), LocalSteps(committed(), plan)
    first, broken, last, *_ = gradients()
    broken[700] = value
    for one in (local, spared):
        assert one.step(first)
    before = local.weights
    assert not local.step(broken)
    assert torch.equal(local.weights, before)
    assert local.step(last)
    assert (local.number, local.taken) == (3, 2)
    assert local.weights.isfinite().all()
    spared.step(last)
    # AdamW's bias correction counts the step that was not taken; SGD has none.
    assert torch.equal(local.weights, spared.weights) == (optimizer.name == "sgd")


@every_optimizer
@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_a_part_of_the_weights_goes_the_way_that_it_goes_with_the_others(optimizer: Optimizer, decay: str) -> None:
    plan = replace(plan_of(optimizer), recipe=Recipe(decay=decay))
    state = initial_state(plan)
    count, part = len(state.parameters), slice(1000, 1700)
    local, of_part = LocalSteps(state, plan), LocalSteps(State(state.round, state.parameters[part], ()), plan, part)
    for number, gradient in enumerate(gradients(count)[:4]):
        gradient[0] = torch.inf if number == 2 else 0.0
        if local.step(gradient):
            of_part.step(gradient[part])
        else:
            of_part.pass_over()
        assert torch.equal(of_part.weights, local.weights[part])
    assert (of_part.number, of_part.taken) == (local.number, local.taken) == (4, 3)


def test_a_gradient_that_does_not_fit_is_refused() -> None:
    local = LocalSteps(committed(), plan_of(ADAMW))
    for wrong in (torch.zeros(999), torch.zeros(1000, dtype=torch.float64)):
        with pytest.raises(ValueError, match="gradient"):
            local.step(wrong)
    assert local.number == 0


def test_a_thread_that_flushes_denormals_makes_no_local_steps() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    try:
        with pytest.raises(OwnFault, match="denormal"):
            LocalSteps(committed(), plan_of(ADAMW)).step(gradients()[0])
    finally:
        torch.set_flush_denormal(False)


def test_a_round_of_one_cohort_with_an_outer_rate_of_one_and_no_momentum_ends_where_its_steps_did() -> None:
    plan = plan_of(replace(ADAMW, outer_rate="1", outer_momentum="0"))
    state = initial_state(plan)
    local = LocalSteps(state, plan)
    for gradient in gradients(len(state.parameters)):
        local.step(gradient)
    following = next_state(state, local.learnt(), plan)
    torch.testing.assert_close(following.parameters, local.weights, rtol=1e-6, atol=1e-7)
