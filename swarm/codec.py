"""How a vector of float32 becomes bytes and back; decoding is exact arithmetic, so the same bytes give the same values anywhere.

``fp32``: the values, little-endian. ``fp16``: an exponent (2 bytes), then half-precision values scaled by that power of two, so that
neither a large gradient overflows nor a small one sinks into denormals.
"""

import math
import struct

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.errors import AttemptFailed, EncodingError

NAMES = ("fp32", "fp16")
MAX_ABS = 2.0**64  # beyond it, a sum over 256 members with weights up to 2^48 could leave float32's range
_HALF_MAX_EXPONENT = 15  # the largest half is just below 2^16: the vector's peak is scaled to below 2^15
_MIN_EXPONENT, _MAX_EXPONENT = -126, math.frexp(MAX_ABS)[1] - _HALF_MAX_EXPONENT


def encoded_size(name: str, count: int) -> int:
    """Return how many bytes ``count`` values take."""
    return 4 * count if name == "fp32" else 2 + 2 * count


def check(values: Tensor) -> float:
    """Return the largest magnitude of ``values``, which may be encoded.

    Raises:
        AttemptFailed: a value is not a number or beyond ``MAX_ABS``, which would poison everybody's mean.
    """
    peak = _peak(values.numpy())
    if not peak <= MAX_ABS:
        raise AttemptFailed("a vector to be sent holds values that are not finite, or far too large")
    return peak


def encode(name: str, values: Tensor) -> bytes:
    """Return ``values`` (float32, one dimension, on the CPU) as bytes.

    Raises:
        AttemptFailed: as ``check``.
    """
    array, peak = values.numpy(), check(values)
    if name == "fp32":
        return bytes(array.astype("<f4", copy=False).tobytes())
    assert name == "fp16"
    exponent = max(math.frexp(peak)[1] - _HALF_MAX_EXPONENT, _MIN_EXPONENT) if peak else 0
    # Torch rounds to the nearest half as NumPy does, several times faster; a product with a power of two is exact.
    halves = (values * 2.0**-exponent).to(torch.float16).numpy()
    return struct.pack("<h", exponent) + bytes(halves.astype("<f2", copy=False).tobytes())


def decode(name: str, data: bytes | memoryview, count: int) -> Tensor:
    """Return the ``count`` values (float32) that ``data`` encodes.

    Raises:
        EncodingError: the wrong length, or values that are not finite or beyond ``MAX_ABS``.
    """
    if len(data) != encoded_size(name, count):
        raise EncodingError(f"{len(data)} bytes are not {count} values in {name}")
    if name == "fp32":
        array = np.frombuffer(data, dtype="<f4").astype(np.float32)
    else:
        (exponent,) = struct.unpack_from("<h", data)
        if not _MIN_EXPONENT <= exponent <= _MAX_EXPONENT:
            raise EncodingError(f"an exponent of {exponent} is out of range")
        halves = np.frombuffer(data, dtype="<f2", offset=2).astype(np.float16)
        array = torch.from_numpy(halves).to(torch.float32).mul_(2.0**exponent).numpy()
    if not _peak(array) <= MAX_ABS:
        raise EncodingError("values that are not finite, or far too large")
    return torch.from_numpy(array)


def _peak(array: npt.NDArray[np.float32]) -> float:
    """Return the largest magnitude, 0 for no values; not a number if one of them is none."""
    return max(float(array.max()), -float(array.min())) if array.size else 0.0
