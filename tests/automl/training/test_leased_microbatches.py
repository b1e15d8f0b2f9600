"""What a light contributor does is a microbatch like any other: with the covered weights alone its gradient has the same bits."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.snippet import cut, load
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.automl.training.light import cheapest, covered_weights, leased_microbatches, num_covered, scattered, weights_of
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.manifest import Optimizer
from manta_swarm.protocol.microbatches import place_of_microbatch, sample_indices
from manta_swarm.protocol.signing import sha256

ADAMW = Optimizer("adamw", "0.02", "0.9", "0.99", "0.00000001", "0.01", 20, "0.9", "0.5")
BASE, KEY = sha256(b"base"), sha256(b"key")
TINY = {"classifier-tiny": "digits", "stereo-tiny": "layers"}


def architectures_of(supernet: str) -> list[Architecture]:
    plan = Plan(supernet, "sandwich", "data-parallel", ADAMW, 10, 0)
    return [*plan.architectures(1, ""), *plan.architectures(2, "")[2:]]


@pytest.mark.parametrize("supernet", TINY)
def test_a_microbatch_on_the_covered_weights_and_its_own_samples_alone_has_the_gradient_of_a_full_peers_microbatch(supernet: str) -> None:
    space, dataset = space_named(supernet), load_dataset(TINY[supernet])
    supernet_ = build(space)
    supernet_.initialise(torch.Generator().manual_seed(3))
    weights_N = supernet_.flat_weights_N.clone()
    full = Worker(supernet, dataset)
    full.load(weights_N)
    for index, architecture in enumerate(architectures_of(supernet)):
        microbatch = Microbatch(0, BASE, 0, KEY, index, architecture, 4)
        expected = full.train(microbatch)
        indices = sample_indices(0, BASE, 0, KEY, index, dataset.num_train, 4)
        light = Worker(supernet, load(cut(dataset, indices), dataset.task, dataset.num_train, indices))
        light.load(torch.from_numpy(weights_of(covered_weights(weights_N.numpy(), space, architecture), space, architecture)))
        result = light.train(microbatch)
        assert torch.equal(result.gradient, expected.gradient)
        assert result.loss == expected.loss
        assert result.gradient.count_nonzero() <= num_covered(space, architecture) < len(weights_N) or architecture == space.largest()


def test_leased_microbatches_are_the_first_whose_architecture_it_is_equally_many_a_step() -> None:
    asked = architectures_of("classifier-tiny")[:4]
    smallest = space_named("classifier-tiny").smallest()
    places = leased_microbatches(asked, smallest, BASE, KEY, local_steps=3, microbatches_a_step=2)
    indices = [index for _, index in places]
    assert [step for step, _ in places] == [0, 0, 1, 1, 2, 2]
    assert indices == [i for i in range(24) if asked[place_of_microbatch(4, BASE, KEY, i)] == smallest]
    with pytest.raises(ValueError, match="does not ask"):
        leased_microbatches(asked[:1], smallest, BASE, KEY, local_steps=1, microbatches_a_step=1)


def test_an_architecture_asked_for_at_several_places_is_leased_at_the_first_so_that_its_microbatches_are_equally_far_apart() -> None:
    asked = architectures_of("classifier-tiny")[:4] * 2
    places = leased_microbatches(asked, asked[1], BASE, KEY, local_steps=1, microbatches_a_step=6)
    assert {place_of_microbatch(8, BASE, KEY, index) for _, index in places} == {1}
    assert {after - before for (_, before), (_, after) in pairwise(places)} == {8}


def test_the_cheapest_architecture_is_leased_the_first_of_several() -> None:
    asked = architectures_of("classifier-tiny")[:4]
    assert cheapest(asked, [5, 3, 4, 3]) == asked[1]


def test_weights_of_another_length_or_not_finite_are_refused() -> None:
    space = space_named("classifier-tiny")
    smallest = space.smallest()
    data = covered_weights(np.arange(205_696, dtype=np.float32), space, smallest)
    assert len(data) == 4 * num_covered(space, smallest)
    assert weights_of(data, space, smallest).max() <= 205_695
    for wrong in (data[:-4], data + b"\0\0\0\0", data[:-1], b"\0\0\xc0\x7f" + data[4:]):
        with pytest.raises(EncodingError):
            weights_of(wrong, space, smallest)
    with pytest.raises(EncodingError, match="are covered"):
        scattered(np.zeros(7, np.float32), space, smallest)
