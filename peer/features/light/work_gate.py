"""Applies a person's limits to a light contributor: one thread takes commands, the other computes and transfers only as they allow.

Here is what stops the work: pauses, rests, the end. ``BlockingTraffic`` holds back what is sent and received.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from manta_swarm.automl.environment import give_back_memory
from manta_swarm.network.traffic import Flow, Traffic
from manta_swarm.peer.workers.pool import RestAccount
from manta_swarm.protocol.errors import MantaError
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock


class LeaseOver(MantaError):
    """A lease that cannot be brought back any more: it was over before a pause was, or the person leaves while paused."""


class WorkGate:
    """Says when a light contributor may work. Either thread may call its methods."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Begin open."""
        self._clock = clock
        self._changed = threading.Condition()
        self._changes = 0
        self._is_paused = self._is_leaving = self._is_at_work = False
        self._duty = 100
        self._threads = self._set_to = torch.get_num_threads()
        self._all_threads = self._threads
        self._account: RestAccount | None = None
        self.num_samples = 0  # trained, whatever came of them

    # For the thread that hears the person.

    def pause(self, *, is_paused: bool) -> None:
        """Let no microbatch be begun from now on, or go on."""
        with self._changed:
            self._is_paused = is_paused
            self._tell()

    def limit(self, duty: int, threads: int | None) -> None:
        """Let it compute so many hundredths of the time, with so many threads; None: all."""
        with self._changed:
            if duty != self._duty:
                self._duty, self._account = duty, None  # what was owed was owed to another share
            self._threads = self._all_threads if threads is None else threads
            self._tell()

    def leave(self) -> bool:
        """Let it bring back the lease that it works on, and no other one be begun; return whether there is one."""
        with self._changed:
            self._is_leaving = True
            self._tell()
            return self._is_at_work

    # For the thread that works.

    @property
    def threads(self) -> int:
        """How many threads it is to compute with."""
        return self._threads

    @property
    def is_paused(self) -> bool:
        """Whether no microbatch is to be begun."""
        return self._is_paused

    @property
    def is_leaving(self) -> bool:
        """Whether no lease is to be begun any more."""
        return self._is_leaving

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """There is a lease to be brought back meanwhile."""
        self._is_at_work = True
        try:
            yield
        finally:
            self._is_at_work = False

    def wait(self, seconds: float) -> None:
        """Wait, but not longer than until the person says something."""
        with self._changed:
            before = self._changes
            self._changed.wait_for(lambda: self._is_leaving or self._changes != before, seconds)

    def before_microbatch(self, until_s: float) -> None:
        """Wait for as long as it is paused, and take over what was said of threads.

        Raises:
            LeaseOver: it was paused until the lease was over, at ``until_s`` by the clock; or the person leaves first.
        """
        if self._is_paused:
            give_back_memory()
        with self._changed:
            while self._is_paused:
                left_s = until_s - self._clock.now_s()
                if left_s <= 0 or self._is_leaving:
                    raise LeaseOver("it was paused until the lease was over" if left_s <= 0 else "you left while it was paused")
                self._changed.wait(left_s)
            threads = self._threads
        if threads != self._set_to:
            torch.set_num_threads(threads)
            self._set_to = threads

    def after_microbatch(self, took_ms: float, samples: int) -> float:
        """Rest after a microbatch that took so long, as the duty says; return for how long, ms."""
        self.num_samples += samples
        with self._changed:
            now_ms, duty = self._clock.now_ms(), self._duty
            account = self._account = self._account or RestAccount(now_ms - took_ms)
            account.settle(now_ms, took_ms, duty)
            rest_ms = account.rest_ms(now_ms)
            self._changed.wait_for(lambda: self._duty != duty, rest_ms / 1000)
        return rest_ms

    def _tell(self) -> None:
        self._changes += 1
        self._changed.notify_all()


class BlockingTraffic:
    """Makes a thread, not the event loop's, wait until it may send or receive. Implements ``peer.features.light.client.Meter``."""

    def __init__(self, traffic: Traffic, events: asyncio.AbstractEventLoop) -> None:
        """Use the buckets of ``traffic``, whose limits are set in the thread of ``events``."""
        self._traffic = traffic
        self._events = events

    def send(self, num_bytes: int) -> None:
        """Wait until so many bytes may be sent, and count them."""
        self._take(self._traffic.sent, num_bytes)

    def receive(self, num_bytes: int) -> None:
        """Wait until so many bytes may be received, and count them."""
        self._take(self._traffic.received, num_bytes)

    def _take(self, flow: Flow, num_bytes: int) -> None:
        asyncio.run_coroutine_threadsafe(flow.take(num_bytes, is_own=True), self._events).result()
