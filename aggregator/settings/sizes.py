"""What a run's contributions take on the disk and in memory, and how bytes are said to people."""

from exact.coding import body_num_bytes
from protocol.exchange import CHUNK, codec_named

_PARSED_BYTES = 3  # a kept value of a sparse body, once it is parsed: its position and its integer
_TABLES = 2  # that are held at once: the open round's and the next one's


def held_bytes(codec: str, num_weights: int, max_rows: int) -> int:
    """Return how much memory the bodies may take that a log holds at a time; a dense one is read where it lies."""
    coded = codec_named(codec)
    chunks = -(-num_weights // CHUNK)
    parsed = _PARSED_BYTES * coded.kept * chunks if coded.is_sparse else 0
    return _TABLES * max_rows * (body_num_bytes(codec, num_weights) + parsed)


def in_words(num_bytes: float) -> str:
    """Return a number of bytes as people read it."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"
