"""Shows on a terminal how far a search is; silent elsewhere. Starts no thread."""

from rich import progress
from rich.console import Console

from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.report import quality_text


class Progress:
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

    def __enter__(self) -> "Progress":
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
