import hashlib
import itertools
import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from manta_swarm.automl.spaces.space import (
    BASE,
    MAX_TEXT,
    STEREO_BASE,
    STEREO_TINY,
    TINY,
    Architecture,
    SearchSpace,
    fitted_name,
    space_named,
)
from manta_swarm.automl.spaces.units import Layer, UnitSpace, units_alike
from manta_swarm.protocol.errors import UserError
from tests.automl.kernels import KERNELS, STEREO_KERNELS
from tests.automl.narrow import NARROW, SMALL_NARROW, WIDENED

JSON = TINY.largest().to_json()
SMALL = replace(TINY, resolutions=(24, 32), units=units_alike((8, 8), depths=(1, 2), kernels=(3, 5), expansions=(2,)))
SPACES = [TINY, BASE, STEREO_TINY, STEREO_BASE, NARROW, WIDENED, KERNELS, STEREO_KERNELS]


def sampled(count: int, space: SearchSpace = TINY) -> list[Architecture]:
    return [space.sample(random.Random(f"test:{index}")) for index in range(count)]


def test_the_text_names_the_active_genes_only() -> None:
    assert TINY.smallest().text == "r28 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2"
    assert TINY.largest().text.count("u") == 5 * 2


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_every_text_fits_a_claim_and_has_only_known_genes(space: SearchSpace) -> None:
    assert len(space.largest().text) <= MAX_TEXT
    known = set(space.genes())
    assert len(known) == len(space.genes())
    for architecture in [space.largest(), space.smallest(), *sampled(50, space)]:
        assert set(architecture.genes) <= known
        assert Architecture.parse(architecture.text, space) == architecture
        assert Architecture.from_json(architecture.to_json(), space) == architecture


def test_a_width_is_named_before_its_units_layers_where_there_is_a_choice() -> None:
    smallest = "r32 u1:w8 u1.0:k3e1 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2"
    assert NARROW.smallest().text == smallest
    assert json.loads(NARROW.smallest().to_json())["widths"] == [8, None, 8, 8, 24]
    assert NARROW.widths_of(NARROW.smallest()) == (8, 16, 8, 8, 24)
    assert NARROW.widths_of(NARROW.largest()) == NARROW.widths == (16, 16, 24, 16, 40)
    assert "widths" not in json.loads(JSON)


@pytest.mark.parametrize(
    ("genes", "said"),
    [
        ("u1.0:k3e1 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2", "8 or 16 channels, which an architecture has to name"),
        ("u1:w24 u1.0:k3e1 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2", "8 or 16 channels, not 24"),
        ("u1:w8 u1.0:k3e1 u2:w16 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2", "unit 2 .* no choice of widths"),
        ("u1.0:k3e1 u1:w8 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2", "not the canonical"),
        ("u1:w8 u1:w8 u1.0:k3e1 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2", "not the canonical"),
        ("u1:w08 u1.0:k3e1 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2", "unknown gene"),
        ("u6:w8 u1:w8 u1.0:k3e1 u2.0:k3e2 u3:w8 u3.0:k3e2 u4:w8 u4.0:k3e1 u5:w24 u5.0:k3e2", "unknown gene"),
        ("u1.0:k3e1 u2.0:k3e2 u3.0:k3e2 u4.0:k3e1 u5.0:k3e2", "has to name"),
    ],
)
def test_a_text_that_does_not_say_the_widths_as_they_are_is_refused(genes: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Architecture.parse(f"r32 {genes}", NARROW)


@pytest.mark.parametrize(
    "widths", [[None] * 5, [16, 16, 24, 16, 40], [16, None, 24, 16], [16, None, 24, 16, 40, 8], [16, None, 24, 16, 7], 3, [[]]]
)
def test_json_that_does_not_say_the_widths_as_they_are_is_refused(widths: object) -> None:
    value = {**json.loads(NARROW.largest().to_json()), "widths": widths}
    with pytest.raises(ValueError, match=r"width|unit|architecture"):
        Architecture.from_json(json.dumps(value), NARROW)


def test_an_architecture_of_units_without_a_choice_says_nothing_of_widths() -> None:
    for widths in ([None] * 5, [16, 24, 40, 64, 96]):
        with pytest.raises(ValueError, match="no choice of widths"):
            Architecture.from_json(json.dumps({**json.loads(JSON), "widths": widths}), TINY)
    with pytest.raises(ValueError, match="no choice of widths"):
        Architecture.parse(f"r28 u1:w16 {TINY.largest().text.partition(' ')[2]}", TINY)


def test_stereo_has_one_width_a_unit() -> None:
    with pytest.raises(ValueError, match="one width"):
        replace(STEREO_TINY, units=(replace(STEREO_TINY.units[0], widths=(8, 16)), *STEREO_TINY.units[1:]))


def test_architectures_that_differ_only_below_the_depth_are_one() -> None:
    # What is inactive has no place in an architecture: whatever a search did to layers that were cut off, the network is the same one.
    deep = TINY.largest()
    cut = [replace(deep, units=((layers[0],), *deep.units[1:])) for layers in (deep.units[0], (deep.units[0][0], Layer(3, 2)))]
    assert cut[0] == cut[1]
    assert cut[0].id == cut[1].id != deep.id


def test_the_id_is_the_sha256_of_the_text() -> None:
    assert TINY.smallest().id == hashlib.sha256(TINY.smallest().text.encode()).hexdigest()
    assert len({architecture.id for architecture in sampled(50)}) == 50


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r28",
        "r64 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2",
        "r28  u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2 ",
        "r28 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2\n",
        "r28 u2.0:k3e2 u1.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.1:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k3e2 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k4e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k3e9 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k03e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2 u6.0:k3e2",
        "r28 u1.0:k3e2 u1.1:k3e2 u1.2:k3e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 u1.0:k٣e2 u2.0:k3e2 u3.0:k3e2 u4.0:k3e2 u5.0:k3e2",
        "r28 " + "u1.0:k3e2 " * 100,
    ],
)
def test_a_text_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"architecture|gene|unit|layer|resolution|JSON|Expecting|characters"):
        Architecture.parse(text, TINY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"resolution": 28, "units": []}',
        '{"resolution": 28, "units": [[1]]}',
        "null",
        JSON.replace("5", "5.5"),
        "[" * 10_000,
    ],
)
def test_json_that_is_no_architecture_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"architecture|gene|unit|layer|resolution|JSON|Expecting|characters"):
        Architecture.from_json(text, TINY)


def test_the_size_is_what_counting_gives() -> None:
    units = [unit for depth in (1, 2) for unit in itertools.product([Layer(3, 2), Layer(5, 2)], repeat=depth)]
    assert SMALL.size() == 2 * len(list(itertools.product(units, repeat=2))) == 72
    assert {architecture.text for architecture in sampled(2000, SMALL)} == {architecture.text for architecture in SMALL}
    assert len(list(SMALL)) == SMALL.size()


def test_widths_multiply_the_size_and_are_all_drawn() -> None:
    assert SMALL_NARROW.size() == len(set(SMALL_NARROW)) == 2 * (2 * (2 + 4)) * (1 + 1) * (3 * 2)
    assert {architecture.text for architecture in sampled(4000, SMALL_NARROW)} == {architecture.text for architecture in SMALL_NARROW}


def test_the_large_spaces_are_as_large_as_they_have_to_be() -> None:
    assert BASE.size() >= 10**18
    assert STEREO_BASE.size() >= 10**18


def test_sampling_under_a_condition_gives_only_what_it_accepts_and_says_when_there_is_none() -> None:
    wanted = [SMALL.sample(random.Random(index), lambda one: len(one.units[0]) == 1) for index in range(200)]
    assert {one.text for one in wanted} == {one.text for one in SMALL if len(one.units[0]) == 1}
    with pytest.raises(ValueError, match="acceptable"):
        SMALL.sample(random.Random(0), lambda _: False)


def test_a_part_of_a_space_has_only_the_choices_that_are_left() -> None:
    part = KERNELS.restricted(kernels=(5,), depths=(1,))
    assert part.name == KERNELS.name
    assert part.size() == 3**5
    for architecture in sampled(100, part):
        KERNELS.check(architecture)
        assert {layer.kernel for _, _, layer in architecture.layers()} == {5}


def test_a_part_with_few_of_the_largest_choices_keeps_those_of_each_unit() -> None:
    few = SearchSpace.with_largest(
        replace(KERNELS, units=(*KERNELS.units[:1], UnitSpace(8, (1, 3, 4), (3, 5), (1,)))), kernels=1, depths=2, expansions=2, widths=1
    )
    assert [(unit.depths, unit.kernels, unit.expansions) for unit in few.units] == [((1, 2), (7,), (3, 4)), ((3, 4), (5,), (1,))]


def test_the_architectures_of_a_part_with_one_width_name_it_all_the_same() -> None:
    part = NARROW.with_largest(kernels=1, depths=1, expansions=1, widths=1)
    assert part.size() == 2
    for architecture in sampled(10, part):
        NARROW.check(architecture)
        assert architecture.widths == NARROW.largest().widths
    two = NARROW.with_largest(kernels=1, depths=1, expansions=1, widths=2)
    assert [unit.widths for unit in two.units] == [(8, 16), (), (16, 24), (8, 16), (24, 40)]
    assert two.widths == NARROW.widths


def test_a_classifier_has_the_channels_and_classes_of_its_data_in_its_name() -> None:
    assert fitted_name("classifier-tiny", 1, 10) == "classifier-tiny"
    assert fitted_name("stereo-tiny", 3, 0) == "stereo-tiny"
    name = fitted_name("classifier-tiny", 3, 100)
    assert name == "classifier-tiny-3x100"
    space = space_named(name)
    assert (space.name, space.image_channels, space.num_classes, space.units) == (name, 3, 100, TINY.units)
    assert space_named("classifier-tiny") is TINY
    names = ("classifier-huge", "classifier-tiny-1x10", "classifier-tiny-3x1", "classifier-tiny-2x10", "classifier-tiny-3x010")
    for wrong in (*names, "stereo-tiny-3x10"):
        with pytest.raises(UserError, match="unknown supernet"):
            space_named(wrong)
    with pytest.raises(UserError, match="unknown supernet"):
        fitted_name("classifier-huge", 3, 10)


def test_sampling_is_the_same_in_another_process_and_leaves_the_global_generator_alone() -> None:
    before = random.getstate()
    here = [architecture.text for architecture in sampled(5)]
    assert random.getstate() == before
    space = "from manta_swarm.automl.spaces.space import TINY"
    program = f"import random; {space}; [print(TINY.sample(random.Random(f'test:{{i}}')).text) for i in range(5)]"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert there.stdout.splitlines() == here
