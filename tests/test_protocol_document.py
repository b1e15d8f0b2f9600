"""docs/protocol.md, docs/protocol.json and docs/training.md against the code: records, methods, search spaces and vectors are its own."""

import json
import re
from pathlib import Path

import pytest

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import SearchSpace, space_named
from manta_swarm.automl.training.update import known_digest
from manta_swarm.codec.mean import Sum
from manta_swarm.network.rates import COSTS
from manta_swarm.protocol.table import (
    weights,
)
from manta_swarm.protocol.versions import PROGRAM, PROTOCOL
from tests.docs.examples import MIN_EXPONENTS, OUTCOME, PARSED, WEIGHING, counted_weights, examples
from tests.docs.protocol_tables import FILE, text

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT = (DOCS / "protocol.md").read_text(encoding="utf-8")
TRAINING = (DOCS / "training.md").read_text(encoding="utf-8")
SPACES = [space_named(name) for name in ("classifier-tiny", "classifier-base", "stereo-tiny", "stereo-base")]


def search_space_row(space: SearchSpace) -> str:
    """Return a space as its table has it."""
    resolutions = ",".join(map(str, space.resolutions))
    own_widths = [",".join(map(str, unit.widths)) for unit in space.units if unit.widths]
    widths = ";".join(own_widths) or ",".join(map(str, space.widths))
    choices = [[",".join(map(str, getattr(unit, what))) for unit in space.units] for what in ("depths", "kernels", "expansions")]
    each = [texts[0] if len(set(texts)) == 1 else ";".join(texts) for texts in choices]
    stem, channels, classes, disparities = space.stem_width, space.image_channels, space.num_classes or "-", space.num_disparities or "-"
    cells = [f"`{space.name}`", space.task, resolutions, widths, stem, *each, channels, classes, disparities]
    return f"| {' | '.join(map(str, cells))} |"


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_the_search_spaces_are_those_of_the_document(space: SearchSpace) -> None:
    assert search_space_row(space) in TRAINING
    assert f"{build(space).num_weights:,} for `{space.name}`" in " ".join(TRAINING.split())


def test_each_of_the_small_vectors_is_stored_as_it_is_computed() -> None:
    assert json.loads((DOCS / "vectors" / "examples.json").read_text(encoding="utf-8")) == examples()


def test_the_self_test_is_that_of_the_document() -> None:
    assert known_digest() in TRAINING


def test_the_records_and_methods_are_those_of_the_code() -> None:
    assert FILE.read_text(encoding="utf-8") == text()


def test_each_method_stands_in_the_code_and_each_of_the_costs_is_of_a_method() -> None:
    folders = ("network", "peer", "aggregator", "protocol")
    code = "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in (DOCS.parent / folder).rglob("*.py"))
    methods = {each["method"] for each in json.loads(FILE.read_text(encoding="utf-8"))["methods"]}
    assert not [method for method in methods if f'"{method}"' not in code]
    assert {name for name in COSTS if not name.startswith("DHT")} <= methods


def test_what_fields_and_methods_have_is_in_the_tables_by_that_name() -> None:
    tables = json.loads(FILE.read_text(encoding="utf-8"))
    told = {each["record"] for each in (*tables["records"], *tables["parts"])}
    types = {field["type"] for each in (*tables["records"], *tables["parts"]) for field in each["fields"]}
    messages = [each[way] for each in (*tables["methods"], *tables["requests_to_gateways"]) for way in ("request", "answer")]
    named = {name for text in types for name in re.findall(r"[A-Z]\w+", text)} - {"Signed", "Place", "PublicKey"}
    named |= {name for text in messages for name in re.findall(r"(?:packed|Signed|list of) ([A-Z]\w+)", text)} - {"Signed", "Entries"}
    assert named <= told, named - told


def test_every_section_that_is_referred_to_is_there_and_has_the_part_that_is_named() -> None:
    """A reference is such as: section 5, Witnesses. Sections of RFCs have dots, and are none of the document's."""
    both = f"{DOCUMENT}\n{TRAINING}"
    sections = {
        number: body for number, _, body in (each.partition(". ") for each in re.split(r"^## (?=[0-9])", both, flags=re.MULTILINE)[1:])
    }
    assert sorted(map(int, sections)) == list(range(1, len(sections) + 1))
    for section, part in re.findall(r"[Ss]ections?\s+([0-9]+)(?!\.?[0-9])(?:,\s+([A-Z]\w+(?: \w+)?))?", both):
        assert section in sections
        assert not part or re.search(rf"^### {part}|\*\*{part}", sections[section], re.MULTILINE), (section, part)


def test_the_versions_are_those_of_the_document() -> None:
    assert f"as it is, version {PROTOCOL} of the protocol" in DOCUMENT
    assert f"The **protocol's version** is one number, {PROTOCOL}." in DOCUMENT
    assert f"the protocol's (section 25), {PROTOCOL}, for all kinds" in DOCUMENT
    assert f"version {PROTOCOL} has program `{PROGRAM}`" in DOCUMENT


def test_the_mean_of_the_document_is_that_of_its_rows_added_in_another_order() -> None:
    backwards = Sum(4, min(MIN_EXPONENTS))
    for body, min_exponent, weight in reversed(list(zip(PARSED, MIN_EXPONENTS, counted_weights(), strict=True))):
        backwards.add(body, min_exponent - min(MIN_EXPONENTS), weight)
    assert backwards.mean(sum(weights(WEIGHING))).tobytes() == OUTCOME.mean.tobytes()
