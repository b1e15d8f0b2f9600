"""Processes beside an aggregator: started again when they end or stand still, never left behind. Real ones, that do nothing else."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from aggregator.attendants.attendants import CANNOT, Attendant, Patience
from swarm.priority import group_niceness
from tests.memory_log import until
from tests.swarm.processes import are_gone, wait_for

pytestmark = pytest.mark.swarm

NICENESS = 7
QUICK = Patience(start_s=60.0, quiet_s=5.0, again_s=(0.1, 0.2))
BEATING = (
    "import os, sys, threading\nfrom aggregator.attendants.attendants import attend, keep_beating\nattend(lambda: None)\nkeep_beating()\n"
)
WORKING = BEATING + "print('at work', os.getpid(), file=sys.stderr, flush=True)\nthreading.Event().wait()\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WORKING


def attendant(tmp_path: Path, code: str, patience: Patience = QUICK) -> Attendant:
    arguments = ("-c", f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[3])!r})\n{code}")
    return Attendant("child", arguments, tmp_path / "log", niceness=NICENESS, patience=patience)


def kept(one: Attendant, story: Callable[[], Awaitable[None]]) -> None:
    """Keep it running as long as ``story`` lasts; nothing is left of it after that."""

    async def play() -> None:
        keeping = asyncio.create_task(one.keep())
        try:
            async with asyncio.timeout(120):
                await story()
            pid = one.pid
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
        assert pid is None or not psutil.pid_exists(pid)
        assert one.pid is None

    asyncio.run(play())


async def another(one: Attendant, than: int | None, tmp_path: Path) -> int:
    """Return the id of the process once it is another than that one, and at work."""
    while True:
        pid = one.pid
        if pid is not None and pid != than and f"at work {pid}\n" in (tmp_path / "log").read_text():
            return pid
        await asyncio.sleep(0.02)


def test_one_that_is_killed_and_one_that_stands_still_are_started_again(tmp_path: Path) -> None:
    one = attendant(tmp_path, WORKING)

    async def story() -> None:
        first = await another(one, None, tmp_path)
        os.kill(first, signal.SIGKILL)
        second = await another(one, first, tmp_path)
        os.kill(second, signal.SIGSTOP)
        third = await another(one, second, tmp_path)
        assert not psutil.pid_exists(second), "it is not only replaced but gone"
        assert third not in (first, second)

    kept(one, story)


def test_it_makes_way_for_all_others_and_they_keep_what_they_had(tmp_path: Path) -> None:
    one = attendant(tmp_path, WORKING)
    mine, group = os.getpriority(os.PRIO_PROCESS, 0), group_niceness(os.getpid())

    async def story() -> None:
        pid = await another(one, None, tmp_path)
        assert os.getsid(pid) == pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == mine + NICENESS
        # Where sessions share the processors its session makes way, too: perhaps a moment later, for the system says how often one may ask.
        await until(lambda: group_niceness(pid) in (mine + NICENESS, None))

    kept(one, story)
    assert (os.getpriority(os.PRIO_PROCESS, 0), group_niceness(os.getpid())) == (mine, group)


def test_one_that_does_not_listen_is_ended_all_the_same(tmp_path: Path) -> None:
    one = attendant(tmp_path, STUBBORN)

    async def story() -> None:
        await another(one, None, tmp_path)

    kept(one, story)


def test_one_that_can_never_work_is_let_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = attendant(tmp_path, f"print('no such data', file=sys.stderr)\nsys.exit({CANNOT})")

    async def story() -> None:
        async with asyncio.timeout(60):
            await one.keep()

    asyncio.run(story())
    assert "no such data" in caplog.text


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The parent is a process of its own, which prints its child's id."""
    code = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from aggregator.attendants.attendants import Attendant
from tests.aggregator.attendants.test_attendants import WORKING, another, attendant
async def play():
    tmp_path = Path({str(tmp_path)!r})
    one = attendant(tmp_path, WORKING)
    keeping = asyncio.create_task(one.keep())
    print(await another(one, None, tmp_path), flush=True)
    await keeping
asyncio.run(play())
"""

    async def story() -> None:
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        assert parent.stdout is not None
        async with asyncio.timeout(60):
            child = psutil.Process(int(await parent.stdout.readline()))
            parent.kill()
            await parent.wait()
            await asyncio.to_thread(wait_for, lambda: are_gone([child]), "the child is gone")

    asyncio.run(story())
