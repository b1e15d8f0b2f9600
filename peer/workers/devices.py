"""What a peer computes on: one worker process for each GPU, some that share the CPU's threads, or the CPU in the peer's own process."""

import os
from dataclasses import dataclass

import torch

from manta_swarm.peer.config import NO_GPU
from manta_swarm.protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class Device:
    """What one worker computes on."""

    name: str  # torch's
    threads: int


@dataclass(frozen=True, slots=True)
class Devices:
    """What all workers of a peer compute on."""

    workers: tuple[Device, ...]
    is_in_process: bool  # one worker, and no process for it
    description: str

    @property
    def name(self) -> str:
        """Torch's names, for programs."""
        return ",".join(dict.fromkeys(worker.name for worker in self.workers))


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What a person lets a peer compute on."""

    gpus: str  # as ``--gpus`` says
    workers: int | None  # as ``--workers`` says
    threads: int  # all there are

    def with_threads(self, threads: int | None) -> Devices:
        """Return the devices for so many threads; None: all. Raises as ``choose_devices``."""
        return choose_devices(self.gpus, self.workers, threads or self.threads)


def choose_devices(gpus: str, workers: int | None, threads: int | None = None) -> Devices:
    """Return the devices for ``--gpus`` and ``--workers``; ``threads``, or as many as torch uses, are shared out among them.

    No GPU is touched: what computes on it is another process.

    Raises:
        UserError: a GPU that is not there, or --workers where GPUs compute.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to count them, no device is to be opened
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    chosen = list(range(available)) if gpus == "all" else [] if gpus == "none" else [int(index) for index in gpus.split(",")]
    for index in chosen:
        if index >= available:
            raise UserError(f"--gpus: GPU {index} is not there: {_what_there_is(available)}")
    threads = threads or torch.get_num_threads()
    if chosen:
        if workers is not None:
            verb = "is" if len(chosen) == 1 else "are"
            raise UserError(
                f"--workers shares out the CPU, but {_listed(chosen)} {verb} to compute, with a worker each: "
                "leave --workers out, or give --gpus none too"
            )
        made = tuple(Device(f"cuda:{index}", share) for index, share in zip(chosen, _shares(threads, len(chosen)), strict=True))
        return Devices(made, False, f"{_listed(chosen)}, a worker process each")
    reason = "no GPU was found" if gpus == "all" else "as --gpus says"
    shares = _shares(threads, workers or 1)
    made = tuple(Device("cpu", share) for share in shares)
    if len(made) == 1:
        return Devices(made, True, f"the CPU with {_threads(threads)} ({reason})")
    each = _threads(shares[0]) if len(set(shares)) == 1 else f"{shares[-1]} or {_threads(shares[0])}"
    return Devices(made, False, f"the CPU with {len(made)} worker processes of {each} ({reason})")


def _what_there_is(available: int) -> str:
    if available == 0:
        return NO_GPU
    there = "one GPU, 0" if available == 1 else f"{available} GPUs, 0 to {available - 1}"
    return f"this computer has {there}; they are named by index, not counted (see nvidia-smi)"


def _listed(indices: list[int]) -> str:
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _shares(threads: int, workers: int) -> list[int]:
    """Return how many of the threads each worker has: one at least, the first ones more where they don't divide."""
    each, more = divmod(threads, workers)
    return [max(1, each + (place < more)) for place in range(workers)]
