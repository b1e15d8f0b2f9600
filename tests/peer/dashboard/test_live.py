"""The live view of ``manta-peer join``, on a terminal of the test's own."""

import os
import pty
import select
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from manta_swarm.network.peer_status import SEEKING, PeerStatus
from manta_swarm.peer.dashboard.live import LiveView, lines
from manta_swarm.peer.dashboard.text import MinuteRates

AT_WORK = PeerStatus("12D3KooWpeer", "aa", run="ab" * 32, name="digits", num_rounds=9, round=3, stage="working", samples_counted=640)

_PROGRAM = """
import fcntl, logging, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from pathlib import Path
from manta_swarm.peer.dashboard.live import LiveView, is_possible
from manta_swarm.network.peer_status import PeerStatus
print(f"possible={is_possible()}", flush=True)
logging.basicConfig(handlers=[logging.StreamHandler(sys.stderr)])
with LiveView("the hint") as view:
    for round_ in range(3):
        view.show(PeerStatus("12D3KooWpeer", "aa", run="ab" * 32, num_rounds=9, round=round_, stage="working"))
        view.say(f"line {round_}")
    logging.warning("something is odd")
    sys.stdin.readline() if len(sys.argv) > 1 else None
print("the end", flush=True)
"""


def on_a_terminal(*words: str, until: bytes, **environment: str) -> bytes:
    """Return what the program writes to a terminal of its own, up to ``until``; then it is killed."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", "LINES": "24", **environment}
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as program:
        os.close(theirs)
        seen = b""
        try:
            while until not in seen:
                assert select.select([ours], [], [], 60)[0], seen
                seen += os.read(ours, 65536)
        finally:
            program.kill()
            os.close(ours)
    return seen


def test_lines_stand_above_the_view_which_is_gone_at_the_end() -> None:
    seen = on_a_terminal(until=b"the end", NO_COLOR="")
    assert b"possible=True" in seen
    assert b"\x1b[1;32m" in seen  # in colours
    assert b"round 2 of 9" in seen
    for line in (b"line 0\r\n", b"line 1\r\n", b"line 2\r\n", b"something is odd\r\n", b"the end"):
        assert line in seen
    assert seen.rpartition(b"\x1b[J")[2].strip() == b"the end"  # after the last time that the view was taken away
    assert seen.count(b"\x1b[J") >= 5


def test_nothing_of_the_terminal_is_set_that_somebody_would_have_to_mend() -> None:
    seen = on_a_terminal("waits", until=b"something is odd")
    assert b"the hint" in seen
    assert b"\x1b[?" not in seen  # no other screen, no hidden cursor, no keys that are reported


def test_without_colours_everything_is_there() -> None:
    plain = on_a_terminal(until=b"the end", NO_COLOR="1")
    assert b"TRAINING" in plain
    assert b"\x1b[3" not in plain


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("PYTHONIOENCODING", "ascii")])
def test_where_it_cannot_be_drawn_it_is_not_possible(name: str, value: str) -> None:
    assert b"possible=False" in on_a_terminal(until=b"the end", **{name: value})


@pytest.mark.parametrize("width", [20, 79, 200])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    for status in (
        AT_WORK,
        PeerStatus("12D3KooWpeer", "aa", stage=SEEKING),
        PeerStatus("12D3KooWlight", "aa", run="ab", gateway="http://a"),
    ):
        shown = lines(status, MinuteRates(1.5, 2e6, 3e3), "the hint", width)
        assert all(len(line.plain) <= max(width, 70) for line in shown)
        assert shown[-1].plain == "the hint"


def test_it_says_what_this_peer_gives_and_who_else_is_there() -> None:
    shown = [line.plain for line in lines(AT_WORK, MinuteRates(1.5, 2e6, 3e3), "the hint", 100)]
    assert shown[0].startswith("TRAINING")
    assert "round 3 of 9" in shown[1]
    assert shown[3] == "1.5 samples/s · 640 samples counted"
    assert shown[4] == "about 0 peers · 0 in its cohort · out 0 B, 2.0 MB/s · in 0 B, 3.0 kB/s"


def test_where_the_terminal_is_slow_only_the_newest_status_waits_and_no_line_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    view = LiveView("the hint")
    for round_ in range(5000):  # nobody prints yet
        view.show(replace(AT_WORK, round=round_))
    view._thread = threading.current_thread()
    view.say("a line")
    with view:
        pass
    shown = capsys.readouterr().out
    assert shown == "a line\n"  # which is no terminal of its own: no view is drawn on it
    assert view._newest == replace(AT_WORK, round=4999)
