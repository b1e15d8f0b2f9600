"""A worker in a process of its own: takes microbatches from the peer, one at a time, and puts their gradients into shared memory.

Run as ``python -m manta_swarm.peer.workers.worker_process STATE GRADIENTS DATA``: descriptors that are inherited. Knows no network.
"""

import struct
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.pairs import LazyPairs
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.automl.data.views import StereoDataset
from manta_swarm.automl.devices import CudaGraphs
from manta_swarm.automl.environment import keep_freed_memory
from manta_swarm.automl.shared_memory import SharedPairs, SharedRegion, shared_images
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.peer.workers.worker_messages import MESSAGES, PairsOf, Ready, ShardsOf, Task, WorkerAnswer, WorkerSetup
from manta_swarm.protocol.errors import OwnFault, SamplesMissing
from manta_swarm.runtime.line import MAX_REASON, Parent, be_child


class Computer:
    """Computes microbatches in this process: it has the supernet on a device, and the shared memory."""

    def __init__(self, setup: WorkerSetup, state: SharedRegion, gradients: SharedRegion, data: SharedRegion) -> None:
        """Get ready for microbatches.

        Raises:
            MantaError, RuntimeError: the device, the data or the memory are not what the peer says.
        """
        torch.set_num_threads(setup.threads)
        self._space = space_named(setup.supernet)
        self._is_on_cpu = setup.device == "cpu"
        if not self._is_on_cpu:
            torch.cuda.set_device(setup.device)
            if setup.gpu_memory:
                there = torch.cuda.get_device_properties(setup.device).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, setup.gpu_memory / there), setup.device)
        recorder = CudaGraphs() if setup.cuda_graphs and not self._is_on_cpu else None
        self._worker = Worker(setup.supernet, _dataset(setup, data), setup.device, recorder=recorder)
        self._worker.warm_up()
        count = self.num_weights
        self._weights_N, self._teacher_N = state.floats(is_writable=False).view(2, -1)[:, :count]
        self._gradients_SN = gradients.floats(is_writable=True).view(setup.slots, -1)[:, :count]
        self._state = 0  # number of the one that the worker has; the peer counts from 1
        self.device = setup.device if self._is_on_cpu else torch.cuda.get_device_name(setup.device)

    @property
    def num_weights(self) -> int:
        """N."""
        return self._worker.num_weights

    def train(self, task: Task) -> WorkerAnswer:
        """Put the gradient of a task's microbatch into its slot."""
        if task.state != self._state:
            self._take_over(self._teacher_N if task.teaches else None)
            self._state = task.state
        architecture = Architecture.parse(task.architecture, self._space)
        microbatch = Microbatch(task.run_seed, task.base, task.step, task.key, task.index, architecture, task.samples, task.augmentation)
        result = self._worker.train(microbatch)
        self._gradients_SN[task.slot].copy_(result.gradient)
        return WorkerAnswer(task.slot, task.index, struct.pack(">d", result.loss), "")

    def _take_over(self, teacher_N: Tensor | None) -> None:
        """Use the state that is in shared memory now: on the CPU where it lies."""
        self._worker.load(self._weights_N, in_place=self._is_on_cpu)
        self._worker.teach(teacher_N, in_place=self._is_on_cpu)


def _dataset(setup: WorkerSetup, data: SharedRegion) -> Dataset:
    if setup.images:
        return shared_images(setup.images[0], data)
    if setup.pairs:
        return _opened(setup.pairs[0], data)
    if setup.shards:
        return _sharded(setup.shards[0])
    raise OwnFault("a worker was given no data")


def _sharded(shards: ShardsOf) -> Dataset:
    from manta_swarm.automl.data.catalog import load_dataset  # as below

    dataset = load_dataset(shards.name, Path(shards.root))
    if dataset.digest != shards.digest:
        raise OwnFault(f"the list of {shards.name} was changed meanwhile")
    return _part_of(dataset, shards.shards)


def _part_of(dataset: Dataset, shards: tuple[int, ...]) -> Dataset:
    if not shards:
        return dataset
    if not isinstance(dataset, ShardedImages | ShardedPairs):
        raise OwnFault(f"{dataset.name} is no set in shards")
    return dataset.with_part(shards)


def _opened(pairs: PairsOf, data: SharedRegion) -> Dataset:
    from manta_swarm.automl.data.catalog import load_dataset  # here: it takes seconds, and a worker that has its images does without

    dataset = _part_of(load_dataset(pairs.name, Path(pairs.root) if pairs.root else None), pairs.shards)
    if not isinstance(dataset, StereoDataset):
        raise OwnFault(f"{pairs.name} is no set of stereo pairs")
    if isinstance(dataset.train, LazyPairs):
        dataset.train.keep(0)
    return replace(dataset, train=SharedPairs(dataset.train, data, pairs.place_bytes))


def work(parent: Parent) -> None:
    """Do what the peer says, without an end.

    Raises:
        OwnFault: it says something else than it may, or the device has too little memory.
    """
    state, gradients, data = map(SharedRegion.inherited, map(int, sys.argv[1:]))
    setup = parent.hear()
    if not isinstance(setup, WorkerSetup):
        raise OwnFault("a worker was given a microbatch before it was told what it is")
    try:
        computer = Computer(setup, state, gradients, data)
        parent.say(Ready(computer.device, computer.num_weights))
        while True:
            task = parent.hear()
            if not isinstance(task, Task):
                raise OwnFault("a worker was given something else than a microbatch")
            parent.say(_answer(computer, task))
    except torch.cuda.OutOfMemoryError as error:
        raise OwnFault(str(error)) from error


def _answer(computer: Computer, task: Task) -> WorkerAnswer:
    try:
        return computer.train(task)
    except SamplesMissing as error:
        return WorkerAnswer(task.slot, task.index, bytes(8), (str(error) or "samples are missing")[:MAX_REASON])


if __name__ == "__main__":
    keep_freed_memory()
    be_child(MESSAGES, work)
