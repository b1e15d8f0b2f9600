"""The light contributor's program where nothing is installed that it does not need: a fork, and a real gateway that the test serves."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.command import Home, assert_refused, typed, wait_for_line
from tests.forked import ForkServer
from tests.memory_log import MICROBATCH, until
from tests.peer.forked_home import ForkedHome
from tests.peer.gateways import Gateway, gateway_with, gathered_by

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from manta_swarm.peer.cli import main
from manta_swarm.peer.commands.report import lines_of
from manta_swarm.peer.config import load_config
from manta_swarm.peer.control import LEAVE, LIMITS, PAUSE, RESUME, look, tell
from manta_swarm.peer.features.gateway.cohort_session import LeaseSession
from manta_swarm.peer.features.gateway.http import serving
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.listen_address import ListenAddress

GATEWAY = ("--gateway", "http://127.0.0.1:1/")
WITHOUT, PEER = "tests.peer.features.light.without", "manta_swarm.peer.cli"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer | None]:
    """Have a process that has loaded a light contributor, where programs can be forked."""
    server = ForkServer((WITHOUT, PEER, "manta_swarm.peer.features.light.session")) if sys.platform == "linux" else None
    yield server
    if server is not None:
        server.close()


@pytest.fixture
def forks(home: Home, server: ForkServer | None) -> ForkedHome:
    home.environment["PYTHONPATH"] = str(Path(__file__).parents[4])
    return ForkedHome(home.directory, home.temporary, server)


@pytest.fixture
@asynccontextmanager
async def served() -> AsyncIterator[tuple[Gateway, str]]:
    """Have a gateway, and its address."""
    async with gateway_with() as gateway, serving(gateway.service, ListenAddress("127.0.0.1", 0)) as address:
        yield gateway, address


async def has_computed(cohort_session: LeaseSession, program: Any) -> None:
    """Return once what a program computed is at its gateway."""
    await until(lambda: len(cohort_session.members) == 2 or program.poll() is not None)
    assert program.poll() is None, program.communicate()


async def test_a_light_contributor_needs_neither_hivemind_nor_data_nor_what_reads_them(
    forks: ForkedHome, served: tuple[Gateway, str], tmp_path: Path
) -> None:
    gateway, address = served
    cohort_session = await gateway.convene()
    where = ("--gateway", address, "--run", gateway.signed.run.hex(), "--dir", tmp_path / "light")
    program = forks.start(WITHOUT, PEER, "join", "--light", *where)
    await has_computed(cohort_session, program)
    gathered = await gathered_by(gateway, cohort_session)
    await cohort_session.tell(gateway.accepted(*gathered.claims))
    gateway.service.finish()
    ended = await asyncio.to_thread(forks.end_of, program)
    assert (ended.exit_code, ended.errors) == (0, "")
    assert "the log has it round=1 microbatches=1" in ended.output
    assert "run finished taken=1" in ended.output
    status = json.loads((tmp_path / "light" / "status.json").read_text())
    assert (status["taken"], status["samples_counted"], status["finished"]) == (1, MICROBATCH, True)


@pytest.mark.parametrize(
    "command",
    [
        ("manta_swarm.aggregator.local.cli", "up"),
        ("manta_swarm.automl.cli", "data", "digits"),
        (PEER, "join"),
        (PEER, "join", "--gateway", "127.0.0.1:0"),
    ],
)
def test_whoever_lacks_something_is_told_in_a_line_what_to_do(command: tuple[str, ...], forks: ForkedHome) -> None:
    ended = forks.run(WITHOUT, *command)
    assert (ended.exit_code, ended.output, ended.errors.count("\n")) == (2, "", 1), ended
    assert ended.errors.startswith("manta-")
    assert "pip install 'manta-swarm[swarm]'" in ended.errors


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--light needs the URL of a gateway"),
        (("--gateway", "127.0.0.1:8080"), "give the URL that the gateway printed"),
        ((*GATEWAY, "--view", "left", "--workers", "2", "--size", "1"), "leave --view, --workers, --size out"),
        ((*GATEWAY, "--lease-only"), "leave --lease-only out"),
        ((*GATEWAY, "--gpu-memory", "6GB"), "--gpu-memory: a light contributor"),
    ],
)
def test_settings_that_a_light_contributor_does_not_have_are_said(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    assert_refused(typed(main, "join", "--light", "--dir", tmp_path / "light", *arguments), says)


async def test_it_is_paused_limited_asked_and_told_to_leave_from_another_terminal(
    forks: ForkedHome, served: tuple[Gateway, str], tmp_path: Path
) -> None:
    gateway, address = served
    directory = tmp_path / "light"

    async def told(word: str, limits: dict[str, str] | None = None) -> str:
        return await asyncio.to_thread(tell, directory, word, limits)

    limits = ("--duty", "90%", "--max-download", "10MB")
    program = forks.start(WITHOUT, PEER, "join", "--light", "--gateway", address, "--dir", directory, *limits)
    await asyncio.to_thread(wait_for_line, program, "leases from")
    assert await told(PAUSE) == "paused: nothing is computed until manta-peer resume"
    line = await asyncio.to_thread(program.stdout.readline)
    assert line == "paused (by you): nothing is computed until manta-peer resume\n"
    # A request for a lease may have been under way.
    await until(lambda: json.loads((directory / "status.json").read_text())["stage"] == "paused")
    cohort_session = await gateway.convene()
    assert await told(LIMITS, {"cpu_threads": "1", "duty": "50%"}) == (
        "duty 50%, cpu-threads 1, max-download 10MB; nothing is computed now: by you"
    )
    with pytest.raises(UserError, match="--gpu-memory: a light contributor computes on the CPU"):
        await told(LIMITS, {"gpu_memory": "6GB"})
    lines = await asyncio.to_thread(lines_of, directory)
    assert "paused (by you)" in lines[0]
    assert "limits: duty 50%, cpu-threads 1, max-download 10MB" in lines
    seen = await asyncio.to_thread(look, directory)
    assert (seen.paused, seen.samples_trained, seen.pid) == (True, 0, program.pid)
    assert gateway.service.leased == 0
    assert await told(RESUME) == "resumed"
    await has_computed(cohort_session, program)
    seen = await asyncio.to_thread(look, directory)
    assert (seen.paused, seen.samples_trained) == (False, MICROBATCH)
    assert seen.received_bytes > seen.sent_bytes > 0
    assert (await told(LEAVE)).startswith("it leaves")
    ended = await asyncio.to_thread(forks.end_of, program)
    assert (ended.exit_code, ended.errors) == (0, "")
    assert "resumed\n" in ended.output
    assert ended.output.endswith("left the run taken=0 samples=0\n")
    assert load_config({"dir": directory}).limits.words() == {"duty": "50%", "cpu_threads": "1"}  # for its next start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_also_where_a_script_started_it_in_the_background(number: int, forks: ForkedHome, tmp_path: Path) -> None:
    forks.environment["IGNORED"] = "yes"
    program = forks.start(WITHOUT, PEER, "join", "--light", *GATEWAY, "--dir", tmp_path)
    assert program.stdout.readline().startswith("your key")
    assert program.stdout.readline().startswith("waiting for a gateway")
    os.kill(program.pid, number)
    ended = forks.end_of(program)
    assert (ended.exit_code, ended.output, ended.errors) == (0, "left the run taken=0 samples=0\n", "")
