"""What a peer and its worker processes say to each other: small records, each after its length (4 bytes, big-endian) and its kind (1).

Vectors and data travel in shared memory (``automl.shared_memory``); a message says where. Whatever is not exactly what is expected is
refused.
"""

import struct
from dataclasses import dataclass
from typing import TypeAlias

from automl.data.shared import ImagesIn
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError

MAX_BYTES = 65_536
HEAD_BYTES = 5
MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class PairsOf:
    """A stereo data set, which each worker opens by its name: its pairs are read or made when they are asked for, and kept for all."""

    name: str
    root: str  # folder; empty: it needs none
    place_bytes: int  # see ``automl.data.shared_pairs``
    shards: tuple[int, ...] = ()  # of a set in shards those to train with, where they are not all


@dataclass(frozen=True, slots=True)
class ShardsOf:
    """A set of images in shards, which each worker reads itself: the system keeps what is read of a file once for all."""

    name: str
    root: str  # folder
    digest: bytes
    shards: tuple[int, ...] = ()  # those to train with, where they are not all

    def __post_init__(self) -> None:
        if len(self.digest) != 32:
            raise ValueError("no digest")


@dataclass(frozen=True, slots=True)
class Setup:
    """To a worker, first of all: what it is."""

    supernet: str
    device: str  # torch's name
    threads: int
    gpu_memory: int  # bytes that torch may take on the device; 0: as many as there are
    cuda_graphs: int  # 1: lots are recorded and replayed, if the device is a GPU
    slots: int  # gradients that have a place in shared memory
    images: tuple[ImagesIn, ...]  # one, in shared memory, or none
    pairs: tuple[PairsOf, ...]  # one, kept in shared memory, or none
    shards: tuple[ShardsOf, ...]  # one, or none

    def __post_init__(self) -> None:
        if self.cuda_graphs not in (0, 1):
            raise ValueError("no setup")


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: it waits for lots."""

    device: str  # in words
    num_weights: int


@dataclass(frozen=True, slots=True)
class Task:
    """To a worker: train this lot."""

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
class Answer:
    """From a worker: the gradient is in its slot."""

    slot: int
    index: int
    loss: bytes  # binary64, big-endian

    def __post_init__(self) -> None:
        if len(self.loss) != 8:
            raise ValueError("no answer")

    @property
    def loss_value(self) -> float:
        """The loss."""
        (loss,) = struct.unpack(">d", self.loss)
        return float(loss)


@dataclass(frozen=True, slots=True)
class Missing:
    """From a worker: a lot needs samples that this computer has not got as they should be; it waits for another one."""

    slot: int
    index: int
    reason: str

    def __post_init__(self) -> None:
        if len(self.reason) > MAX_REASON:
            raise ValueError("a reason that is too long")


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker, last of all: why it ends."""

    reason: str

    def __post_init__(self) -> None:
        if len(self.reason) > MAX_REASON:
            raise ValueError("a reason that is too long")


Message: TypeAlias = Setup | Ready | Task | Answer | Failed | Missing

_KINDS: tuple[type[Message], ...] = (Setup, Ready, Task, Answer, Failed, Missing)


def framed(message: Message) -> bytes:
    """Return the bytes of a message, with its head."""
    data = pack(message)
    return struct.pack(">IB", len(data), _KINDS.index(type(message))) + data


def head(data: bytes) -> tuple[int, int]:
    """Return the length and the kind of the message that comes after these ``HEAD_BYTES``.

    Raises:
        EncodingError: there is no such kind, or it is too long.
    """
    length, kind = struct.unpack(">IB", data)
    if kind >= len(_KINDS) or length > MAX_BYTES:
        raise EncodingError(f"no message: kind {kind}, {length} bytes")
    return length, kind


def message_of(kind: int, data: bytes) -> Message:
    """Return the message of a kind.

    Raises:
        EncodingError: it is not one.
    """
    return unpack(_KINDS[kind], data, max_bytes=MAX_BYTES)
