"""docs/supernets.json: it is what the script makes, docs/verifier.py has the same weights, and the document says what is in it."""

import json
from math import prod

import pytest

from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.protocol.signing import sha256
from tests.docs.supernets import NAMES, PATH, text
from tests.docs.test_verifier_values import slots_of
from tests.docs.verifiers import values
from tests.documents import ROOT

FILE = json.loads(PATH.read_text(encoding="utf-8"))


def test_the_file_is_what_the_script_makes_and_the_document_refers_to_it() -> None:
    assert PATH.read_text(encoding="utf-8") == text()
    assert "(supernets.json)" in (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_verifier_has_the_same_weights_in_the_order_that_the_document_tells_costs_and_coverage(name: str) -> None:
    sizes, prices, space = [prod(shape) for _, shape in FILE[name]["weights"]], FILE[name]["prices"], space_named(name)
    theirs = values.space_named(name)
    assert [prod(weight.shape) for _, weight in values.weights_of(theirs)] == sizes
    divisors = [min(16, size & -size) for size in sizes]
    assert divisors == sorted(divisors, reverse=True)
    for made, each in FILE[name]["architectures"].items():
        used = values.coverage(theirs, slots_of(Architecture.parse(each["text"], space)))
        assert values.architecture_cost(each["text"], prices) == each["macs"], made
        assert (used.size, sha256(used.tobytes()).hex()) == (sum(sizes), each["coverage"]), made
