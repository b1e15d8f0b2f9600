"""docs/protocol.md against the code: its table of search spaces and its test vectors are those that the code computes."""

from pathlib import Path

import pytest
import torch

from automl.data.catalog import load_dataset
from automl.networks import build
from automl.schedule import Plan
from automl.space import SearchSpace, space_named
from automl.update import State, known_digest, state_bytes, state_digest
from protocol.records import Optimizer

DOCUMENT = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
SPACES = [space_named(name) for name in ("classifier-tiny", "classifier-base", "stereo-tiny", "stereo-base")]
OPTIMIZER = Optimizer("sgd", "0.1", "0.9", "0", "0", "0", 0)


def row(space: SearchSpace) -> str:
    """Return a space as its table has it."""
    lists = (space.resolutions, space.widths, (space.stem_width,), space.depths, space.kernels, space.expansions)
    channels, classes, disparities = space.image_channels, space.num_classes or "-", space.num_disparities or "-"
    cells = [f"`{space.name}`", space.task, *(", ".join(map(str, values)) for values in lists), channels, classes, disparities]
    return f"| {' | '.join(map(str, cells))} |"


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_the_search_spaces_are_those_of_the_document(space: SearchSpace) -> None:
    assert row(space) in DOCUMENT
    assert f"{build(space).num_weights:,} for `{space.name}`" in " ".join(DOCUMENT.split())


@pytest.mark.parametrize("name", ["digits", "layers", "motorcycle"])
def test_the_data_sets_are_those_of_the_document(name: str) -> None:
    assert f"| digest of the data set `{name}` | `{load_dataset(name).digest.hex()}` |" in DOCUMENT


def test_the_states_and_the_self_test_are_those_of_the_document() -> None:
    parameters, zeros = torch.tensor([1.0, -2.0]), torch.zeros(2)
    first, taught = State(0, parameters, (zeros, zeros)), State(3, parameters, (zeros,), bytes(range(32)))
    assert f"`{state_bytes(first).hex().removesuffix('00' * 16)}` and 16 zero bytes" in DOCUMENT
    assert f"| its digest | `{state_digest(first).hex()}` |" in DOCUMENT
    assert (
        f"| digest of the state of round 3, the same parameters, one moment of 0, teacher bytes 00..1f | `{state_digest(taught).hex()}` |"
        in (DOCUMENT)
    )
    assert known_digest() in DOCUMENT


@pytest.mark.parametrize(
    ("words", "plan", "round_", "cohort", "place"),
    [
        ("data-parallel, seed 0, round 1, third", Plan("classifier-tiny", "sandwich", "data-parallel", OPTIMIZER, 200, 0), 1, "any", 2),
        (
            "model-parallel, seed 0, cohort `cohort-0`, round 1",
            Plan("classifier-tiny", "sandwich", "model-parallel", OPTIMIZER, 200, 0),
            *(1, "cohort-0", 0),
        ),
        (
            "`shrinking`, 200 rounds, data-parallel, seed 0, round 90, third",
            Plan("classifier-tiny", "shrinking", "data-parallel", OPTIMIZER, 200, 0),
            *(90, "any", 2),
        ),
    ],
)
def test_the_architectures_are_those_of_the_document(words: str, plan: Plan, round_: int, cohort: str, place: int) -> None:
    assert f"| {words} architecture | `{plan.architectures(round_, cohort)[place].text}` |" in DOCUMENT


def test_the_phases_are_those_of_the_document() -> None:
    phases = Plan("classifier-tiny", "shrinking", "data-parallel", OPTIMIZER, 200, 0).phases
    shown = ", ".join(f"{phase.name} {phase.first}..{phase.last}" for phase in phases)
    assert f"| phases of `shrinking`, `classifier-tiny`, 200 rounds | {shown} |" in DOCUMENT
