"""What a peer's noise has given away so far: the account of differential privacy over all that it ever handed in, kept on its disk.

The arithmetic is dp-accounting's (Rényi differential privacy), an extra of the installation: ``pip install manta-swarm[privacy]``.

What is accounted: each time the peer hands in, it hands out a vector of its data, clipped to the norm C, with normal noise of the standard
deviation SIGMA * C on each value. Two sets of data, whichever they are, lead to clipped vectors at most 2C apart; so it is the Gaussian
mechanism with a noise multiplier of SIGMA / 2 for *replacing all of a peer's images by others*, which covers every single image. Each
time is a composition, over all rounds and runs of this directory, whatever the images were.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.runtime.atomic_file import AtomicFile

SENSITIVITY = 2  # times the clip: how far apart two clipped vectors may be
_MAX_KINDS = 1024  # noises that one directory has ever used
_MAX_BYTES = 65_536
_REMEDY = (
    "what was given away of your data so far stood there; restore it from a backup. Without it the account would begin at 0, as if nothing "
    "had been handed in"
)


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


class Account:
    """The account of one peer's directory."""

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
        raise UserError("noise needs its account, which is not installed: pip install 'manta-swarm[privacy]'") from error
    return dp_accounting, rdp
