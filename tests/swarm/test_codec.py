"""The codecs against NumPy's own conversions, and against bytes from strangers."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from protocol.errors import AttemptFailed, EncodingError
from swarm.codec import MAX_ABS, NAMES, decode, encode, encoded_size

VALUES = hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(-(2.0**64), 2.0**64, width=32))


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


@given(VALUES)
@settings(deadline=None)
def test_fp32_gives_back_the_same_bits_in_little_endian_order(array: np.ndarray) -> None:
    data = encode("fp32", torch.from_numpy(array))
    assert data == b"".join(struct.pack("<f", value) for value in array)
    assert decode("fp32", data, array.size).numpy().tobytes() == array.tobytes()


@given(VALUES)
@settings(deadline=None)
def test_fp16_errs_by_at_most_half_a_step_of_a_half_beside_the_largest_value(array: np.ndarray) -> None:
    found = decode("fp16", encode("fp16", torch.from_numpy(array)), array.size).numpy().astype(np.float64)
    exact = array.astype(np.float64)
    peak = float(np.abs(exact).max()) if array.size else 0.0
    # 11 significant bits; a value far below the peak is a denormal half, whose step is 2^-24 where the peak is 2^14 or more.
    bound = np.maximum(np.abs(exact) * 2.0**-11, peak * 2.0**-39 + 2.0**-149)
    assert (np.abs(found - exact) <= bound).all()


@given(VALUES, st.sampled_from(NAMES))
@settings(deadline=None)
def test_what_was_decoded_encodes_to_the_same_values_again(array: np.ndarray, name: str) -> None:
    once = decode(name, encode(name, torch.from_numpy(array)), array.size)
    assert decode(name, encode(name, once), array.size).numpy().tobytes() == once.numpy().tobytes()


@given(VALUES, st.sampled_from(NAMES))
@settings(deadline=None)
def test_the_size_is_known_before(array: np.ndarray, name: str) -> None:
    assert len(encode(name, torch.from_numpy(array))) == encoded_size(name, array.size)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-12, 1.0, 1e12, 1e18])
def test_fp16_keeps_its_precision_for_gradients_of_any_size(scale: float) -> None:
    values = tensor(*(scale * step / 7 for step in range(1, 8)))
    assert torch.allclose(decode("fp16", encode("fp16", values), 7), values, rtol=2.0**-10, atol=2.0**-149)


@given(VALUES)
@settings(deadline=None)
def test_fp16_is_numpys_half_of_the_scaled_value_and_decodes_to_numpys_float(array: np.ndarray) -> None:
    data = encode("fp16", torch.from_numpy(array))
    (exponent,) = struct.unpack_from("<h", data)
    halves = np.ldexp(array, -exponent).astype("<f2")
    assert data[2:] == halves.tobytes()
    assert decode("fp16", data, array.size).numpy().tobytes() == np.ldexp(halves.astype(np.float32), exponent).tobytes()


def test_every_half_decodes_as_numpy_decodes_it() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    for exponent in (-126, -1, 0, 48):
        found = decode("fp16", struct.pack("<h", exponent) + halves.astype("<f2").tobytes(), halves.size).numpy()
        assert found.tobytes() == np.ldexp(halves.astype(np.float32), exponent).tobytes()


def test_fp16_needs_no_scale_for_a_peak_just_below_two_to_the_fifteen() -> None:
    (exponent,) = struct.unpack_from("<h", encode("fp16", tensor(2.0**15 - 16, 1.0)))
    assert exponent == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.1e19, -2.1e19])
def test_a_vector_that_would_poison_the_mean_is_not_encoded(name: str, value: float) -> None:
    with pytest.raises(AttemptFailed, match="not finite, or far too large"):
        encode(name, tensor(0.5, value, 0.25))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.1e19, -2.1e19])
def test_values_that_would_poison_the_mean_are_refused(value: float) -> None:
    with pytest.raises(EncodingError, match="not finite, or far too large"):
        decode("fp32", struct.pack("<3f", 0.5, value, 0.25), 3)


@pytest.mark.parametrize("half", [math.nan, math.inf, -math.inf, 60_000.0])
def test_halves_that_would_poison_the_mean_are_refused(half: float) -> None:
    with pytest.raises(EncodingError, match="not finite, or far too large"):
        decode("fp16", struct.pack("<hee", 50, 0.5, half), 2)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_value_that_is_allowed_travels(name: str) -> None:
    values = tensor(MAX_ABS, -MAX_ABS)
    assert decode(name, encode(name, values), 2).equal(values)


@pytest.mark.parametrize("exponent", [-32768, -127, 51, 113, 32767])
def test_an_exponent_that_no_encoder_writes_is_refused(exponent: int) -> None:
    with pytest.raises(EncodingError, match="out of range"):
        decode("fp16", struct.pack("<he", exponent, 1.0), 1)


@given(st.binary(max_size=40), st.sampled_from(NAMES), st.integers(0, 20))
@settings(deadline=None)
def test_any_bytes_decode_to_usable_values_or_are_refused(data: bytes, name: str, count: int) -> None:
    try:
        values = decode(name, data, count)
    except EncodingError:
        return
    assert len(data) == encoded_size(name, count)
    assert values.dtype == torch.float32
    assert values.shape == (count,)
    assert bool((values.abs() <= MAX_ABS).all())


@pytest.mark.parametrize("name", NAMES)
def test_no_values_are_values_too(name: str) -> None:
    assert decode(name, encode(name, tensor()), 0).numel() == 0


def test_decoded_values_are_a_copy_of_the_bytes() -> None:
    buffer = bytearray(encode("fp32", tensor(1.0)))
    values = decode("fp32", memoryview(buffer), 1)
    buffer[:] = bytes(4)
    assert values.item() == 1.0
