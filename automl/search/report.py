"""Shows what a search found, for people (a table, a plot) and for programs (JSON), and how far it is, on a terminal. Writes no file."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import progress
from rich.console import Console
from rich.table import Table

from manta_swarm.automl.data.dataset import STEREO
from manta_swarm.automl.evaluation.held_out import metric_of
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.latency.table import Conditions
from manta_swarm.automl.search.constraints import Constraint, Cost
from manta_swarm.automl.search.evolution import spread
from manta_swarm.automl.search.journal import Settings
from manta_swarm.automl.search.resampling import Comparison, Interval, Unseen
from manta_swarm.automl.search.search import Candidate, Found

FORMAT = "manta/found/v2"

_MAX_ROWS = 16  # of the table; JSON has the whole front
_ID_LETTERS = 8
_COSTS = {"latency": ("latency", "ms", 1.0), "macs": ("MACs", "millions", 1e6), "weights": ("weights", "thousands", 1e3)}
_QUALITIES = {
    "loss": ("loss", "nats", 1.0),
    "accuracy": ("accuracy", "%", 100.0),
    "epe": ("EPE", "px", 1.0),
    "d1": ("D1", "%", 100.0),
    "bad3": ("bad-3", "%", 100.0),
}
_DIGITS = {"%": 1, "px": 2, "nats": 3}


def quality_text(name: str, value: float) -> str:
    """Return one figure of a quality as people write it."""
    label, unit, _ = _QUALITIES[name]
    return f"{label} {_figure(name, value)} {unit}"


def _figure(name: str, value: float) -> str:
    _, unit, scale = _QUALITIES[name]
    return f"{value * scale:.{_DIGITS[unit]}f}"


def conditions(found: Found, precision: str | int | None, latencies: Conditions | None) -> list[str]:
    """Return what holds of all figures, in lines for people: what was computed in, whose latencies they are, how well a predictor fits."""
    lines = [] if precision is None else [f"figures: of networks computed in {precision}"]
    if latencies is not None:
        of = latencies
        lines.append(f"latencies: of {of.name} ({of.device}), {of.runtime} {of.version}, batch {of.batch}")
    if found.fit is not None:
        fit = found.fit
        lines.append(
            f"predictor: rank correlation {fit.rank_correlation:.2f}, error {fit.rmse:.4f} "
            f"(root mean square, cross-validated on {fit.samples} architectures)"
        )
        if fit.is_weak:
            lines.append("it ranks hardly better than chance: search with --no-predictor, or give it more --samples")
    return lines


def table(found: Found, costs: Sequence[Cost], task: str) -> Table:
    """Return the front as a table: costs, what ranks on the half that was searched on, and all that the other half says."""
    main, names = metric_of(task), list(found.best.test.quality)
    shown = spread(found.front, _MAX_ROWS)
    if found.best not in shown:
        shown = [each for each in found.front if each in shown or each is found.best]
    part = f"{len(shown)} of the {len(found.front)}" if len(shown) < len(found.front) else f"the {len(found.front)}"
    result = Table(title=f"Pareto front: {part} best of {len(found.points)} measured architectures", title_justify="left")
    for cost in costs:
        label, unit, _ = _COSTS[cost.name]
        result.add_column(f"{label}\n{unit}", justify="right")
    ranked = "loss" if "loss" in names else main
    for name, half in [(ranked, "search"), *((name, "test") for name in names)]:
        label, unit, _ = _QUALITIES[name]
        result.add_column(f"{label} {unit}\n{half}", justify="right")
    result.add_column("input\npx", justify="right")
    result.add_column("id", no_wrap=True, min_width=_ID_LETTERS)  # people copy it: other columns are narrowed first
    for candidate in shown:
        prices = [f"{cost.of(candidate.architecture) / _COSTS[cost.name][2]:,.2f}" for cost in costs]
        figures = [_figure(ranked, candidate.search.quality[ranked]), *(_figure(name, candidate.test.quality[name]) for name in names)]
        identity = [str(candidate.architecture.resolution), candidate.architecture.id[:_ID_LETTERS]]
        result.add_row(*prices, *figures, *identity, style="bold" if candidate is found.best else None)
    return result


def words(found: Found, task: str) -> list[str]:
    """Return what samples say that did not choose, in lines for people: the other half of each of many halvings, and the test half."""
    lines, word, unit = [], found.unseen, "px" if task == STEREO else "nats"
    if found.rehearsal is not None:
        by = found.rehearsal
        lines.append(
            f"chosen so on random halves of the search half: loss {by.chosen_on:.3f} {unit} there, {by.elsewhere:.3f} on the other half, "
            f"the smallest {by.smallest:.3f}; no worse than it in {by.better} of {by.halves}"
        )
    lines.append(f"on {word.samples} unseen samples (in brackets: 95 of 100 such sets of samples):")
    figures = [("loss", unit, 1.0, 3, word.loss), *([] if word.errors is None else [("wrong", "%", 100.0, 1, word.errors)])]
    for name, sign, scale, digits, compared in figures:
        lines.append(f"  {name:<6} {_ranged(compared.choice, scale, digits)} {sign}; {_compared(compared, word, scale, digits)}")
    return lines


def _compared(compared: Comparison, word: Unseen, scale: float, digits: int) -> str:
    texts = [f"the smallest subnet {compared.smallest * scale:.{digits}f}, behind by {_ranged(compared.behind, scale, digits)}"]
    if compared.random_median is not None and compared.random_behind is not None:
        median = f"{compared.random_median * scale:.{digits}f}"
        behind = _ranged(compared.random_behind, scale, digits)
        texts.append(f"the median of {word.num_random} random ones within the limits {median}, behind by {behind}")
    return "; ".join(texts)


def _ranged(interval: Interval, scale: float, digits: int) -> str:
    value, low, high = (f"{each * scale:.{digits}f}" for each in (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}]"


def result_json(
    found: Found, costs: Sequence[Cost], axes: Sequence[Cost], settings: Settings, latencies: Conditions | None = None
) -> bytes:
    """Return all that is known of the best and of the front, of which search they are, and under which conditions ``latencies`` hold."""
    value = {
        "format": FORMAT,
        "settings": dict(settings),
        "measured": len(found.points),
        "whole_region": found.is_whole,
        "predictor": None if found.fit is None else asdict(found.fit),
        "axes": [axis.name for axis in axes],
        "best": _candidate(found.best, costs),
        **({} if latencies is None else {"latencies": asdict(latencies)}),
        "rehearsal": None if found.rehearsal is None else asdict(found.rehearsal),
        "unseen": asdict(found.unseen),
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
        "search": candidate.search.quality,
        "test": candidate.test.quality,
    }


def plot(found: Found, axes: Sequence[Cost], constraints: Sequence[Constraint], task: str, title: str) -> bytes:
    """Return a PNG: a panel for each axis with every measured architecture, the front, the limit if there is one, and the choice."""
    figure = Figure(figsize=(8.0 if len(axes) == 1 else 5.0 * len(axes), 5.0), dpi=150, layout="constrained")
    for place, axis in enumerate(axes):
        panel = figure.add_subplot(1, len(axes), 1 + place)
        limits = [constraint.limit for constraint in constraints if constraint.cost is axis]
        _draw(panel, found, axis, place, limits, line="-" if len(axes) == 1 else "")
        panel.set_ylabel(f"loss ({'px' if task == STEREO else 'nats'}) on the search half of the held-out data")
    figure.suptitle(title)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw(panel: Axes, found: Found, axis: Cost, place: int, limits: Sequence[float], line: str) -> None:
    label, unit, scale = _COSTS[axis.name]
    panel.scatter(
        [point.costs[place] / scale for point in found.points],
        [-point.score for point in found.points],
        s=12,
        color="0.7",
        label="measured",
    )
    costs = [axis.of(candidate.architecture) / scale for candidate in found.front]
    losses = [candidate.search.loss for candidate in found.front]
    panel.plot(costs, losses, linestyle=line, drawstyle="steps-post", marker="o", markersize=4, color="tab:blue", label="Pareto front")
    panel.scatter(costs, [each.test.loss for each in found.front], s=16, marker="x", color="tab:orange", label="the front on the test half")
    best = axis.of(found.best.architecture) / scale
    panel.scatter([best], [found.best.search.loss], s=120, marker="*", color="tab:red", zorder=3, label="chosen")
    for limit in limits:
        panel.axvline(limit / scale, linestyle="--", color="tab:red", label=f"limit {limit / scale:g}")
    panel.set_xlabel(f"{label} ({unit})")
    panel.grid(alpha=0.3)
    panel.legend(loc="best")


class SearchProgress:
    """A bar for each part of a search, with the quality of the lowest loss so far; see automl.search.search.Watch."""

    def __init__(self, console: Console) -> None:
        """Prepare; nothing is shown before it is entered."""
        self._is_shown = console.is_terminal
        self._best: Measured | None = None
        self._bar = progress.Progress(
            progress.TextColumn("{task.description:<13}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[best]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            auto_refresh=False,  # a second thread and starting programs do not go together
        )
        self._task: progress.TaskID | None = None

    def __enter__(self) -> "SearchProgress":
        if self._is_shown:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._bar.stop()

    def begin(self, what: str, total: int) -> None:
        """Begin a bar of its own; the one before is full, even if its part ended early."""
        if self._task is not None:
            self._bar.update(self._task, total=self._bar.tasks[-1].completed)
        self._best = None
        self._task = self._bar.add_task(what, total=total, best="")
        self._refresh()

    def measured(self, measured: Measured) -> None:
        """Move on by one."""
        assert self._task is not None
        if self._best is None or measured.loss < self._best.loss:
            self._best = measured
        self._bar.update(self._task, advance=1, best=f"best {quality_text(*next(iter(self._best.quality.items())))}")
        self._refresh()

    def _refresh(self) -> None:
        if self._is_shown:
            self._bar.refresh()
