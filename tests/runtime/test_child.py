"""Real child processes: talked to, killed, stood still, refusing to end, started again, and gone when their parent is."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

import manta_swarm.runtime.child
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.child import AT_ONCE, TOLD, Child, ChildLost, Program, Restart, keep, python, stop
from manta_swarm.runtime.line import Heartbeat
from tests.memory_log import until
from tests.network.processes import are_gone, wait_for
from tests.runtime.stand_in import Answer, Ask, answering

pytestmark = pytest.mark.swarm

TIMEOUT_S = 120.0
NICENESS = 7
AGAIN = Restart(0.1, 0.2)

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
from manta_swarm.runtime.child import AT_ONCE, Child, Program, python
child = Child.start(Program("child", python("-c", sys.argv[2]), Path(sys.argv[1])))
print(child.pid, flush=True)
signal.pause()
"""
_TALKING_PARENT = """
import asyncio
from manta_swarm.runtime.child import Child
from tests.runtime.stand_in import Answer, Ask, answering
async def play():
    child = Child.start(answering())
    await child.hear(Answer, 120.0)
    await child.say(Ask("compute"))
    print(child.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(play())
"""
_WRITES = "print('x' * 2_000_000); print('the last line', flush=True)"
_AT_FORK = """
import os, sys
from pathlib import Path
from manta_swarm.runtime.child import AT_ONCE, Child, Program, python
os.register_at_fork(before=lambda: print("Python forks", flush=True))
child = Child.start(Program("child", python("-c", "pass"), Path(sys.argv[1])))
sys.exit(child.process.wait(60))
"""


def logging(tmp_path: Path, how: str) -> Program:
    """Return the stand-in that prints into a file."""
    return replace(answering(how), log_path=tmp_path / "log", niceness=NICENESS, steps=TOLD)


def _start(code: str, directory: Path, name: str = "program") -> Child:
    child = Child.start(Program(name, python("-c", code), directory / f"{name}.log"))
    wait_for(lambda: "ready" in child.last_lines(), f"{name} is ready")
    return child


def played(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story; it leaves no process and no descriptor."""
    before, earlier = set(os.listdir("/proc/self/fd")), set(psutil.Process().children())

    async def whole() -> None:
        async with asyncio.timeout(240):
            await story()

    asyncio.run(whole())
    assert not set(psutil.Process().children()) - earlier
    assert set(os.listdir("/proc/self/fd")) == before


# One that is talked to.


def test_a_child_answers_and_is_gone_at_once_when_it_is_ended_in_the_middle_of_its_work() -> None:
    async def story() -> None:
        child = Child.start(answering())
        assert await child.hear(Answer, TIMEOUT_S) == Answer("1")
        assert psutil.Process(child.pid).environ()["OMP_NUM_THREADS"] == "3"
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
        large = "x" * (1 << 23)
        await child.say(Ask(large))
        assert await child.hear(Answer, TIMEOUT_S) == Answer(large[:900])
        await child.say(Ask("compute"))
        began_s = asyncio.get_running_loop().time()
        await child.kill("given up")
        assert asyncio.get_running_loop().time() - began_s < 1
        assert not psutil.pid_exists(child.pid)
        assert (child.reason, child.returncode) == ("given up", -signal.SIGKILL)
        await child.say(Ask("too late"))
        for _ in range(2):
            with pytest.raises(ChildLost, match="given up"):
                await child.hear(Answer, TIMEOUT_S)

    played(story)


def test_a_child_that_is_killed_costs_its_own_work_only_and_its_death_is_noticed_at_once() -> None:
    async def story() -> None:
        one, other = (Child.start(answering()) for _ in range(2))
        for child in (one, other):
            await child.hear(Answer, TIMEOUT_S)
        await one.say(Ask("compute"))
        hearing = asyncio.create_task(one.hear(Answer, TIMEOUT_S))
        await asyncio.sleep(0)
        os.kill(one.pid, signal.SIGKILL)
        with pytest.raises(ChildLost, match=r"^SIGKILL$"):
            await hearing
        await one.ended()
        await other.say(Ask("go on"))
        assert await other.hear(Answer, TIMEOUT_S) == Answer("go on")
        await other.kill()

    played(story)


def test_one_that_stands_still_is_killed_and_so_is_one_that_says_something_else_or_too_much_or_what_nobody_understands() -> None:
    async def drained(child: Child, timeout_s: float) -> None:
        while True:
            await child.hear(Answer, timeout_s)

    async def ends(how: str, asked: str, reason: str, timeout_s: float = TIMEOUT_S) -> None:
        child = Child.start(answering(how))
        if asked:
            await child.hear(Answer, TIMEOUT_S)
            await child.say(Ask(asked))
        if asked == "again and again":
            await child.ended()
        with pytest.raises(ChildLost, match=reason):
            await drained(child, timeout_s)
        assert not psutil.pid_exists(child.pid)

    async def story() -> None:
        await ends("answers", "compute", "no answer for 1 s", 1.0)
        await ends("stands still", "", "something else than it was asked")
        await ends("babbles", "", "nobody understands: no message: kind 255, 4294967295 bytes")
        await ends("answers", "again and again", "more than it was asked")

    played(story)


def test_one_that_takes_no_message_is_killed_and_one_that_dies_at_a_message_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(number: signal.Signals, reason: str) -> None:
        child = Child.start(answering())
        await child.hear(Answer, TIMEOUT_S)
        os.kill(child.pid, signal.SIGSTOP)
        saying = asyncio.create_task(child.say(Ask("x" * (1 << 23))))
        await asyncio.sleep(0)
        if number != signal.SIGSTOP:
            os.kill(child.pid, number)
        await saying
        with pytest.raises(ChildLost, match=reason):
            await child.hear(Answer, TIMEOUT_S)
        assert not psutil.pid_exists(child.pid)

    async def story() -> None:
        await told(signal.SIGKILL, "SIGKILL")
        monkeypatch.setattr(manta_swarm.runtime.child, "_TAKES_S", 0.5)
        await told(signal.SIGSTOP, "took nothing for 0 s")

    played(story)


def test_why_a_child_failed_is_told_and_whether_a_person_could_change_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        for how, kind, reason in (
            ("has no data", UserError, "^no such data$"),
            ("fails", ChildLost, "^it is broken$"),
            ("has a fault", ChildLost, "^ZeroDivisionError: a fault$"),
        ):
            with pytest.raises(kind, match=reason):
                await Child.start(answering(how)).hear(Answer, TIMEOUT_S)

    played(story)
    assert "in work\n    raise ZeroDivisionError" in capfd.readouterr().err


def test_what_a_child_printed_last_is_told_of_its_death(tmp_path: Path) -> None:
    async def story() -> None:
        child = Child.start(replace(logging(tmp_path, ""), command=python("-c", "raise SystemExit('no memory')")))
        with pytest.raises(ChildLost, match=r"^exit code 1: no memory$"):
            await child.hear(Heartbeat, TIMEOUT_S)
        with pytest.raises(OSError, match="No such file"):
            Child.start(replace(logging(tmp_path, ""), log_path=tmp_path / "no" / "folder" / "log"))

    played(story)


@pytest.mark.parametrize("stands_still", [False, True])
def test_a_child_ends_with_a_parent_that_was_killed_in_the_middle_of_its_work(stands_still: bool) -> None:
    with subprocess.Popen(python("-c", _TALKING_PARENT), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if stands_still and sys.platform == "linux":
            child.suspend()
        parent.kill()
    wait_for(lambda: are_gone([child]), "the child is gone")


def test_the_end_of_the_line_alone_ends_a_child_in_the_middle_of_its_work() -> None:
    async def story() -> None:
        child = Child.start(answering())
        await child.hear(Answer, TIMEOUT_S)
        await child.say(Ask("compute"))
        assert child._line is not None
        child._line.shutdown(1)  # what it hears of a parent's end, where nothing kills orphans
        await child.ended()
        assert child.returncode == 0

    played(story)


# One that is kept running.


def kept(program: Program, quiet_s: float, story: Callable[[Callable[[int | None], Awaitable[int]]], Awaitable[None]]) -> None:
    """Keep a stand-in running as long as ``story`` lasts, which is given a way to its next life; nothing is left of it after that."""

    async def another(than: int | None) -> int:
        """Return the id of the process once it is another than that one, and at work."""
        assert program.log_path is not None
        while True:
            said = program.log_path.read_text() if program.log_path.exists() else ""
            for process in psutil.Process().children():  # what programs of other tests are forked from may be another one
                if process.pid != than and f"at work {process.pid}\n" in said:
                    return int(process.pid)
            await asyncio.sleep(0.02)

    async def whole() -> None:
        keeping = asyncio.create_task(keep(replace(program, start_s=60.0, quiet_s=quiet_s), AGAIN))
        try:
            await story(another)
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})

    played(whole)


def test_one_that_is_killed_and_one_that_stands_still_are_started_again(tmp_path: Path) -> None:
    async def story(another: Callable[[int | None], Awaitable[int]]) -> None:
        first = await another(None)
        os.kill(first, signal.SIGKILL)
        second = await another(first)
        os.kill(second, signal.SIGSTOP)
        third = await another(second)
        assert not psutil.pid_exists(second), "it is not only replaced but gone"
        assert third not in (first, second)

    kept(logging(tmp_path, "beats"), 5.0, story)


def group_niceness(pid: int) -> int | None:
    """Return the niceness of a process's session; None: the system has no such groups."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None


def test_it_makes_way_for_all_others_and_they_keep_what_they_had(tmp_path: Path) -> None:
    mine, group = os.getpriority(os.PRIO_PROCESS, 0), group_niceness(os.getpid())

    async def story(another: Callable[[int | None], Awaitable[int]]) -> None:
        pid = await another(None)
        assert os.getpriority(os.PRIO_PROCESS, pid) == mine + NICENESS
        # Where sessions share the processors its session makes way, too: perhaps a moment later, for the system says how often one may ask.
        await until(lambda: group_niceness(pid) in (mine + NICENESS, None))

    kept(logging(tmp_path, "beats"), 60.0, story)
    assert (os.getpriority(os.PRIO_PROCESS, 0), group_niceness(os.getpid())) == (mine, group)


def test_one_that_does_not_listen_is_ended_all_the_same(tmp_path: Path) -> None:
    async def story(another: Callable[[int | None], Awaitable[int]]) -> None:
        await another(None)

    kept(logging(tmp_path, "is stubborn"), 60.0, story)


def test_one_that_can_never_work_is_let_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        await keep(logging(tmp_path, "has no data"))

    played(story)
    assert "no such data" in caplog.text


def test_who_ended_is_started_again_more_and_more_seldom() -> None:
    restart = Restart(0.5, 60.0, free=1)
    rests_s = [restart.pause_s(ends) for ends in range(1, 20)]
    assert rests_s[:4] == [0.0, 0.5, 1.0, 2.0]
    assert all(one <= other for one, other in pairwise(rests_s))
    assert rests_s[-1] == restart.pause_s(100_000) == 60.0


# One that is not talked to.


def test_a_program_that_listens_to_ctrl_c_is_not_killed(tmp_path: Path) -> None:
    child = _start(_BLOCK_SIGINT + _POLITE, tmp_path)
    stop([child])
    assert child.returncode == 0
    assert child.last_lines() == "ready\nbye"


def test_a_program_that_refuses_to_end_is_killed_with_what_it_started_when_there_is_a_hurry(tmp_path: Path) -> None:
    child = _start(_STUBBORN, tmp_path)
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children()]
    assert len(family) == 2
    stop([child], hurry=AT_ONCE)
    assert child.returncode == -signal.SIGKILL
    wait_for(lambda: are_gone(family), "both are gone")


def test_ctrl_c_in_the_terminal_does_not_reach_a_program(tmp_path: Path) -> None:
    child = _start(_BLOCK_SIGINT + _POLITE, tmp_path)
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    stop([child])


def test_stopping_what_has_ended_does_nothing(tmp_path: Path) -> None:
    child = _start("print('ready')", tmp_path)
    child.process.wait(60)
    stop([child])
    assert child.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere its keeper asks it first")
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
    program = Program("program", [sys.executable, "-c", code, "a b", "--c"], tmp_path / "log", {"OF_THE_PARENT": "1"})
    child = Child.start(program)
    assert child.process.wait(60) == 0
    assert child.last_lines() == f"ready {child.pid} ['a b', '--c'] 1"


def test_what_a_program_prints_again_and_again_fills_no_disk_and_no_memory(tmp_path: Path) -> None:
    for _ in range(4):
        child = Child.start(Program("program", python("-c", _WRITES), tmp_path / "program.log"))
        assert child.process.wait(60) == 0
        assert child.last_lines(1) == "the last line"
        assert len(child.last_lines()) < 100_000
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"program.log": 2_000_015, "program.log.before": 2_000_015}


_TETHER = str(Path(__file__).parents[2] / "runtime" / "tether.py")


def test_what_a_program_leaves_behind_is_removed_when_it_was_told_to_end_and_when_its_parent_is_killed(tmp_path: Path) -> None:
    left, code = tmp_path / "left", "import signal, sys; print('ready', flush=True); signal.pause()"
    starting = f"import os, subprocess, sys, signal; subprocess.Popen([sys.executable, '-I', '-S', {_TETHER!r}, str(os.getpid()), '0', "
    starting += f"{str(left)!r}, sys.executable, '-c', {code!r}]); signal.pause()"
    for number in (signal.SIGTERM, signal.SIGKILL):
        left.mkdir()
        with subprocess.Popen([sys.executable, "-c", starting], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            (keeper,) = psutil.Process(parent.pid).children()
            family = [keeper, *keeper.children()]
            assert len(family) == 2
            keeper.send_signal(signal.SIGINT)
            assert not are_gone(family)
            if number == signal.SIGTERM:
                keeper.send_signal(number)
                wait_for(lambda family=family: are_gone(family), "both are gone")  # type: ignore[misc]
            parent.kill()
        wait_for(lambda family=family: are_gone(family), "both are gone")  # type: ignore[misc]
        wait_for(lambda: not left.exists(), "what it left is removed")


_ELSEWHERE = """
import os, runpy, signal, subprocess, sys
if len(sys.argv) == 2:  # the parent
    subprocess.Popen([sys.executable, __file__, sys.argv[1], str(os.getpid()), "0", "", sys.executable, "-c", sys.argv[1]])
    signal.pause()
sys.platform = "a system that kills no orphans"
script = sys.argv.pop(1)
runpy.run_path(TETHER, run_name="__main__")
"""


def test_where_nothing_kills_orphans_a_program_that_has_no_line_is_ended_with_its_parent_and_told_what_its_keeper_is_told(
    tmp_path: Path,
) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text(f"TETHER = {_TETHER!r}\n{_ELSEWHERE}")
    code = "import signal\nsignal.signal(signal.SIGINT, lambda *_: print('told', flush=True))\nprint('ready', flush=True)\n"
    code += "while True: signal.pause()"
    with subprocess.Popen([sys.executable, str(script), code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        (keeper,) = psutil.Process(parent.pid).children()
        family = [keeper, *keeper.children()]
        assert len(family) == 2
        keeper.send_signal(signal.SIGINT)
        assert parent.stdout.readline() == "told\n"
        parent.kill()
    wait_for(lambda: are_gone(family), "both are gone")
