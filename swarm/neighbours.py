"""Who else is in the run: announcements in the DHT, under the run's name. For whom to ask for bytes, and whom to pass a commit on to.

A round needs none of this: a peer that finds nobody takes part by the log alone.
"""

import contextlib
import random
import time
from collections.abc import Callable

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, RemoteFault
from protocol.records import Announcement
from protocol.signing import PublicKey
from swarm import waits
from swarm.rpc import Endpoint

MAX_NEIGHBOURS = 1024  # known at once; of a larger run random ones
_S_A_MEMBER = 2.0  # everybody reads of everybody, from several nodes: so the traffic of a look, and its time, grow alike
_PERIODS_PUBLISHED, _PERIODS_KNOWN = 6, 3  # how long an announcement lives: in the DHT, and at those who read it
_MAX_ANNOUNCEMENT_BYTES = 512


class Neighbours:
    """The other peers of one run as this node knows them."""

    def __init__(self, endpoint: Endpoint, run: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nobody yet."""
        self._endpoint = endpoint
        self._run = run
        self._clock = clock
        self._known: dict[PublicKey, tuple[Announcement, float]] = {}  # with the time when it is forgotten
        self._sequence = 0
        self.malformed = 0

    async def announce(self, *, cohort: str, round_: int) -> None:
        """Say in the DHT that this node is there, and whose round's state it holds."""
        self._sequence = max(time.time_ns() // 1_000_000, self._sequence + 1)
        record = Announcement(self._run, self._endpoint.key, cohort, round_, self._sequence)
        await self._endpoint.publish(self._name, pack(record), ttl_s=_PERIODS_PUBLISHED * self.period_s)

    async def look(self) -> None:
        """Read the announcements in the DHT."""
        found = list((await self._endpoint.lookup(self._name)).items())
        random.shuffle(found)
        self._forget_for_good(0.0 if len(self._known) >= MAX_NEIGHBOURS else _PERIODS_PUBLISHED * self.period_s)
        for key, data in found:
            with contextlib.suppress(RemoteFault):  # counted; the others' announcements are as good as before
                self._take(key, data)

    @property
    def period_s(self) -> float:
        """How long to wait between two announcements, or looks: longer in a large run."""
        shortest_s, longest_s = waits.ANNOUNCE_S
        return min(max(shortest_s, len(self._known) * _S_A_MEMBER), longest_s)

    def members(self) -> list[PublicKey]:
        """Return the keys of the others that announced themselves lately."""
        now = self._clock()
        return [key for key, (_, forgotten_s) in self._known.items() if forgotten_s > now]

    def some(self, count: int) -> list[PublicKey]:
        """Return at most so many random ones of them."""
        members = self.members()
        return random.sample(members, min(count, len(members)))

    def forget(self, key: PublicKey) -> None:
        """It cannot be reached: do without it until it announces itself again."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = (known[0], self._clock())

    def _forget_for_good(self, after_s: float) -> None:
        """Not before the DHT has forgotten it as well: else the old announcement of who is away would bring it back."""
        now = self._clock()
        self._known = {key: entry for key, entry in self._known.items() if entry[1] + after_s > now}

    @property
    def _name(self) -> str:
        return f"manta-{self._run.hex()}-members"

    def _take(self, key: PublicKey, data: bytes) -> None:
        """Take an announcement that is listed under ``key``.

        Raises:
            EncodingError: it is none of this run's, or not that key's.
        """
        if key == self._endpoint.key:
            return
        try:
            announcement = unpack(Announcement, data, max_bytes=_MAX_ANNOUNCEMENT_BYTES)
            if (announcement.key, announcement.run) != (key, self._run):
                raise EncodingError("an announcement in another's name, or for another run")
        except RemoteFault:
            self.malformed += 1
            raise
        known = self._known.get(key)
        if known is not None and known[0].sequence >= announcement.sequence:
            return
        if known is None and len(self._known) >= MAX_NEIGHBOURS:
            return
        self._known[key] = (announcement, self._clock() + max(waits.ANNOUNCED_S, _PERIODS_KNOWN * self.period_s))
