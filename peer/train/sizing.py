"""Which size this peer's device is fast enough for, in model-parallel: found by how long its microbatches take, or said by its person.

A cohort's size is the least of its members' (``peer.cohort.cohort_membership``), so that its architecture suits its slowest device. A
device is fast enough for a size if a microbatch of the dearest architecture of it takes a third of a local step at most, as whoever has a
place in a roster has to (``protocol.rosters.fits``). What a microbatch takes grows with its cost: MACs, or milliseconds in a latency table
of this device.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from manta_swarm.automl.latency.table import LatencyTable
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.schedule import Phase, Plan, bound_macs, drawn
from manta_swarm.protocol.cohorts import ALL, NUM_SIZES

PART = 3  # a microbatch takes one part in so many of a step at most
LIGHT = 1  # the size of a cohort in which light contributors are
_REMEMBERED = 8  # bases that were worked on: a size below is kept for about so many rounds after the microbatch that led to it
_SPARE = 0.75  # of that part what a larger size is expected to take at most
_RESTS = 4  # bases between two steps up: in so many a cohort goes through its roles
_TRAINING = 3.0  # forward and backward in forwards alone, where nothing but a table is known
_DRAWS = 64  # architectures of a size that a table is asked for


@dataclass(frozen=True, slots=True)
class _Work:
    """A base that was worked on."""

    cost: float  # its architecture's cost
    share: float  # of the longest that a microbatch may take: above 1 it was too slow


class Helped(Protocol):
    """Says whether light contributors compute for a peer (``peer.features.feature.Features``)."""

    @property
    def has_helpers(self) -> bool:
        """Whether light contributors compute for it."""


class Sizing:
    """Finds one peer's size in one run."""

    def __init__(
        self,
        plan: Plan,
        microbatch_samples: int,
        *,
        given: int | None = None,
        table: LatencyTable | None = None,
        helped: Helped | None = None,
    ) -> None:
        """Take it that the device is fast enough for all, until something is known.

        Args:
            plan: of a run of model-parallel.
            microbatch_samples: of its microbatches.
            given: the size that the person wants; None: it is measured.
            table: this device's latencies; None: they are taken to go with MACs.
            helped: says whether light contributors are here, whose devices are small.
        """
        self._plan = plan
        self._microbatch_samples = microbatch_samples
        self._given = given
        self._table = table
        self._helped = helped
        self._dearest_forwards = {size: self._dearest_forward(size) for size in range(1, NUM_SIZES + 1)}
        self._measured = ALL
        self._works: deque[_Work] = deque(maxlen=_REMEMBERED)
        self._rests = 0
        self._is_warm = False
        self._why = "how fast this computer is, is not known yet"
        self._is_guessed = table is None

    @property
    def _has_light(self) -> bool:
        return self._helped is not None and self._helped.has_helpers

    @property
    def size(self) -> int:
        """The size that this peer announces."""
        if self._given is not None:
            return self._given
        return min(self._measured, LIGHT) if self._has_light else self._measured

    @property
    def why(self) -> str:
        """Return, in words, why this peer has its size."""
        if self._given is not None:
            return f"--size {self._given}"
        return "light contributors are here" if self._has_light else self._why

    def opened(self, round_: int, open_ms: int) -> None:
        """A round is open for so long: guess from the table, if there is one, as long as nothing is measured."""
        if self._is_guessed or self._table is None:
            return
        self._is_guessed = True
        batches, phase = self._microbatch_samples / self._table.conditions.batch, self._plan.phase(round_)
        shares = {size: _TRAINING * batches * self._dearest(size, phase) / self._longest_ms(open_ms) for size in range(1, NUM_SIZES + 1)}
        self._measured = max((size for size, share in shares.items() if share <= 1), default=1)
        self._why = f"by its latency table {self._shown(shares[min(self._measured + 1, ALL)])}"

    def worked(self, round_: int, architecture: Architecture, microbatch_ms: float, open_ms: int) -> None:
        """Note how long the microbatches of a base took, by their median, and see what size that leads to.

        Too large a size is left at once, for one that fits as far as costs go. A larger one is tried where the dearest work of late says
        that it fits with something to spare, one step at a time: so a moment in which the computer is busy costs some rounds, and what is
        just about fast enough does not go up and down. The first base counts for nothing: the first microbatch of a program takes longer.

        Args:
            round_: the one after the base.
            architecture: that was trained.
            microbatch_ms: its microbatches' median.
            open_ms: how long the round is open.
        """
        if not self._is_warm:
            self._is_warm = True
            return
        self._is_guessed = True
        phase = self._plan.phase(round_)
        self._works.append(_Work(self._cost(architecture, phase), microbatch_ms / self._longest_ms(open_ms)))
        self._rests = max(0, self._rests - 1)
        dearest = max(self._works, key=lambda work: work.cost)
        next_share = self._share(dearest, min(self._measured + 1, ALL), phase)
        slow = [work for work in self._works if work.share > 1 and work.cost <= self._dearest(self._measured, phase)]
        if slow and self._measured > 1:
            fitting = (size for size in range(self._measured - 1, 0, -1) if max(self._share(work, size, phase) for work in slow) <= 1)
            self._measured, self._rests = next(fitting, 1), _RESTS
        elif self._measured < ALL and not self._rests and next_share <= _SPARE:
            self._measured, self._rests = self._measured + 1, _RESTS
        self._why = self._shown(self._share(dearest, min(self._measured + 1, ALL), phase))

    def _share(self, work: _Work, size: int, phase: Phase) -> float:
        """Return which share the dearest architecture of a size takes, if a work's duration goes with its architecture's cost."""
        return work.share * self._dearest(size, phase) / work.cost

    def _longest_ms(self, open_ms: int) -> float:
        return open_ms / (PART * self._plan.local_steps)

    def _cost(self, architecture: Architecture, phase: Phase) -> float:
        price = self._forward(architecture)
        return price + (self._teacher(architecture.resolution) if phase.distils else 0.0)

    def _dearest(self, size: int, phase: Phase) -> float:
        """Return the cost of the dearest architecture of a size, in a phase whose smallest one may cost more."""
        price = max(self._dearest_forwards[size], self._forward(phase.space.smallest()))
        return price + (self._teacher(phase.space.resolutions[-1]) if phase.distils else 0.0)

    def _teacher(self, resolution: int) -> float:
        return self._forward(replace(self._plan.space.largest(), resolution=resolution)) / _TRAINING

    def _forward(self, architecture: Architecture) -> float:
        return float(macs(architecture, self._plan.space)) if self._table is None else self._table.latency_ms(architecture)

    def _dearest_forward(self, size: int) -> float:
        """Return the cost of the dearest one of a size; by a table, of some: what takes long on a device need not have most MACs."""
        space = self._plan.space
        if self._table is None:
            return float(bound_macs(space, size))
        if size == ALL:
            return self._forward(space.largest())
        return max(self._forward(drawn(space, space, size, f"size:{number}")) for number in range(_DRAWS))

    def _shown(self, share: float) -> str:
        which = "largest" if self._measured == ALL else "next larger"
        return f"a microbatch of the {which} networks takes about {share:.0%} of the time that a microbatch may take"
