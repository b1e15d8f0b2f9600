"""Shows how far a local swarm is: a bar on a terminal, a plain line every so often elsewhere. Starts no thread."""

import time

from rich import progress
from rich.console import Console

_LINE_EVERY_S = 10.0


class Progress:
    """Shows rounds, loss and peers until it is left."""

    def __init__(self, console: Console, num_rounds: int) -> None:
        """Prepare for a run of ``num_rounds``."""
        self._console = console
        self._num_rounds = num_rounds
        self._line_due_s = 0.0
        self._ended = False
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("round"),
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[what]}"),
            progress.TimeElapsedColumn(),
            console=console,
            auto_refresh=False,  # a second thread and starting programs do not go together
        )
        self._task = self._bar.add_task("", total=num_rounds, what="the peers are starting")

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def update(self, round_: int, peers: int, loss: float | None) -> None:
        """Show where the run stands; ``loss`` is the mean over the peers."""
        ended = round_ == self._num_rounds
        loss_text = "" if loss is None else f"{loss:.3f}"
        if self._console.is_terminal:
            what = "evaluating" if ended else f"{peers} peers" + (f" · loss {loss_text}" if loss_text else "")
            self._bar.update(self._task, completed=round_, what=what, refresh=True)
        elif time.monotonic() >= self._line_due_s or (ended and not self._ended):
            self._ended = ended
            self._line_due_s = time.monotonic() + _LINE_EVERY_S
            line = f"{'evaluating' if ended else 'training'} round={round_}/{self._num_rounds} peers={peers}"
            self._console.print(line + (f" loss={loss_text}" if loss_text else ""), highlight=False, soft_wrap=True)
