"""What a light contributor is leased: which microbatches of a key are of one architecture, and the weights that it covers.

Both sides compute the same: the gateway to hand it out and to check what comes back, the contributor to do it.

Shapes: N all weights of the supernet, K those that an architecture covers.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.automl.training.coverage import coverage
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.microbatches import place_of_microbatch, sample_indices

Places = tuple[tuple[int, int], ...]


def cheapest(architectures: Sequence[Architecture], costs: Sequence[int]) -> Architecture:
    """Return the architecture of a round that is leased: that of the least cost, the first of several."""
    return architectures[min(range(len(costs)), key=lambda place: costs[place])]


def leased_microbatches(
    architectures: Sequence[Architecture],
    architecture: Architecture,
    base: bytes,
    key: bytes,
    *,
    local_steps: int,
    microbatches_a_step: int,
) -> Places:
    """Return step and index of each microbatch of a lease, equally many a step: the first indices that train ``architecture``.

    Where a round asks for it more than once, they are those of its first place, so that they are equally far apart.

    Raises:
        ValueError: the round does not ask for that architecture.
    """
    if architecture not in architectures:
        raise ValueError("an architecture that the round does not ask for")
    count = len(architectures)
    first = (architectures.index(architecture) - place_of_microbatch(count, base, key, 0)) % count
    return tuple((number // microbatches_a_step, first + number * count) for number in range(local_steps * microbatches_a_step))


def done_microbatches(places: Places, counts: Sequence[int]) -> Places:
    """Return those of a lease's microbatches that were done: of each step the first ``counts`` of it."""
    by_step = [[place for place in places if place[0] == step] for step in range(len(counts))]
    return tuple(place for of_step, count in zip(by_step, counts, strict=True) for place in of_step[:count])


def leased_samples(places: Places, *, seed: int, base: bytes, key: bytes, num_train: int, microbatch_samples: int) -> tuple[int, ...]:
    """Return the training samples of the microbatches of a lease, each once, in order; ``num_train`` is how many there are."""
    drawn = (sample_indices(seed, base, step, key, index, num_train, microbatch_samples) for step, index in places)
    return tuple(sorted({sample for samples in drawn for sample in samples}))


def covered_weights(weights_N: NDArray[np.float32], space: SearchSpace, architecture: Architecture) -> bytes:
    """Return the weights that an architecture covers, in their order, as little-endian binary32."""
    return weights_N[coverage(space, architecture)].astype("<f4").tobytes()


def num_covered(space: SearchSpace, architecture: Architecture) -> int:
    """Return K."""
    return int(np.count_nonzero(coverage(space, architecture)))


def scattered(values_K: NDArray[np.float32], space: SearchSpace, architecture: Architecture) -> NDArray[np.float32]:
    """Return (N,) float32 with these values where the architecture covers, zeros elsewhere.

    Raises:
        EncodingError: not as many values as the architecture covers.
    """
    mask = coverage(space, architecture)
    if len(values_K) != np.count_nonzero(mask):
        raise EncodingError(f"{len(values_K)} values where {np.count_nonzero(mask)} weights are covered")
    scattered_N = np.zeros(mask.size, np.float32)
    scattered_N[mask] = values_K
    return scattered_N


def weights_of(data: bytes, space: SearchSpace, architecture: Architecture) -> NDArray[np.float32]:
    """Return (N,) the weights of ``covered_weights``, zeros where the architecture covers none.

    Raises:
        EncodingError: of another length, or a value that is not finite.
    """
    if len(data) % 4:
        raise EncodingError("weights that end in the middle of a value")
    weights_N = scattered(np.frombuffer(data, "<f4").astype(np.float32), space, architecture)
    if not np.isfinite(weights_N).all():
        raise EncodingError("weights that are not finite")
    return weights_N
