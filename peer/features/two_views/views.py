"""A peer that has one view of the run's stereo pairs, and trains every microbatch together with the cohort peer that has the other view.

The left site leads: it begins each microbatch, its own and in turn the other's, and makes all calls but the one by which the right site
asks it for a microbatch. So one microbatch is under way at a time, and both sites compute it. A microbatch belongs to the peer whose key it
follows from, who claims it like any other. What goes wrong ends the microbatch at both; then the left site has to find the other one again
before the next.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.automl.spaces.space import MAX_TEXT, Architecture, space_named
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.automl.training.vertical import SiteWorker
from manta_swarm.network import timeouts
from manta_swarm.peer.features.two_views.partner import (
    GAVE_UP,
    MAX_SMALL_BYTES,
    MEET,
    PART_BYTES,
    TROUBLE,
    FollowingAttempt,
    MicrobatchAttempt,
    Near,
    Partner,
    Site,
)
from manta_swarm.peer.train.work import ComputeThread, now_ms
from manta_swarm.peer.workers.pool import SingleWorker, TrainedMicrobatch, WorkerLost
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, Unreachable, Weather
from manta_swarm.protocol.exchange import MAX_LOCAL_STEPS
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.manifest import MAX_PERCENT, Manifest
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import unless_set

BEGIN, LEAD, EXCHANGE = "views.begin", "views.lead", "views.exchange"  # methods; all but LEAD are the left site's
MAX_PART_BYTES = PART_BYTES + 256
ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class MicrobatchName:
    """Which microbatch, of whom, on which weights; what is in it follows from that."""

    base: bytes
    step: int
    key: bytes
    index: int
    architecture: str
    weights: bytes  # digest of what it is trained on, and of its teacher
    augmentation: int  # percent of the usual strength

    def __post_init__(self) -> None:
        for digest in (self.base, self.key, self.weights):
            check_digest(digest, "digest")
        if not (0 <= self.step < MAX_LOCAL_STEPS and 0 <= self.index < 2**53 and len(self.architecture) <= MAX_TEXT):
            raise ValueError("a microbatch out of range")
        if not 0 <= self.augmentation <= MAX_PERCENT:
            raise ValueError("an augmentation out of range")


@dataclass(frozen=True, slots=True)
class Begin:
    """The left site begins a microbatch; ``id`` names this try of it."""

    id: bytes
    microbatch: MicrobatchName

    def __post_init__(self) -> None:
        _check_id(self.id)


@dataclass(frozen=True, slots=True)
class SiteExchange:
    """A part of what the left site gives, in exchange for as large a part at most of what the right one gives, which is the answer."""

    id: bytes
    place: int  # of the part in its microbatch, from 0
    data: bytes

    def __post_init__(self) -> None:
        _check_id(self.id)
        if self.place < 0 or len(self.data) > PART_BYTES:
            raise ValueError("an exchange out of range")


def _check_id(identity: bytes) -> None:
    if len(identity) != ID_BYTES:
        raise ValueError("no name of a microbatch's try")


class NotYet(Weather):
    """This site is not at a microbatch's weights yet, or not any more; it has not lost the other one."""


@dataclass
class SiteTraffic:
    """Counts what microbatches send to the other site and get from it."""

    microbatches: int = 0
    exchanges: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class _LeadingAttempt(MicrobatchAttempt):
    """An attempt at the left site, which makes the calls."""

    is_first = True

    def __init__(self, identity: bytes, near: Near, partner: PublicKey) -> None:
        """Begin, with ``partner`` at the right site."""
        super().__init__(identity)
        self._near = near
        self._partner = partner

    async def swap(self, part: bytes, size: int) -> bytes:
        """See ``MicrobatchAttempt``."""
        request = pack(SiteExchange(self.id, self.place, part))
        return await self._near.call_cohort_peer(self._partner, EXCHANGE, request, timeout_s=timeouts.VIEWS_EXCHANGE_S, largest=size)


class SitePool(SingleWorker):
    """A worker pool of one that computes its part of each microbatch of the two sites. Implements ``peer.workers.pool.WorkerPool``."""

    def __init__(self, worker: SiteWorker, dataset: StereoDataset, site: Site, manifest: Manifest, compute: ComputeThread) -> None:
        """Prepare; ``reach`` comes before ``start``.

        Args:
            worker: computes this site's part, in the thread of ``compute``, which somebody else closes.
            dataset: what this site has of the run's pairs.
            site: says so to the other one.
            manifest: the run's.
            compute: its thread.
        """
        super().__init__()
        self._worker = worker
        self._manifest = manifest
        self._space = space_named(manifest.supernet)
        self._compute = compute
        self._near: Near | None = None
        self._partner = Partner(site, dataset, manifest.data_digest, self.changes)
        self._turn = asyncio.Lock()  # the left site's: who has it leads a microbatch
        self._try: MicrobatchAttempt | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._awaited: dict[int, asyncio.Future[MicrobatchResult]] = {}  # the right site's own microbatches, by index
        self._weights = b""
        self._ready = asyncio.Condition()
        self.own, self.others = SiteTraffic(), SiteTraffic()  # what microbatches cost so far, this site's and the other's

    def reach(self, near: Near) -> None:
        """Find the other site among these cohort peers."""
        self._near = near

    # As a worker pool.

    @property
    def num_weights(self) -> int:
        """N."""
        return self._worker.num_weights

    def present(self) -> Sequence[int]:
        """Return the one worker while the other site is there."""
        return () if self._partner.key is None else super().present()

    async def start(self) -> None:
        """Answer the other site; the left one looks for it."""
        near = self._cohort_peers()
        if self._worker.is_left:
            await near.serve_cohort_peers(LEAD, self._on_lead)
            self._partner.look(near)
        else:
            for method, answer in ((MEET, self._on_meet), (BEGIN, self._on_begin), (EXCHANGE, self._on_exchange)):
                await near.serve_cohort_peers(method, answer)

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """See ``WorkerPool``."""

        def load() -> bytes:
            self._worker.teach(teacher)
            self._worker.load(parameters)
            hasher = hashlib.sha256(parameters.numpy().tobytes())
            hasher.update(b"" if teacher is None else teacher.numpy().tobytes())
            return hasher.digest()

        self._weights = b""
        weights = await self._compute.run(load)
        async with self._ready:
            self._weights = weights
            self._ready.notify_all()

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        """Return what a microbatch of this peer's gave, trained by both sites.

        Raises:
            WorkerLost: the sites did not train it to its end.
        """
        del worker
        self._is_busy, started_ms = True, now_ms()
        try:
            result = await (self._lead(microbatch) if self._worker.is_left else self._ask_for(microbatch))
        except TROUBLE as error:
            raise WorkerLost(str(error)) from error
        finally:
            self._is_busy = False
        return TrainedMicrobatch(result, now_ms() - started_ms, partner=self._partner.last)

    async def resume(self) -> None:
        """Go on, and help the other site again, which a paused worker pool does not."""
        async with self._ready:
            await super().resume()
            self._ready.notify_all()

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._following)
        if self._try is not None:
            self._try.end(GAVE_UP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._partner.close(), *tasks, return_exceptions=True)

    # Meeting the other site.

    def _cohort_peers(self) -> Near:
        assert self._near is not None
        return self._near

    async def _on_meet(self, caller: PublicKey, request: bytes) -> bytes:
        if self._try is not None:
            if caller != self._partner.key:
                raise Unreachable("it is training with another site")
            self._try.end(GAVE_UP)
        return self._partner.meet(caller, request)

    # A microbatch, as the left site has it.

    async def _lead(self, microbatch: Microbatch) -> MicrobatchResult:
        async with self._turn:
            result = await self._conduct(microbatch)
        assert result is not None
        return result

    async def _on_lead(self, caller: PublicKey, request: bytes) -> bytes:
        name = unpack(MicrobatchName, request, max_bytes=MAX_SMALL_BYTES)
        microbatch = self._microbatch_of(caller, name)
        if name.key != caller:
            raise EncodingError("a microbatch of somebody else's")
        try:
            async with self._turn:
                await self._matches(name)
                await self._conduct(microbatch)
        except NotYet as error:
            return str(error).encode()
        return b""

    async def _conduct(self, microbatch: Microbatch) -> MicrobatchResult | None:
        """Do a microbatch with the other site; return what it gave if it is this one's."""
        near, partner, meeting = self._cohort_peers(), self._partner.key, self._partner.meeting
        if partner is None:
            raise Unreachable("the other site is away")
        begin = Begin(secrets.token_bytes(ID_BYTES), self._name_of(microbatch))
        attempt = _LeadingAttempt(begin.id, near, partner)
        await self._begin(partner, begin, meeting)
        self._try = attempt
        try:
            result = await self._compute.run(self._worker.train_site, microbatch, attempt, is_own=microbatch.key == near.key)
        except TROUBLE as error:
            self._partner.part(str(error), meeting)
            raise
        finally:
            attempt.end(GAVE_UP)
            self._try = None
        self._count(attempt, microbatch)
        return result

    async def _begin(self, partner: PublicKey, begin: Begin, meeting: int) -> None:
        timeout_s = timeouts.VIEWS_MATCH_S + timeouts.NEAR_S
        try:
            answer = await self._cohort_peers().call_cohort_peer(partner, BEGIN, pack(begin), timeout_s=timeout_s, largest=MAX_SMALL_BYTES)
        except TROUBLE as error:
            self._partner.part(str(error), meeting)
            raise
        if answer:
            raise NotYet("the other site is at other weights")

    # A microbatch, as the right site has it.

    async def _ask_for(self, microbatch: Microbatch) -> MicrobatchResult:
        near, partner, meeting = self._cohort_peers(), self._partner.key, self._partner.meeting
        if partner is None:
            raise Unreachable("the other site is away")
        awaited: asyncio.Future[MicrobatchResult] = asyncio.get_running_loop().create_future()
        self._awaited[microbatch.index] = awaited
        try:
            async with asyncio.timeout(timeouts.VIEWS_MICROBATCH_S):
                request = pack(self._name_of(microbatch))
                answer = await near.call_cohort_peer(partner, LEAD, request, timeout_s=timeouts.VIEWS_MICROBATCH_S, largest=MAX_SMALL_BYTES)
                if answer:
                    raise NotYet("the other site is at other weights")
                return await awaited
        except TimeoutError:
            self._partner.part(f"a microbatch was not done within {timeouts.VIEWS_MICROBATCH_S:g} s", meeting)
            raise Unreachable("the other site did not do a microbatch in time") from None
        except NotYet:
            raise
        except TROUBLE as error:
            self._partner.part(str(error), meeting)
            raise
        finally:
            del self._awaited[microbatch.index]
            awaited.cancel()

    async def _on_begin(self, caller: PublicKey, request: bytes) -> bytes:
        begin = unpack(Begin, request, max_bytes=MAX_SMALL_BYTES)
        microbatch = self._microbatch_of(caller, begin.microbatch)
        if begin.microbatch.key not in (caller, self._cohort_peers().key):
            raise EncodingError("a microbatch of somebody else's")
        try:
            await self._matches(begin.microbatch)
        except NotYet as error:
            return str(error).encode()
        if self._try is not None:
            self._try.end("the other site begins another microbatch")
        attempt = self._try = FollowingAttempt(begin.id)
        following = asyncio.create_task(self._follow(attempt, microbatch))
        self._following.add(following)
        following.add_done_callback(self._following.discard)
        return b""

    async def _follow(self, attempt: MicrobatchAttempt, microbatch: Microbatch) -> None:
        is_own, meeting = microbatch.key == self._cohort_peers().key, self._partner.meeting
        try:
            result = await self._compute.run(self._worker.train_site, microbatch, attempt, is_own=is_own)
        except TROUBLE as error:
            attempt.end(str(error))
            if self._try is attempt:
                self._partner.part(str(error), meeting)
            return
        finally:
            attempt.end(GAVE_UP)
            if self._try is attempt:
                self._try = None
        self._count(attempt, microbatch)
        awaited = self._awaited.get(microbatch.index) if is_own else None
        if awaited is not None and result is not None and not awaited.done():
            awaited.set_result(result)

    async def _on_exchange(self, caller: PublicKey, request: bytes) -> bytes:
        exchange, attempt = unpack(SiteExchange, request, max_bytes=MAX_PART_BYTES), self._try
        if caller != self._partner.key or not isinstance(attempt, FollowingAttempt) or exchange.id != attempt.id:
            raise Unreachable(GAVE_UP)
        try:
            if exchange.place != attempt.asked:
                raise EncodingError("an exchange out of turn")
            attempt.asked += 1
            attempt.taken.put_nowait(exchange.data)
            async with asyncio.timeout(timeouts.VIEWS_EXCHANGE_S):
                given = await unless_set(attempt.over, attempt.given.get())
        except TimeoutError:
            raise Unreachable(f"nothing to give within {timeouts.VIEWS_EXCHANGE_S:g} s") from None
        except (asyncio.CancelledError, EncodingError):
            attempt.end("the other site hung up")
            raise
        if given is None:
            raise Unreachable(attempt.reason)
        return given

    # Both.

    def _name_of(self, microbatch: Microbatch) -> MicrobatchName:
        return MicrobatchName(
            microbatch.base,
            microbatch.step,
            microbatch.key,
            microbatch.index,
            microbatch.architecture.text,
            self._weights,
            microbatch.augmentation,
        )

    def _microbatch_of(self, caller: PublicKey, name: MicrobatchName) -> Microbatch:
        if caller != self._partner.key:
            raise Unreachable("the two sites have not met")
        try:
            architecture = Architecture.parse(name.architecture, self._space)
        except ValueError as error:
            raise EncodingError(str(error)) from error
        samples = self._manifest.microbatch_samples
        return Microbatch(self._manifest.seed, name.base, name.step, name.key, name.index, architecture, samples, name.augmentation)

    async def _matches(self, name: MicrobatchName) -> None:
        """Wait until this site has the weights of a microbatch, for a moment.

        Raises:
            NotYet: it has not.
        """
        try:
            async with asyncio.timeout(timeouts.VIEWS_MATCH_S), self._ready:
                await self._ready.wait_for(lambda: self._weights == name.weights and not self._is_paused)
        except TimeoutError:
            raise NotYet("it is at other weights") from None

    def _count(self, attempt: MicrobatchAttempt, microbatch: Microbatch) -> None:
        is_own = microbatch.key == self._cohort_peers().key
        if is_own:
            self._partner.trained()
        traffic = self.own if is_own else self.others
        traffic.microbatches += 1
        traffic.exchanges += attempt.place
        traffic.bytes_sent += attempt.bytes_sent
        traffic.bytes_received += attempt.bytes_received
