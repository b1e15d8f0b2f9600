"""Keeps a person's limits while a peer runs: looks at the computer every few seconds, pauses and resumes the peer, takes new limits.

What decides is ``peer.limits.limits``; what is paused is behind ``Limited``. A limiter is there before the peer has found its run, and what
it was told by then holds from the peer's first moment on.
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from manta_swarm.network import timeouts
from manta_swarm.network.peer_status import FETCHING, SEEKING, STARTING, PeerStatus
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.limits.limits import Limits, checked, keep_limits, listed, reasons
from manta_swarm.peer.limits.sensors import Sensors
from manta_swarm.peer.status import YOU, LiveStatus
from manta_swarm.runtime.tasks import wait_within

_NOT_YET = {  # why a peer that leaves before it takes part has nothing to hand in, by its stage
    SEEKING: "it had not found its run yet",
    FETCHING: "not all of its run's data had come yet, and what has stays there",
    STARTING: "it had not begun yet",
}


class Limited(Protocol):
    """What a limiter pauses and resumes: a peer at work (``peer.limits.limited``)."""

    async def pause(self, why: Mapping[str, str]) -> None:
        """Compute nothing from now on, for these reasons, in words by limit."""

    async def resume(self) -> None:
        """Go on."""

    async def limit(self, limits: Limits) -> None:
        """Take no more than this from now on."""

    def leave(self, *, at_once: bool) -> None:
        """Hand in what is trained, then end; or end at once."""

    def show(self) -> None:
        """Show in its status what changes all the time."""


class Limiter:
    """A peer's limits, and its person's word. Implements ``peer.control.CommandedPeer``."""

    def __init__(self, limits: Limits, directory: Path, sensors: Sensors, live_status: LiveStatus) -> None:
        """Begin with ``limits``, which this computer can keep; those that come later are kept in ``directory``.

        ``live_status`` shows where the peer stands.
        """
        self._limits = limits
        self._directory = directory
        self._sensors = sensors
        self._live_status = live_status
        self._peer: Limited | None = None
        self._traffic: Traffic | None = None  # that is held back before there is a peer
        self._is_paused = False  # by the person
        self._why: dict[str, str] = {}  # the peer is paused
        self._turn = asyncio.Lock()
        self._told = asyncio.Event()  # something new
        self.called_off = asyncio.Event()  # the person left before the peer took part

    @property
    def limits(self) -> Limits:
        """The limits that hold now."""
        return self._limits

    def hold(self, traffic: Traffic) -> None:
        """Hold this traffic back until there is a peer, which does it then."""
        self._traffic = traffic
        hold_back(traffic, self._limits)

    async def attach(self, peer: Limited) -> None:
        """Let ``peer`` be what is limited, from now on; it has not begun yet."""
        async with self._turn:
            self._peer = peer
            await peer.limit(self._limits)
            await self._look()

    async def watch(self) -> None:
        """Look at the computer again and again; ends when it is cancelled."""
        while True:
            await wait_within(self._told, timeouts.LOOK_AT_COMPUTER_S)
            self._told.clear()
            async with self._turn:
                await self._look()

    async def pause(self) -> str:
        """The person says: pause."""
        async with self._turn:
            was_paused, self._is_paused = self._is_paused, True
            await self._look()
        return "it was paused already" if was_paused else "paused: nothing is computed until manta-peer resume"

    async def resume(self) -> str:
        """The person says: go on."""
        async with self._turn:
            was_paused, self._is_paused = self._is_paused, False
            await self._look()
        said = "resumed" if was_paused else "it was not paused by you"
        return f"{said}; nothing is computed all the same: {'; '.join(self._why.values())}" if self._why else said

    async def leave(self, *, at_once: bool) -> str:
        """The person says: leave."""
        if self._peer is None:
            self.called_off.set()
            return f"it leaves; {_NOT_YET[self._live_status.status.stage]}"
        if self._live_status.status.is_leaving and not at_once:  # of a second Ctrl-C that would be the end
            return "it leaves already; manta-peer leave --now stops it at once"
        self._live_status.update(is_leaving=True)
        self._peer.leave(at_once=at_once)
        return "it stops at once; what was signed is kept" if at_once else "it leaves as soon as what is trained is handed in"

    async def limit(self, told: dict[str, str]) -> str:
        """Change these limits, in the person's words, and keep them for the next start; say what holds then.

        Raises:
            UserError: a limit that cannot be, or that this computer cannot keep; nothing is changed.
            StorageError: the disk refuses.
        """
        async with self._turn:
            if told:
                limits = checked(told, self._limits)
                await asyncio.to_thread(self._sensors.check, limits)
                keep_limits(self._directory, told)
                self._limits = limits
                if self._peer is not None:
                    await self._peer.limit(limits)
                elif self._traffic is not None:
                    hold_back(self._traffic, limits)
            await self._look()
        return described(self._limits, self._why)

    def status(self) -> PeerStatus:
        """Return where the peer stands."""
        if self._peer is None:
            return replace(self._live_status.shown(), limits=self._limits.words(), paused=bool(self._why), pauses=dict(self._why))
        self._peer.show()
        return self._live_status.shown()

    async def _look(self) -> None:
        """See why nothing is to be computed now, and pause the peer or let it go on."""
        now = await asyncio.to_thread(self._sensors.read, self._limits)
        found = reasons(self._limits, now, was_hot="max_temperature" in self._why)
        before, self._why = self._why, {**({YOU: "by you"} if self._is_paused else {}), **found}
        if self._peer is None:
            return
        if self._why:
            await self._peer.pause(self._why)
        elif before:
            await self._peer.resume()


def hold_back(traffic: Traffic, limits: Limits) -> None:
    """Send and receive no faster than the limits say, from now on."""
    traffic.sent.limit, traffic.received.limit = limits.max_upload, limits.max_download


def described(limits: Limits, why: Mapping[str, str]) -> str:
    """Return what holds, for a person."""
    said = listed(limits.words()) or "no limits"
    return f"{said}; nothing is computed now: {'; '.join(why.values())}" if why else said


def _now_s() -> float:
    """Return the time in seconds by a clock that goes on while the computer sleeps."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()  # a person may set it; then an absence is seen that was none, which does no harm


class Absences:
    """Notices, by jumps of a clock, that this computer or program stood still."""

    def __init__(self, now_s: float | None = None) -> None:
        """Begin at this time; None: now."""
        self._last_s = _now_s() if now_s is None else now_s

    async def next_return(self) -> float:
        """Return after the next absence for about how many seconds it lasted."""
        self._last_s = _now_s()
        while True:
            await asyncio.sleep(timeouts.LOOK_AT_CLOCK_S)
            if (absent_s := self.look(timeouts.LOOK_AT_CLOCK_S, _now_s())) > 0:
                return absent_s

    def look(self, expected_s: float, now_s: float) -> float:
        """Return how much more time went by since the last look than was expected, where that is an absence; else 0."""
        missing_s, self._last_s = now_s - self._last_s - expected_s, now_s
        return missing_s if missing_s > timeouts.ABSENT_S else 0.0
