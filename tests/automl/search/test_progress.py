import io
from array import array

from rich.console import Console

from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.report import SearchProgress


def measured(accuracy: float) -> Measured:
    return Measured({"accuracy": accuracy}, array("i", [round(100 * (1.0 - accuracy))]), array("i"))


def shown(is_terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120)
    with SearchProgress(console) as progress:
        progress.begin("searching", 3)
        for accuracy in (0.5, 0.75, 0.25):
            progress.measured(measured(accuracy))
        progress.begin("testing", 1)
        progress.measured(measured(0.7))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_how_far_the_search_is_and_the_best_so_far() -> None:
    text = shown(is_terminal=True)
    assert "searching" in text
    assert "3/3" in text
    assert "best accuracy 75.0 %" in text
    assert "best accuracy 70.0 %" in text


def test_elsewhere_nothing_is_shown() -> None:
    assert shown(is_terminal=False) == ""
