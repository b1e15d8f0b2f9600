"""What a peer and its worker processes say to each other: small records (``runtime.line``).

Vectors and data travel in shared memory (``automl.shared_memory``); a message says where.
"""

import struct
from dataclasses import dataclass

from manta_swarm.automl.shared_memory import ImagesIn
from manta_swarm.runtime.line import MAX_REASON, Messages


@dataclass(frozen=True, slots=True)
class PairsOf:
    """Names a stereo data set, which each worker opens: its pairs are read or made when they are asked for, and kept for all workers."""

    name: str
    root: str  # folder; empty: it needs none
    place_bytes: int  # see ``automl.shared_memory``
    shards: tuple[int, ...] = ()  # of a set in shards those to train with, where they are not all


@dataclass(frozen=True, slots=True)
class ShardsOf:
    """Names a set of images in shards, which each worker reads itself: the system keeps what is read of a file once for all."""

    name: str
    root: str  # folder
    digest: bytes
    shards: tuple[int, ...] = ()  # those to train with, where they are not all

    def __post_init__(self) -> None:
        if len(self.digest) != 32:
            raise ValueError("no digest")


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first message to a worker: the supernet, the device and the data."""

    supernet: str
    device: str  # torch's name
    threads: int
    gpu_memory: int  # bytes that torch may take on the device; 0: as many as there are
    cuda_graphs: int  # 1: microbatches are recorded and replayed, if the device is a GPU
    slots: int  # gradients that have a place in shared memory
    images: tuple[ImagesIn, ...]  # one, in shared memory, or none
    pairs: tuple[PairsOf, ...]  # one, kept in shared memory, or none
    shards: tuple[ShardsOf, ...]  # one, or none

    def __post_init__(self) -> None:
        if self.cuda_graphs not in (0, 1):
            raise ValueError("no setup")


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker's message that it waits for microbatches."""

    device: str  # in words
    num_weights: int


@dataclass(frozen=True, slots=True)
class Task:
    """The message to a worker to train a microbatch."""

    state: int  # counts up with each state that is put into shared memory
    teaches: int  # 1: there is a teacher beside it
    slot: int  # where the gradient goes
    run_seed: int
    base: bytes
    step: int
    key: bytes
    index: int
    architecture: str
    samples: int
    augmentation: int

    def __post_init__(self) -> None:
        if self.teaches not in (0, 1) or self.slot < 0 or self.samples < 1 or self.augmentation < 0:
            raise ValueError("no task")


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A worker's message after a task: the gradient is in its slot, or samples are not on this computer as they should be."""

    slot: int
    index: int
    loss: bytes  # binary64, big-endian
    missing: str  # why there is no gradient; empty: there is one

    def __post_init__(self) -> None:
        if len(self.loss) != 8 or len(self.missing) > MAX_REASON:
            raise ValueError("no answer")

    @property
    def loss_value(self) -> float:
        """The loss."""
        (loss,) = struct.unpack(">d", self.loss)
        return float(loss)


MESSAGES = Messages((WorkerSetup, Task), (Ready, WorkerAnswer))
