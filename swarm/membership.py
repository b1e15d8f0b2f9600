"""Who is in the run, where each stands and how far its round is: signed announcements in the DHT, under the run's name."""

import time
from dataclasses import dataclass, field

from protocol.encoding import pack, unpack
from protocol.errors import RemoteFault
from protocol.records import Announcement
from swarm.rpc import Endpoint

TTL_S = 20.0
_MAX_ANNOUNCEMENT_BYTES = 1024


@dataclass
class Membership:
    """The members of one run as this node knows them."""

    endpoint: Endpoint
    run: bytes
    malformed: int = 0
    _suspects: dict[bytes, float] = field(default_factory=dict)

    @property
    def _name(self) -> str:
        return f"manta-{self.run.hex()}-members"

    async def announce(self, *, cohort: str, last_commit: bytes, round_: int, samples: int, ready: bool) -> None:
        """Say where this node stands; forgotten after ``TTL_S`` unless it is said again."""
        now_ms = time.time_ns() // 1_000_000
        record = Announcement(self.run, self.endpoint.key, cohort, last_commit, round_, samples, int(ready), now_ms)
        await self.endpoint.publish(self._name, pack(record), ttl_s=TTL_S)

    async def members(self) -> list[Announcement]:
        """Return the newest announcement of every member, this node's own included once it has made one."""
        announcements = []
        for key, data in (await self.endpoint.lookup(self._name)).items():
            try:
                announcement = unpack(Announcement, data, max_bytes=_MAX_ANNOUNCEMENT_BYTES)
            except RemoteFault:
                self.malformed += 1
                continue
            if announcement.key == key and announcement.run == self.run:
                announcements.append(announcement)
        return announcements

    def suspect(self, keys: frozenset[bytes]) -> None:
        """Expect nothing of ``keys`` until their last announcements have run out: they failed an attempt."""
        until = time.monotonic() + TTL_S
        self._suspects.update({key: until for key in keys if key != self.endpoint.key})

    def is_suspect(self, key: bytes) -> bool:
        """Return whether ``key`` failed an attempt lately."""
        return self._suspects.get(key, 0.0) > time.monotonic()
