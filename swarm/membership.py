"""Who is in the run, where each stands and how far its round is.

Members find each other by announcements in the DHT, under the run's name. Those that know each other also tell each other directly, at
every step of a round: the DHT is for meeting, not for keeping in step.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, RemoteFault, Unreachable
from protocol.records import Announcement
from protocol.signing import PublicKey
from swarm.rpc import Endpoint

TTL_S = 20.0  # an announcement is forgotten this long after it was made or came
DHT_PERIOD_S = 3.0  # between announcements in the DHT
MAX_TOLD = 32  # members told directly; in a larger swarm each time others
MAX_MEMBERS = 4096
_TELL_TIMEOUT_S = 5.0
_MAX_ANNOUNCEMENT_BYTES = 1024


class Membership:
    """The members of one run as this node knows them."""

    def __init__(self, endpoint: Endpoint, run: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nobody yet; ``start`` answers others from then on."""
        self._endpoint = endpoint
        self._run = run
        self._clock = clock
        self._known: dict[bytes, tuple[Announcement, float]] = {}  # by key; with the time when it is forgotten
        self._suspects: dict[bytes, float] = {}
        self._published_s = -DHT_PERIOD_S
        self._sequence = 0
        self._telling: set[asyncio.Task[None]] = set()
        self.malformed = 0
        self.changed = asyncio.Event()  # set when somebody's announcement is new; whoever waits for it clears it

    async def start(self) -> None:
        """Take other members' announcements."""
        await self._endpoint.serve("announce", self._on_announce)

    async def announce(self, *, cohort: str, last_commit: bytes, round_: int, samples: int, ready: bool) -> None:
        """Say where this node stands: to the members it knows, and from time to time in the DHT."""
        self._sequence = max(time.time_ns() // 1_000_000, self._sequence + 1)
        record = pack(Announcement(self._run, self._endpoint.key, cohort, last_commit, round_, samples, int(ready), self._sequence))
        others = [PublicKey(member.key) for member in self.members() if member.key != self._endpoint.key]
        for key in others if len(others) <= MAX_TOLD else random.sample(others, MAX_TOLD):
            self._telling.add(task := asyncio.create_task(self._tell(key, record)))
            task.add_done_callback(self._telling.discard)
        if self._clock() - self._published_s >= DHT_PERIOD_S:
            self._published_s = self._clock()
            await self._endpoint.publish(self._name, record, ttl_s=TTL_S)

    async def told(self, *, timeout_s: float) -> None:
        """Return once the members have been told what was announced, or could not be."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=timeout_s)

    async def look(self) -> None:
        """Read the announcements in the DHT."""
        for key, data in (await self._endpoint.lookup(self._name)).items():
            with contextlib.suppress(RemoteFault):  # counted; the others' announcements are as good as before
                self._take(key, data)

    def members(self) -> list[Announcement]:
        """Return the newest announcement of every member, without those that have been silent for too long."""
        now = self._clock()
        return [announcement for announcement, forgotten_s in self._known.values() if forgotten_s > now]

    def suspect(self, keys: frozenset[bytes]) -> None:
        """Expect nothing of ``keys`` for a while: they let an attempt down."""
        until = self._clock() + TTL_S
        self._suspects.update({key: until for key in keys if key != self._endpoint.key})

    def is_suspect(self, key: bytes) -> bool:
        """Return whether ``key`` let an attempt down lately."""
        return self._suspects.get(key, 0.0) > self._clock()

    @property
    def _name(self) -> str:
        return f"manta-{self._run.hex()}-members"

    async def _on_announce(self, sender: PublicKey, data: bytes) -> bytes:
        self._take(sender, data)
        return b""

    async def _tell(self, key: PublicKey, record: bytes) -> None:
        try:
            await self._endpoint.call(key, "announce", record, timeout_s=_TELL_TIMEOUT_S)
        except Unreachable:
            known = self._known.get(key)  # it has gone, until it announces itself again
            if known is not None:
                self._known[key] = (known[0], min(known[1], self._clock()))
        except MantaError:
            self.malformed += 1

    def _take(self, sender: bytes, data: bytes) -> None:
        """Take an announcement that ``sender`` made.

        Raises:
            EncodingError: it is none of this run's, or not the sender's own.
        """
        try:
            announcement = unpack(Announcement, data, max_bytes=_MAX_ANNOUNCEMENT_BYTES)
            if (announcement.key, announcement.run) != (sender, self._run):
                raise EncodingError("an announcement in another's name, or for another run")
        except RemoteFault:
            self.malformed += 1
            raise
        known = self._known.get(sender)
        if known is not None and known[0].sequence >= announcement.sequence and self._clock() < known[1] + TTL_S:
            return  # an old one, perhaps from the DHT; after a long silence any will do, for a clock may have been set back
        if known is None and len(self._known) >= MAX_MEMBERS:
            self._forget_the_silent()
            if len(self._known) >= MAX_MEMBERS:
                return
        self._known[sender] = (announcement, self._clock() + TTL_S)
        self.changed.set()

    def _forget_the_silent(self) -> None:
        now = self._clock()
        self._known = {key: entry for key, entry in self._known.items() if entry[1] > now}
