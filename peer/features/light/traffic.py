"""What a light contributor sends and receives, counted and held back: a thread that works waits for the buckets of an event loop."""

import asyncio

from manta_swarm.network.traffic import Flow, Traffic


class BlockingTraffic:
    """Implements ``peer.features.light.client.Meter``. For any thread but that of the event loop."""

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
