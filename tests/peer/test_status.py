"""What a peer tells its person: of its rounds, and of what audits found."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network.peer_status import FaultSeen, PeerStatus
from manta_swarm.peer.status import LiveStatus, advice, fault_line, is_guilty, pending_words, plain_fault, unproven_words, verdict
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.reputation import FALSE, WITHHELD, Fault
from manta_swarm.runtime.console import Form, PrintingConsole

STATE = bytes.fromhex("abcdef" * 10 + "0000")

CONTRIBUTION = bytes(range(32))


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path / "peer")


@pytest.fixture
def live_status(store: PeerStore) -> LiveStatus:
    status = PeerStatus("12D3KooWpeer", "aa", "bb", "digits", "here", "cpu", num_rounds=9)
    return LiveStatus(store, status)


def written(store: PeerStore) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store.directory / "status.json").read_text())
    return found


def test_the_file_says_who_where_and_which_process(live_status: LiveStatus, store: PeerStore) -> None:
    with live_status:
        status = written(store)
    assert (status["peer"], status["run"], status["name"], status["cohort"]) == ("12D3KooWpeer", "bb", "digits", "here")
    assert (status["pid"], status["round"], status["finished"]) == (os.getpid(), 0, False)


def test_the_file_holds_the_last_word_also_after_an_error(live_status: LiveStatus, store: PeerStore) -> None:
    with pytest.raises(ArithmeticError), live_status:  # noqa: PT012
        live_status.update(round=9, finished=True, dropped={"too old": 2})
        raise ArithmeticError
    assert [written(store)[name] for name in ("round", "finished", "dropped")] == [9, True, {"too old": 2}]


def test_a_round_is_one_plain_line_where_nobody_watches(
    live_status: LiveStatus, store: PeerStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_status:
        live_status.update(round=3, stage="working", loss=1.23456, members=4, samples_counted=128)
        live_status.committed(round_=3, state=STATE, contributions=4, counted=True, lost=0)
    assert capsys.readouterr().out == "round committed round=3 contributions=4 state=abcdefabcdef samples=128 loss=1.235\n"
    assert written(store)["round"] == 3


def test_a_round_that_went_by_without_this_peer_says_so(live_status: LiveStatus, capsys: pytest.CaptureFixture[str]) -> None:
    with live_status:
        live_status.update(samples_counted=128, loss=1.0)
        live_status.committed(round_=3, state=STATE, contributions=4, counted=False, lost=0)
        live_status.committed(round_=4, state=STATE, contributions=4, counted=False, lost=64)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("samples=128 (without this peer)")
    assert lines[1].endswith("samples=128 (without this peer: 64 samples are stale)")


def test_what_it_waits_for_is_said_once_and_other_programs_see_it(
    live_status: LiveStatus, store: PeerStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_status:
        for _ in range(3):
            live_status.wait_for("the log")
        assert written(store)["waiting_for"] == "the log"
        live_status.update(waiting_for="")
        assert written(store)["waiting_for"] == ""
        live_status.wait_for("the log")
    assert capsys.readouterr().out == "waiting for the log\n" * 2


def test_a_long_line_is_not_broken_and_brackets_are_not_colours(live_status: LiveStatus, capsys: pytest.CaptureFixture[str]) -> None:
    line = "manta-peer join " + "[red]x[/red] " * 40
    with live_status:
        live_status.say(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_for_programs_a_round_is_an_object(store: PeerStore, capsys: pytest.CaptureFixture[str]) -> None:
    with LiveStatus(store, PeerStatus("p", "k", "r", "digits", "here", "cpu", num_rounds=9), PrintingConsole(Form.OBJECTS)) as live_status:
        live_status.update(loss=0.5, samples_counted=640)
        live_status.wait_for("the log")
        live_status.committed(round_=5, state=STATE, contributions=3, counted=False, lost=64)
        live_status.pause({"you": "by you"})
        live_status.pause({})
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    figures = {"contributions": 3, "state": STATE.hex(), "counted": False, "samples_counted": 640, "loss": 0.5, "lost": 64}
    assert [each for each in said if each["event"] == "round"] == [{"event": "round", "round": 5, **figures}]
    assert [(each["event"], each["why"]) for each in said if "why" in each] == [("paused", {"you": "by you"}), ("resumed", {})]
    assert "waiting for the log" in [each.get("text") for each in said]


def test_what_a_round_counted_of_this_peer_is_kept_of_the_newest_one(live_status: LiveStatus) -> None:
    with live_status:
        live_status.committed(round_=3, state=STATE, contributions=2, counted=True, lost=0)
        live_status.committed(round_=4, state=STATE, contributions=2, counted=True, lost=0)
        live_status.counted(4, 128)
        live_status.earned(4, 7, is_checked=True, samples=512)
        live_status.counted(3, 64)  # the older one is known later
        status = live_status.status
    assert (status.last_round, status.last_samples, status.last_of) == (4, 128, 512)
    assert (status.samples_counted, status.rounds_counted) == (192, 2)


def test_a_disk_that_takes_no_status_is_said_and_stops_nothing(
    live_status: LiveStatus, store: PeerStore, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_status:
        (store.directory / "status.json.part").mkdir()
        live_status.update(round=4)
        live_status.wait_for("the log")
        live_status.committed(round_=5, state=STATE, contributions=1, counted=True, lost=0)
    assert "round committed round=5" in capsys.readouterr().out
    assert all("status not written" in message for message in caplog.messages)
    assert caplog.messages
    assert written(store)["round"] == 0  # whole, and as it was


def test_a_status_that_was_looked_at_does_not_change(live_status: LiveStatus) -> None:
    live_status.update(round=3, stage="working", loss=0.5)
    live_status.committed(round_=3, state=STATE, contributions=1, counted=True, lost=0)
    before = live_status.shown()
    live_status.update(round=4)
    assert (before.name, before.round, before.num_rounds, before.stage, before.loss) == ("digits", 3, 9, "working", 0.5)
    assert before.said[-1].startswith("round committed round=3")
    assert live_status.shown().round == 4


def test_what_is_sent_is_what_is_read_and_anything_else_is_refused(live_status: LiveStatus) -> None:
    live_status.update(loss=0.5, pauses={"you": "by you"}, credit_faults=(FaultSeen(1, "false", "ab"),))
    live_status.say("a line")
    assert PeerStatus.of(live_status.shown().to_json()) == live_status.shown()
    fields = json.loads(live_status.shown().to_json())
    for text in ("", "[]", "{}", *(json.dumps({**fields, **wrong}) for wrong in ({"pid": "7"}, {"round": []}, {"mood": "good"}))):
        with pytest.raises(RemoteFault, match="no status of a peer"):
            PeerStatus.of(text)


@pytest.mark.parametrize(
    ("reason", "means", "remedy"),
    [
        (WITHHELD, "nobody brought that in time", "keep the peer running, on a disk with room"),
        (FALSE, "it is not what it says", "run manta-peer doctor"),
    ],
)
def test_a_fault_is_a_sentence_that_says_what_it_means_and_what_to_do(reason: str, means: str, remedy: str) -> None:
    line = fault_line(plain_fault(Fault(12, reason, CONTRIBUTION)))
    assert line.startswith(f"contribution 0001020304050607 was found {reason} with round 12: ")
    assert means in line
    assert remedy in line
    assert is_guilty(Fault(12, reason, CONTRIBUTION)) == (reason == FALSE)


def test_a_verdict_names_its_round_and_the_contribution_and_says_to_look_at_the_computer_and_how_to_begin_anew() -> None:
    assert verdict(Fault(12, FALSE, CONTRIBUTION)) == (
        "audits found this peer guilty with round 12: its contribution 0001020304050607 was computed again, and is not what it says; "
        "what was pending is not paid, and its work counts no more"
    )
    assert "manta-peer doctor" in advice()
    assert "--dir" in advice()


def test_a_reason_of_another_version_is_shown_as_it_is() -> None:
    assert fault_line(FaultSeen(3, "new", "ab" * 32)) == "contribution abababababababab was found new with round 3"


def test_when_it_is_paid_and_when_a_key_is_proven() -> None:
    assert "with round 35" in pending_words(35, 40)
    assert "settled after its last round, 40" in pending_words(0, 40)
    assert unproven_words(3, 20).startswith("not proven yet: 3 of 20 contributions found good so far")
