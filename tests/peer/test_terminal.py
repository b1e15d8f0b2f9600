"""The terminal after a peer with a dashboard was killed, where the shell is quicker than the dashboard, and where it is not."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.terminal import MEND
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
    command = [sys.executable, "-P", str(SHELL), str(tmp_path), how]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(SHELL.parents[2])}
    with subprocess.Popen(command, stdin=used, stdout=used, stderr=used, start_new_session=True, env=environment) as shell:
        try:
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
        finally:
            shell.kill()
