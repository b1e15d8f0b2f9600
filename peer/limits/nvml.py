"""What NVIDIA's driver says of its GPUs, by its own library (NVML): nothing is installed for it, and no device is opened by asking.

A machine without the driver has no GPUs here, and a question that a GPU does not answer has no answer.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_TEMPERATURE_GPU = 0
_TEXT_BYTES = 96


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, by its index at the driver; None: it does not say."""

    name: str
    celsius: float | None
    watts: float | None
    memory_bytes: int | None
    memory_used_bytes: int | None  # by all programs


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


@functools.cache
def _library() -> Any:
    """Return the library, ready for questions; None: there is none."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def driver() -> str | None:
    """Return the driver's version; None: there is no driver."""
    library, text = _library(), ctypes.create_string_buffer(_TEXT_BYTES)
    if library is None or library.nvmlSystemGetDriverVersion(text, _TEXT_BYTES) != 0:
        return None
    return text.value.decode("ascii", "replace")


def gpus() -> list[Gpu]:
    """Return the GPUs of this computer in the driver's order."""
    library, count = _library(), ctypes.c_uint()
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0:
            found.append(_gpu(library, device))
    return found


def _gpu(library: Any, device: ctypes.c_void_p) -> Gpu:
    name = ctypes.create_string_buffer(_TEXT_BYTES)
    celsius, milliwatts, memory = ctypes.c_uint(), ctypes.c_uint(), _Memory()
    has_name = library.nvmlDeviceGetName(device, name, _TEXT_BYTES) == 0
    has_celsius = library.nvmlDeviceGetTemperature(device, _TEMPERATURE_GPU, ctypes.byref(celsius)) == 0
    has_watts = library.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts)) == 0
    has_memory = library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
    return Gpu(
        name.value.decode("utf-8", "replace") if has_name else "a GPU",
        float(celsius.value) if has_celsius else None,
        milliwatts.value / 1000 if has_watts else None,
        int(memory.total) if has_memory else None,
        int(memory.used) if has_memory else None,
    )
