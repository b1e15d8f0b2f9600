"""A worker in a process of its own: takes lots from the peer, one at a time, and puts their gradients into shared memory.

Run as ``python -m peer.crew.worker_process PARENT SOCKET STATE GRADIENTS DATA``: the peer's process id, and descriptors that are inherited.
Knows no network. It ends with its peer, however that ends: Linux kills it then, and everywhere the end of the socket ends it, in the middle
of a lot too.
"""

import contextlib
import os
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from automl.data.dataset import Dataset
from automl.data.pairs import LazyPairs
from automl.data.shards.sharded_images import ShardedImages
from automl.data.shards.sharded_pairs import ShardedPairs
from automl.data.shared import shared_images
from automl.data.shared_pairs import SharedPairs
from automl.data.views import StereoDataset
from automl.graphs import CudaGraphs
from automl.memory import keep_freed_memory
from automl.shared_memory import Region
from automl.spaces.space import Architecture, space_named
from automl.training.lots import Lot, Worker
from peer.crew.worker_messages import (
    HEAD_BYTES,
    MAX_REASON,
    Answer,
    Failed,
    Message,
    Missing,
    PairsOf,
    Ready,
    Setup,
    ShardsOf,
    Task,
    framed,
    head,
    message_of,
)
from protocol.errors import MantaError, OwnFault, SamplesMissing
from swarm.tether import end_with_parent


class Computer:
    """What this process computes with: the supernet on a device, and the shared memory."""

    def __init__(self, setup: Setup, state: Region, gradients: Region, data: Region) -> None:
        """Get ready for lots.

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

    def train(self, task: Task) -> Answer:
        """Put the gradient of a task's lot into its slot."""
        if task.state != self._state:
            self._take_over(self._teacher_N if task.teaches else None)
            self._state = task.state
        architecture = Architecture.parse(task.architecture, self._space)
        lot = Lot(task.run_seed, task.base, task.step, task.key, task.index, architecture, task.samples, task.augmentation)
        result = self._worker.train(lot)
        self._gradients_SN[task.slot].copy_(result.gradient)
        return Answer(task.slot, task.index, struct.pack(">d", result.loss))

    def _take_over(self, teacher_N: Tensor | None) -> None:
        """Use the state that is in shared memory now: on the CPU where it lies."""
        self._worker.load(self._weights_N, in_place=self._is_on_cpu)
        self._worker.teach(teacher_N, in_place=self._is_on_cpu)


def _dataset(setup: Setup, data: Region) -> Dataset:
    if setup.images:
        return shared_images(setup.images[0], data)
    if setup.pairs:
        return _opened(setup.pairs[0], data)
    if setup.shards:
        return _sharded(setup.shards[0])
    raise OwnFault("a worker was given no data")


def _sharded(shards: ShardsOf) -> Dataset:
    from automl.data.catalog import load_dataset  # as below

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


def _opened(pairs: PairsOf, data: Region) -> Dataset:
    from automl.data.catalog import load_dataset  # here: it takes seconds, and a worker that has its images does without

    dataset = _part_of(load_dataset(pairs.name, Path(pairs.root) if pairs.root else None), pairs.shards)
    if not isinstance(dataset, StereoDataset):
        raise OwnFault(f"{pairs.name} is no set of stereo pairs")
    if isinstance(dataset.train, LazyPairs):
        dataset.train.keep(0)
    return replace(dataset, train=SharedPairs(dataset.train, data, pairs.place_bytes))


class Line:
    """The socket to the peer. A thread of its own reads it, so that its end is noticed in the middle of a lot."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def listen(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Message:
        """Wait for what the peer says next."""
        return self._messages.get()

    def send(self, message: Message) -> None:
        """Say something to the peer."""
        with contextlib.suppress(OSError):  # it is gone, and the reading thread ends this process
            self._connection.sendall(framed(message))

    def _read(self) -> None:
        try:
            while True:
                length, kind = head(self._exactly(HEAD_BYTES))
                self._messages.put(message_of(kind, self._exactly(length)))
        except (OSError, EOFError):
            os._exit(0)
        except BaseException:  # noqa: BLE001 - of this process's outermost loops
            traceback.print_exc()
            os._exit(1)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._connection.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data


def serve(line: Line, state: Region, gradients: Region, data: Region) -> None:
    """Do what the peer says, without an end."""
    setup = line.next()
    if not isinstance(setup, Setup):
        raise OwnFault("a worker was given a lot before it was told what it is")
    computer = Computer(setup, state, gradients, data)
    line.send(Ready(computer.device, computer.num_weights))
    while True:
        task = line.next()
        if not isinstance(task, Task):
            raise OwnFault("a worker was given something else than a lot")
        try:
            line.send(computer.train(task))
        except SamplesMissing as error:
            line.send(Missing(task.slot, task.index, str(error)[:MAX_REASON]))


def main() -> None:
    """Be a worker."""
    parent, descriptor, *others = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    if not end_with_parent(parent):
        return
    line = Line(socket.socket(fileno=descriptor))
    line.listen()
    state, gradients, data = map(Region.inherited, others)
    try:
        serve(line, state, gradients, data)
    except (MantaError, torch.cuda.OutOfMemoryError) as error:
        line.send(Failed(" ".join(str(error).split())[:MAX_REASON]))
    except Exception as error:  # noqa: BLE001 - the outermost loop of this process
        traceback.print_exc()
        line.send(Failed(" ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]))
    sys.stderr.flush()
    os._exit(1)  # what else Python does at its end would wait for the device


if __name__ == "__main__":
    main()
