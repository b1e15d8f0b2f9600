"""docs/protocol.md's example of a sparse chunk against the code."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.codec.coding import body_num_bytes, encode, parse
from manta_swarm.codec.residuals import left_over
from manta_swarm.protocol.exchange import CHUNK, GROUP_VALUES, codec_named
from tests.codec import reference

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
CODEC, MIN_EXPONENT = "topk-512-4", -5


def example(second: float, elsewhere: float) -> tuple[np.ndarray, bytes]:
    values = np.full(16, elsewhere, np.float32)
    values[[3, 11]] = -0.875, second
    return values, encode(CODEC, values, MIN_EXPONENT)


def numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def fields(data: bytes) -> tuple[str, str]:
    """Positions and integers of an example."""
    (block,) = parse(CODEC, data, 16).blocks()
    assert block.positions is not None
    return numbers(block.positions[0]), numbers(block.integers[0])


def rows() -> list[tuple[str, str]]:
    values, data = example(0.78, 0.1)
    body = parse(CODEC, data, 16)
    positions, integers = fields(data)
    low, high = reference.sparse_fields(16, [3, 11])
    codes = " ".join(reference.number(code, 4) for code in (-7 + 7, 6 + 7))
    decoded, left = body.values(MIN_EXPONENT), left_over(values, body, MIN_EXPONENT)
    _, hollow = example(0.05, 0.0)
    return [
        ("a chunk of 16 values: -0.875 at 3, 0.78 at 11, 0.1 elsewhere", f"`{data.hex()}`"),
        ("its exponent; positions; integers", f"{body.max_exponent}; {positions}; {integers}"),
        ("its low bits, high bits, integers, in the order in which they are written", f"{low[:3]} {low[3:]}; {high}; {codes}"),
        ("what it decodes to at 3, at 11, elsewhere", numbers(decoded[[3, 11, 0]])),
        ("what is left at 3, at 11, elsewhere, rounded to 6 digits", numbers(left[[3, 11, 0]])),
        (
            "-0.875 at 3, 0.05 at 11, which is coded to 0, 0 elsewhere: bytes; positions; integers",
            "; ".join((f"`{hollow.hex()}`", *fields(hollow))),
        ),
    ]


@pytest.mark.parametrize(("what", "value"), rows())
def test_the_example_is_what_the_code_makes_of_it(what: str, value: str) -> None:
    assert f"| {what} | {value} |" in DOCUMENT


def test_sizes_and_ranges_are_those_of_the_document() -> None:
    sizes = [body_num_bytes(codec, CHUNK) for codec in ("topk-256-4", "topk-64-2")]
    assert "So `topk-256-4` has {} bytes for a whole chunk, `topk-64-2` {}.".format(*sizes) in DOCUMENT
    groups = [f"{body_num_bytes(codec, GROUP_VALUES):,}" for codec in ("int16", "int8", "topk-256-4")]
    assert "{} bytes in `int16`, {} in `int8`, {} in `topk-256-4`".format(*groups) in DOCUMENT
    dense = [codec_named(codec) for codec in ("int16", "int8")]
    assert f"| `int16`, `int8` | {dense[0].limit}, {dense[1].limit} | 0..{dense[0].window - 1} |" in DOCUMENT
    assert f"| 2^(B-1) - 1 | 0..{codec_named('topk-1-2').window - 1} |" in DOCUMENT
