"""The mean's canonical bytes: what one peer writes another reads to the same bits, and anything else is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.encoding import pack
from protocol.errors import EncodingError
from protocol.signing import sha256
from swarm import codec
from swarm.mean import Mean, _Header, max_mean_bytes


def mean_of(codec_name: str, counts: list[int], seed: int = 0) -> Mean:
    values = torch.randn(sum(counts), generator=torch.Generator().manual_seed(seed))
    pieces = [codec.encode(codec_name, piece) for piece in values.split(counts)]
    decoded = [codec.decode(codec_name, data, count) for data, count in zip(pieces, counts, strict=True)]
    return Mean.join(codec_name, pieces, decoded)


def bytes_of(header: _Header, body: bytes) -> bytes:
    packed = pack(header)
    return len(packed).to_bytes(4, "big") + packed + body


@given(st.sampled_from(codec.NAMES), st.lists(st.integers(0, 30), min_size=1, max_size=8))
@settings(deadline=None)
def test_a_mean_that_is_fetched_has_the_same_bits_as_the_one_that_was_reduced(codec_name: str, counts: list[int]) -> None:
    mean = mean_of(codec_name, counts)
    fetched = Mean.parse(mean.data, sum(counts), codec_name)
    assert fetched.data == mean.data
    assert fetched.digest == mean.digest == sha256(mean.data)
    assert fetched.values.numpy().tobytes() == mean.values.numpy().tobytes()
    assert len(mean.data) <= max_mean_bytes(sum(counts))


def test_the_values_of_an_fp32_mean_are_the_vector_that_went_in() -> None:
    values = torch.randn(10, generator=torch.Generator().manual_seed(3))
    assert mean_of("fp32", [4, 6], seed=3).values.equal(values)


def test_the_digest_covers_how_the_vector_was_cut() -> None:
    assert mean_of("fp32", [4, 6]).digest != mean_of("fp32", [5, 5]).digest


def test_a_mean_of_another_size_or_codec_is_refused() -> None:
    mean = mean_of("fp16", [4, 6])
    for num_values, codec_name in ((9, "fp16"), (11, "fp16"), (10, "fp32")):
        with pytest.raises(EncodingError, match="another size or codec"):
            Mean.parse(mean.data, num_values, codec_name)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((), "another size"),
        ((-2, 4), "another size"),
        ((3,), "another size"),
        ((1,) * 65_500, "another size"),
        ((1,) * 65_537, "items"),
        ((2**62, 2 - 2**62), "another size"),
    ],
)
def test_a_header_that_does_not_add_up_is_refused(counts: tuple[int, ...], reason: str) -> None:
    with pytest.raises(EncodingError, match=reason):
        Mean.parse(bytes_of(_Header("fp32", counts), bytes(8)), 2, "fp32")


def test_a_mean_with_bytes_missing_or_left_over_is_refused() -> None:
    data = mean_of("fp32", [4, 6]).data
    for wrong in (data[:-1], data + b"\x00"):
        with pytest.raises(EncodingError, match="missing or left over"):
            Mean.parse(wrong, 10, "fp32")


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(EncodingError, match="not finite"):
        Mean.parse(bytes_of(_Header("fp32", (1,)), b"\x00\x00\xc0\x7f"), 1, "fp32")


@given(st.data())
@settings(deadline=None)
def test_a_changed_mean_is_refused_or_has_another_digest(data: st.DataObject) -> None:
    mean = mean_of("fp16", [3, 2])
    at = data.draw(st.integers(0, len(mean.data) - 1))
    changed = mean.data[:at] + bytes([mean.data[at] ^ data.draw(st.integers(1, 255))]) + mean.data[at + 1 :]
    try:
        assert Mean.parse(changed, 5, "fp16").digest != mean.digest
    except EncodingError:
        pass


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_bytes_that_are_no_mean_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        Mean.parse(data, 5, "fp16")
