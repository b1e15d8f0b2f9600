"""``/metrics``, read by Prometheus' own parser, and the dashboard that asks for what is there."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.witnessed import Witnessed
from manta_swarm.aggregator.monitor.alarms import AlarmCause
from manta_swarm.aggregator.monitor.metrics import KINDS, METRICS
from manta_swarm.aggregator.monitor.quality import EvaluationSeen, QualityPoint
from manta_swarm.aggregator.states.opening import OpenedRun
from manta_swarm.aggregator.status import Quality, unix_ms
from manta_swarm.protocol.closing import GONE
from manta_swarm.protocol.cosignatures import cosign
from manta_swarm.protocol.notes import head_text
from manta_swarm.protocol.signing import Identity
from tests.aggregator.monitor.asgi import Shown, looked, shown_now
from tests.aggregator.monitor.test_trust import audited_run
from tests.aggregator.small_run import grow

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana-dashboard.json"
WITNESS = Identity(b"\x61" * 32)
_OF_PROMETHEUS = {"instance"}  # labels that it adds itself


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return name and labels -> value of each sample."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with audits."""
    return audited_run(tmp_path_factory.mktemp("audited") / "run").directory


@pytest.fixture
def shown(played: tuple[Path, OpenedRun]) -> Shown:
    """The run, shown to a test that changes what is known of it."""
    return shown_now(played[0])


@pytest.fixture
def full(shown: Shown, played: tuple[Path, OpenedRun]) -> Shown:
    """A run of which there is something to say of everything."""
    points = [QualityPoint(macs=1, kind="largest", quality=0.9, loss=0.1), QualityPoint(macs=1, kind="smallest", quality=0.8, loss=0.2)]
    random = [QualityPoint(macs=1, kind="random", quality=quality) for quality in (0.7, 0.8)]
    shown.sight.evaluations.seen = [EvaluationSeen(round=3, state="", at=unix_ms(), seconds=1.0, held_out=355, points=(*points, *random))]
    assert shown.sight.status is not None
    refused = {"bad body": 2, 'a "quoted\\ reason\n': 1}
    quality = Quality(metric="accuracy", largest=0.9, smallest=0.8, random=(0.7,))
    shown.sight.status = shown.sight.status.model_copy(update={"refused": refused, "quality": quality, "quality_round": 3})
    shown.sight.alarms.keep(AlarmCause("fork", "alarm", "two logs"), unix_ms())
    log = played[1].log
    shown.streams.refused = 7
    shown.sight._witnessed = [Witnessed(log.head, log.tree_head, cosign(head_text(log.head), 1_700_000_000, WITNESS))]
    return shown


def text_of(shown: Shown) -> str:
    got = shown.get("/metrics")
    assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return got.body.decode()


def test_prometheus_reads_them_and_they_say_what_the_api_says(full: Shown, played: tuple[Path, OpenedRun]) -> None:
    text = text_of(full)
    assert text.endswith("\n")
    found = values(text)
    ledger = played[1].log.ledger
    assert found["manta_round", ()] == ledger.round
    assert found["manta_rounds_planned", ()] == ledger.manifest.num_rounds
    assert found["manta_ledger_entries", ()] == played[1].log.head.size
    assert found["manta_credit_paid_total", ()] == sum(ledger.credits().values())
    assert found["manta_peers", (("state", "counted"),)] == 3
    assert found["manta_quality", (("subnet", "random"),)] == pytest.approx(0.75)
    assert found["manta_refused_total", (("reason", 'a "quoted\\ reason\n'),)] == 1
    assert [found["manta_alarms", (("kind", kind),)] for kind in KINDS] == [1, 0, 0, 0, 0]
    assert (found["manta_monitor_streams", ()], found["manta_monitor_streams_refused_total", ()]) == (0, 7)


def test_each_metric_has_one_help_one_type_and_a_name_that_fits_it(full: Shown) -> None:
    text = text_of(full)
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families) == text.count("# TYPE") == text.count("# HELP")
    for family in families:
        assert family.documentation
        assert family.samples
        assert (family.type == "counter") == all(sample.name.endswith("_total") for sample in family.samples)


@pytest.fixture
def labels(full: Shown, audited: Path) -> dict[str, set[str]]:
    """The labels of each metric, of a run without audits and of one with them."""
    labels: dict[str, set[str]] = {}
    for name, pairs in values(text_of(full)) | values(text_of(looked(audited))):
        labels.setdefault(name, set()).update(label for label, _ in pairs)
    return labels


def test_the_table_of_all_metrics_has_their_names_and_labels(labels: dict[str, set[str]]) -> None:
    of_histogram = re.compile(r"(manta_round_duration_seconds)_(?:bucket|count|sum|created)")
    assert {of_histogram.sub(r"\1", name) for name in labels} == set(METRICS)
    assert {name: labels[name] for name in labels if name in METRICS} == {
        name: set(one.labels) for name, one in METRICS.items() if name in labels
    }


def test_what_is_counted_is_there_before_the_first_one(shown: Shown) -> None:
    assert shown.sight.status is not None
    shown.sight.status = shown.sight.status.model_copy(update={"refused": {}})
    found = values(text_of(shown))
    assert {name: value for name, value in found.items() if name[0] == "manta_refused_total"} == {
        ("manta_refused_total", (("reason", reason),)): 0
        for reason in ("malformed", "signature", "not for this log", "another's identity", "other", *GONE)
    }


def test_what_nobody_knows_is_left_out(shown: Shown) -> None:
    shown.sight.status = None
    found = {name for name, _ in values(text_of(shown))}
    assert "manta_traffic_bytes_total" not in found
    assert "manta_quality" not in found
    assert "manta_round" in found


def test_rounds_are_counted_by_how_long_they_took_each_once_and_with_a_time_that_stays(log: Log, directory: Path) -> None:
    grow(log, 3)
    shown = looked(directory)
    rounds, name = shown.sight.view.rounds, "manta_round_duration_seconds"

    def counts() -> tuple[float, float, float]:
        found = values(text_of(shown))
        return tuple(found[f"{name}_bucket", (("le", most),)] for most in ("1.0", "2.5", "+Inf"))  # type: ignore[return-value]

    assert counts() == (0, 0, 0)  # nobody timed what was read at once
    for round_, at in ((1, 10_000), (2, 11_200), (3, 19_000)):
        rounds.committed(round_, at)
    assert counts() == (0, 1, 1)  # but the newest: what it took may still be said otherwise
    grow(log, 1)
    shown.look()
    assert counts() == (0, 1, 2)
    assert values(text_of(shown))[f"{name}_sum", ()] == pytest.approx(1.2 + 7.8)
    rounds.committed(3, 11_300)
    assert counts() == (0, 1, 2)  # a count never changes


def test_another_run_has_other_metrics(shown: Shown, audited: Path) -> None:
    other = looked(audited)
    assert values(text_of(shown))["manta_round_duration_seconds_count", ()] == 1
    assert values(text_of(other))["manta_round_duration_seconds_count", ()] == 0
    assert values(text_of(shown))["manta_round_duration_seconds_count", ()] == 1


def test_the_dashboard_asks_for_metrics_and_labels_that_exist(labels: dict[str, set[str]]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    asked = set()
    for target in targets:
        names = re.findall(r"manta_[a-z_]+", target["expr"])
        assert names, target
        asked.update(names)
        for name in names:
            assert name in labels, f"{name} is no metric"
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))) | set(re.findall(r"[{,](\w+)=", target["expr"]))
            assert wanted - _OF_PROMETHEUS <= labels[name]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len(asked) > 15
