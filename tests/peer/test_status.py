import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.status import PeerStatus, StatusBoard
from peer.store import PeerStore


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path / "peer")


@pytest.fixture
def board(store: PeerStore) -> StatusBoard:
    status = PeerStatus("12D3KooWpeer", "aa", "bb", "digits", "here", "cpu", num_rounds=9)
    return StatusBoard(store, status)


STATE = bytes.fromhex("abcdef" * 10 + "0000")


def written(store: PeerStore) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store.directory / "status.json").read_text())
    return found


def test_the_file_says_who_where_and_which_process(board: StatusBoard, store: PeerStore) -> None:
    with board:
        status = written(store)
    assert (status["peer"], status["run"], status["name"], status["cohort"]) == ("12D3KooWpeer", "bb", "digits", "here")
    assert (status["pid"], status["round"], status["finished"]) == (os.getpid(), 0, False)


def test_the_file_holds_the_last_word_once_the_program_ends(board: StatusBoard, store: PeerStore) -> None:
    with board:
        board.update(round=9, finished=True, dropped={"too old": 2})
    assert (written(store)["round"], written(store)["finished"]) == (9, True)
    assert written(store)["dropped"] == {"too old": 2}


def test_the_file_holds_the_last_word_also_after_an_error(board: StatusBoard, store: PeerStore) -> None:
    def work() -> None:
        with board:
            board.update(round=4)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        work()
    assert written(store)["round"] == 4


def test_a_round_is_one_plain_line_where_nobody_watches(board: StatusBoard, store: PeerStore, capsys: pytest.CaptureFixture[str]) -> None:
    with board:
        board.update(round=3, phase="working", loss=1.23456, members=4, samples_counted=128)
        board.committed(round_=3, state=STATE, contributions=4, counted=True, lost=0)
    assert capsys.readouterr().out == "round committed round=3 contributions=4 state=abcdefabcdef samples=128 loss=1.235\n"
    assert written(store)["round"] == 3


def test_a_round_that_went_by_without_this_peer_says_so(board: StatusBoard, capsys: pytest.CaptureFixture[str]) -> None:
    with board:
        board.update(samples_counted=128, loss=1.0)
        board.committed(round_=3, state=STATE, contributions=4, counted=False, lost=0)
        board.committed(round_=4, state=STATE, contributions=4, counted=False, lost=64)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("samples=128 (without this peer)")
    assert lines[1].endswith("samples=128 (without this peer: 64 samples are stale)")


def test_what_it_waits_for_is_said_once(board: StatusBoard, capsys: pytest.CaptureFixture[str]) -> None:
    with board:
        for _ in range(3):
            board.update(waiting_for="the log")
        board.update(waiting_for="")
        board.update(waiting_for="the log")
    assert capsys.readouterr().out == "waiting for the log\n" * 2


def test_other_programs_see_what_it_waits_for(board: StatusBoard, store: PeerStore) -> None:
    with board:
        board.update(phase="sealed", waiting_for="the log")
        assert (written(store)["phase"], written(store)["waiting_for"]) == ("sealed", "the log")
        board.update(waiting_for="")
        assert written(store)["waiting_for"] == ""


def test_a_long_line_is_not_broken_and_brackets_are_not_colours(board: StatusBoard, capsys: pytest.CaptureFixture[str]) -> None:
    line = "manta-peer join " + "[red]x[/red] " * 40
    with board:
        board.say(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_a_terminal_has_a_live_line_that_follows(
    store: PeerStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    with StatusBoard(store, PeerStatus("p", "k", "r", "digits", "here", "cpu", num_rounds=9)) as board:
        board.update(round=5, phase="working", members=3, loss=0.5, samples_counted=640, waiting_for="the log")
        assert board._line() == "round 5/9 · working · 3 peers · loss 0.500 · 640 samples counted · waiting for the log"
        board.say("a line that stays")
        board.committed(round_=5, state=STATE, contributions=3, counted=True, lost=0)
    shown = terminal.getvalue()
    assert "a line that stays" in shown
    assert "round committed" not in shown  # the live line has it


def test_a_disk_that_takes_no_status_is_said_and_stops_nothing(
    board: StatusBoard, store: PeerStore, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with board:
        (store.directory / "status.json.part").mkdir()
        board.update(round=4, waiting_for="the log")
        board.committed(round_=5, state=STATE, contributions=1, counted=True, lost=0)
    assert "round committed round=5" in capsys.readouterr().out
    assert all("status not written" in message for message in caplog.messages)
    assert caplog.messages
    assert written(store)["round"] == 0  # whole, and as it was
