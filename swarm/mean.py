"""The mean of a round as one byte string: what owners encoded once and everybody decodes, so that it is the same at every peer."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.signing import Digest, sha256
from swarm import codec

_MAX_PIECES = 65_536
_HEADER_LENGTH_BYTES = 4
_MAX_HEADER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Header:
    codec: str
    pieces: tuple[int, ...]  # values in each piece, in the vector's order


@dataclass(frozen=True, slots=True)
class Mean:
    """An averaged gradient: its canonical bytes, their digest and the values (float32, one dimension)."""

    data: bytes
    digest: Digest
    values: Tensor

    @classmethod
    def join(cls, codec_name: str, pieces: Sequence[bytes | memoryview], values: Sequence[Tensor]) -> "Mean":
        """Return the mean of the pieces that the owners encoded, in the vector's order; ``values`` is what they decode to."""
        header = pack(_Header(codec_name, tuple(piece.numel() for piece in values)))
        data = b"".join((len(header).to_bytes(_HEADER_LENGTH_BYTES, "big"), header, *pieces))
        return cls(data, sha256(data), torch.cat(list(values)))

    @classmethod
    def parse(cls, data: bytes, num_values: int, codec_name: str) -> "Mean":
        """Return the mean whose canonical bytes are ``data``.

        Raises:
            EncodingError: not a mean of ``num_values`` values in the run's codec.
        """
        size = int.from_bytes(data[:_HEADER_LENGTH_BYTES], "big")
        start = _HEADER_LENGTH_BYTES + size
        if size > _MAX_HEADER_BYTES or len(data) < start:
            raise EncodingError("a mean without its header")
        header = unpack(_Header, data[_HEADER_LENGTH_BYTES:start], max_bytes=_MAX_HEADER_BYTES)
        counts = list(header.pieces)
        if header.codec != codec_name or not 0 < len(counts) <= _MAX_PIECES or min(counts) < 0 or sum(counts) != num_values:
            raise EncodingError("a mean of another size or codec than the run's")
        sizes = [codec.encoded_size(codec_name, count) for count in counts]
        if len(data) != start + sum(sizes):
            raise EncodingError("a mean with bytes missing or left over")
        starts = itertools.accumulate(sizes, initial=start)
        values = [codec.decode(codec_name, data[at : at + size], count) for at, size, count in zip(starts, sizes, counts, strict=False)]
        return cls(data, sha256(data), torch.cat(values))


def max_mean_bytes(num_values: int) -> int:
    """Return how large a mean of ``num_values`` values can be in any codec."""
    return 4 * num_values + 2 * _MAX_PIECES + _MAX_HEADER_BYTES
