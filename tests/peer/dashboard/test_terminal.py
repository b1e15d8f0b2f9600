"""The terminal after a peer with a dashboard was killed, where the shell is quicker than the dashboard, and where it is not."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peer.dashboard.terminal import MEND
from tests.memory_log import DEADLINE_S

pytestmark = pytest.mark.swarm

SHELL = Path(__file__).with_name("quick_shell.py")
SAID = b"manta-peer was killed; what it had sealed is kept, and handed in at the next start"
ALTERNATE_SCREEN = b"\x1b[?1049h"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal's two ends: the one that shows it, and the one for programs."""
    ends = pty.openpty()
    termios.tcsetwinsize(ends[0], (24, 80))
    yield ends
    for end in ends:
        os.close(end)


@contextmanager
def started(used: int, directory: Path, how: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the shell, and its command, on the terminal's end for programs; it is killed at the end."""
    command = [sys.executable, "-P", str(SHELL), str(directory), how]
    whole = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(SHELL.parents[3]), **environment}
    with subprocess.Popen(command, stdin=used, stdout=used, stderr=used, start_new_session=True, env=whole) as shell:
        try:
            yield shell
        finally:
            shell.kill()


def read_until(shown: int, text: bytes) -> bytes:
    """Return what programs wrote, once ``text`` is in it."""
    seen = b""
    while text not in seen:
        assert select.select([shown], [], [], DEADLINE_S)[0], seen
        seen += os.read(shown, 1 << 16)
    return seen


@pytest.mark.parametrize("how", ["late", "plain", "editing"])
def test_a_killed_peer_leaves_the_terminal_as_it_was_or_as_the_shell_set_it(tmp_path: Path, terminal: tuple[int, int], how: str) -> None:
    shown, used = terminal
    before = termios.tcgetattr(used)
    with started(used, tmp_path, how) as shell:
        drawing = read_until(shown, b"STARTING")
        assert ALTERNATE_SCREEN in drawing
        assert termios.tcgetattr(used) != before
        shell.send_signal(signal.SIGUSR1)
        left = read_until(shown, SAID)
        assert left.rstrip().endswith(MEND + SAID)  # in this order, and nothing is drawn after it
        after = termios.tcgetattr(used)
        if how == "editing":
            assert after[0] & termios.INLCR
            assert after[3] & (termios.ICANON | termios.ISIG) == termios.ISIG
        else:
            assert after == before


def test_after_the_dashboard_a_terminal_without_all_letters_is_told_in_others(tmp_path: Path, terminal: tuple[int, int]) -> None:
    shown, used = terminal
    with started(used, tmp_path, "late", PYTHONIOENCODING="ascii"):
        read_until(shown, b"STARTING")
        os.write(shown, b"q")
        told = read_until(shown, b"the dashboard is closed")
        assert rb"joined the run of \u0141\xf3d\u017a" in told
