"""Stand-in programs that end, that refuse to end, and that lose their parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from aggregator.attendants.children import Child, stop
from tests.swarm.processes import are_gone, wait_for

pytestmark = pytest.mark.swarm

_POLITE = "import signal; print('ready', flush=True); signal.sigwait([signal.SIGINT]); print('bye', flush=True)"
_BLOCK_SIGINT = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
_STUBBORN = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
print("ready", flush=True)
signal.pause()
"""
_PARENT = """
import signal, sys
from pathlib import Path
from aggregator.attendants.children import Child
child = Child.start("child", [sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]), {})
print(child.process.pid, flush=True)
signal.pause()
"""
_WRITES = "print('x' * 2_000_000); print('the last line', flush=True)"
_AT_FORK = """
import os, sys
from pathlib import Path
from aggregator.attendants.children import Child
os.register_at_fork(before=lambda: print("Python forks", flush=True))
child = Child.start("child", [sys.executable, "-c", "pass"], Path(sys.argv[1]), {})
sys.exit(child.process.wait(60))
"""


def _start(code: str, directory: Path, name: str = "program") -> Child:
    child = Child.start(name, [sys.executable, "-c", code], directory / f"{name}.log", {})
    wait_for(lambda: "ready" in child.last_lines(), f"{name} is ready")
    return child


def test_a_program_that_listens_to_ctrl_c_is_not_killed(tmp_path: Path) -> None:
    child = _start(_BLOCK_SIGINT + _POLITE, tmp_path)
    stop([child])
    assert child.returncode == 0
    assert child.last_lines() == "ready\nbye"


def test_a_program_that_refuses_to_end_is_killed_with_what_it_started_when_there_is_a_hurry(tmp_path: Path) -> None:
    child = _start(_STUBBORN, tmp_path)
    family = [psutil.Process(child.process.pid), *psutil.Process(child.process.pid).children()]
    assert len(family) == 2
    stop([child], hurry=lambda: True)
    assert child.returncode == -signal.SIGKILL
    wait_for(lambda: are_gone(family), "both are gone")


def test_ctrl_c_in_the_terminal_does_not_reach_a_program(tmp_path: Path) -> None:
    child = _start(_BLOCK_SIGINT + _POLITE, tmp_path)
    assert os.getsid(child.process.pid) == child.process.pid != os.getsid(0)
    stop([child])


def test_stopping_what_has_ended_does_nothing(tmp_path: Path) -> None:
    child = _start("print('ready')", tmp_path)
    child.process.wait(60)
    stop([child])
    assert child.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends orphans on Linux only")
def test_a_program_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PARENT, str(tmp_path / "child.log"), _STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        wait_for(lambda: "ready" in (tmp_path / "child.log").read_text(), "the child is ready")
        grandchildren = child.children()
        parent.kill()
    wait_for(lambda: are_gone([child]), "the child is gone")
    for each in grandchildren:  # a stand-in's own child, which did not ask for the same
        each.kill()


def test_nothing_of_a_parent_with_threads_runs_in_a_program_before_its_start(tmp_path: Path) -> None:
    # Between fork and exec a lock that another thread held is held for ever.
    command = [sys.executable, "-c", _AT_FORK, str(tmp_path / "child.log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "child.log").read_text() == ""


def test_a_program_is_what_it_was_started_as(tmp_path: Path) -> None:
    code = "import os, sys; print('ready', os.getpid(), sys.argv[1:], os.environ['OF_THE_PARENT'], flush=True)"
    child = Child.start("program", [sys.executable, "-c", code, "a b", "--c"], tmp_path / "program.log", {"OF_THE_PARENT": "1"})
    assert child.process.wait(60) == 0
    assert child.last_lines() == f"ready {child.process.pid} ['a b', '--c'] 1"


def test_what_a_program_prints_again_and_again_fills_no_disk_and_no_memory(tmp_path: Path) -> None:
    for _ in range(4):
        child = Child.start("program", [sys.executable, "-c", _WRITES], tmp_path / "program.log", {})
        assert child.process.wait(60) == 0
        assert child.last_lines(1) == "the last line"
        assert len(child.last_lines()) < 100_000
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"program.log": 2_000_015, "program.log.before": 2_000_015}
