"""The steps of claims that tests make up: indices for so many microbatches of each architecture, and what a contribution says of them."""

from collections.abc import Sequence
from itertools import pairwise

from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.records import Claim, ClaimStep, StepMean
from manta_swarm.protocol.signing import sha256

VECTOR, MEAN = sha256(b"vector of a step"), sha256(b"mean of a step")


def steps_of(work: Sequence[int], base: bytes, key: bytes, *, steps: int = 1, vector: bytes = VECTOR) -> tuple[ClaimStep, ...]:
    """Return the steps of a claim of so many microbatches of each architecture, the first indices that there are; no step is empty.

    Raises:
        ValueError: a claim cannot have these: they are too uneven.
    """
    count, left, found, index = len(work), list(work), list[int](), 0
    if steps == 1 and len(set(work)) == 1:  # any number of them
        return (ClaimStep(0, count * work[0] - 1, (), vector),)
    while sum(left):
        place = place_of_microbatch(count, base, key, index)
        if left[place]:
            left[place] -= 1
            found.append(index)
        index += 1
    cuts = [number * len(found) // steps for number in range(steps + 1)]
    parts = [found[start:end] for start, end in pairwise(cuts)]
    return tuple(_step(part, count, vector) for part in parts)


def _step(indices: Sequence[int], count: int, vector: bytes) -> ClaimStep:
    first, last = indices[0], indices[-1]
    every = count if len(indices) > 1 and all(index % count == first % count for index in indices) else 1
    return ClaimStep(first, last, tuple(sorted(set(range(first, last, every)) - set(indices))), vector, every)


def means_of(claims: Sequence[Claim], mean: bytes = MEAN) -> tuple[StepMean, ...]:
    """Return what a contribution of these claims, in its order, says of its local steps: as many as the most of a claim."""
    most = max(len(claim.steps) for claim in claims)
    return tuple(
        StepMean(mean, sum(1 << place for place, claim in enumerate(claims) if len(claim.steps) > number)) for number in range(most)
    )


def all_of(claims: Sequence[object]) -> int:
    """Return the bits of all of these claims."""
    return (1 << len(claims)) - 1
