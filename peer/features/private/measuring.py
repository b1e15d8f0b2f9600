"""How good the model is where it will be used: the newest state on a peer's own held-out images, every so often and at the run's end.

It takes a twentieth of the peer's time at most, but for the last time. What comes out is in the peer's status. Unless its person does not
want that, the operator is told it in a signed record: how many images, and how many of them the largest and the smallest subnet get right.
"""

import logging

from torch import Tensor

from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.evaluation.held_out import evaluate
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.measures import Measure
from manta_swarm.protocol.signed import Signed

SHARE = 20  # of a peer's time measuring takes one part at most

logger = logging.getLogger("manta.peer")


class Measuring:
    """Measures the states of one run at one peer."""

    def __init__(self, context: RunContext, dataset: ImageDataset, *, is_told: bool) -> None:
        """Prepare.

        Args:
            context: of the run.
            dataset: the peer's own; if nothing of it is held out nothing is measured.
            is_told: whether the operator gets to know.
        """
        self._context = context
        self._space = space_named(context.manifest.supernet)
        self._dataset = dataset
        self._is_told = is_told
        self._rests_until_ms = 0.0
        self._measured: int | None = None  # the round whose state was measured last

    async def measure(self, round_: int, parameters: Tensor, *, is_last: bool = False) -> None:
        """Measure the state after a round, its parameters (N,), if that is due: the last one is, the first one says nothing."""
        is_resting = self._context.clock.now_ms() < self._rests_until_ms and not is_last
        if is_resting or round_ in (0, self._measured) or not self._dataset.num_held_out:
            return
        began_ms = self._context.clock.now_ms()
        measure = await self._context.compute.run(self._found, round_, parameters)
        self._rests_until_ms = self._context.clock.now_ms() + (SHARE - 1) * (self._context.clock.now_ms() - began_ms)
        self._measured = round_
        largest, smallest = measure.largest / measure.samples, measure.smallest / measure.samples
        self._context.live_status.update(own_round=round_, own_samples=measure.samples, own_largest=largest, own_smallest=smallest)
        self._context.live_status.write()
        if is_last:
            figures = f"largest={largest:.1%} smallest={smallest:.1%}"
            self._context.live_status.say(f"on {measure.samples} held-out images of its own round={round_} {figures}")
        if self._is_told:
            await self._tell(measure)

    def _found(self, round_: int, parameters: Tensor) -> Measure:
        supernet = build(self._space, "cpu")  # and not on a GPU: this process has none, so that a pause frees them all
        supernet.load(parameters)
        samples = self._dataset.num_held_out
        found = evaluate(supernet, self._dataset, [self._space.largest(), self._space.smallest()])
        largest, smallest = (round(quality["accuracy"] * samples) for quality in found)
        return Measure(self._context.run, self._context.key, round_, samples, largest, smallest)

    async def _tell(self, measure: Measure) -> None:
        try:
            await self._context.log.tell_measure(Signed.sign(measure, self._context.identity))
        except MantaError as error:  # the figures are for people: nothing waits for them
            logger.info("measure not told round=%d reason=%s", measure.round, error)
