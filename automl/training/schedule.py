"""What a round trains, at which rate, and which architectures a cohort of a size draws: functions of the plan alone, so the same for all.

Two schedules:

- *sandwich* (arXiv:1903.05134): every step trains the largest, the smallest and two random architectures. In the last part of the rounds,
  where the recipe has one, each microbatch learns from the largest network of the state that its round begins with, too (*taught*; in-place
  distillation, ibid., section 3.2).
- *shrinking*, progressive shrinking (arXiv:1908.09791, section 3.2): first the full network alone, at every resolution; then smaller
  kernels join, then smaller depths, then smaller widths, a choice at a time. Each of these phases has the sandwich of the part of the
  space that it has reached, learns from the state that ended the full phase too (the teacher), and has a rate that rises and falls of
  its own. Widths are those inside a layer, expansions, and those that units hand on, where they have a choice. Before they shrink, channels
  are sorted by importance (``automl.training.update``).

Data-parallel trains four architectures each round; with several local steps four for each of them, up to eight times, so that there are as
many random ones. Model-parallel trains one per cohort and round: in each four rounds the largest, the smallest and two random ones, in an
order that is drawn. A cohort whose name says a size below all trains only what that allows, and a random one in the place of the largest.

A cohort's size allows architectures up to a part of the range of costs. Costs are MACs (``automl.spaces.cost``), over the whole of the
supernet's search space, whichever part of it a phase trains: a device is as fast in one phase as in another.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.protocol.cohorts import ALL, NUM_SIZES, size_of
from manta_swarm.protocol.exchange import MAX_LOCAL_STEPS
from manta_swarm.protocol.manifest import SCHEDULES, USUAL, Manifest, Optimizer, Recipe

_REMEMBERED = 4096  # draws: a table's rows are asked for again and again
_Choice = tuple[int, int, str]  # unit and layer; -1 where it is not of one

_ROLES = ("largest", "smallest", "random")
_SANDWICH = (*_ROLES, "random")  # the roles of four architectures
_MAX_SWEEPS = 8  # of a round: claims count microbatches by architecture, so there are not to be many
_FINAL_PART = 0.01  # of a phase's peak rate, in its last round
_SHRINKING_PERCENT = {"full": 35, "kernel": 15, "depth": 20, "width": 30}  # of the rounds
_LATER_PEAK = 0.5  # of the peak rate, in the phases after the full one


def bound_macs(space: SearchSpace, size: int) -> int:
    """Return the most MACs that an architecture of a size costs: as many quarters of the way from the smallest to the largest.

    Args:
        space: the supernet's whole space.
        size: see ``protocol.cohorts``.
    """
    least, most = macs(space.smallest(), space), macs(space.largest(), space)
    return least + (most - least) * size // NUM_SIZES


@lru_cache(_REMEMBERED)
def drawn(part: SearchSpace, whole: SearchSpace, size: int, seed: str) -> Architecture:
    """Return a random architecture of ``part`` that costs no more than its size allows, or the smallest one, if even that costs more.

    The first draw is that of every size. As long as it costs too much, one choice at random becomes the next smaller one, which ends at
    the smallest architecture at the latest.

    Args:
        part: what a phase trains of ``whole``.
        whole: the supernet's space.
        size: see ``protocol.cohorts``.
        seed: the same one gives the same architecture everywhere.
    """
    rng = random.Random(seed)
    architecture = part.sample(rng)
    if size == ALL:
        return architecture
    bound = bound_macs(whole, size)
    while macs(architecture, whole) > bound:
        choices = list(_reducible(part, architecture))
        if not choices:
            break
        architecture = _reduced(part, architecture, rng.choice(choices))
    return architecture


def _reducible(space: SearchSpace, architecture: Architecture) -> Iterator[_Choice]:
    """Yield each choice that is not the least one there is."""
    if architecture.resolution > space.resolutions[0]:
        yield -1, -1, "resolution"
    for unit, layers in enumerate(architecture.units):
        least = space.units[unit]
        width = architecture.width(unit)
        if width is not None and width > least.widths[0]:
            yield unit, -1, "width"
        if len(layers) > least.depths[0]:
            yield unit, -1, "depth"
        for index, layer in enumerate(layers):
            if layer.kernel > least.kernels[0]:
                yield unit, index, "kernel"
            if layer.expansion > least.expansions[0]:
                yield unit, index, "expansion"


def _reduced(space: SearchSpace, architecture: Architecture, choice: _Choice) -> Architecture:
    """Return the architecture with the next smaller one of a choice; a unit loses its last layers."""
    unit, index, what = choice
    if what == "resolution":
        return replace(architecture, resolution=_before(space.resolutions, architecture.resolution))
    layers, choices = list(architecture.units[unit]), space.units[unit]
    width = architecture.width(unit)
    if what == "width" and width is not None:
        widths = (*architecture.widths[:unit], _before(choices.widths, width), *architecture.widths[unit + 1 :])
        return replace(architecture, widths=widths)
    if what == "depth":
        layers = layers[: _before(choices.depths, len(layers))]
    elif what == "kernel":
        layers[index] = replace(layers[index], kernel=_before(choices.kernels, layers[index].kernel))
    else:
        layers[index] = replace(layers[index], expansion=_before(choices.expansions, layers[index].expansion))
    units = list(architecture.units)
    units[unit] = tuple(layers)
    return replace(architecture, units=tuple(units))


def _before(choices: tuple[int, ...], choice: int) -> int:
    return choices[choices.index(choice) - 1]


@dataclass(frozen=True, slots=True)
class Phase:
    """Rounds that train the same part of the space."""

    name: str  # "sandwich" | "taught" | "full" | "kernel" | "depth" | "width"
    first: int  # its first round, from 1
    last: int
    space: SearchSpace  # the part that is trained
    peak: float  # of its rate, in the optimiser's peaks
    distils: bool  # whether its microbatches learn from a teacher too
    teaches_itself: bool = False  # the teacher is the state that the round begins with; else that of an earlier round


@dataclass(frozen=True)
class Plan:
    """What of a manifest decides the training."""

    supernet: str
    schedule: str  # one of SCHEDULES
    algorithm: str  # "data-parallel" | "model-parallel"
    optimizer: Optimizer
    num_rounds: int  # exchanges between cohorts, whatever happens in between
    seed: int
    local_steps: int = 1  # of each round; see ``automl.training.update`` for more than one
    recipe: Recipe = USUAL

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}: this version knows {', '.join(SCHEDULES)}")
        if self.schedule != "sandwich" and self.recipe.taught_percent:
            raise ValueError("the phases of shrinking have a teacher of their own")
        if not 1 <= self.local_steps <= MAX_LOCAL_STEPS:
            raise ValueError(f"a round has 1 to {MAX_LOCAL_STEPS} local steps, not {self.local_steps}")

    @classmethod
    def of(cls, manifest: Manifest) -> "Plan":
        """Return the plan of a run.

        Raises:
            ValueError: a schedule that this version does not know.
        """
        return cls(
            manifest.supernet,
            manifest.schedule,
            manifest.algorithm,
            manifest.optimizer,
            manifest.num_rounds,
            manifest.seed,
            manifest.exchange.local_steps,
            manifest.recipe,
        )

    @cached_property
    def space(self) -> SearchSpace:
        """The whole space of the supernet."""
        return space_named(self.supernet)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in order; together they are all rounds."""
        if self.schedule == "sandwich":
            return tuple(_sandwich(self.space, self.num_rounds, self.recipe.taught_percent))
        return tuple(_shrinking(self.space, self.num_rounds))

    def phase(self, round: int) -> Phase:
        """Return the phase of a round (1 to ``num_rounds``).

        Raises:
            ValueError: the run has no such round.
        """
        if not 1 <= round <= self.num_rounds:
            raise ValueError(f"round {round} is not between 1 and {self.num_rounds}")
        return next(phase for phase in self.phases if round <= phase.last)

    @property
    def teacher_round(self) -> int | None:
        """The round whose state is the teacher of the later phases; None where there is none."""
        return self.phases[0].last if len(self.phases) > 1 and not self.phases[-1].teaches_itself else None

    def sorts_after(self, round: int) -> bool:
        """Return whether the update that ends a round sorts channels too: the widths shrink from the next round on."""
        return any(before.last == round and before.name != "width" == after.name for before, after in pairwise(self.phases))

    def architectures(self, round: int, cohort: str) -> tuple[Architecture, ...]:
        """Return the architectures of a round in a cohort; ``protocol.microbatches`` says which microbatch trains which."""
        space = self.phase(round).space
        if self.algorithm == "data-parallel":
            roles = _SANDWICH * min(self.local_steps, _MAX_SWEEPS)
            return tuple(_of_role(space, role, f"{self.seed}:{round}:{index}") for index, role in enumerate(roles))
        role, seed = _ROLES[self.role(round, cohort)], f"{self.seed}:{cohort}:{round}"
        return (drawn(space, self.space, size_of(cohort), seed) if role == "random" else _of_role(space, role, seed),)

    def role(self, round: int, cohort: str) -> int:
        """Return the role of a cohort's one architecture in a round of model-parallel, 0 to 2; in data-parallel 0."""
        if self.algorithm == "data-parallel":
            return 0
        block, place = divmod(round - 1, len(_SANDWICH))
        roles = list(_SANDWICH)
        random.Random(f"{self.seed}:{cohort}:block:{block}").shuffle(roles)
        role = roles[place]
        return _ROLES.index("random" if role == "largest" and size_of(cohort) < ALL else role)

    def augmentation(self, round: int, architecture: Architecture) -> int:
        """Return how strongly the images of a round's microbatch of an architecture are changed, in percent of the usual strength."""
        largest = replace(self.space.largest(), resolution=architecture.resolution)
        return self.recipe.strength(round, self.num_rounds, is_largest=architecture == largest)

    def learning_rate(self, round: int) -> float:
        """Return the rate of a round: in each phase linear up to the peak, then linear down to 1 % of it in the phase's last round.

        The sandwich, taught or not, is one rise and one fall. Only + - * / on doubles, which IEEE 754 rounds exactly: the same bits
        everywhere.
        """
        phase = self.phase(round)
        peak = float(self.optimizer.learning_rate) * phase.peak
        first, last = (1, self.num_rounds) if self.schedule == "sandwich" else (phase.first, phase.last)
        place, count = round - first + 1, last - first + 1
        warmup = count * self.optimizer.warmup_percent // 100
        if place <= warmup:
            return peak * place / warmup
        left = (count - place) / (count - warmup)
        return peak * (_FINAL_PART + (1.0 - _FINAL_PART) * left)


def _sandwich(space: SearchSpace, num_rounds: int, taught_percent: int) -> Iterator[Phase]:
    """Yield the phases of the sandwich: without a teacher, and from some round on with one."""
    untaught = num_rounds - num_rounds * taught_percent // 100
    if untaught:
        yield Phase("sandwich", 1, untaught, space, 1.0, distils=False)
    if untaught < num_rounds:
        yield Phase("taught", untaught + 1, num_rounds, space, 1.0, distils=True, teaches_itself=True)


def _shrinking(space: SearchSpace, num_rounds: int) -> list[Phase]:
    """Return the phases of progressive shrinking; each has a round at least, as long as there are rounds."""
    kernels, depths, widths = (
        max(map(len, each))
        for each in zip(*((u.kernels, u.depths, max(u.expansions, u.widths, key=len)) for u in space.units), strict=True)
    )
    parts = [("full", space.with_largest(kernels=1, depths=1, expansions=1, widths=1))]
    parts.append(("kernel", space.with_largest(kernels=kernels, depths=1, expansions=1, widths=1)))
    parts += [("depth", space.with_largest(kernels=kernels, depths=count, expansions=1, widths=1)) for count in range(2, depths + 1)]
    for count in range(2, widths + 1):
        parts.append(("width", space.with_largest(kernels=kernels, depths=depths, expansions=count, widths=count)))
    steps = [name for name, _ in parts]
    phases: list[Phase] = []
    last, percent = 0, 0.0
    for index, (name, part) in enumerate(parts):
        percent += _SHRINKING_PERCENT[name] / steps.count(name)
        first, rounds_left = last + 1, num_rounds - (len(parts) - 1 - index)
        last = num_rounds if index == len(parts) - 1 else max(first, min(int(num_rounds * percent / 100), rounds_left))
        if first <= num_rounds:
            phases.append(Phase(name, first, min(last, num_rounds), part, 1.0 if name == "full" else _LATER_PEAK, distils=name != "full"))
    return phases


def _of_role(space: SearchSpace, role: str, seed: str) -> Architecture:
    if role == "largest":
        return space.largest()
    if role == "smallest":
        return space.smallest()
    return space.sample(random.Random(seed))
