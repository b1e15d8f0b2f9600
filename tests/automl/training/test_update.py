from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import (
    State,
    initial_state,
    next_state,
    num_moments,
    self_test,
    sort_channels,
    state_digest,
    state_from_pieces,
    state_piece_sizes,
    state_pieces,
    teacher_digest,
)
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import EncodingError, OwnFault
from manta_swarm.protocol.exchange import GROUP_VALUES
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.manifest import Optimizer, Recipe
from manta_swarm.protocol.signing import sha256
from tests import forked
from tests.automl.training import instruction_sets

ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20, "0.9", "0.5")
SGD = Optimizer("sgd", "0.1", "0.9", "0", "0", "0.0005", 20, "0.9", "0.5")
ROUNDS = 30


def plan_of(optimizer: Optimizer, schedule: str = "sandwich", seed: int = 3, local_steps: int = 1) -> Plan:
    return Plan("classifier-tiny", schedule, "data-parallel", optimizer, ROUNDS, seed, local_steps, Recipe(decay="all"))


def first_state(optimizer: Optimizer, count: int = 1000, local_steps: int = 1) -> State:
    weights = torch.randn(count, generator=torch.Generator().manual_seed(1))
    return State(0, weights, tuple(torch.zeros(count) for _ in range(num_moments(optimizer, local_steps))))


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
def test_after_several_local_steps_the_update_is_sgd_with_nesterov_momentum_of_torch_optim(optimizer: Optimizer) -> None:
    plan = plan_of(replace(optimizer, outer_rate="0.7", outer_momentum="0.6"), local_steps=10)
    state = first_state(optimizer, local_steps=10)
    weights = torch.nn.Parameter(state.parameters.double())
    reference = torch.optim.SGD([weights], lr=0.7, momentum=0.6, nesterov=True)
    for mean in means():
        weights.grad = mean.double()
        reference.step()
        state = next_state(state, mean, plan)
    assert state.round == ROUNDS
    torch.testing.assert_close(state.parameters, weights.detach().float(), rtol=1e-5, atol=1e-5)
    momentum = reference.state[weights]["momentum_buffer"].float()
    torch.testing.assert_close(state.moments, (momentum,), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("local_steps", [1, 7])
@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=lambda o: o.name)
def test_an_update_makes_new_tensors_and_leaves_the_state_and_the_mean_alone(optimizer: Optimizer, local_steps: int) -> None:
    state, mean = first_state(optimizer, local_steps=local_steps), means()[0]
    before, mean_before = state_digest(state), mean.clone()
    following = next_state(state, mean, plan_of(optimizer, local_steps=local_steps))
    for vector in (following.parameters, *following.moments):
        vector.fill_(7.0)
    assert state_digest(state) == before
    assert torch.equal(mean, mean_before)


def f32(value: "np.ndarray | float") -> "np.ndarray":
    """Round to float32: an operation on float32 done in float64 and then rounded is correctly rounded, 53 bits are enough for 24
    (Figueroa 1995)."""
    return np.asarray(value, dtype=np.float64).astype(np.float32).astype(np.float64)


def test_every_operation_of_an_outer_step_is_rounded_as_ieee_754_says() -> None:
    state = State(4, torch.rand(20_000) - 0.5, (torch.rand(20_000) - 0.5,))
    mean = torch.rand(20_000) - 0.5
    p, m, g = (f32(vector.numpy()) for vector in (state.parameters, *state.moments, mean))
    rate, decay = f32(0.9), f32(0.3)
    m = f32(f32(m * decay) + g)
    p = f32(p - f32(f32(g + f32(m * decay)) * rate))
    found = next_state(state, mean, plan_of(replace(ADAMW, outer_rate="0.9", outer_momentum="0.3"), local_steps=10))
    for mine, theirs in zip((found.parameters, *found.moments), (p, m), strict=True):
        assert np.array_equal(mine.numpy(), theirs.astype(np.float32))


def test_every_operation_of_an_update_is_rounded_as_ieee_754_says() -> None:
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
    monkeypatch.setattr("manta_swarm.automl.training.optimizers.check_denormals", lambda: None)
    with pytest.raises(OwnFault, match="other bits"):
        self_test()


def test_a_mean_or_moments_that_do_not_fit_are_refused() -> None:
    state = first_state(ADAMW)
    with pytest.raises(ValueError, match="mean"):
        next_state(state, torch.zeros(999), plan_of(ADAMW))
    with pytest.raises(ValueError, match="mean"):
        next_state(state, torch.zeros(1000, dtype=torch.float64), plan_of(ADAMW))
    for other in (plan_of(SGD), plan_of(ADAMW, local_steps=2)):
        with pytest.raises(ValueError, match="1 moments, not 2"):
            next_state(state, torch.zeros(1000), other)


def test_the_first_state_is_of_round_zero_with_empty_moments() -> None:
    state = initial_state(plan_of(ADAMW))
    assert (state.round, len(state.moments), len(initial_state(plan_of(SGD)).moments)) == (0, 2, 1)
    assert len(initial_state(plan_of(ADAMW, local_steps=10)).moments) == 1
    assert torch.equal(initial_state(plan_of(ADAMW, local_steps=10)).parameters, state.parameters)
    assert not any(moment.any() for moment in state.moments)
    assert state_digest(state) == state_digest(initial_state(plan_of(ADAMW)))
    assert state_digest(state) != state_digest(initial_state(plan_of(ADAMW, seed=4)))


def test_every_instruction_set_takes_the_same_steps_and_sorts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other one is the only one that another process uses; a machine that lacks one uses another."""
    self_test()
    own, here, by_two_threads = instruction_sets.digests_by_threads()
    assert here == by_two_threads
    assert here.split()[2::2] == ["True", "False"] * len(instruction_sets.PLACES)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    found = set()
    for capability in {"default", "avx2", "avx512"} - {own}:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
        ended = forked.run("tests.automl.training.instruction_sets")
        assert ended.returncode == 0, ended.stderr
        used, *digests = ended.stdout.splitlines()
        assert digests == [here, here], used
        found.add(used)
    assert "default" in found | {own}


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=lambda o: o.name)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4e38])
def test_a_step_to_what_is_no_finite_number_is_not_taken_though_the_round_is_over(
    optimizer: Optimizer, value: float, local_steps: int
) -> None:
    plan = plan_of(replace(optimizer, learning_rate="9", outer_rate="9"), local_steps=local_steps)
    state = next_state(first_state(optimizer, local_steps=local_steps), means()[0], plan)
    mean = means()[1]
    mean[700] = value
    assert not torch.equal(next_state(state, means()[1], plan).parameters, state.parameters)
    assert state_digest(next_state(state, mean, plan)) == state_digest(replace(state, round=2))


def test_one_moment_that_overflows_keeps_the_weights_too() -> None:
    state = replace(first_state(SGD), moments=(torch.full((1000,), 3e38),))
    mean = torch.zeros(1000)
    mean[5] = 1e38
    tiny = replace(SGD, learning_rate="0.000000000001")  # the weights alone would stay finite
    assert state_digest(next_state(state, mean, plan_of(tiny))) == state_digest(replace(state, round=1))
    following = next_state(state, -mean, plan_of(tiny))
    assert following.moments[0][5] < following.moments[0][4] < state.moments[0][4]


def test_the_outer_momentum_is_sorted_with_its_weights() -> None:
    plan = plan_of(ADAMW, "shrinking", local_steps=4)
    (sorting,) = (round_ for round_ in range(1, ROUNDS + 1) if plan.sorts_after(round_))
    first = initial_state(plan)
    before = State(sorting - 1, first.parameters, (torch.arange(len(first.parameters), dtype=torch.float32),))
    found = next_state(before, torch.zeros_like(first.parameters), replace(plan, optimizer=replace(ADAMW, outer_momentum="0.5")))
    unsorted = next_state(before, torch.zeros_like(first.parameters), replace(plan, schedule="sandwich"))
    places = (found.moments[0] * 2).long()
    assert not torch.equal(found.moments[0], unsorted.moments[0])
    assert torch.equal(found.parameters, unsorted.parameters[places])
    assert torch.equal(found.moments[0], unsorted.moments[0][places])


def test_where_a_step_is_not_taken_channels_are_sorted_and_the_teacher_is_named_all_the_same() -> None:
    plan = plan_of(SGD, "shrinking")
    first = initial_state(plan)
    assert plan.teacher_round is not None
    too_much = torch.full_like(first.parameters, float("inf"))
    at_the_end = replace(first, round=plan.teacher_round)
    assert state_digest(next_state(at_the_end, too_much, plan)) == state_digest(
        replace(at_the_end, round=plan.teacher_round + 1, teacher=state_digest(at_the_end))
    )
    (sorting,) = (round_ for round_ in range(1, ROUNDS + 1) if plan.sorts_after(round_))
    before = replace(first, round=sorting - 1, moments=(first.parameters * 2,))
    parameters, moments = sort_channels(before.parameters, before.moments, plan.supernet)
    assert not torch.equal(parameters, before.parameters)
    assert state_digest(next_state(before, too_much, plan)) == state_digest(State(sorting, parameters, moments))


def rfc_root(leaves: list[bytes]) -> bytes:
    """Return the root of ``leaves`` as RFC 9162 section 2.1.1 defines it, from the entries up."""
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0])
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return sha256(b"\x01" + rfc_root(leaves[:half]) + rfc_root(leaves[half:]))


def copies(state: State) -> list[bytes]:
    return [bytes(piece) for piece in state_pieces(state)]


@pytest.mark.parametrize(("optimizer", "local_steps"), [(ADAMW, 1), (SGD, 1), (ADAMW, 5)], ids=["adamw", "sgd", "local steps"])
@pytest.mark.parametrize("count", [1, GROUP_VALUES, GROUP_VALUES + 5])
def test_a_state_survives_its_pieces_and_its_digest_is_the_root_over_them(optimizer: Optimizer, local_steps: int, count: int) -> None:
    plan = replace(plan_of(optimizer, local_steps=local_steps), num_rounds=2**30)
    state = next_state(first_state(optimizer, count, local_steps), means(count)[0], plan)
    whole = [np.asarray(vector.numpy(), dtype="<f4").tobytes() for vector in (state.parameters, *state.moments)]
    groups = [data[start : start + 2**20] for data in whole for start in range(0, len(data), 2**20)]
    pieces = [encode(("manta/state/v3", 1, count, len(whole) - 1, b"")), *groups]
    assert copies(state) == pieces
    assert state_digest(state) == rfc_root(pieces)
    again = state_from_pieces(state_pieces(state), count)
    assert (again.round, again.teacher) == (1, b"")
    assert all(torch.equal(a, b) for a, b in zip((state.parameters, *state.moments), (again.parameters, *again.moments), strict=True))
    assert copies(again) == pieces
    sizes = state_piece_sizes(count, optimizer, local_steps)
    assert len(pieces[0]) <= sizes[0]
    assert tuple(len(piece) for piece in pieces[1:]) == sizes[1:]


def test_the_longest_header_has_room() -> None:
    state = State(MAX_ROUND, torch.ones(3), (torch.ones(3), torch.ones(3)), bytes(range(32)))
    header, *_ = copies(state)
    assert len(header) + 4 < state_piece_sizes(3, ADAMW, 1)[0]  # of 2^32 weights
    again = state_from_pieces(state_pieces(state), 3)
    assert (again.round, again.teacher) == (MAX_ROUND, bytes(range(32)))


def test_what_was_read_does_not_change_with_the_bytes_that_it_was_read_from() -> None:
    data = [bytearray(piece) for piece in copies(first_state(SGD))]
    state = state_from_pieces([memoryview(piece) for piece in data], 1000)
    before = state_digest(state)
    for piece in data:
        piece[:] = bytes(len(piece))
    assert state_digest(state) == before


def header(*fields: int | str | bytes) -> bytes:
    return encode(fields)


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


V3 = "manta/state/v3"
GOOD = header(V3, 3, 2, 1, b"")
WEIGHTS, MOMENT = floats(1.0, 2.0), floats(3.0, 4.0)


def test_hand_made_pieces_are_read_as_the_format_says() -> None:
    pieces = [b"\x85\x6emanta/state/v3\x03\x02\x01\x40", bytes.fromhex("0000803f00000040"), bytes.fromhex("0000404000008040")]
    assert pieces == [GOOD, WEIGHTS, MOMENT]
    state = state_from_pieces(pieces, 2)
    assert (state.round, state.parameters.tolist(), [moment.tolist() for moment in state.moments]) == (3, [1.0, 2.0], [[3.0, 4.0]])
    leaves = [sha256(b"\x00" + piece) for piece in pieces]
    assert state_digest(state) == sha256(b"\x01" + sha256(b"\x01" + leaves[0] + leaves[1]) + leaves[2])


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [GOOD],
        [GOOD, WEIGHTS],
        [GOOD, WEIGHTS, MOMENT, MOMENT],
        [WEIGHTS, GOOD, MOMENT],
        [GOOD, WEIGHTS, MOMENT[:-1]],
        [GOOD, WEIGHTS, MOMENT + b"\x00"],
        [GOOD, WEIGHTS + MOMENT[:4], MOMENT[4:]],
        [GOOD, WEIGHTS, floats(float("nan"), 0.0)],
        [GOOD, floats(float("inf"), 0.0), MOMENT],
        [header("manta/state/v2", 3, 2, 1, b""), WEIGHTS, MOMENT],
        [bytes([len(GOOD)]) + GOOD, WEIGHTS, MOMENT],  # as version 2 began
        [header(V3, -1, 2, 1, b""), WEIGHTS, MOMENT],
        [header(V3, MAX_ROUND + 1, 2, 1, b""), WEIGHTS, MOMENT],
        [header(V3, b"3", 2, 1, b""), WEIGHTS, MOMENT],
        [header(V3, 3, 1, 1, b""), WEIGHTS[:4], MOMENT[:4]],
        [header(V3, 3, 1, 3, b""), WEIGHTS, MOMENT],
        [header(V3, 3, 2, 0, b""), WEIGHTS],
        [header(V3, 3, 2, 3, b""), WEIGHTS, MOMENT, MOMENT, MOMENT],
        [header(V3, 3, "2", 1, b""), WEIGHTS, MOMENT],
        [header(V3, 3, 2, "1", b""), WEIGHTS, MOMENT],
        [header(V3, 3, 2, 1), WEIGHTS, MOMENT],
        [header(V3, 3, 2, 1, ""), WEIGHTS, MOMENT],
        [header(V3, 3, 2, 1, bytes(31)), WEIGHTS, MOMENT],
        [header(V3, 3, 2, 1, bytes(90)), WEIGHTS, MOMENT],
        [header(V3, 3, 2, 1, b"", 0), WEIGHTS, MOMENT],
        [encode(V3), WEIGHTS, MOMENT],
        [b"\x98\x05" + GOOD[1:], WEIGHTS, MOMENT],  # the array's length in more bytes than it needs
        [b"\x9f" + GOOD[1:] + b"\xff", WEIGHTS, MOMENT],  # and in none
        [GOOD[:-1], WEIGHTS, MOMENT],
        [GOOD + b"\x00", WEIGHTS, MOMENT],
    ],
)
def test_pieces_that_are_not_the_canonical_form_of_a_state_are_refused(pieces: list[bytes]) -> None:
    with pytest.raises(EncodingError):
        state_from_pieces(pieces, 2)


def test_groups_that_are_cut_elsewhere_are_refused() -> None:
    count = GROUP_VALUES + 2
    first, *groups = copies(first_state(SGD, count))
    cut = [groups[0][:-4], groups[0][-4:] + groups[1], *groups[2:]]
    moved = [groups[0], groups[1] + groups[2][:4], groups[2][4:], groups[3]]
    for others in (cut, moved, [groups[1], groups[0], *groups[2:]], groups[:-1], groups[:2], [b"".join(groups[:2]), b"".join(groups[2:])]):
        with pytest.raises(EncodingError):
            state_from_pieces([first, *others], count)


@given(st.data())
def test_whatever_pieces_are_read_are_those_of_the_state_that_they_are_read_as(data: st.DataObject) -> None:
    pieces = [GOOD, WEIGHTS, MOMENT]
    for _ in range(data.draw(st.integers(1, 3))):
        which = data.draw(st.integers(0, 2))
        place = data.draw(st.integers(0, len(pieces[which]) - 1))
        cut = data.draw(st.integers(0, 2))
        pieces[which] = pieces[which][:place] + data.draw(st.binary(max_size=2)) + pieces[which][place + cut :] or b"\x00"
    try:
        state = state_from_pieces(pieces, 2)
    except EncodingError:
        return
    assert copies(state) == pieces
    assert state_digest(state) == rfc_root(pieces)


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
        assert state_digest(state_from_pieces(state_pieces(state), state.parameters.numel())) == state_digest(state)
    assert teacher is not None


def test_a_taught_sandwich_learns_from_the_state_itself_and_no_state_names_a_teacher() -> None:
    plan = plan_of(SGD)
    plan = replace(plan, recipe=replace(plan.recipe, taught_percent=50))
    state = initial_state(plan)
    for round_ in range(1, ROUNDS + 1):
        assert teacher_digest(state, plan) == (state_digest(state) if plan.phase(round_).distils else None)
        state = next_state(state, torch.zeros_like(state.parameters), plan)
        assert state.teacher == b""


@pytest.mark.parametrize("local_steps", [1, 6])
def test_the_update_that_ends_the_depth_phase_sorts_channels_and_no_other_does(local_steps: int) -> None:
    plan = plan_of(SGD, "shrinking", local_steps=local_steps)
    state = replace(initial_state(plan), round=plan.phases[2].last - 2)
    mean = torch.zeros_like(state.parameters)
    plain = plan_of(SGD, local_steps=local_steps)
    for sorts in (False, True, False):
        following, unsorted = next_state(state, mean, plan), next_state(state, mean, plain)
        assert torch.equal(following.parameters.sort().values, unsorted.parameters.sort().values) or plan.phase(state.round + 1).peak != 1
        step = following.parameters - state.parameters
        assert (float(step.abs().max()) > 0.1) == sorts  # the rate moves a weight a little, a sort moves it far
        state = following
