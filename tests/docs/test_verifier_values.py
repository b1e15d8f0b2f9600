"""docs/verifier_values.py: the same numbers as the program's, of every supernet and codec."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.automl.training.coverage import coverage
from manta_swarm.automl.training.optimizers import decaying
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.automl.training.update import State, next_state, sort_channels
from manta_swarm.codec.coding import encode, parse
from manta_swarm.protocol.errors import EncodingError, UserError
from manta_swarm.protocol.manifest import Manifest, Optimizer, Recipe
from manta_swarm.protocol.signing import Identity
from tests.docs.verifiers import values
from tests.runs import EXCHANGE, manifest_of

OPERATOR = Identity(b"\x01" * 32)
SUPERNETS = ("classifier-tiny", "classifier-tiny-3x100", "classifier-base", "stereo-tiny")
every_supernet = pytest.mark.parametrize("name", SUPERNETS)
MATRICES = Recipe(100, 100, 100, "matrices", 0)
ADAMW = Optimizer("adamw", "0.002", "0.9", "0.999", "0.00000001", "0.01", 30, "0.9", "0.5")
SGD = replace(ADAMW, name="sgd")


def slots_of(architecture: Architecture) -> dict[str, int]:
    """An architecture as the verifier has it."""
    found = {"r": architecture.resolution}
    for unit, layers in enumerate(architecture.units, 1):
        width = architecture.width(unit - 1)
        found |= {} if width is None else {f"u{unit}:w": width}
        found[f"u{unit}:d"] = len(layers)
        for place, layer in enumerate(layers):
            found |= {f"u{unit}.{place}:k": layer.kernel, f"u{unit}.{place}:e": layer.expansion}
    return found


def vectors_of(count: int, size: int) -> list[np.ndarray]:
    return [np.random.default_rng(seed).standard_normal(size).astype(np.float32) for seed in range(count)]


@every_supernet
def test_each_architecture_uses_the_same_weights(name: str) -> None:
    space, rng = space_named(name), random.Random(name)
    for architecture in (space.smallest(), space.largest(), *(space.sample(rng) for _ in range(4))):
        slots = slots_of(architecture)
        assert values.text_of(slots) == architecture.text
        assert (values.coverage(values.space_named(name), slots) == coverage(space, architecture)).all()


@pytest.mark.parametrize("fitted", ["1x10", "1x1", "3x1", "3x100001", "3x0100", "2x10", "4x10", "3x", "1x010"])
def test_a_name_that_is_no_supernet_s_is_none_here(fitted: str) -> None:
    name = f"classifier-tiny-{fitted}"
    with pytest.raises(UserError):
        space_named(name)
    with pytest.raises(ValueError, match="knows no supernet"):
        values.space_named(name)


@every_supernet
def test_channels_are_sorted_alike(name: str) -> None:
    ours = values.space_named(name)
    found = vectors_of(3, values.weights_of(ours)[-1][0].stop)
    parameters, moments = sort_channels(torch.from_numpy(found[0]), [torch.from_numpy(each) for each in found[1:]], name)
    expected = [each.numpy() for each in (parameters, *moments)]
    assert all(map(np.array_equal, values.sort_channels(found, ours), expected))


def training_spec_of(name: str, **changes: object) -> tuple[Manifest, ManifestTrainingSpec]:
    manifest = manifest_of(OPERATOR, supernet=name, costs=cost_table(space_named(name)), seed=7, **changes)
    return manifest, ManifestTrainingSpec(manifest)


@every_supernet
@pytest.mark.parametrize("algorithm", ["data-parallel", "model-parallel"])
@pytest.mark.parametrize("schedule", ["sandwich", "shrinking"])
@pytest.mark.parametrize("num_rounds", [3, 100])
def test_rounds_ask_for_the_same(name: str, algorithm: str, schedule: str, num_rounds: int) -> None:
    exchange = replace(EXCHANGE, local_steps=3)
    manifest, theirs = training_spec_of(
        name, algorithm=algorithm, schedule=schedule, num_rounds=num_rounds, optimizer=ADAMW, exchange=exchange
    )
    ours = values.TrainingSpec(manifest)
    assert ours.teacher_round == theirs.plan.teacher_round
    for round_ in range(1, num_rounds + 1):
        assert (ours.rate(round_), ours.sorts_after(round_)) == (theirs.plan.learning_rate(round_), theirs.sorts_after(round_))
    for round_ in range(1, num_rounds + 1, 1 if num_rounds < 10 else 9):
        for cohort in ("here", "here.size-1", "here.size-2", "here.size-3"):
            assert ours.role(round_, cohort) == theirs.role(round_, cohort)
            assert ours.costs(round_, cohort) == theirs.costs(round_, cohort)


@pytest.mark.parametrize(
    ("name", "optimizer", "local_steps", "recipe"),
    [
        *((name, ADAMW, 1, MATRICES) for name in SUPERNETS),
        *(("classifier-tiny", *each) for each in product((ADAMW, SGD), (1, 2), (MATRICES, replace(MATRICES, decay="all")))),
    ],
)
def test_updates_have_the_same_bits(name: str, optimizer: Optimizer, local_steps: int, recipe: Recipe) -> None:
    exchange = replace(EXCHANGE, local_steps=local_steps)
    manifest, _ = training_spec_of(name, optimizer=optimizer, recipe=recipe, exchange=exchange)
    plan, ours = Plan.of(manifest), values.TrainingSpec(manifest)
    assert decaying(plan) is None or recipe.decay == "matrices"
    size = values.weights_of(ours.space)[-1][0].stop
    count = 2 if optimizer is ADAMW and local_steps == 1 else 1
    parameters, mean, *moments = vectors_of(2 + count, size)
    moments = [np.abs(each) for each in moments]
    state = State(1, torch.from_numpy(parameters), tuple(map(torch.from_numpy, moments)))
    expected = next_state(state, torch.from_numpy(mean), plan)
    found = values.updated([parameters, *moments], mean, ours, 2)
    assert all(map(np.array_equal, found, [each.numpy() for each in (expected.parameters, *expected.moments)]))


@pytest.mark.parametrize("codec", ["int16", "int8", "topk-256-4", "topk-2048-2", "topk-1-8", "topk-700-5"])
@settings(max_examples=150, deadline=None)
@given(count=st.sampled_from([1, 15, 4096, 5000]), seed=st.integers(0, 9), changes=st.lists(st.tuples(st.integers(0), st.integers(1, 255))))
def test_the_same_bytes_are_bodies(codec: str, count: int, seed: int, changes: list[tuple[int, int]]) -> None:
    vector = np.random.default_rng(seed).standard_normal(count).astype(np.float32) * (seed % 3 > 0)
    data = bytearray(encode(codec, vector.astype(np.float32), -20))
    for place, bits in changes:
        data[place % len(data)] ^= bits
    try:
        theirs = parse(codec, bytes(data), count)
    except EncodingError:
        with pytest.raises(ValueError, match=r"another length|an exponent|positions"):
            values.open_body(values.Codec(codec), bytes(data), count)
        return
    ours = values.open_body(values.Codec(codec), bytes(data), count)
    assert (ours.norm, ours.highest) == (theirs.norm_square, theirs.max_exponent)
    expected = np.zeros(count)
    for block in theirs.blocks():
        expected[block.places] = (block.integers * np.ldexp(1.0, block.exponents.astype(np.int64))[:, None]).reshape(-1)
    found = np.zeros(count)
    found[ours.places] = np.ldexp(ours.integers.astype(np.float64), ours.exponents)
    assert np.array_equal(found, expected)
