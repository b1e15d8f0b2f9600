"""The light contributor's program where nothing is installed that it does not need: a real process, a real gateway that the test serves."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.command import assert_refused, typed
from tests.memory_log import MICROBATCH, until
from tests.peer.gateways import gateway_with, gathered_by

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from manta_swarm.peer.cli import main
from manta_swarm.peer.commands.report import lines_of
from manta_swarm.peer.config import load_config
from manta_swarm.peer.control import LEAVE, LIMITS, PAUSE, RESUME, look, tell
from manta_swarm.peer.features.gateway.http import serving
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.listen_address import ListenAddress

GATEWAY = ("--gateway", "http://127.0.0.1:1")
BLOCKED = ("hivemind", "multiaddr", "starlette", "uvicorn", "torchvision", "sklearn", "skimage", "matplotlib", "PIL", "scipy")
WITHOUT = f"""
import os, signal, sys

if os.environ.get("IGNORED"):  # as of what a script starts with &
    signal.signal(signal.SIGINT, signal.SIG_IGN)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import importlib
importlib.import_module(sys.argv.pop(1)).main()
"""


async def _program(*arguments: str, home: Path, module: str = "manta_swarm.peer.cli", ignored: str = "") -> asyncio.subprocess.Process:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MANTA_")}
    environment = {
        **kept,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "MANTA_STATE_DIR": str(home),
        "IGNORED": ignored,
    }
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT, module, *arguments, stdout=pipe, stderr=pipe, env=environment
    )


def test_a_light_contributor_needs_neither_hivemind_nor_data_nor_what_reads_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with gateway_with() as gateway, serving(gateway.service, ListenAddress("127.0.0.1", 0)) as address:
            cohort_session = await gateway.convene()
            run = gateway.signed.run.hex()
            program = await _program("join", "--light", "--gateway", address, "--run", run, "--dir", str(tmp_path / "light"), home=tmp_path)
            async with asyncio.timeout(240):
                while len(cohort_session.members) < 2:
                    assert program.returncode is None, (await program.communicate())[1].decode()
                    await asyncio.sleep(0.05)
                gathered = await gathered_by(gateway, cohort_session)
                await cohort_session.tell(gateway.accepted(*gathered.claims))
                gateway.service.finish()
                printed, errors = await program.communicate()
        assert (program.returncode, errors) == (0, b"")
        assert b"the log has it round=1 microbatches=1" in printed
        assert b"run finished taken=1" in printed
        status = json.loads((tmp_path / "light" / "status.json").read_text())
        assert (status["taken"], status["samples_counted"], status["finished"]) == (1, MICROBATCH, True)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("module", "arguments", "says"),
    [
        ("manta_swarm.aggregator.local.cli", ("up",), "pip install 'manta-swarm[swarm]'"),
        ("manta_swarm.automl.cli", ("data", "digits"), "pip install 'manta-swarm[swarm]'"),
        ("manta_swarm.peer.cli", ("join",), "pip install 'manta-swarm[swarm]'"),
        ("manta_swarm.peer.cli", ("join", "--gateway", "127.0.0.1:0"), "pip install 'manta-swarm[swarm]'"),
    ],
)
def test_whoever_lacks_something_is_told_in_a_line_what_to_do(module: str, arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    async def run() -> tuple[int | None, str, str]:
        program = await _program(*arguments, home=tmp_path, module=module)
        async with asyncio.timeout(240):
            printed, errors = await program.communicate()
        return program.returncode, printed.decode(), errors.decode()

    returncode, printed, errors = asyncio.run(run())
    assert (returncode, printed) == (2, "")
    assert errors.startswith("manta-")
    assert errors.count("\n") == 1
    assert says in errors


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


def test_it_is_paused_limited_asked_and_told_to_leave_from_another_terminal(tmp_path: Path) -> None:
    directory = tmp_path / "light"

    async def told(word: str, limits: dict[str, str] | None = None) -> str:
        return await asyncio.to_thread(tell, directory, word, limits)

    async def story() -> None:
        async with gateway_with() as gateway, serving(gateway.service, ListenAddress("127.0.0.1", 0)) as address:
            limits = ("--duty", "90%", "--max-download", "10MB")
            program = await _program("join", "--light", "--gateway", address, "--dir", str(directory), *limits, home=tmp_path)
            assert program.stdout is not None
            async with asyncio.timeout(240):
                while b"leases from" not in (line := await program.stdout.readline()):
                    assert line, (await program.communicate())[1].decode()
                assert await told(PAUSE) == "paused: nothing is computed until manta-peer resume"
                assert await program.stdout.readline() == b"paused (by you): nothing is computed until manta-peer resume\n"
                status = directory / "status.json"  # a request for a lease may have been under way
                await until(lambda: json.loads(status.read_text())["stage"] == "paused")
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
                while len(cohort_session.members) < 2:
                    assert program.returncode is None, (await program.communicate())[1].decode()
                    await asyncio.sleep(0.05)
                seen = await asyncio.to_thread(look, directory)
                assert (seen.paused, seen.samples_trained) == (False, MICROBATCH)
                assert seen.received_bytes > seen.sent_bytes > 0
                assert (await told(LEAVE)).startswith("it leaves")
                printed, errors = await program.communicate()
        assert (program.returncode, errors) == (0, b"")
        assert b"resumed\n" in printed
        assert printed.endswith(b"left the run taken=0 samples=0\n")
        assert load_config({"dir": directory}).limits.words() == {"duty": "50%", "cpu_threads": "1"}  # for its next start

    asyncio.run(story())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_also_where_a_script_started_it_in_the_background(number: int, tmp_path: Path) -> None:
    async def run() -> tuple[int | None, bytes]:
        program = await _program(
            "join", "--light", "--gateway", "http://127.0.0.1:1/", "--dir", str(tmp_path), home=tmp_path, ignored="yes"
        )
        assert program.stdout is not None
        async with asyncio.timeout(240):
            new_key, waiting = await program.stdout.readline(), await program.stdout.readline()
            assert new_key.startswith(b"your key"), new_key
            assert waiting.startswith(b"waiting for a gateway"), waiting
            program.send_signal(number)
            printed, errors = await program.communicate()
        assert errors == b""
        return program.returncode, printed

    returncode, printed = asyncio.run(run())
    assert (returncode, printed) == (0, b"left the run taken=0 samples=0\n")
