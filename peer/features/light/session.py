"""A light contributor as a program: its socket, its limits and its signals in one thread, its leases in another.

The first Ctrl-C, or ``manta-peer leave``, lets it bring back the lease that it works on; the second one ends it at once.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from manta_swarm.automl.training.update import self_test
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.commands.keys import own_identity
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.control import Control
from manta_swarm.peer.dashboard.live import shown_live
from manta_swarm.peer.features.light.client import GatewayClient
from manta_swarm.peer.features.light.light import Contributor
from manta_swarm.peer.features.light.work_gate import BlockingTraffic, WorkGate
from manta_swarm.peer.limits.limiter import Limiter, hold_back
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.limits.sensors import THIS_COMPUTER, Sensors
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.console import PrintingConsole
from manta_swarm.runtime.disk import only_process
from manta_swarm.runtime.signals import Signals, hearing


class LimitedLight:
    """A light contributor at work, as its limits see it. Implements ``peer.limits.limiter.Limited``."""

    def __init__(self, work_gate: WorkGate, live_status: LiveStatus, traffic: Traffic) -> None:
        """Stop its work with ``work_gate``, hold ``traffic`` back, and show it on ``live_status``."""
        self._work_gate = work_gate
        self._live_status = live_status
        self._traffic = traffic
        self.left = asyncio.Event()  # there is nothing to wait for any more

    async def pause(self, why: Mapping[str, str]) -> None:
        """See ``Limited``; a microbatch that is under way is finished."""
        self._work_gate.pause(is_paused=True)
        self._live_status.pause(why)

    async def resume(self) -> None:
        """See ``Limited``."""
        self._work_gate.pause(is_paused=False)
        self._live_status.pause({})

    async def limit(self, limits: Limits) -> None:
        """See ``Limited``."""
        hold_back(self._traffic, limits)
        self._work_gate.limit(limits.duty, limits.cpu_threads)
        self._live_status.update(limits=limits.words())
        self._live_status.write()

    def leave(self, *, at_once: bool) -> None:
        """See ``Limited``."""
        self._live_status.update(is_leaving=True)
        if not self._work_gate.leave() or at_once:
            self.left.set()
        else:
            self._live_status.say("leaving as soon as this lease is brought back; press Ctrl-C again to stop at once")

    def show(self) -> None:
        """See ``Limited``."""
        sent, received = self._traffic.sent.total, self._traffic.received.total
        self._live_status.update(samples_trained=self._work_gate.num_samples, sent_bytes=sent, received_bytes=received)


async def contribute(config: PeerConfig, console: PrintingConsole, sensors: Sensors = THIS_COMPUTER) -> bool:
    """Take part as a light contributor; return whether the run is finished, else the person left, and a thread may work on.

    ``console`` says what happens.

    Raises:
        UserError: the settings, or the run, do not fit.
    """
    self_test()
    store, work_gate, traffic = PeerStore(config.dir), WorkGate(), Traffic()
    with only_process(store.directory):
        identity = own_identity(store, console)
        account = "" if config.payout_key in (None, identity.public_key) else str(config.payout)
        name, key = peer_name(identity.public_key), identity.public_key.hex()
        live_status = LiveStatus(store, PeerStatus(name, key, gateway="", account=account, device="cpu", workers=1), console)
        limiter = Limiter(config.limits, config.dir, sensors, live_status)
        meter = BlockingTraffic(traffic, asyncio.get_running_loop())
        client = GatewayClient(config.gateways, meter)
        contributor = Contributor(identity, store, live_status, client, work_gate, config)
        if account:
            live_status.say(f"its credit adds up to account {account}")
        limited = LimitedLight(work_gate, live_status, traffic)
        with hearing(signal.SIGINT, signal.SIGTERM) as signals:  # before the thread says a line: whoever reads it may press Ctrl-C
            async with Control(store.directory, limiter), shown_live(console, limiter):
                await limiter.attach(limited)
                await _until_it_ends(contributor, limited, limiter, signals)
        status = live_status.status
        if not status.finished:
            live_status.say(f"left the run taken={status.taken} samples={status.samples_counted}")
        live_status.write()
    return status.finished


async def _until_it_ends(contributor: Contributor, limited: LimitedLight, limiter: Limiter, signals: Signals) -> None:
    """Let it work until the run is finished, or the person has left."""
    events = asyncio.get_running_loop()
    life = _in_thread(contributor.run)

    def ended(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the person has left already
            events.call_soon_threadsafe(limited.left.set)

    life.add_done_callback(ended)
    listening = asyncio.create_task(_leave_when_told(limited, signals))
    watching, leaving = asyncio.create_task(limiter.watch()), asyncio.create_task(limited.left.wait())
    try:
        await asyncio.wait((watching, leaving), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        if life.done():
            life.result()
    finally:
        for task in (watching, leaving, listening):
            task.cancel()
        await asyncio.gather(watching, leaving, listening, return_exceptions=True)


async def _leave_when_told(limited: LimitedLight, signals: Signals) -> None:
    await signals.next()
    limited.leave(at_once=False)
    while True:
        await signals.next()
        limited.leave(at_once=True)


def _in_thread(work: Callable[[], None]) -> "Future[None]":
    """Do ``work`` in a thread that the end of the program does not wait for."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, daemon=True, name="leases").start()
    return future
