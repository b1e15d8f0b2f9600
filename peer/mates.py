"""The other members as one peer counts on them: who is expected in the next group, how far the swarm's round is, and what they are told.

Who is a member at all is known by ``swarm.membership.Membership``; what the numbers mean for the round is decided by
``protocol.rounds.RoundMachine``.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from protocol.encoding import pack
from protocol.errors import MantaError
from protocol.records import Announcement, Manifest, Receipt
from protocol.rounds import Phase, RoundMachine
from protocol.signing import PublicKey
from swarm.membership import DHT_PERIOD_S, Membership
from swarm.rpc import Endpoint
from swarm.tasks import within

_WITHDRAW_S = 2.0  # for telling the others that this peer leaves
_MAX_PUSHES = 64  # of a commit, by the one who handed the proposal in
_PUSH_TIMEOUT_S = 5.0


class Mates:
    """The members around one peer."""

    def __init__(self, endpoint: Endpoint, run: bytes, manifest: Manifest, machine: RoundMachine, cohort: str) -> None:
        """Know nobody yet; ``start`` answers others from then on."""
        self._endpoint = endpoint
        self._key = endpoint.key
        self._manifest = manifest
        self._machine = machine
        self._cohort = cohort
        self._membership = Membership(endpoint, run)
        self._pushing: set[asyncio.Task[None]] = set()
        self.progress = asyncio.Event()  # to be set by whoever has news for the others: ``watch`` announces it

    async def start(self) -> None:
        """Take other members' announcements."""
        await self._membership.start()

    async def watch(self, show: Callable[[int], None]) -> None:
        """Announce progress as it happens, and a heartbeat when nothing does; look for newcomers, and ``show`` how many members there are.

        Ends when it is cancelled.
        """
        while True:
            self.progress.clear()
            await self.announce()
            await self.look()
            show(len(self._membership.members()))
            until = time.monotonic() + DHT_PERIOD_S
            while time.monotonic() < until:
                await within(self.progress, until - time.monotonic())
                if self.progress.is_set():
                    self.progress.clear()
                    await self.announce()

    async def look(self) -> None:
        """Read in the DHT who has come."""
        await self._membership.look()

    async def announce(self, *, samples: int | None = None) -> None:
        """Say where this peer stands; ``samples`` takes the place of those that it has."""
        machine = self._machine
        if machine.phase is Phase.FINISHED:
            return
        await self._membership.announce(
            cohort=self._cohort,
            last_commit=machine.last_commit,
            round_=machine.round,
            samples=machine.samples if samples is None else samples,
            ready=machine.claim is not None,
        )

    async def withdraw(self) -> None:
        """Tell the others not to count on lots that are not claimed yet: what is claimed is a duty, these are not."""
        await self.announce(samples=0)
        await self._membership.told(timeout_s=_WITHDRAW_S)

    def push(self, receipt: Receipt, group: Sequence[PublicKey]) -> None:
        """Tell the group of a commit, and others who wait for this round's end; whoever is left out looks at the log."""
        members = [PublicKey(member.key) for member in self._membership.members()]
        for key in list(dict.fromkeys([*group, *members]))[:_MAX_PUSHES]:
            if key != self._key:
                self._pushing.add(task := asyncio.create_task(self._push_to(key, pack(receipt))))
                task.add_done_callback(self._pushing.discard)

    async def _push_to(self, key: PublicKey, data: bytes) -> None:
        with contextlib.suppress(MantaError):  # it sees the commit when it looks at the log
            await self._endpoint.call(key, "commit", data, timeout_s=_PUSH_TIMEOUT_S)

    async def change(self, timeout_s: float) -> None:
        """Wait for an announcement of somebody, but not longer."""
        self._membership.changed.clear()
        await within(self._membership.changed, timeout_s)

    def standing_with_us(self) -> list[PublicKey]:
        """Return the keys of the members that stand on the newest commit known here: they hold its state."""
        return [PublicKey(member.key) for member in self._membership.members() if member.last_commit == self._machine.last_commit]

    def expected(self) -> list[Announcement]:
        """Return the other members to expect in this round's group: they work on it, or will in a moment, having the round before.

        Those that let an attempt down lately are left out.
        """
        rounds = (self._machine.round, self._machine.round - 1)
        return [
            member
            for member in self._membership.members()
            if member.round in rounds and member.key != self._key and not self._membership.is_suspect(member.key)
        ]

    def not_ready(self) -> frozenset[bytes]:
        """Return those expected that have not frozen a claim for this round yet: the next group does not wait for them."""
        return frozenset(member.key for member in self.expected() if not (member.ready and member.round == self._machine.round))

    def suspect(self, keys: frozenset[bytes]) -> None:
        """Expect nothing of ``keys`` for a while: they let an attempt down."""
        self._membership.suspect(keys)

    def swarm_samples(self) -> int:
        """Return the samples that all members have for this round, each one's capped, this peer's included."""
        cap, here = self._manifest.max_claim_samples, (self._machine.round, self._machine.last_commit)
        others = (min(member.samples, cap) for member in self.expected() if (member.round, member.last_commit) == here)
        return sum(others) + min(self._machine.samples, cap)
