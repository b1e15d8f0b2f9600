"""A computer whose state a test sets, and a peer that only remembers what it is told."""

from collections.abc import Mapping
from pathlib import Path

from manta_swarm.network.peer_status import SEEKING, PeerStatus
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.limits.sensors import Sensors
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.runtime.console import Form, PrintingConsole


class Listed(PrintingConsole):
    """Keeps what is said in a list."""

    def __init__(self, said: list[str] | None = None) -> None:
        super().__init__(Form.SILENT)
        self.said = [] if said is None else said

    def say(self, text: str) -> None:
        self.said.append(text)
        super().say(text)


def live_status_in(directory: Path, said: list[str] | None = None) -> LiveStatus:
    """Return the live status of a peer that has just begun; what it says is put into ``said``."""
    return LiveStatus(PeerStore(directory), PeerStatus("12D3KooWpeer", "aa", stage=SEEKING), Listed(said))


class Computer:
    """At noon, on mains power; it does not say whether it is used, or how hot it is."""

    def __init__(self) -> None:
        self.minute = 12 * 60
        self.on_battery: bool | None = False
        self.idle_s: float | None = None
        self.celsius: float | None = None
        self.sensors = _Sensors(self)


class _Sensors(Sensors):
    def __init__(self, computer: Computer) -> None:
        self.computer = computer

    def minute(self) -> int:
        return self.computer.minute

    def on_battery(self) -> bool | None:
        return self.computer.on_battery

    def idle_s(self) -> float | None:
        return self.computer.idle_s

    def celsius(self) -> float | None:
        return self.computer.celsius


class Peer:
    """Implements ``peer.limits.limiter.Limited``."""

    def __init__(self) -> None:
        self.why: dict[str, str] = {}
        self.limits = Limits()
        self.told: list[str] = []

    async def pause(self, why: Mapping[str, str]) -> None:
        self.why = dict(why)

    async def resume(self) -> None:
        self.why = {}

    async def limit(self, limits: Limits) -> None:
        self.limits = limits

    def leave(self, *, at_once: bool) -> None:
        self.told.append("stop" if at_once else "leave")

    def show(self) -> None:
        self.told.append("show")
