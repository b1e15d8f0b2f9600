"""A peer at work, as its limits see it: what computes for it, what it sends and receives, and its rounds."""

import asyncio
from collections.abc import Mapping

import torch

from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.limits.limiter import hold_back
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.session import Session
from manta_swarm.peer.workers.devices import DeviceChoice
from manta_swarm.peer.workers.pool import ThrottledPool
from manta_swarm.peer.workers.processes import ProcessPool


class LimitedPeer:
    """Pauses, limits and resumes a peer at work. Implements ``peer.limits.limiter.Limited``."""

    def __init__(
        self,
        session: Session,
        pool: ThrottledPool,
        processes: ProcessPool | None,
        traffic: Traffic,
        limits: Limits,
        devices: DeviceChoice,
    ) -> None:
        """Limit ``session``.

        Args:
            session: the peer's, in a run.
            pool: what computes its microbatches.
            processes: the same where worker processes do.
            traffic: of the node.
            limits: those that all this was made for.
            devices: what it may compute on.
        """
        self._session = session
        self._pool = pool
        self._processes = processes
        self._traffic = traffic
        self._live_status = session.context.live_status
        self._limits = limits
        self._devices = devices
        self._words: asyncio.Queue[bool] = asyncio.Queue()  # to leave: whether at once

    async def next_word(self) -> bool:
        """Return once the person says that this peer is to leave, or nobody keeps its limits any more: whether it is to leave at once."""
        return await self._words.get()

    def ends_with(self, watching: "asyncio.Task[None]") -> None:
        """See that who watches over the limits was not ended by a fault of this program: without it the peer leaves."""
        error = None if watching.cancelled() else watching.exception()
        if error is not None:
            watching.get_loop().call_exception_handler({"message": "limits are not kept any more", "exception": error, "task": watching})
            self.leave(at_once=False)

    async def pause(self, why: Mapping[str, str]) -> None:
        """See ``Limited``."""
        await self._session.pause(why)

    async def resume(self) -> None:
        """See ``Limited``."""
        await self._session.resume()

    async def limit(self, limits: Limits) -> None:
        """See ``Limited``."""
        before, self._limits = self._limits, limits
        hold_back(self._traffic, limits)
        self._session.features.limit(limits)
        if self._pool.duty != limits.duty:
            self._session.set_duty(limits.duty)
            self._pool.duty = limits.duty
        if (before.cpu_threads, before.gpu_memory) != (limits.cpu_threads, limits.gpu_memory):
            devices = self._devices.with_threads(limits.cpu_threads)
            if self._processes is not None:
                await self._processes.equip(devices.workers, limits.gpu_memory)
            else:
                await self._session.context.compute.run(torch.set_num_threads, devices.workers[0].threads)
            self._live_status.say(f"computes on {devices.description}")
        self._live_status.update(limits=limits.words())
        self._live_status.write()

    def leave(self, *, at_once: bool) -> None:
        """See ``Limited``."""
        self._words.put_nowait(at_once)

    def show(self) -> None:
        """See ``Limited``."""
        left_ms, open_ms = self._session.round_time()
        self._live_status.update(
            left_ms=left_ms,
            open_ms=open_ms,
            samples_trained=self._pool.samples_trained,
            sent_bytes=self._traffic.sent.total,
            received_bytes=self._traffic.received.total,
        )
