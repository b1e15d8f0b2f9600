"""Writes docs/supernets.json, which docs/training.md refers to: python -m tests.docs.supernets

Of each supernet it has the weights in the order of the state, the price of each gene, and architectures with what they cost and cover.
"""

import json
from typing import Any

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.cost import cost_table, macs, num_weights
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.automl.training.coverage import coverage
from manta_swarm.automl.training.schedule import drawn
from manta_swarm.protocol.cohorts import NUM_SIZES
from manta_swarm.protocol.signing import sha256
from tests.documents import ROOT

PATH = ROOT / "docs" / "supernets.json"
NAMES = ("classifier-tiny", "classifier-base", "stereo-tiny", "stereo-base")


def architectures(space: SearchSpace) -> dict[str, Architecture]:
    """Return some architectures by what makes them: a role, or the text that a random one is drawn with and its size."""
    ends = {"smallest": space.smallest(), "largest": space.largest()}
    return ends | {f"0:1:2, size {size}": drawn(space, space, size, "0:1:2") for size in range(1, NUM_SIZES + 1)}


def of_supernet(name: str) -> dict[str, Any]:
    """Return what the file says of a supernet."""
    space = space_named(name)
    supernet = build(space)
    shapes = dict(supernet.named_parameters())
    return {
        "weights": [[weight, list(shapes[weight].shape)] for weight in supernet.slices()],
        "prices": dict(sorted(cost_table(space))),
        "architectures": {
            made: {
                "text": each.text,
                "macs": macs(each, space),
                "weights": num_weights(each, space),
                "coverage": sha256(coverage(space, each).tobytes()).hex(),
            }
            for made, each in architectures(space).items()
        },
    }


def text() -> str:
    """Return the file: a weight and an architecture a line, the prices of a supernet in one."""
    parts = []
    for name in NAMES:
        each = of_supernet(name)
        weights = ",\n".join(f"   {json.dumps(weight)}" for weight in each["weights"])
        examples = ",\n".join(f"   {json.dumps(made)}: {json.dumps(one)}" for made, one in each["architectures"].items())
        prices = json.dumps(each["prices"])
        parts.append(
            f'{json.dumps(name)}: {{\n  "weights": [\n{weights}\n  ],\n  "prices": {prices},\n  "architectures": {{\n{examples}\n  }}\n }}'
        )
    return "{\n " + ",\n ".join(parts) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
