"""What manta-peer doctor finds, and what each diagnosis means: pure judgements of figures, each with what to do about it."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manta_swarm.peer.limits.sensors import Gpu

_MB, _GB = 10**6, 10**9
_WORKER_BYTES = 400 * _MB  # what one takes on the CPU, torch most of all
_LEAST_BYTES = 700 * _MB  # of free memory, for a peer of a small supernet
_LEAST_DISK, _SOME_DISK = 200 * _MB, _GB
_LEAST_FILES = 256  # open at a time: calls of others are some
_CLOCK_S = 3.0  # hivemind's DHT takes no records of a clock that is farther off
_SLOW_S = 1.0  # to the log and back


class Severity(enum.Enum):
    """How bad a finding is."""

    GOOD = "ok"
    NOTE = "note"  # it works as it is
    BAD = "bad"  # it does not


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at."""

    what: str
    state: Severity
    said: str
    remedy: str = ""

    def lines(self) -> list[str]:
        """Return the diagnosis for a person, in lines."""
        mark = {Severity.GOOD: "ok  ", Severity.NOTE: "note", Severity.BAD: "BAD "}[self.state]
        first = f"{mark}  {self.what}: {self.said}"
        return [first, f"      -> {self.remedy}"] if self.remedy else [first]


def exit_code(diagnoses: Iterable[Diagnosis]) -> int:
    """Return the doctor's exit code: 0 where a peer can take part, else 1."""
    return int(any(diagnosis.state is Severity.BAD for diagnosis in diagnoses))


def gpus(
    *, wants_none: bool, cards: int, driver: str | None, found: Sequence[Gpu], torch_cuda: str | None, torch_counts: int, version: str
) -> Diagnosis:
    """Judge the GPUs.

    Args:
        wants_none: the settings say that none is to compute.
        cards: of NVIDIA that the computer has, as far as it says.
        driver: its version; None: there is none.
        found: the driver's GPUs.
        torch_cuda: the CUDA version that torch was built for; None: for the CPU.
        torch_counts: GPUs that torch can use.
        version: torch's.
    """
    names = ", ".join(f"{gpu.name}{_memory(gpu)}" for gpu in found)
    if wants_none:
        return Diagnosis("GPUs", Severity.GOOD, "none is to compute, as the settings say")
    if not found and not cards:
        return Diagnosis("GPUs", Severity.NOTE, "there is no NVIDIA GPU: the CPU computes")
    if driver is None:
        said = f"there {'is one' if cards == 1 else f'are {cards}'} of NVIDIA, and no driver"
        return Diagnosis("GPUs", Severity.BAD, said, "install NVIDIA's driver (nvidia-smi then lists them), or give --gpus none")
    if torch_cuda is None:
        remedy = "install torch and torchvision for CUDA, both from the same index (https://pytorch.org/get-started/locally/)"
        return Diagnosis(
            "GPUs", Severity.BAD, f"{names}; but this torch ({version}) is built for the CPU", f"{remedy}, or give --gpus none"
        )
    if torch_counts == 0:
        said = f"{names}; but torch (built for CUDA {torch_cuda}) cannot use them with driver {driver}"
        return Diagnosis("GPUs", Severity.BAD, said, "update the driver, look at CUDA_VISIBLE_DEVICES, or give --gpus none")
    some = "" if torch_counts == len(found) else f"; torch sees {torch_counts} of them (CUDA_VISIBLE_DEVICES?)"
    return Diagnosis("GPUs", Severity.GOOD, f"{names}, driver {driver}{some}")


def operators(answer: Sequence[bool], quorum: int) -> Diagnosis:
    """Judge which of a run's several operators answer; ``quorum`` of them keep its rounds going."""
    there = sum(answer)
    said = f"{there} of {len(answer)} answer"
    if there == len(answer):
        return Diagnosis("operators", Severity.GOOD, said)
    if there >= quorum:
        return Diagnosis("operators", Severity.NOTE, said, "nothing: your peer talks to any of them")
    return Diagnosis("operators", Severity.BAD, said, f"rounds need {quorum} of them: ask them whether the run's log is up")


def memory(available_bytes: int, workers: int) -> Diagnosis:
    """Judge the free memory for so many worker processes; 0: the peer's own process computes."""
    need = _LEAST_BYTES + workers * _WORKER_BYTES
    said = f"{available_bytes / _GB:.1f} GB are free, a peer takes about {need / _GB:.1f} GB, more where the supernet is large"
    if available_bytes >= need:
        return Diagnosis("memory", Severity.GOOD, said)
    return Diagnosis("memory", Severity.BAD, said, "close something, give fewer --workers, or take part with --light, which needs 0.3 GB")


def disk(free_bytes: int, directory: str) -> Diagnosis:
    """Judge the free space where the peer's files are."""
    said = f"{free_bytes / _GB:.1f} GB are free at {directory}"
    if free_bytes < _LEAST_DISK:
        return Diagnosis(
            "disk", Severity.BAD, said, "make room, or choose another --dir: what is trained is kept there until it is handed in"
        )
    if free_bytes < _SOME_DISK:
        return Diagnosis("disk", Severity.NOTE, said, "a large supernet needs more")
    return Diagnosis("disk", Severity.GOOD, said)


def room(free_bytes: int, lacking_bytes: int, directory: str) -> Diagnosis:
    """Judge whether there is room for what a run makes this peer keep; ``lacking_bytes`` of it are not there yet."""
    said = f"the run takes about {lacking_bytes / _GB:.2f} GB more at {directory}, where {free_bytes / _GB:.1f} GB are free"
    if free_bytes - lacking_bytes >= _LEAST_DISK:
        return Diagnosis("disk for the run", Severity.GOOD, said)
    remedy = "make room, or choose another --dir: a peer whose disk is full ends (manta-peer about says what takes how much)"
    return Diagnosis("disk for the run", Severity.BAD, said, remedy)


def threads(usable: int, there: int, wanted: int | None) -> Diagnosis:
    """Judge the threads: those that this process may run on, those of the computer, and those of the settings."""
    said = f"{usable} can be used" + (f" of {there}" if there != usable else "")
    if wanted is not None and wanted > usable:
        return Diagnosis(
            "threads", Severity.NOTE, f"{said}, the settings say {wanted}", f"give --cpu-threads {usable}: more wait for each other"
        )
    return Diagnosis("threads", Severity.GOOD, said + ("" if wanted is None else f", {wanted} are to compute"))


def files(limit: int | None) -> Diagnosis:
    """Judge how many files this process may have open."""
    if limit is None or limit >= _LEAST_FILES:
        return Diagnosis("open files", Severity.GOOD, "as many as needed" if limit is None else f"up to {limit}")
    return Diagnosis("open files", Severity.BAD, f"up to {limit}, which is too few for calls of others", "raise it: ulimit -n 1024")


def clock(ahead_s: float, took_s: float) -> Diagnosis:
    """Judge how far the log's clock is ahead of this computer's, asked in so long a time."""
    behind = "behind" if ahead_s > 0 else "ahead of"
    said = (
        f"{abs(ahead_s):.1f} s {behind} the log's" if abs(ahead_s) > took_s / 2 else f"the log's, to within {max(took_s / 2, 0.01):.2f} s"
    )
    if abs(ahead_s) - took_s / 2 <= _CLOCK_S:
        return Diagnosis("clock", Severity.GOOD, said)
    remedy = "set it by the network (timedatectl set-ntp true): others do not find a peer whose clock is more than 3 s off"
    return Diagnosis("clock", Severity.BAD, said, remedy)


def aggregator(address: str, answers: bool, took_s: float | None) -> Diagnosis:
    """Judge one of the run's addresses; ``took_s``: to the log and back."""
    if not answers:
        remedy = "is it the whole address? does the aggregator run, and is its port open? does this network let TCP out?"
        return Diagnosis("aggregator", Severity.BAD, f"{address} does not answer", remedy)
    if took_s is not None and took_s > _SLOW_S:
        return Diagnosis(
            "aggregator", Severity.NOTE, f"{address} answers after {took_s:.1f} s", "a slow line; it may do, with a run of long rounds"
        )
    return Diagnosis("aggregator", Severity.GOOD, f"{address} answers" + ("" if took_s is None else f" within {1000 * took_s:.0f} ms"))


def _memory(gpu: Gpu) -> str:
    if gpu.memory_bytes is None:
        return ""
    used = "" if gpu.memory_used_bytes is None else f", {gpu.memory_used_bytes / _GB:.1f} in use"
    return f" ({gpu.memory_bytes / _GB:.0f} GB{used})"


def travelling(dataset: str, size_bytes: int, limit_bytes: int | None) -> Diagnosis:
    """Judge a data set whose shards come from other peers."""
    size = f"{size_bytes / _GB:,.2f} GB"
    if limit_bytes is None or size_bytes <= limit_bytes:
        return Diagnosis("data", Severity.GOOD, f"{dataset}, {size}, comes from other peers at the first start")
    said = (
        f"{dataset}, {size}, comes from other peers, of which --data-limit allows {limit_bytes / _GB:,.2f} GB: training draws from a part"
    )
    return Diagnosis("data", Severity.NOTE, said, "with a larger --data-limit more of it is trained on here")
