"""An aggregator's gateway, with a stand-in for the peer's program: it is started again when it ends, and gone when the aggregator ends."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from manta_swarm.aggregator.features import sidecars as module
from manta_swarm.aggregator.features.sidecars import GatewaySidecar, Sidecar
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.admission import AdmissionRule
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.child import Restart
from manta_swarm.runtime.listen_address import ListenAddress
from tests.consoles import Lines
from tests.memory_log import until
from tests.network.processes import DEADLINE_S

pytestmark = pytest.mark.swarm

ADDRESSES = ("/ip4/192.0.2.7/tcp/31000/p2p/12D3KooX", "/ip4/127.0.0.1/tcp/31000/p2p/12D3KooX")
_FIRST = """
import json, os, signal, sys, time
from pathlib import Path
lives = Path("lives")
lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
life = len(lives.read_text())
def tell(**status):
    Path("status.new").write_text(json.dumps({"peer": "12D3KooY", "key": "", "pid": os.getpid(), **status}))
    Path("status.new").rename("status.json")
"""


class Shown(GatewaySidecar):
    """Lets the stand-in know once it is seen."""

    def is_up(self, status: PeerStatus, addresses: Sequence[str]) -> bool:
        if found := super().is_up(status, addresses):
            (self.directory / "shown").touch()
        return found

    @property
    def url(self) -> str:
        return str(self.status()["gateway"])


class Stage:
    """A gateway whose program is a few lines of the test's."""

    def __init__(self, directory: Path, program: str, monkeypatch: pytest.MonkeyPatch, host: str = "127.0.0.1") -> None:
        self.lines = Lines()
        self.home = directory / "gateway"
        ledger, manifest = SimpleNamespace(run=b"\xab" * 32), SimpleNamespace(admission=AdmissionRule("open"))
        context: Any = SimpleNamespace(directory=directory, console=self.lines, ledger=ledger, manifest=manifest)
        self.gateway = Shown(context, ListenAddress(host, 0), data_root=None, threads=None)
        code = f"import os; os.chdir({str(self.home)!r})\n{_FIRST}{program}"
        monkeypatch.setattr(Sidecar, "_command", lambda *_: [sys.executable, "-c", code])
        monkeypatch.setattr(module, "_AGAIN", Restart(0.05, 0.2))

    async def run(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.gateway.run(ADDRESSES)

    @property
    def lives(self) -> int:
        return len((self.home / "lives").read_text())


def test_what_ends_before_the_run_does_is_started_again_until_the_run_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
if life == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if life == 2:
    sys.exit("the disk is full")
if life == 3:
    sys.exit(0)
tell(finished=True)
"""
    stage = Stage(tmp_path, program, monkeypatch)
    asyncio.run(stage.run())
    assert stage.lives == 4
    said = ("was ended by SIGKILL; it is started again", "ended with exit code 1: the disk is full; it is", "left the run; it is")
    assert all(words in line for words, line in zip(said, stage.lines, strict=True))


def test_settings_that_the_peers_program_refuses_are_the_operators_mistake_unless_they_once_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = "print('manta-peer: give something else'); sys.exit(2)"
    with pytest.raises(UserError, match=r"^the gateway: give something else$"):
        asyncio.run(Stage(tmp_path, refusing, monkeypatch).run())
    once = f"""
if life == 2:
    tell(leases_at="http://127.0.0.1:1/")
    while not Path("shown").exists():
        time.sleep(0.05)
    sys.exit(1)
if life == 3:
    {refusing}
tell(finished=True)
"""
    stage = Stage(tmp_path, once, monkeypatch)
    asyncio.run(stage.run())
    assert stage.lives == 4
    assert "exit code 2: manta-peer: give something else; it is started again" in stage.lines[-1]


def test_the_address_is_shown_once_it_answers_and_no_process_is_left_when_it_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, "tell(leases_at='http://0.0.0.0:1/'); signal.pause()", monkeypatch, host="0.0.0.0")

    async def story() -> None:
        running = asyncio.create_task(stage.run())
        await until(lambda: bool(stage.gateway.url))
        child = psutil.Process(int(_pid(stage.home)))
        running.cancel()
        await asyncio.wait([running])
        assert not child.is_running()

    asyncio.run(story())
    port = stage.gateway.url.rsplit(":")[-1]
    shown = [f"  manta-peer join --light --gateway http://{host}:{port}#12D3KooY --run {'ab' * 32}" for host in ("192.0.2.7", "127.0.0.1")]
    assert stage.lines[:3] == ["light contributors join with:", *shown]


def _pid(home: Path) -> Sequence[str]:
    return (home / "status.json").read_text().split('"pid": ')[1].split(",")[0]


def test_of_the_operators_settings_for_peers_the_gateway_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANTA_GATEWAY", "127.0.0.1:1")
    monkeypatch.setenv("MANTA_STATE_DIR", str(tmp_path))
    program = """
Path("seen").write_text(repr([(name, value) for name, value in os.environ.items() if name.startswith("MANTA_") and value]))
tell(finished=True)
"""
    stage = Stage(tmp_path, program, monkeypatch)
    asyncio.run(stage.run())
    assert (stage.home / "seen").read_text() == repr([("MANTA_STATE_DIR", str(tmp_path))])
