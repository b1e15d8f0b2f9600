"""Noise on what a peer with private data hands in, so that it says little of any one of its images, or of all of them.

The vector that a round taught is clipped to a norm and noise is added before anything is made of it: before it is coded, before its digest
stands in a claim, before a residual is kept. All that comes later is made of the noisy vector alone. How much that gives away is in
``peer.features.private.account``.

The noise is from the operating system's cryptographic source, 64 bits a uniform number, by the method of Box and Muller. Each value is the
sum of four normal numbers, halved: a sum of several makes the holes that floating-point numbers leave in one of them of no use to who
looks for them (arXiv 2107.10138, section 4). It is no proof: a discrete mechanism would have one, and this is none.
"""

import os

import numpy as np
from numpy.typing import NDArray

from manta_swarm.peer.features.private.account import Account
from manta_swarm.protocol.errors import MantaError

Vector = NDArray[np.float32]

_SUMMANDS = 4
_STEP = 2**17  # values at a time


class BudgetSpent(MantaError):
    """Handing in once more would give away more than the person allows."""


class Noise:
    """What is done to each vector before it leaves."""

    def __init__(self, sigma: float, clip: float, account: Account, limit: float | None) -> None:
        """Prepare.

        Args:
            sigma: the noise's standard deviation, as a multiple of ``clip``.
            clip: the norm that a vector has at most.
            account: is told before anything is handed in.
            limit: the epsilon that must not be exceeded; None: none.
        """
        self._sigma = sigma
        self._clip = clip
        self._account = account
        self._limit = limit

    @property
    def epsilon(self) -> float:
        """What was given away so far."""
        return self._account.epsilon()

    @property
    def delta(self) -> float:
        """The probability that what ``epsilon`` promises does not hold."""
        return self._account.delta

    def line(self) -> str:
        """Return what was given away so far, for a person."""
        return f"epsilon={self.epsilon:.4g} at delta={self.delta:g} so far"

    @property
    def is_spent(self) -> bool:
        """Whether the next vector must not be handed in."""
        return self._limit is not None and self._account.epsilon(self._sigma) > self._limit

    def add(self, vector: Vector) -> Vector:
        """Return a vector (N,) clipped, with noise; that it may leave is on the disk when this returns.

        Raises:
            BudgetSpent: it must not.
            StorageError: the account cannot be written.
        """
        if self.is_spent:
            raise BudgetSpent("the budget of privacy is spent")
        self._account.spend(self._sigma)
        return noisy(vector, self._sigma, self._clip)


def noisy(vector: Vector, sigma: float, clip: float) -> Vector:
    """Return a vector (N,) clipped to the norm ``clip``, with normal noise of ``sigma * clip`` on each value.

    A vector that is not finite is taken for one of zeros: that it was is nobody's business either.
    """
    is_finite = bool(np.isfinite(vector).all())
    wide = vector.astype(np.float64) if is_finite else np.zeros(vector.shape)
    norm = float(np.linalg.norm(wide))  # no square of a float32 is too large, or too small, for a double
    if norm > clip:
        wide *= clip / norm
    for start in range(0, wide.size, _STEP):
        some = wide[start : start + _STEP]
        some += sigma * clip * normal(some.size)
    return wide.astype(np.float32)


def normal(count: int) -> NDArray[np.float64]:
    """Return so many standard normal numbers from the operating system's cryptographic source."""
    pairs = -(-count * _SUMMANDS // 2)
    words = np.frombuffer(os.urandom(16 * pairs), dtype="<u8").reshape(2, pairs)
    first, second = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # within (0, 1)
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: count * _SUMMANDS]
    summed: NDArray[np.float64] = both.reshape(_SUMMANDS, count).sum(axis=0) / np.sqrt(_SUMMANDS)
    return summed
