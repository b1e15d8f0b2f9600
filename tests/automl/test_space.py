import hashlib
import itertools
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from automl.space import MAX_TEXT, TINY, Architecture, Layer, SearchSpace, space_named
from protocol.errors import UserError

JSON = TINY.largest().to_json()
SMALL = replace(TINY, widths=(8, 8), depths=(1, 2), kernels=(3, 5), expansions=(2,))


def sampled(count: int, space: SearchSpace = TINY) -> list[Architecture]:
    return [space.sample(random.Random(f"test:{index}")) for index in range(count)]


def test_an_architecture_survives_its_canonical_text_and_its_json() -> None:
    for architecture in [TINY.largest(), TINY.smallest(), *sampled(200)]:
        assert Architecture.parse(architecture.text, TINY) == architecture
        assert Architecture.from_json(architecture.to_json(), TINY) == architecture


def test_the_text_names_the_active_genes_only() -> None:
    assert TINY.smallest().text == "r32 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2"
    assert TINY.largest().text.count("u") == len(TINY.widths) * TINY.depths[-1]


def test_every_text_fits_a_claim_and_has_only_known_genes() -> None:
    assert len(TINY.largest().text) <= MAX_TEXT
    known = set(TINY.genes())
    assert len(known) == len(TINY.genes())
    assert all(set(architecture.genes) <= known for architecture in [TINY.largest(), *sampled(200)])


def test_the_id_is_the_sha256_of_the_text() -> None:
    assert TINY.smallest().id == hashlib.sha256(TINY.smallest().text.encode()).hexdigest()
    assert len({architecture.id for architecture in sampled(50)}) == 50


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r32",
        "r64 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2",
        "r32  u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2 ",
        "r32 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2\n",
        "r32 u2.0:k3e2 u1.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.1:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k3e2 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k4e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k3e9 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k03e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2 u6.0:k3e2",
        "r32 u1.0:k3e2 u1.1:k3e2 u1.2:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 u1.0:k٣e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r32 " + "u1.0:k3e2 " * 100,
    ],
)
def test_a_text_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"architecture|gene|unit|layer|JSON|Expecting|characters"):
        Architecture.parse(text, TINY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"resolution": 32, "units": []}',
        '{"resolution": 32, "units": [[1]]}',
        "null",
        JSON.replace("7", "7.5"),
        "[" * 10_000,
    ],
)
def test_json_that_is_no_architecture_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"architecture|gene|unit|layer|JSON|Expecting|characters"):
        Architecture.from_json(text, TINY)


def test_the_size_is_what_counting_gives() -> None:
    layers = [Layer(kernel, expansion) for kernel in SMALL.kernels for expansion in SMALL.expansions]
    units = [unit for depth in SMALL.depths for unit in itertools.product(layers, repeat=depth)]
    assert SMALL.size() == len(list(itertools.product(units, repeat=len(SMALL.widths)))) == 36
    assert len({architecture.text for architecture in sampled(2000, SMALL)}) == SMALL.size()


def test_sampling_is_the_same_in_another_process_and_leaves_the_global_generator_alone() -> None:
    before = random.getstate()
    here = [architecture.text for architecture in sampled(5)]
    assert random.getstate() == before
    program = "import random; from automl.space import TINY; [print(TINY.sample(random.Random(f'test:{i}')).text) for i in range(5)]"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert there.stdout.splitlines() == here


def test_an_unknown_supernet_is_the_users_error() -> None:
    assert space_named("classifier-tiny") is TINY
    with pytest.raises(UserError, match="classifier-tiny"):
        space_named("classifier-huge")
