import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.commands.profile import profile as profile_command
from manta_swarm.automl.devices import CallRecorder, DeviceWork, Recorded, Recorder
from manta_swarm.automl.latency.correction import fitted_table
from manta_swarm.automl.latency.profiler import FixedPart, LayerPart, _by_torch, profile, table_parts
from manta_swarm.automl.latency.table import GRAPHS, MAX_BYTES, ONNXRUNTIME, TORCH, Accuracy, Conditions, LatencyTable
from manta_swarm.automl.latency.visits import MeasuringEffort
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import BASE, STEREO_TINY, TINY, SearchSpace, layer_gene
from manta_swarm.protocol.errors import EncodingError, UserError
from tests.automl import kernels as every_kernel
from tests.automl import narrow
from tests.automl.kernels import KERNELS
from tests.automl.narrow import NARROW, SMALL_NARROW, WIDENED
from tests.automl.training.recorders import Counted, Replay

ONCE = MeasuringEffort(visits=1, min_visits=1, visit_ms=0.01, subject_ms=1.0, num_networks=2)
CONDITIONS = Conditions("cpu", "some processor", 1, "fp32", 1, "2.15.0")
CPU = torch.device("cpu")
ACCURACY = Accuracy(4, 4, 0.05, 0.1, 0.9)


def made_up(space: SearchSpace, offset: float = 0.25, factor: float = 1.5, seed: int = 1) -> LatencyTable:
    """Return a table with a random price for every gene."""
    rng = random.Random(seed)
    entries = {key: rng.uniform(0.1, 2.0) for key, _ in cost_table(space)}
    return LatencyTable(space.name, CONDITIONS, entries, offset, factor, ACCURACY)


def small(space: SearchSpace) -> SearchSpace:
    return space.restricted(resolutions=space.resolutions[:1], kernels=(3,), depths=(1,), expansions=space.units[0].expansions[:2])


@pytest.fixture(autouse=True)
def _their_spaces_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow.register(monkeypatch)
    every_kernel.register(monkeypatch)


def test_the_latency_of_an_architecture_is_the_corrected_sum_over_its_genes() -> None:
    table = made_up(TINY)
    for index in range(20):
        architecture = TINY.sample(random.Random(index))
        resolution, *genes = architecture.genes
        prices = [table.entries[resolution], *(table.entries[f"{resolution} {gene}"] for gene in genes)]
        assert table.latency_ms(architecture) == pytest.approx(0.25 + 1.5 * sum(prices), rel=1e-12)


@pytest.mark.parametrize("depths", [(1,), (1, 2), (2,)])
def test_the_minimum_is_that_of_all_architectures(depths: tuple[int, ...]) -> None:
    units = KERNELS.units[:2]  # few enough to try them all
    of_two = replace(KERNELS, resolutions=(24, 32))
    space = replace(of_two, units=units).restricted(depths=depths, kernels=(3, 7), expansions=(2, 4))
    table = made_up(of_two)
    assert table.minimum_ms(space) == pytest.approx(min(table.latency_ms(architecture) for architecture in space), rel=1e-12)


def test_the_minimum_of_several_widths_is_that_of_all_architectures() -> None:
    for seed in range(20):
        table = made_up(SMALL_NARROW, seed=seed)
        assert table.minimum_ms(SMALL_NARROW) == pytest.approx(min(map(table.latency_ms, SMALL_NARROW)), rel=1e-12)


def test_the_minimum_of_the_whole_space_is_below_every_sample() -> None:
    table = made_up(BASE)
    least = table.minimum_ms(BASE)
    assert all(table.latency_ms(BASE.sample(random.Random(index))) >= least for index in range(200))


@pytest.mark.parametrize("space", [TINY, BASE, STEREO_TINY, NARROW], ids=lambda space: space.name)
def test_a_table_survives_its_bytes_and_its_file(space: SearchSpace, tmp_path: Path) -> None:
    table = made_up(space)
    assert LatencyTable.from_bytes(table.to_bytes()) == table
    table.save(tmp_path / "table.json")
    assert LatencyTable.load(tmp_path / "table.json") == table
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


VALUE = json.loads(made_up(TINY).to_bytes())
PATHS = [
    *((name,) for name in VALUE),
    *(("conditions", name) for name in VALUE["conditions"]),
    *(("accuracy", name) for name in VALUE["accuracy"]),
    ("entries", "r28"),
    ("entries", "r28 u1.0:k3e2"),
]
NO_NUMBERS = st.sampled_from([None, True, "", "x" * 201, "a\nb", [], {}, 1e300, 10**400, math.inf, -math.inf, math.nan])
POSITIVE = [path for path in PATHS if path[-1] in ("r28", "r28 u1.0:k3e2", "factor", "threads", "batch", "num_fitted", "num_checked")]


def refuses(path: tuple[str, ...], wrong: object) -> bool:
    """Return whether a table with another value at ``path`` is refused."""
    value = json.loads(json.dumps(VALUE))
    holder = value
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = wrong
    try:
        LatencyTable.from_bytes(json.dumps(value).encode())
    except EncodingError:
        return True
    return False


@settings(max_examples=200)
@given(st.sampled_from(PATHS), NO_NUMBERS)
def test_a_value_that_cannot_be_is_refused(path: tuple[str, ...], wrong: object) -> None:
    assert refuses(path, wrong)


@settings(max_examples=100)
@given(st.sampled_from(POSITIVE), st.floats(max_value=0.0) | st.integers(max_value=0))
def test_a_latency_and_a_count_are_above_zero(path: tuple[str, ...], wrong: float) -> None:
    assert refuses(path, wrong)


@settings(max_examples=100)
@given(st.sampled_from(PATHS), st.booleans())
def test_a_field_too_few_or_too_many_is_refused(path: tuple[str, ...], takes_away: bool) -> None:
    value = json.loads(json.dumps(VALUE))
    holder = value
    for name in path[:-1]:
        holder = holder[name]
    if takes_away:
        del holder[path[-1]]
    else:
        holder["another"] = 1.0
    with pytest.raises(EncodingError):
        LatencyTable.from_bytes(json.dumps(value).encode())


@given(st.binary(max_size=100))
def test_other_bytes_are_no_table(data: bytes) -> None:
    with pytest.raises(EncodingError):
        LatencyTable.from_bytes(data)


def test_a_table_that_is_too_long_or_nested_too_deep_is_refused() -> None:
    with pytest.raises(EncodingError, match="at most"):
        LatencyTable.from_bytes(made_up(TINY).to_bytes() + b" " * MAX_BYTES)
    with pytest.raises(EncodingError):
        LatencyTable.from_bytes(b"[" * 100_000)


def test_a_table_of_another_or_an_unknown_supernet_is_refused() -> None:
    LatencyTable.from_bytes(json.dumps({**VALUE, "supernet": "classifier-tiny-3x10"}).encode())  # it has the same genes
    for name in ("stereo-tiny", "classifier-huge"):
        with pytest.raises(EncodingError):
            LatencyTable.from_bytes(json.dumps({**VALUE, "supernet": name}).encode())


def test_a_correction_by_which_a_network_takes_no_time_is_refused() -> None:
    table = made_up(TINY, offset=-100.0)
    with pytest.raises(EncodingError, match="no time"):
        LatencyTable.from_bytes(table.to_bytes())


def test_a_file_that_is_no_table_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        LatencyTable.load(tmp_path / "missing.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="no latency table"):
        LatencyTable.load(tmp_path / "other.json")
    with pytest.raises(UserError, match="cannot write"):
        made_up(TINY).save(tmp_path / "no" / "table.json")


@pytest.mark.parametrize("space", [TINY, STEREO_TINY], ids=lambda space: space.name)
def test_every_key_has_a_part_and_equal_layers_have_one_in_common(space: SearchSpace) -> None:
    parts = table_parts(space)
    assert list(parts) == [key for key, _ in cost_table(space)]
    for resolution in space.resolutions:
        assert parts[f"r{resolution}"] == FixedPart(resolution, space.widths[-1])
        unit = space.units[0]
        genes = [layer_gene(0, index, unit.smallest_layer) for index in range(unit.depths[-1])]
        layers = [parts[f"r{resolution} {gene}"] for gene in genes]
        assert layers[0] not in layers[1:]
        assert len(set(layers[1:])) == 1


@pytest.mark.parametrize("space", [BASE, NARROW], ids=lambda space: space.name)
def test_layers_between_the_same_widths_have_one_part_in_common_and_others_do_not(space: SearchSpace) -> None:
    parts = table_parts(space)
    assert list(parts) == [key for key, _ in cost_table(space)]
    first = f"r{space.resolutions[0]}"
    narrow, wide = space.units[-1].widths[0], space.units[-1].widths[-1]
    assert parts[f"{first} u5:w{narrow}"] == FixedPart(space.resolutions[0], narrow) != parts[f"{first} u5:w{wide}"]
    layer = layer_gene(0, 0, space.units[4].smallest_layer).partition(":")[2]
    of_width = {
        width: [parts[f"{first} u5:w{width} u5.{index}:{layer}"] for index in range(1, space.units[4].depths[-1])]
        for width in (narrow, wide)
    }
    assert all(len(set(each)) == 1 for each in of_width.values())
    assert of_width[narrow][0] != of_width[wide][0]
    shapes = [part.shape for part in (of_width[narrow][0], of_width[wide][0]) if isinstance(part, LayerPart)]
    assert [(shape.channels_in, shape.width) for shape in shapes] == [(narrow, narrow), (wide, wide)]
    entering = {parts[f"{first} u4:w{a} u5:w{b} u5.0:{layer}"] for a in space.units[3].widths for b in space.units[4].widths}
    assert len(entering) == len(space.units[3].widths) * len(space.units[4].widths)


@pytest.mark.parametrize("space", [small(TINY), small(STEREO_TINY), small(WIDENED)], ids=lambda space: space.name)
def test_a_profile_prices_every_gene(space: SearchSpace) -> None:
    before = torch.random.get_rng_state()
    heard: list[tuple[int, int]] = []
    table = profile(space, effort=ONCE, told=lambda done, total: heard.append((done, total)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert set(table.entries) == {key for key, _ in cost_table(space)}
    assert all(math.isfinite(price) and price > 0.0 for price in table.entries.values())
    assert table.minimum_ms(space) > 0.0
    assert table.conditions.threads == torch.get_num_threads() == 1
    assert [done for done, _ in heard] == list(range(1, heard[-1][1] + 1))


def test_a_profile_by_onnxruntime_says_so() -> None:
    space = small(TINY)
    table = profile(space, effort=ONCE, runtime=ONNXRUNTIME)
    assert set(table.entries) == {key for key, _ in cost_table(space)}
    assert table.minimum_ms(space) > 0.0
    assert (table.conditions.runtime, table.conditions.version) == ("onnxruntime", onnxruntime.__version__)


@pytest.mark.parametrize("runtime", [ONNXRUNTIME, GRAPHS])
def test_a_table_says_by_what_its_layers_ran(runtime: str) -> None:
    conditions = Conditions("cuda", "a GPU", 8, "fp32", 1, "2.15.0", runtime)
    text = json.loads(replace(made_up(TINY), conditions=conditions).to_bytes())
    assert text["conditions"][runtime] == "2.15.0"
    assert "torch" not in text["conditions"]
    assert LatencyTable.from_bytes(json.dumps(text).encode()).conditions == conditions
    for other in {TORCH, ONNXRUNTIME, GRAPHS} - {runtime}:
        with pytest.raises(EncodingError, match="exactly the fields"):
            LatencyTable.from_bytes(json.dumps({**text, "conditions": {**text["conditions"], other: "1"}}).encode())


class Unable:
    """A recorder of a device that cannot."""

    def record(self, work: DeviceWork) -> Recorded:
        raise RuntimeError("operation not permitted when stream is capturing\nlong trace")


class Idle:
    """A recorder whose recordings do nothing."""

    def record(self, work: DeviceWork) -> Recorded:
        return Replay(work.run(), lambda: None)


@pytest.mark.parametrize("space", [small(TINY), small(STEREO_TINY)], ids=lambda space: space.name)
def test_layers_that_are_recorded_are_timed_by_their_replays(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Counted(CallRecorder())
    monkeypatch.setattr("manta_swarm.automl.latency.profiler.CudaGraphs", lambda: recorder)
    subjects = [*dict.fromkeys(table_parts(space).values()), space.largest()]
    times_ms, runtime = _by_torch(space, CPU, torch.float32, 1, subjects, ONCE, lambda done, total: None, None)
    assert runtime == GRAPHS
    assert len(times_ms) == len(subjects) == recorder.recorded
    assert min(times_ms) > 0.0
    assert recorder.replayed >= 4 * len(subjects)


@pytest.mark.parametrize(("recorder", "words"), [(Unable, "capturing long trace"), (Idle, "did not do what was recorded")])
def test_where_layers_cannot_be_recorded_launches_are_timed_and_that_is_said_unless_graphs_were_asked_for(
    recorder: Callable[[], Recorder], words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    space = small(TINY)
    monkeypatch.setattr("manta_swarm.automl.latency.profiler.CudaGraphs", recorder)
    subjects = [space.largest(), space.smallest()]
    times_ms, runtime = _by_torch(space, CPU, torch.float32, 1, subjects, ONCE, lambda done, total: None, None)
    assert (runtime, len(times_ms)) == (TORCH, 2)
    assert words in caplog.text
    with pytest.raises(RuntimeError):
        _by_torch(space, CPU, torch.float32, 1, subjects, ONCE, lambda done, total: None, GRAPHS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_layers_are_timed_in_cuda_graphs() -> None:
    table = profile(small(TINY), device="cuda", effort=ONCE)
    assert (table.conditions.device, table.conditions.runtime) == ("cuda", GRAPHS)


def test_a_profile_can_be_of_another_dtype_and_batch() -> None:
    table = profile(small(TINY), dtype="bf16", batch=3, effort=ONCE)
    assert (table.conditions.dtype, table.conditions.batch) == ("bf16", 3)


def test_the_correction_finds_an_offset_and_a_factor() -> None:
    raw = made_up(TINY, offset=0.0, factor=1.0)
    networks = list(dict.fromkeys(TINY.sample(random.Random(index)) for index in range(12)))
    table = fitted_table(TINY, CONDITIONS, dict(raw.entries), [(network, 0.5 + 2.0 * raw.latency_ms(network)) for network in networks])
    assert table.offset == pytest.approx(0.5)
    assert table.factor == pytest.approx(2.0)
    assert (table.accuracy.num_fitted, table.accuracy.num_checked) == (6, 6)
    assert table.accuracy.worst_error < 1e-9
    assert table.accuracy.rank_correlation == pytest.approx(1.0)


def test_the_error_is_of_networks_that_the_correction_has_not_seen() -> None:
    raw = made_up(TINY, offset=0.0, factor=1.0)
    networks = sorted((TINY.sample(random.Random(index)) for index in range(8)), key=raw.latency_ms)
    measured = [(network, raw.latency_ms(network) * (1.25 if index % 2 else 1.0)) for index, network in enumerate(networks)]
    table = fitted_table(TINY, CONDITIONS, dict(raw.entries), measured)
    assert table.factor == pytest.approx(1.0)
    assert table.accuracy.mean_error == pytest.approx(0.2)
    assert table.accuracy.worst_error == pytest.approx(0.2)


def test_a_correction_never_makes_a_network_take_no_time() -> None:
    raw = made_up(TINY, offset=0.0, factor=1.0)
    networks = sorted((TINY.sample(random.Random(index)) for index in range(12)), key=raw.latency_ms)
    for latencies in (range(12, 0, -1), [0.001 * 9**index for index in range(12)]):  # the wrong way round; far too steep
        table = fitted_table(TINY, CONDITIONS, dict(raw.entries), list(zip(networks, map(float, latencies), strict=True)))
        assert table.minimum_ms(TINY) > 0.0
        assert table.factor > 0.0


def test_a_quick_profile_can_be_loaded_and_says_how_far_to_trust_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.automl.commands.profile.QUICK", ONCE)
    out = tmp_path / "table.json"
    result = CliRunner().invoke(profile_command, ["--quick", "--threads", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "classifier-tiny on " in result.stdout
    assert "whole networks: mean error" in result.stdout
    assert LatencyTable.load(out).supernet == "classifier-tiny"


def test_a_negative_batch_is_refused() -> None:
    result = CliRunner().invoke(profile_command, ["--batch", "-1", "--out", "table.json"])
    assert result.exit_code == 2
    assert "--batch" in result.stderr


def test_a_gpu_that_is_not_there_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA GPU"):
        profile(small(TINY), device="cuda", effort=ONCE)


def test_what_the_device_cannot_run_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise RuntimeError("not implemented for 'Half'\nlong trace")

    monkeypatch.setattr("manta_swarm.automl.latency.visits.Stopwatch.median_ms", unable)
    with pytest.raises(UserError, match="not implemented for 'Half'; try another --dtype"):
        profile(small(TINY), dtype="fp16", effort=ONCE)
