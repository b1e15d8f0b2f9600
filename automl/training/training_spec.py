"""What the log's rules need to know of a run's training (``protocol.rewards``), as its manifest and this package's schedules give it.

Without torch: whoever only reads a log, and computes credits, needs no more. ``automl.training.coverage`` has what means need besides.
"""

from collections.abc import Iterable
from functools import lru_cache

from manta_swarm.automl.spaces.cost import cost_table, price_keys
from manta_swarm.automl.spaces.space import SearchSpace, resolution_gene, space_named
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.rewards import architecture_cost

_REMEMBERED = 4096  # (round, cohort): in data-parallel a round is the same for all


class ManifestTrainingSpec:
    """The training spec that a manifest and this package's schedules give. Implements ``protocol.rewards.TrainingSpec``."""

    def __init__(self, manifest: Manifest) -> None:
        """Use the manifest's plan and prices.

        Raises:
            ValueError: a schedule that this version does not know.
            UserError: a supernet that it does not know, or knows with other choices.
        """
        space = space_named(manifest.supernet)  # refuse an unknown one here, not at the first header
        self.plan = Plan.of(manifest)
        self._prices = manifest.cost_table()
        has_widths = any(unit.widths for unit in space.units)
        if has_widths and not all(key in self._prices for key in price_keys(space.largest())):
            raise _others(manifest, "its units had no widths to choose from before")
        if (unknown := _unknown_choice(space, self._prices)) is not None:
            raise _others(manifest, f"this one has no {unknown}")
        self._asked = lru_cache(_REMEMBERED)(self._costs)

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        """Return the MACs of each architecture that a round asks of a cohort, in the order that claims count them in.

        Raises:
            LedgerError: the manifest has no price for one of them.
        """
        return self._asked(round, self._decisive(cohort))

    def role(self, round: int, cohort: str) -> int:
        """Return the role of what a cohort trains in a round: one for all in data-parallel, 0; in model-parallel its architecture's."""
        return self.plan.role(round, cohort)

    def sorts_after(self, round: int) -> bool:
        """Return whether the update that ends a round sorts channels."""
        return self.plan.sorts_after(round)

    def _decisive(self, cohort: str) -> str:
        return cohort if self.plan.algorithm == "model-parallel" else ""

    def _costs(self, round: int, cohort: str) -> tuple[int, ...]:
        return tuple(architecture_cost(one.text, self._prices) for one in self.plan.architectures(round, cohort))


def _unknown_choice(space: SearchSpace, prices: Iterable[str]) -> str | None:
    """Return the first layer that is priced at a resolution of the space and that the space does not have; None: there is none."""
    known, firsts = dict(cost_table(space)), {resolution_gene(resolution) for resolution in space.resolutions}
    layers = (key for key in prices if " " in key and key.partition(" ")[0] in firsts)
    return next((key for key in layers if key not in known), None)


def _others(manifest: Manifest, why: str) -> UserError:
    return UserError(
        f"the run trains a {manifest.supernet} whose choices are others than those that this version knows: {why}; "
        "use the version that began the run"
    )
