"""What NVIDIA's driver says of its GPUs, by nvidia-ml-py: no device is opened by asking.

A machine without the driver has no GPUs here, and a question that a GPU does not answer has no answer. The only module that imports pynvml.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, by its index at the driver; None: it does not say."""

    name: str
    celsius: float | None
    watts: float | None
    memory_bytes: int | None
    memory_used_bytes: int | None  # by all programs


def driver() -> str | None:
    """Return the driver's version; None: there is no driver."""
    library = _library()
    version: str | None = None if library is None else _answer(library, library.nvmlSystemGetDriverVersion)
    return version


def gpus() -> list[Gpu]:
    """Return the GPUs of this computer in the driver's order."""
    library = _library()
    if library is None:
        return []
    count = _answer(library, library.nvmlDeviceGetCount) or 0
    devices = [_answer(library, library.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return [_gpu(library, device) for device in devices if device is not None]


@functools.cache
def _library() -> Any:
    """Return pynvml, ready for questions; None: there is no driver. It stays ready until the process ends."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _answer(library: Any, question: Callable[..., Any], *about: Any) -> Any:
    try:
        return question(*about)
    except library.NVMLError:  # an old driver, or a GPU that does not measure it
        return None


def _gpu(library: Any, device: Any) -> Gpu:
    celsius = _answer(library, library.nvmlDeviceGetTemperature, device, library.NVML_TEMPERATURE_GPU)
    milliwatts = _answer(library, library.nvmlDeviceGetPowerUsage, device)
    memory = _answer(library, library.nvmlDeviceGetMemoryInfo, device)
    return Gpu(
        _answer(library, library.nvmlDeviceGetName, device) or "a GPU",
        None if celsius is None else float(celsius),
        None if milliwatts is None else milliwatts / 1000,
        None if memory is None else int(memory.total),
        None if memory is None else int(memory.used),
    )
