"""A real peer in a real terminal, and its dashboard in another one: tmux, at a small and at a large size. Screens are in ``screens``."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.network.processes import Programs, small_run, wait_for

pytestmark = [pytest.mark.swarm, pytest.mark.needs("tmux")]


class Terminal:
    """A shell in a terminal."""

    def __init__(self, sockets: str, folder: Path, columns: int, lines: int) -> None:
        """Open it; ``sockets`` has a short name, ``folder`` is the shell's."""
        self._sockets = sockets
        self._folder = folder
        self._name = f"{columns}x{lines}"  # of a server of its own
        self.is_open = True
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), "-c", str(folder), "sh")

    def tmux(self, *words: str) -> str:
        """Return what tmux says."""
        environment = {**os.environ, "TMUX_TMPDIR": self._sockets, "PS1": "$ ", "MANTA_CPU_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            ["tmux", "-L", self._name, *words], env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def type(self, line: str) -> None:
        """Type a line."""
        self.tmux("send-keys", line, "Enter")

    def press(self, key: str) -> None:
        """Press one key."""
        self.tmux("send-keys", key)

    def screen(self) -> str:
        """Return what is on it."""
        return self.tmux("capture-pane", "-p")

    def until(self, *texts: str, but: str = "\0") -> str:
        """Return the screen once all of that is on it, and not ``but``."""
        seen = ""

        def is_there() -> bool:
            nonlocal seen
            seen = self.screen()
            return all(text in seen for text in texts) and but not in seen

        wait_for(is_there, f"{texts} on the screen", detail=self.screen)
        return seen

    def keep(self, name: str) -> None:
        """Keep the screen, plain and with its colours."""
        folder = self._folder / "screens"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text(self.screen())
        (folder / f"{name}.ansi").write_text(self.tmux("capture-pane", "-p", "-e"))

    def state(self, name: str) -> tuple[str, str]:
        """Return how the terminal is set, by the kernel and by tmux: alternate screen, cursor, keypad. The shell has to have it."""
        path = self._folder / f"stty-{name}"
        self.type(f"stty -g > {path}.part && mv {path}.part {path}")
        wait_for(path.exists, "the shell answers", detail=self.screen)
        modes = ("alternate_on", "cursor_flag", "keypad_flag", "mouse_any_flag", "wrap_flag")
        return path.read_text(), self.tmux("display", "-p", " ".join(f"#{{{mode}}}" for mode in modes))

    def close(self) -> None:
        """Close it: what runs there is told by SIGHUP."""
        if self.is_open:
            self.is_open = False
            self.tmux("kill-server")


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Callable[[int, int], Terminal]]:
    """Open terminals, which are closed at the end."""
    opened: list[Terminal] = []
    with tempfile.TemporaryDirectory(prefix="tmux") as sockets:

        def open_(columns: int, lines: int) -> Terminal:
            opened.append(Terminal(sockets, tmp_path, columns, lines))
            return opened[-1]

        yield open_
        for terminal in opened:
            terminal.close()


def command(*words: str | Path) -> str:
    return shlex.join([sys.executable, "-P", "-m", "manta_swarm.peer.cli", *map(str, words)])


def process(words: str, directory: Path) -> psutil.Process:
    """Return the program with ``words`` in its command that is of a peer's ``directory``, and no child of it that is not another yet."""
    found = {
        each.pid: each
        for each in psutil.process_iter(["cmdline", "ppid"])
        if words in " ".join(each.info["cmdline"] or ()) and str(directory) in (each.info["cmdline"] or ())
    }
    programs = [each for each in found.values() if each.info["ppid"] not in found]
    assert len(programs) == 1, programs
    return programs[0]


def test_a_volunteer_watches_pauses_and_leaves_and_the_terminal_is_as_before(
    tmp_path: Path, open_terminal: Callable[[int, int], Terminal]
) -> None:
    with Programs(tmp_path, small_run(rounds=10_000, first_open_s=2.0, min_open_s=2.0, max_open_s=4.0)) as programs:
        aggregator = programs.start_aggregator()
        mine = tmp_path / "mine"
        where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"], "--listen", programs.listen("mine"))
        join = command("join", *where, "--gpus", "none", "--alone", "--dir", mine)
        dashboard = command("dashboard", "--dir", mine)

        small, large = open_terminal(80, 24), open_terminal(200, 60)
        before = small.state("before")
        small.type(f"{join}; echo ended=$?.")
        small.until("TRAINING", "of 10000", "Ctrl-C leaves the run", "round committed", but="round 0 of")  # rounds go by
        small.keep("80x24-join")

        before_large = large.state("before-large")
        large.type(f"NO_COLOR=1 {dashboard}; echo closed=$?.")
        large.until("TRAINING", "of 10000", "Close view")
        large.press("p")
        large.until("PAUSED  by you")
        small.until("PAUSED  by you")
        large.keep("200x60-paused")
        large.press("p")
        large.until("TRAINING")
        large.press("?")
        large.until("computes nothing, and loses nothing")
        large.press("Escape")
        large.until("this computer", but="computes nothing, and loses nothing")
        large.keep("200x60")

        process("manta_swarm.peer.cli join", mine).send_signal(signal.SIGKILL)
        large.until("NO ANSWER  no peer runs here now")
        assert small.state("killed") == before  # nothing had to be mended
        small.type("echo still=$((40 + 2)).")
        small.until("still=42.")

        small.type(f"clear; {join}; echo ended=$?.")
        large.until("TRAINING", but="NO ANSWER")  # of the new one
        large.press("C-c")
        large.until("closed=0.")
        assert large.state("after-large") == before_large
        small.until("TRAINING")  # it goes on
        small.press("C-c")
        small.until("left the run", "ended=0.")
        assert small.state("after") == before
        assert "Ctrl-C leaves the run" not in small.screen()  # the view is gone, what was said stays

        small.type(join)
        small.until("TRAINING", "of 10000")
        peer = process("manta_swarm.peer.cli join", mine)
        small.close()
        wait_for(lambda: not peer.is_running(), "the peer leaves as its terminal is closed")
        assert programs.status("mine")["stage"] != "starting"
