import io
import json
import threading
from typing import Any

import pytest

from manta_swarm.runtime.console import Form, PrintingConsole


class Blocked(io.StringIO):
    """A terminal that reads nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()
        self.reads = threading.Event()

    def write(self, text: str) -> int:
        self.is_asked.set()
        assert self.reads.wait(60)
        return super().write(text)


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_lines_come_out_in_order_and_all_of_them_before_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with PrintingConsole() as console:
        for number in range(50):
            console.say(f"line {number}")
        console.tell("round", round=3)  # for programs only
    assert capsys.readouterr().out.splitlines() == [f"line {number}" for number in range(50)]


def test_programs_get_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with PrintingConsole(Form.OBJECTS) as console:
        console.say('a "line"')
        console.tell("round", round=3, loss=None)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said == [{"event": "said", "text": 'a "line"'}, {"event": "round", "round": 3, "loss": None}]


def test_who_looks_later_finds_the_last_lines_whoever_has_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = PrintingConsole(Form.SILENT)
    for number in range(100):
        console.say(f"line {number}" + "x" * 1000)
    assert len(console.last()) == 40
    assert console.last()[-1].startswith("line 99x")
    assert sum(map(len, console.last())) < 20_000  # a picture fits into an answer
    assert capsys.readouterr().out == ""


def test_a_terminal_that_does_not_read_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Blocked()
    monkeypatch.setattr("sys.stdout", terminal)
    with PrintingConsole() as console:
        console.say("the first")
        assert terminal.is_asked.wait(60)
        for number in range(5000):  # more than anything holds: this returns all the same
            console.say(f"line {number}")
        terminal.reads.set()
    lines = terminal.getvalue().splitlines()
    assert lines[:2] == ["the first", "line 0"]
    assert len(lines) <= 1001


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Gone())
    with PrintingConsole() as console:
        console.say("one")
        console.say("two")
    assert console.last() == ("one", "two")
    assert console.form is Form.SILENT


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "console" and thread.is_alive()]


def test_what_the_terminal_has_no_letters_for_is_said_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", terminal)
    console = PrintingConsole()
    console.say("the log stops: \u043f\u043e\u043a\u0430")
    with console:
        console.say("\u2192 later")
        console.say("and goes on, na\u00efvely")
    assert terminal.buffer.getvalue().decode("latin-1").splitlines() == [  # type: ignore[attr-defined]
        "the log stops: \\u043f\\u043e\\u043a\\u0430",
        "\\u2192 later",
        "and goes on, na\u00efvely",
    ]
