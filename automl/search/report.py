"""What a search found, for people (a table, a plot) and for programs (JSON). Writes no file."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from matplotlib.figure import Figure
from rich.table import Table

from automl.evaluation.held_out import metric_of
from automl.search.constraints import Constraint, Cost
from automl.search.front import spread
from automl.search.journal import Settings
from automl.search.search import Candidate, Found

FORMAT = "manta/found/v1"

_MAX_ROWS = 16  # of the table; JSON has the whole front
_COSTS = {"latency": ("latency", "ms", 1.0), "macs": ("MACs", "millions", 1e6), "weights": ("weights", "thousands", 1e3)}
_QUALITIES = {"accuracy": ("accuracy", "%", 100.0), "epe": ("EPE", "px", 1.0), "d1": ("D1", "%", 100.0), "bad3": ("bad-3", "%", 100.0)}


def quality_text(name: str, value: float) -> str:
    """Return one figure of a quality as people write it."""
    label, unit, _ = _QUALITIES[name]
    return f"{label} {_figure(name, value)} {unit}"


def _figure(name: str, value: float) -> str:
    _, unit, scale = _QUALITIES[name]
    return f"{value * scale:.1f}" if unit == "%" else f"{value * scale:.2f}"


def table(found: Found, costs: Sequence[Cost], task: str) -> Table:
    """Return the front as a table: costs, the main figure on the half that was searched on, and every figure on the other half."""
    main, names = metric_of(task), list(found.best.test_quality)
    shown = spread(found.front, _MAX_ROWS)
    part = f"{len(shown)} of the {len(found.front)}" if len(shown) < len(found.front) else f"the {len(found.front)}"
    result = Table(title=f"Pareto front: {part} best of {len(found.points)} measured architectures", title_justify="left")
    for cost in costs:
        label, unit, _ = _COSTS[cost.name]
        result.add_column(f"{label}\n{unit}", justify="right")
    for name, half in [(main, "search"), *((name, "test") for name in names)]:
        label, unit, _ = _QUALITIES[name]
        result.add_column(f"{label} {unit}\n{half}", justify="right")
    result.add_column("resolution", justify="right")
    result.add_column("id")
    for candidate in shown:
        prices = [f"{cost.of(candidate.architecture) / _COSTS[cost.name][2]:,.2f}" for cost in costs]
        figures = [_figure(main, candidate.search_quality[main]), *(_figure(name, candidate.test_quality[name]) for name in names)]
        identity = [str(candidate.architecture.resolution), candidate.architecture.id[:8]]
        result.add_row(*prices, *figures, *identity, style="bold" if candidate is found.best else None)
    return result


def result_json(found: Found, costs: Sequence[Cost], axis: Cost, settings: Settings) -> bytes:
    """Return all that is known of the best and of the front, and of which search they are."""
    value = {
        "format": FORMAT,
        "settings": dict(settings),
        "measured": len(found.points),
        "whole_region": found.is_whole,
        "predictor": None if found.fit is None else asdict(found.fit),
        "axis": axis.name,
        "best": _candidate(found.best, costs),
        "front": [_candidate(candidate, costs) for candidate in found.front],
    }
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def _candidate(candidate: Candidate, costs: Sequence[Cost]) -> Mapping[str, object]:
    architecture = candidate.architecture
    return {
        "id": architecture.id,
        "text": architecture.text,
        "architecture": json.loads(architecture.to_json()),
        "costs": {"latency_ms" if cost.name == "latency" else cost.name: cost.of(architecture) for cost in costs},
        "search": candidate.search_quality,
        "test": candidate.test_quality,
    }


def plot(found: Found, axis: Cost, constraints: Sequence[Constraint], task: str, title: str) -> bytes:
    """Return a PNG: every measured architecture, the front as steps, the limit on the axis if there is one, and the best."""
    label, unit, scale = _COSTS[axis.name]
    metric = metric_of(task)
    quality_label, quality_unit, quality_scale = _QUALITIES[metric]
    sign = -1.0 if metric == "epe" else 1.0  # a score is higher for a better one, an EPE lower
    figure = Figure(figsize=(8.0, 5.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    costs = [point.cost / scale for point in found.points]
    axes.scatter(costs, [sign * point.score * quality_scale for point in found.points], s=12, color="0.7", label="measured")
    front_costs = [axis.of(candidate.architecture) / scale for candidate in found.front]
    front_figures = [candidate.search_quality[metric] * quality_scale for candidate in found.front]
    axes.step(front_costs, front_figures, where="post", marker="o", markersize=4, color="tab:blue", label="Pareto front")
    test_figures = [candidate.test_quality[metric] * quality_scale for candidate in found.front]
    axes.scatter(front_costs, test_figures, s=16, marker="x", color="tab:orange", label="the front on the test half")
    axes.scatter(front_costs[-1:], front_figures[-1:], s=120, marker="*", color="tab:red", zorder=3, label="chosen")
    for constraint in constraints:
        if constraint.cost is axis:
            axes.axvline(constraint.limit / scale, linestyle="--", color="tab:red", label=f"limit {constraint.limit / scale:g}")
    axes.set_xlabel(f"{label} ({unit})")
    axes.set_ylabel(f"{quality_label} ({quality_unit}) on the search half of the held-out data")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
