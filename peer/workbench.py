"""Where a peer's lots are trained: on one committed state, in one local step or several, alone or step by step with its cohort.

How many lots there is time for is decided by the caller; what is done with what was learnt is as well.
"""

import logging
import time
from collections.abc import Awaitable, Callable

import numpy as np
import torch
from torch import Tensor

from automl.course import RunCourse
from automl.local import LocalSteps
from automl.schedule import place_of_lot
from automl.training import Lot, Worker
from automl.update import State
from exact.residuals import vector_digest
from peer.cohort import Seat
from peer.work import ComputeThread, Learnt, Pile, Vector
from protocol.pace import Pace
from protocol.records import Manifest
from protocol.rounds import RoundMachine, Standing

_FAILURES = 3  # lots in a row whose gradient is not finite, before a step is given up

MayStart = Callable[[int, int, float | None], bool]  # local step, its lots so far, when it ends as its cohort says

logger = logging.getLogger("manta.peer")


def now_ms() -> float:
    """Return the time by a clock that does not go back."""
    return time.monotonic_ns() / 1e6


class Workbench:
    """One peer's device and its lots."""

    def __init__(
        self,
        manifest: Manifest,
        course: RunCourse,
        cohort: str,
        key: bytes,
        worker: Worker,
        compute: ComputeThread,
        machine: RoundMachine,
        pace: Pace,
    ) -> None:
        """Prepare; ``machine`` and ``pace`` are told of each lot."""
        self._manifest = manifest
        self._course = course
        self._cohort = cohort
        self._key = key
        self._worker = worker
        self._compute = compute
        self._machine = machine
        self._pace = pace
        self._loaded: bytes | None = None  # digest of the state that the worker has
        self._samples_dropped = 0  # trained, and of no use since

    @property
    def num_weights(self) -> int:
        """N."""
        return self._worker.num_weights

    def take_dropped(self) -> int:
        """Return how many samples were trained too late to be of use since this was asked last."""
        dropped, self._samples_dropped = self._samples_dropped, 0
        return dropped

    def has(self, state: bytes) -> bool:
        """Return whether the worker has the weights of this state."""
        return self._loaded == state

    async def load(self, digest: bytes, state: State, teacher: Tensor | None) -> None:
        """Give the worker a state, and the parameters of its teacher where it has one."""
        await self._compute.run(self._worker.teach, teacher)
        await self._compute.run(self._worker.load, state.parameters)
        self._loaded = digest

    async def train(self, base: Standing, state: State, seat: Awaitable[Seat], may_start: MayStart) -> tuple[Learnt, Seat] | None:
        """Train on ``state``, that of ``base``; return what was learnt, and the place in the cohort that it was learnt in.

        None: there was no time for a lot, or what was trained is of no use by now.

        Args:
            base: the commit.
            state: its state, which the worker has.
            seat: this peer's place in its cohort; it is waited for once the first lot is done.
            may_start: whether another lot is to be started.
        """
        plan, steps = self._course.plan, self._manifest.exchange.local_steps
        pile = Pile(self._worker.num_weights, plan.architectures(base.round + 1, self._cohort))
        local = LocalSteps(state, plan) if steps > 1 else None
        place: Seat | None = None
        index = 0
        for step in range(steps):
            if local is not None and step:
                self._loaded = None
                await self._compute.run(self._worker.load, local.weights)
            failures = 0
            most = self._manifest.exchange.max_claim_samples // self._manifest.lot_samples - (steps - 1 - step)
            ends = place.step_ends(step) if place is not None else None
            while len(pile) < most and failures < _FAILURES and may_start(step, pile.step_lots, ends):
                failures = 0 if await self._train_lot(base, step, index, pile) else failures + 1
                index += 1
                if place is None:
                    place = await seat
                    ends = place.step_ends(step)
            if not pile.step_lots or place is None:
                return None
            if local is not None:
                await self._take_step(local, step, pile, place)
        assert place is not None
        vector = pile.gradient() if local is None else local.learnt().numpy()
        self._loaded = self._loaded if local is None else None
        if not bool(np.isfinite(vector).all()):
            logger.error("lots dropped: what they taught is not finite round=%d", base.round + 1)
            return None
        return Learnt(base, pile, vector, self._course.coverage(base.round + 1, self._cohort)), place

    async def _train_lot(self, base: Standing, step: int, index: int, pile: Pile) -> bool:
        """Train a lot and add it; False: it is of no use."""
        manifest, plan = self._manifest, self._course.plan
        architectures = plan.architectures(base.round + 1, self._cohort)
        place = place_of_lot(len(architectures), base.commit, self._key, index)
        lot = Lot(manifest.seed, base.commit, step, self._key, index, architectures[place], manifest.lot_samples)
        self._machine.lot_started(to_finish=step > 0)
        started_ms = now_ms()
        result = await self._compute.run(self._worker.train, lot)
        self._pace.lot_took(now_ms() - started_ms)
        if not bool(result.gradient.isfinite().all()):
            logger.error("lot dropped: its gradient is not finite round=%d index=%d", base.round + 1, lot.index)
            self._machine.lot_trained(0)
            return False
        if not self._machine.lot_trained(result.samples):
            self._samples_dropped += result.samples
            return False
        pile.add(lot, place, result)
        return True

    async def _take_step(self, local: LocalSteps, step: int, pile: Pile, seat: Seat) -> None:
        """Average a step's gradient with the cohort, and take the exact update that it leads to."""
        gradient: Vector = pile.gradient()
        before, own = await self._compute.run(lambda: (vector_digest(local.weights.numpy()), vector_digest(gradient)))
        mean = await seat.average(step, gradient, pile.step_samples)
        of_mean = own if mean is gradient else await self._compute.run(vector_digest, mean)
        pile.end_step(before, own, of_mean)
        await self._compute.run(lambda: local.step(torch.from_numpy(mean)))
