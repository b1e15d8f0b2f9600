"""Adds differential-privacy noise to what a peer with private data hands in, and keeps account of the privacy that it has spent.

The vector that a round taught is clipped to a norm and noise is added before anything is made of it: before it is coded, before its digest
stands in a claim, before a residual is kept. All that comes later is made of the noisy vector alone. ``NoiseAccount`` keeps how much that
gives away.

The noise is from the operating system's cryptographic source, 64 bits a uniform number, by the method of Box and Muller. Each value is the
sum of four normal numbers, halved: a sum of several makes the holes that floating-point numbers leave in one of them of no use to who
looks for them (arXiv 2107.10138, section 4). It is no proof: a discrete mechanism would have one, and this is none.
"""

import math
import os
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.protocol.errors import MantaError, StorageError, UserError
from manta_swarm.runtime.atomic_file import AtomicFile

SENSITIVITY = 2  # times the clip: how far apart two clipped vectors may be
_MAX_KINDS = 1024  # noises that one directory has ever used
_MAX_BYTES = 65_536
_REMEDY = (
    "what was given away of your data so far stood there; restore it from a backup. Without it the account would begin at 0, as if nothing "
    "had been handed in"
)

Vector = NDArray[np.float32]

_SUMMANDS = 4
_STEP = 2**17  # values at a time


@dataclass(frozen=True, slots=True)
class _Spent:
    sigma: str  # repr of the float
    times: int

    def __post_init__(self) -> None:
        if not (math.isfinite(float(self.sigma)) and float(self.sigma) > 0 and self.times >= 1):
            raise ValueError("an account of noise that cannot have been")


@dataclass(frozen=True, slots=True)
class _Listed:
    spent: tuple[_Spent, ...] = ()


class NoiseAccount:
    """The account of how much privacy the contributions of one peer's directory have spent."""

    def __init__(self, path: Path, delta: float) -> None:
        """Take up what the file says; there is none: nothing was spent.

        Args:
            path: of the file.
            delta: the probability that what epsilon promises does not hold, above 0 and below 1.

        Raises:
            UserError: the library is not installed.
            StorageError: the file is damaged: nobody knows what was spent.
        """
        _library()
        self._file = AtomicFile(path, _MAX_BYTES, _REMEDY)
        self.delta = delta
        self._times: Counter[float] = Counter()  # by sigma
        for spent in (self._file.load(_Listed) or _Listed()).spent:
            self._times[float(spent.sigma)] += spent.times

    def epsilon(self, sigma: float | None = None) -> float:
        """Return what was spent; with ``sigma`` what it were after handing in once more with this noise."""
        times = self._times + Counter({sigma: 1}) if sigma is not None else self._times
        return epsilon_of(dict(times), self.delta)

    def spend(self, sigma: float) -> None:
        """Write down that something is handed in with this noise; durable when this returns, before anything may leave.

        Raises:
            StorageError: the disk refuses: nothing may leave.
        """
        times = self._times + Counter({sigma: 1})
        if len(times) > _MAX_KINDS:
            raise StorageError(f"{self._file.path} has {_MAX_KINDS} kinds of noise already; keep to one of them")
        spent = tuple(_Spent(repr(each), count) for each, count in sorted(times.items()))
        self._file.save(_Listed(spent))
        self._times = times


def epsilon_of(times: dict[float, int], delta: float) -> float:
    """Return the epsilon at ``delta`` of handing in so many ``times`` with each sigma; 0 if never.

    Raises:
        UserError: the library is not installed.
    """
    if not times:
        return 0.0
    dp_accounting, rdp = _library()
    accountant = rdp.RdpAccountant()
    for sigma, count in sorted(times.items()):
        accountant.compose(dp_accounting.GaussianDpEvent(sigma / SENSITIVITY), count)
    return float(accountant.get_epsilon(delta))


@cache
def _library() -> tuple[Any, Any]:
    try:
        import dp_accounting  # two seconds, and only for who adds noise
        from dp_accounting import rdp
    except ImportError as error:
        raise UserError(
            "noise needs the library that accounts for privacy, which is not installed: pip install 'manta-swarm[privacy]'"
        ) from error
    return dp_accounting, rdp


class BudgetSpent(MantaError):
    """Another contribution would give away more than the person allows."""


class Noise:
    """Adds noise to each vector before it leaves this peer."""

    def __init__(self, sigma: float, clip: float, account: NoiseAccount, limit: float | None) -> None:
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
