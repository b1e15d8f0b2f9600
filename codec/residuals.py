"""What is coded of what was learnt, and what coding leaves out: error feedback, in float32, the same bits for everybody who computes it.

A member gives what it learnt and a part of its residual; a cohort codes the mean of what its members give; what its body does not say of
that mean is the residual that each member has once the body is in a table. With the whole residual given nothing is lost: the weights of
the members times what they learnt and had left make what was decoded plus what is left.

Where a cohort's architecture covers a part of the weights (``mask``), that part alone is coded. What a member has left outside of it is no
part of the round: ``given`` has it as it is, ``covered`` leaves it out of what is coded, and ``left_over``, of what was given and not of
what was coded, has it again.
"""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.coding import Body
from manta_swarm.codec.scaling import check_denormals

Vector = NDArray[np.float32]  # (N,)

PART_VALUES = 2**16  # float32 values of a part of a vector: each has a digest, so that parts can be checked by whoever has them alone
DIGEST_BYTES = 32
_STEP = 2**16  # values at a time: what is added up stays in a cache


def given(learnt: Vector, residual: Vector | None, percent: int, mask: NDArray[np.bool_] | None = None) -> Vector:
    """Return what a member gives: ``learnt + percent / 100 * residual``, each operation rounded to float32 by itself.

    Outside of ``mask`` it is the residual, whole; what was learnt there is left out.

    Args:
        learnt: the mean gradient, or the change of the weights.
        residual: None is one of zeros.
        percent: 0..100; the factor is the float32 that is nearest to percent / 100.
        mask: the weights that the member's architecture covers; None: all.

    Raises:
        ValueError: vectors of unequal lengths or other than float32, or a percentage out of range.
        OwnFault: as ``check_denormals``.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} % of a residual")
    _check(learnt, residual)
    check_denormals()
    if residual is None:
        return learnt.copy() if mask is None else covered(learnt, mask)
    part = residual * (np.float32(percent) / np.float32(100))
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not coded
        np.add(learnt, part, out=part)
    return part if mask is None else np.where(mask, part, residual)


def covered(values: Vector, mask: NDArray[np.bool_] | None) -> Vector:
    """Return what of a cohort's vector is coded: its values inside of the mask, zeros elsewhere."""
    return values if mask is None else np.where(mask, values, np.float32(0))


def left_over(whole: Vector, body: Body, min_exponent: int) -> Vector:
    """Return what a body leaves out: ``whole`` less what it decodes to, each difference rounded to float32.

    Args:
        whole: the mean of what the members gave, also outside of their mask.
        body: that of ``covered(whole, mask)``.
        min_exponent: of the body.

    Raises:
        ValueError: of unequal lengths, or a min exponent out of range.
        OwnFault: as ``check_denormals``.
    """
    decoded = body.values(min_exponent)
    _check(whole, decoded)
    return np.subtract(whole, decoded, out=decoded)


def near_mean(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    """Return the weighted mean of a cohort's vectors; one vector alone is its own mean.

    For each value: ((v_0 * w_0) + (v_1 * w_1)) + ..., in the order given, divided by the sum of the weights, each operation rounded to
    float32 by itself; weights and their sum, which is one of integers, are rounded to float32 first.

    Raises:
        ValueError: no vectors, or not a weight for each; unequal lengths or other than float32; weights below 1 or beyond 2^53; values, or
            a mean, that are not finite.
        OwnFault: as ``check_denormals``.
    """
    if not vectors or len(vectors) != len(weights):
        raise ValueError(f"{len(vectors)} vectors with {len(weights)} weights have no mean")
    if min(weights) < 1 or sum(weights) > 2**53:
        raise ValueError("a weight in a cohort is out of range")
    _check(*vectors)
    check_denormals()
    mean = vectors[0].copy() if len(vectors) == 1 else _weighted(vectors, weights)
    if not np.isfinite(mean).all():  # a value that is not finite makes no finite one
        raise ValueError("vectors of a cohort, or their mean, are not finite")
    return mean


def _weighted(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    factors, total = [np.float32(weight) for weight in weights], np.float32(sum(weights))
    mean = np.empty_like(vectors[0])
    product = np.empty(_STEP, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at what came of it
        for start in range(0, mean.size, _STEP):
            sums = mean[start : start + _STEP]
            np.multiply(vectors[0][start : start + _STEP], factors[0], out=sums)
            for vector, factor in zip(vectors[1:], factors[1:], strict=True):
                np.multiply(vector[start : start + _STEP], factor, out=product[: sums.size])
                np.add(sums, product[: sums.size], out=sums)
            np.divide(sums, total, out=sums)
    return mean


def part_digests(values: Vector) -> bytes:
    """Return the SHA-256 (32 bytes each) of a vector's parts of ``PART_VALUES`` float32 values, little-endian; no values are one part."""
    data = np.ascontiguousarray(values, dtype="<f4")
    return b"".join(sha256(data[start : start + PART_VALUES].data).digest() for start in range(0, max(data.size, 1), PART_VALUES))


def digest_of_parts(digests: bytes) -> bytes:
    """Return the digest of a vector, given its parts': of one part that part's, else the SHA-256 of all of them in order.

    How many parts there are follows from the number of the run's weights, so no vector passes for another of fewer parts.
    """
    return digests if len(digests) == DIGEST_BYTES else sha256(digests).digest()


def vector_digest(values: Vector) -> bytes:
    """Return the digest that records name a vector by."""
    return digest_of_parts(part_digests(values))


class VectorHash:
    """The digest of a vector whose bytes come piece by piece."""

    def __init__(self) -> None:
        """Begin with no bytes."""
        self._parts: list[bytes] = []
        self._part = sha256()
        self._left = 4 * PART_VALUES  # bytes of the part

    def update(self, data: bytes | memoryview) -> None:
        """Add what comes next."""
        rest = memoryview(data).cast("B")
        while rest:
            if not self._left:
                self._parts.append(self._part.digest())
                self._part, self._left = sha256(), 4 * PART_VALUES
            piece, rest = rest[: self._left], rest[self._left :]
            self._part.update(piece)
            self._left -= len(piece)

    def digest(self) -> bytes:
        """Return the digest of what came so far, as ``vector_digest`` has it."""
        return digest_of_parts(b"".join([*self._parts, self._part.digest()]))


def residual_digest(residual: Vector | None) -> bytes:
    """Return the digest that records name a residual by; empty: zeros."""
    return vector_digest(residual) if residual is not None and residual.any() else b""


def _check(first: Vector, *others: Vector | None) -> None:
    for vector in (first, *others):
        if vector is not None and (vector.dtype != np.float32 or vector.shape != (first.size,)):
            raise ValueError("vectors of a cohort are float32, all of one length")
