"""A worker pool of processes, one for each GPU or share of the CPU's threads: started, given microbatches, started again when they end.

What all need lies in shared memory once: the weights and the teacher's, the data set, and a place for each gradient that is under way.
Gradients are added by whoever asked for the microbatches, in the order of the microbatches, so the sum is the same as with one worker, and
nobody waits for a worker that died: that is why they are not averaged by ``torch.distributed``.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.data.shards.sharded import ShardedImages
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.shared_memory import ImagesIn, SharedRegion, aligned, region_for, share_images, shared_images
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.peer.train.work import now_ms
from manta_swarm.peer.workers.devices import Device
from manta_swarm.peer.workers.pool import Changes, TrainedMicrobatch, WorkerLost
from manta_swarm.peer.workers.worker_messages import MESSAGES, PairsOf, Ready, ShardsOf, Task, WorkerAnswer, WorkerSetup
from manta_swarm.protocol.errors import SamplesMissing, UserError
from manta_swarm.runtime.child import Child, ChildLost, Program, Restart, python, with_threads
from manta_swarm.runtime.tasks import wait_within

_SLOTS = 32  # gradients under way for each worker: as many microbatches a fast one may be ahead of the slowest
_REMEMBERED = 16  # microbatches
_PAUSED = "paused"  # why a worker ended that the person does not want now
_AGAIN = Restart(0.5, 60.0, free=1)
_ALARMING = 3  # ends in a row, of every worker, that the person is told of

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class WorkerData:
    """What worker processes share of a data set: images, what they read or make of stereo pairs, or where shards are."""

    images: tuple[ImagesIn, ...]  # one, which lies in ``region``, or none
    pairs: tuple[PairsOf, ...]  # one, whose pairs are kept in ``region``, or none
    shards: tuple[ShardsOf, ...]  # one, which needs nothing in ``region``, or none
    region: SharedRegion

    @classmethod
    def of(cls, dataset: Dataset, root: Path | None, part: tuple[int, ...] = ()) -> "WorkerData":
        """Share a data set; of images the caller need not keep its own copy, see ``here``.

        ``root`` is the folder that it was loaded from, ``part`` its shards to train with where these are not all.

        Raises:
            StorageError: as ``SharedRegion.make``.
            UserError: a data set of a kind that worker processes can't have.
        """
        if isinstance(dataset, ImageDataset):
            images, region = share_images(dataset)
            return cls((images,), (), (), region)
        if isinstance(dataset, StereoDataset):
            region, place_bytes = region_for(dataset.train)
            return cls((), (PairsOf(dataset.name, "" if root is None else str(root), place_bytes, part),), (), region)
        if isinstance(dataset, ShardedImages):
            return cls((), (), (ShardsOf(dataset.name, str(root), dataset.digest, part),), SharedRegion.make(0))
        raise UserError(f"the data set {dataset.name} cannot be shared among workers: give --workers 1 and --gpus none")

    def here(self, dataset: Dataset) -> Dataset:
        """Return the data set that was shared as this process is to have it: its training images are those in shared memory."""
        if not self.images or not isinstance(dataset, ImageDataset):
            return dataset
        shared = shared_images(self.images[0], self.region)
        return replace(dataset, train_images=shared.train_images, train_labels=shared.train_labels)

    def close(self) -> None:
        """Give the memory back."""
        self.region.close()


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """How long workers are waited for, in seconds. What is longer than anything that was ever seen is taken for a standstill."""

    start_s: float = 300.0  # until a worker is ready: libraries, data, the device
    first_s: float = 600.0  # for its first microbatch
    least_s: float = 30.0  # for any other one
    longest_factor: int = 20  # and at least so many times the longest of its last ones
    restart: Restart = _AGAIN  # before one that ended is started again


@dataclass
class _Post:
    """One worker's place: what computes there now, and what happened there."""

    number: int
    device: Device
    child: Child | None = None
    is_ready: bool = False
    slot: int | None = None  # of the microbatch that it is at
    ends: int = 0  # in a row, without a microbatch in between
    microbatches_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.slot is None

    def timeout_s(self, timeouts: WorkerTimeouts) -> float:
        return max(timeouts.least_s, timeouts.longest_factor * max(self.microbatches_s)) if self.microbatches_s else timeouts.first_s

    def __str__(self) -> str:
        return f"worker {self.number} ({self.device.name})"


def _program(device: Device, regions: Sequence[SharedRegion]) -> Program:
    descriptors = [region.descriptor for region in regions]
    command = python("-m", "manta_swarm.peer.workers.worker_process", *map(str, descriptors))
    return Program("worker", command, environment=with_threads(device.threads), messages=MESSAGES, pass_fds=descriptors)


def _tell_of_fault(task: "asyncio.Task[None]") -> None:
    """A fault of this program's, which nobody awaits, is to be seen when it happens."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        task.get_loop().call_exception_handler({"message": "a worker is not looked after any more", "exception": error, "task": task})


class ProcessPool:
    """Has worker processes compute microbatches. Implements ``peer.workers.pool.WorkerPool``."""

    def __init__(
        self,
        supernet: str,
        data: WorkerData,
        devices: Sequence[Device],
        timeouts: WorkerTimeouts | None = None,
        *,
        gpu_memory: int | None = None,
        cuda_graphs: bool = False,
    ) -> None:
        """Prepare; ``start`` starts the workers. ``data`` is closed with the worker pool.

        On a GPU a worker takes ``gpu_memory`` bytes at most; with ``cuda_graphs`` it records microbatches and replays them.

        Raises:
            StorageError: there is no shared memory.
        """
        self._supernet = supernet
        self._data = data
        self._timeouts = timeouts or WorkerTimeouts()
        self._gpu_memory = gpu_memory
        self._cuda_graphs = int(cuda_graphs)
        self._posts = [_Post(number, device) for number, device in enumerate(devices)]
        self._count = build(space_named(supernet), "meta").num_weights
        row = aligned(4 * self._count) // 4  # values from one vector to the next
        self._num_slots = _SLOTS * len(devices)
        self._state, self._gradients = SharedRegion.make(4 * 2 * row), SharedRegion.make(4 * row * self._num_slots)
        self._weights_N, self._teacher_N = self._state.floats(is_writable=True).view(2, row)[:, : self._count]
        self._gradients_SN = self._gradients.floats(is_writable=False).view(self._num_slots, row)[:, : self._count]
        self._free_slots = list(range(self._num_slots))  # a heap: memory that was written before is used first
        self._number = 0  # of the state in shared memory
        self._teacher: Tensor | None = None  # the one that was copied there
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._resumed = asyncio.Event()
        self._tending: list[asyncio.Task[None]] = []
        self._was_said = False
        self.changes = Changes()

    @property
    def num_weights(self) -> int:
        """N."""
        return self._count

    @property
    def size(self) -> int:
        """How many workers there are when all goes well."""
        return len(self._posts)

    @property
    def is_paused(self) -> bool:
        """Whether all workers are ended until ``resume``."""
        return not self._may_run.is_set()

    @property
    def pids(self) -> dict[int, int]:
        """The process ids, by worker, of those workers that have a process."""
        return {post.number: post.child.pid for post in self._posts if post.child is not None}

    def present(self) -> Sequence[int]:
        """Return the workers that are ready."""
        return [post.number for post in self._posts if post.is_ready]

    def free(self) -> Sequence[int]:
        """Return those of the ready workers that have no microbatch, as long as there is a place for its gradient."""
        return [post.number for post in self._posts if post.is_free] if self._free_slots else []

    async def start(self) -> None:
        """Start the workers; they are ready some seconds later."""
        for post in self._posts:
            self._tending.append(tending := asyncio.create_task(self._tend(post)))
            tending.add_done_callback(_tell_of_fault)

    async def load(self, parameters: Tensor, teacher: Tensor | None) -> None:
        """Put a state's parameters, and its teacher's, into shared memory; the workers take them with their next microbatch.

        Raises:
            RuntimeError: a microbatch is under way.
        """
        if any(post.slot is not None for post in self._posts):
            raise RuntimeError("no state is loaded while a microbatch is under way")
        await asyncio.to_thread(self._copy, parameters, teacher)
        self._number += 1

    def _copy(self, parameters: Tensor, teacher: Tensor | None) -> None:
        self._weights_N.copy_(parameters)
        if teacher is not None and teacher is not self._teacher:
            self._teacher_N.copy_(teacher)
        self._teacher = teacher

    async def train(self, worker: int, microbatch: Microbatch) -> TrainedMicrobatch:
        """See ``WorkerPool``. Who gives up waiting ends the worker: nobody else may have its place in memory before."""
        post = self._posts[worker]
        child = post.child
        if post.slot is not None or not self._free_slots:
            raise RuntimeError("a microbatch is for a worker that is free")
        if child is None or not post.is_ready:  # since it was seen to be free
            raise WorkerLost("it has ended, or everything is paused")
        slot = post.slot = heapq.heappop(self._free_slots)
        architecture, teaches = microbatch.architecture.text, int(self._teacher is not None)
        identity = (microbatch.run_seed, microbatch.base, microbatch.step, microbatch.key, microbatch.index)
        task = Task(self._number, teaches, slot, *identity, architecture, microbatch.samples, microbatch.augmentation)
        started_ms = now_ms()
        try:
            answer = await self._answered(child, task, post.timeout_s(self._timeouts))
        except BaseException:
            post.is_ready = False
            await asyncio.shield(child.kill("given up"))
            post.slot = None
            self._give_back(slot)
            raise
        if answer.missing:
            post.slot = None
            self._give_back(slot)
            raise SamplesMissing(answer.missing)
        took_ms = now_ms() - started_ms
        post.slot, post.ends, self._was_said = None, 0, False
        post.microbatches_s.append(took_ms / 1000)
        return TrainedMicrobatch(MicrobatchResult(self._gradients_SN[slot], answer.loss_value, microbatch.samples), took_ms, slot)

    async def _answered(self, child: Child, task: Task, timeout_s: float) -> WorkerAnswer:
        try:
            await child.say(task)
            answer = await child.hear(WorkerAnswer, timeout_s)
        except (ChildLost, UserError) as error:
            raise WorkerLost(str(error)) from error
        if (answer.slot, answer.index) != (task.slot, task.index):
            raise WorkerLost("it answered something else than it was asked")
        return answer

    def release(self, done: TrainedMicrobatch) -> None:
        """See ``WorkerPool``."""
        self._give_back(done.slot)

    def _give_back(self, slot: int) -> None:
        heapq.heappush(self._free_slots, slot)
        self.changes.note()

    async def pause(self) -> None:
        """End all workers, in the middle of their microbatches; returns when their memory and their devices are free."""
        self._may_run.clear()
        for post in self._posts:
            post.is_ready = False
        await self._end_all(_PAUSED)
        self.changes.note()

    async def resume(self) -> None:
        """Start the workers again."""
        for post in self._posts:
            post.ends = 0
        self._may_run.set()
        self._resumed.set()  # wakes those that wait, and nobody who comes later
        self._resumed.clear()
        self.changes.note()

    async def equip(self, devices: Sequence[Device], gpu_memory: int | None) -> None:
        """Let each worker have these threads and so much memory from now on: all are started again, and no microbatch is lost by it."""
        for post, device in zip(self._posts, devices, strict=True):
            post.device, post.is_ready = device, False
        self._gpu_memory = gpu_memory
        await self._end_all(_PAUSED)

    async def close(self) -> None:
        """End all workers, and give back the shared memory."""
        for tending in self._tending:
            tending.cancel()
        await asyncio.gather(*self._tending, return_exceptions=True)
        await self._end_all("the peer ends")
        for region in (self._state, self._gradients):
            region.close()
        self._data.close()

    async def _end_all(self, reason: str) -> None:
        await asyncio.gather(*(post.child.kill(reason) for post in self._posts if post.child is not None))

    # A worker's life, again and again.

    async def _tend(self, post: _Post) -> None:
        while True:
            await self._may_run.wait()
            reason = await self._live(post)
            if reason == _PAUSED:
                continue
            post.ends += 1
            pause_s = self._timeouts.restart.pause_s(post.ends)
            again = f"it is started again{f' in {pause_s:.0f} s' if pause_s >= 1 else ''}"
            logger.info("worker ended worker=%d device=%s reason=%s times=%d", post.number, post.device.name, reason, post.ends)
            if post.ends == 1:
                self.changes.note(f"{post} ended ({reason}); {again}, and the microbatch that it was at is done again")
            self._tell_of_trouble(reason)
            await wait_within(self._resumed, pause_s)

    async def _live(self, post: _Post) -> str:
        """Start a worker, and return when it has ended: why it did."""
        data = self._data
        device, memory = post.device, self._gpu_memory or 0
        given = (data.images, data.pairs, data.shards)
        setup = WorkerSetup(self._supernet, device.name, device.threads, memory, self._cuda_graphs, self._num_slots, *given)
        try:
            child = post.child = Child.start(_program(device, (self._state, self._gradients, data.region)))
        except OSError as error:
            return f"no process: {error.strerror}"
        try:
            if self.is_paused:
                return _PAUSED
            await child.say(setup)
            ready = await child.hear(Ready, self._timeouts.start_s)
            if ready.num_weights != self._count:
                return f"it has {ready.num_weights} weights, not {self._count}"
            logger.info("worker ready worker=%d device=%s pid=%d", post.number, ready.device, child.pid)
            post.is_ready = not self.is_paused
            self.changes.note()
            await child.ended()
        except (ChildLost, UserError) as error:
            return str(error)
        finally:
            post.is_ready = False
            await asyncio.shield(child.kill("the peer ends"))
            post.child = None
            self.changes.note()
        return child.reason

    def _tell_of_trouble(self, reason: str) -> None:
        """Say once what is wrong where no worker stays alive."""
        if self._was_said or any(post.ends < _ALARMING for post in self._posts):
            return
        self._was_said = True
        many = f"all {self.size} workers end" if self.size > 1 else "the worker ends"
        self.changes.note(
            f"{many} again and again ({reason}): nothing is computed; it is tried again, more and more seldom. Is memory short? "
            "Fewer --workers, other --gpus, or more --gpu-memory may help"
        )
