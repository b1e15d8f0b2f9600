"""Two sites of a stereo run find each other among their cohort peers, and try each microbatch together, each with its own views."""

import asyncio
import logging
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Protocol

from manta_swarm.automl.data.views import LEFT, VIEWS, PartDigests, StereoDataset
from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Handler
from manta_swarm.peer.workers.pool import Changes
from manta_swarm.protocol.encoding import encode, pack, unpack
from manta_swarm.protocol.errors import RemoteFault, Unreachable, Weather
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.runtime.tasks import unless_set

MEET = "views.meet"  # a method of the left site's
MAX_SMALL_BYTES = 8192
_MAX_SCENES = 2**40

TROUBLE = (RemoteFault, Weather)

logger = logging.getLogger("manta.views")

PART_BYTES = 1024 * 1024  # of what goes either way in one exchange

GAVE_UP = "the other site gave the microbatch up"


class OtherData(RemoteFault):
    """The site with the other view has pairs of other scenes, or not those of the run."""


@dataclass(frozen=True, slots=True)
class Site:
    """What two sites tell each other of their data, to see that both have the same scenes of the run."""

    view: str
    count: int  # of its scenes
    scenes: bytes  # digest of their names
    parts: tuple[bytes, ...]  # digests of its views, and at the left site of the disparities

    def __post_init__(self) -> None:
        if self.view not in VIEWS or not 1 <= self.count < _MAX_SCENES or len(self.parts) != (2 if self.view == LEFT else 1):
            raise ValueError("a site without a view, or without scenes")
        for digest in (self.scenes, *self.parts):
            check_digest(digest, "digest")

    @classmethod
    def of(cls, dataset: StereoDataset, view: str) -> "Site":
        """Return what the site with this view of a data set's pairs has."""
        left, right, disparity = dataset.part_digests
        scenes = sha256(b"".join(encode(scene) for scene in (str(dataset.num_train), *dataset.scenes)))
        return cls(view, len(dataset.scenes), scenes, (left, disparity) if view == LEFT else (right,))

    def check(self, other: "Site", dataset: StereoDataset, digest: bytes) -> None:
        """Check that the two sites together have the run's data set, whose digest is given; ``dataset`` is this one's part of it.

        Raises:
            OtherData: they have not.
        """
        if other.view == self.view:
            raise OtherData(f"both sites have the {self.view} views: start one of them with the other --view")
        if (other.count, other.scenes) != (self.count, self.scenes):
            raise OtherData(
                f"the other site has {other.count} scenes of other names, or holds out others ({other.scenes.hex()[:12]}; here are "
                f"{self.count}, {self.scenes.hex()[:12]}): both need files of equal names, and the same stereo.json"
            )
        left, right = (self, other) if self.view == LEFT else (other, self)
        if dataset.digest_of(PartDigests(left.parts[0], right.parts[0], left.parts[1])) != digest:
            raise OtherData("the views of both sites together are not the run's data set: get the pairs that the operator names")


class Near(Protocol):
    """The way to the cohort peers (``peer.cohort.cohort.Cohort``)."""

    @property
    def key(self) -> PublicKey:
        """This peer's own key."""

    def cohort_peers(self) -> tuple[PublicKey, ...]:
        """Return who proved the cohort's token lately."""

    async def serve_cohort_peers(self, method: str, handler: Handler) -> None:
        """Answer calls of cohort peers, and of nobody else."""

    async def call_cohort_peer(self, cohort_peer: PublicKey, method: str, request: bytes, *, timeout_s: float, largest: int) -> bytes:
        """Return a cohort peer's answer; ``largest``: bytes that it may have."""


class Partner:
    """The other site, as long as it is there."""

    def __init__(self, site: Site, dataset: StereoDataset, data_digest: bytes, changes: Changes) -> None:
        """Know of none.

        Args:
            site: says what this site has.
            dataset: what this site has of the run's pairs.
            data_digest: digest of the run's data set.
            changes: are told when the other site comes or goes.
        """
        self._site = site
        self._dataset = dataset
        self._data_digest = data_digest
        self._changes = changes
        self._lost = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._said = ""
        self.key: PublicKey | None = None  # None: it is away
        self.meeting = 0  # how often it was met
        self.num_microbatches = 0  # of this site that were trained with it
        self.last = b""  # the key of the site that was met last

    def look(self, near: Near) -> None:
        """Left site: meet the other one among these cohort peers, now and whenever it was lost."""
        self._looking = asyncio.create_task(self._look(near))

    async def close(self) -> None:
        """Look no longer."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def trained(self) -> None:
        """A microbatch of this site was trained with the other one."""
        self.num_microbatches += 1

    def part(self, reason: str, meeting: int) -> None:
        """Lose the other site, unless it was met again since ``meeting``: what began before that may fail later."""
        if meeting != self.meeting:
            return
        if self.key is not None:
            self._tell(f"without the other site: {reason}")
        self.key = None
        self._lost.set()
        self._changes.note()

    def meet(self, caller: PublicKey, request: bytes) -> bytes:
        """Right site: return the answer to a left one that wants to train with this one.

        Raises:
            EncodingError: it does not say what it has.
        """
        try:
            self._met(caller, unpack(Site, request, max_bytes=MAX_SMALL_BYTES))
        except OtherData as error:
            self._tell(str(error))  # the answer lets the other one see it as well
        return pack(self._site)

    async def _look(self, near: Near) -> None:
        shortest_s, longest_s = timeouts.VIEWS_AGAIN_S
        pause_s, microbatches = shortest_s, 0
        while True:
            self._lost.clear()
            if self.key is None:
                if microbatches != self.num_microbatches:
                    pause_s, microbatches = shortest_s, self.num_microbatches
                await self._meet_any(near)
                await asyncio.sleep(pause_s)  # also after it was met: who fails again and again is asked less and less often
                pause_s = min(2 * pause_s, longest_s)
            else:
                await self._lost.wait()

    async def _meet_any(self, near: Near) -> None:
        for cohort_peer in near.cohort_peers():
            try:
                answer = await near.call_cohort_peer(
                    cohort_peer, MEET, pack(self._site), timeout_s=timeouts.HELLO_S, largest=MAX_SMALL_BYTES
                )
                self._met(cohort_peer, unpack(Site, answer, max_bytes=MAX_SMALL_BYTES))
            except OtherData as error:
                self._tell(str(error))
            except TROUBLE as error:
                logger.debug("no site peer=%s reason=%s", cohort_peer.hex()[:8], error)
            else:
                return

    def _met(self, cohort_peer: PublicKey, other: Site) -> None:
        self._site.check(other, self._dataset, self._data_digest)
        self.key = self.last = cohort_peer
        self.meeting += 1
        self._tell(f"trains with peer {cohort_peer.hex()[:8]}, which has the {other.view} views of the same {other.count} scenes")
        self._changes.note()

    def _tell(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._changes.note(line)


class MicrobatchAttempt(ABC):
    """One attempt at a microbatch, as the thread that computes it sees it: a link to the other site (``automl.models.linked.SiteLink``)."""

    is_first = False

    def __init__(self, identity: bytes) -> None:
        """Begin."""
        self.id = identity
        self.place = 0  # of the next part
        self.over = asyncio.Event()
        self.reason = GAVE_UP
        self.bytes_sent = self.bytes_received = 0
        self._events = asyncio.get_running_loop()

    @abstractmethod
    async def swap(self, part: bytes, size: int) -> bytes:
        """Give the other site a part, and return what it gives, of ``size`` bytes at most."""

    def end(self, reason: str) -> None:
        """Let whoever waits for something of this attempt wait no longer."""
        if not self.over.is_set():
            self.reason = reason
            self.over.set()

    def exchange(self, data: bytes, size: int) -> bytes:
        """See ``SiteLink``; called in the thread."""
        parts = []
        for start in range(0, max(len(data), size, 1), PART_BYTES):
            part = data[start : start + PART_BYTES]
            if self.over.is_set():  # and perhaps the event loop has ended
                raise Unreachable(self.reason)
            try:
                swapped = asyncio.run_coroutine_threadsafe(self._bounded(part, min(size - start, PART_BYTES)), self._events).result()
            except CancelledError:
                raise Unreachable(self.reason) from None
            self.bytes_sent, self.bytes_received = self.bytes_sent + len(part), self.bytes_received + len(swapped)
            parts.append(swapped)
        return b"".join(parts)

    async def _bounded(self, part: bytes, size: int) -> bytes:
        try:
            async with asyncio.timeout(timeouts.VIEWS_EXCHANGE_S):
                swapped = await unless_set(self.over, self.swap(part, size))
        except TimeoutError:
            raise Unreachable(f"the other site said nothing for {timeouts.VIEWS_EXCHANGE_S:g} s") from None
        if swapped is None:
            raise Unreachable(self.reason)
        self.place += 1
        return swapped


class FollowingAttempt(MicrobatchAttempt):
    """An attempt at the right site, which the left one calls."""

    def __init__(self, identity: bytes) -> None:
        """Begin."""
        super().__init__(identity)
        self.asked = 0  # parts that the left site has asked for
        self.given: asyncio.Queue[bytes] = asyncio.Queue(1)  # by the thread ...
        self.taken: asyncio.Queue[bytes] = asyncio.Queue(1)  # ... and for it

    async def swap(self, part: bytes, size: int) -> bytes:
        """See ``MicrobatchAttempt``."""
        del size
        await self.given.put(part)
        return await self.taken.get()
