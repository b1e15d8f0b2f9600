"""docs/protocol.md's sizes of groups, and its ranges, against the code."""

from pathlib import Path

from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.protocol.exchange import GROUP_VALUES, codec_named

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_sizes_and_ranges_are_those_of_the_document() -> None:
    groups = [f"{body_num_bytes(codec, GROUP_VALUES):,}" for codec in ("int16", "int8", "topk-256-4", "topk-64-2")]
    assert "{} bytes in `int16`, {} in `int8`, {} in `topk-256-4`, {} in `topk-64-2`".format(*groups) in DOCUMENT
    dense = [codec_named(codec) for codec in ("int16", "int8")]
    assert f"| `int16`, `int8` | {dense[0].limit}, {dense[1].limit} | 0..{dense[0].window - 1} |" in DOCUMENT
    assert f"| 2^(B-1) - 1 | 0..{codec_named('topk-1-2').window - 1} |" in DOCUMENT
