import json
import os
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network.peer_status import FaultSeen, PeerStatus
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.runtime.console import Form, PrintingConsole


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
            board.wait_for("the log")
        board.update(waiting_for="")
        board.wait_for("the log")
    assert capsys.readouterr().out == "waiting for the log\n" * 2


def test_other_programs_see_what_it_waits_for(board: StatusBoard, store: PeerStore) -> None:
    with board:
        board.update(phase="sealed")
        board.wait_for("the log")
        assert (written(store)["phase"], written(store)["waiting_for"]) == ("sealed", "the log")
        board.update(waiting_for="")
        assert written(store)["waiting_for"] == ""


def test_a_long_line_is_not_broken_and_brackets_are_not_colours(board: StatusBoard, capsys: pytest.CaptureFixture[str]) -> None:
    line = "manta-peer join " + "[red]x[/red] " * 40
    with board:
        board.say(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_for_programs_a_round_is_an_object(store: PeerStore, capsys: pytest.CaptureFixture[str]) -> None:
    with StatusBoard(store, PeerStatus("p", "k", "r", "digits", "here", "cpu", num_rounds=9), PrintingConsole(Form.OBJECTS)) as board:
        board.update(loss=0.5, samples_counted=640)
        board.wait_for("the log")
        board.committed(round_=5, state=STATE, contributions=3, counted=False, lost=64)
        board.pause({"you": "by you"})
        board.pause({})
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    figures = {
        "contributions": 3,
        "state": STATE.hex(),
        "counted": False,
        "samples_counted": 640,
        "loss": 0.5,
        "lost": 64,
    }
    assert [each for each in said if each["event"] == "round"] == [{"event": "round", "round": 5, **figures}]
    assert [(each["event"], each["why"]) for each in said if "why" in each] == [("paused", {"you": "by you"}), ("resumed", {})]
    assert "waiting for the log" in [each.get("text") for each in said]


def test_what_a_round_counted_of_this_peer_is_kept_of_the_newest_one(board: StatusBoard) -> None:
    with board:
        board.committed(round_=3, state=STATE, contributions=2, counted=True, lost=0)
        board.committed(round_=4, state=STATE, contributions=2, counted=True, lost=0)
        board.counted(4, 128)
        board.earned(4, 7, is_checked=True, samples=512)
        board.counted(3, 64)  # the older one is known later
        status = board.status
    assert (status.last_round, status.last_samples, status.last_of) == (4, 128, 512)
    assert (status.samples_counted, status.rounds_counted) == (192, 2)


def test_a_disk_that_takes_no_status_is_said_and_stops_nothing(
    board: StatusBoard, store: PeerStore, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with board:
        (store.directory / "status.json.part").mkdir()
        board.update(round=4)
        board.wait_for("the log")
        board.committed(round_=5, state=STATE, contributions=1, counted=True, lost=0)
    assert "round committed round=5" in capsys.readouterr().out
    assert all("status not written" in message for message in caplog.messages)
    assert caplog.messages
    assert written(store)["round"] == 0  # whole, and as it was


def test_a_status_that_was_looked_at_does_not_change(board: StatusBoard) -> None:
    board.update(round=3, phase="working", loss=0.5)
    board.committed(round_=3, state=STATE, contributions=1, counted=True, lost=0)
    before = board.shown()
    board.update(round=4)
    assert (before.name, before.round, before.num_rounds, before.phase, before.loss) == ("digits", 3, 9, "working", 0.5)
    assert before.said[-1].startswith("round committed round=3")
    assert board.shown().round == 4


def test_what_is_sent_is_what_is_read_and_anything_else_is_refused(board: StatusBoard) -> None:
    board.update(loss=0.5, pauses={"you": "by you"}, credit_faults=(FaultSeen(1, "false", "ab"),))
    board.say("a line")
    assert PeerStatus.of(board.shown().to_json()) == board.shown()
    fields = json.loads(board.shown().to_json())
    for text in ("", "[]", "{}", *(json.dumps({**fields, **wrong}) for wrong in ({"pid": "7"}, {"round": []}, {"mood": "good"}))):
        with pytest.raises(RemoteFault, match="no status of a peer"):
            PeerStatus.of(text)
