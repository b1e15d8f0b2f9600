"""An operator's auditor, with a stand-in for the peer's program; what it is told to do, and when there is one."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from manta_swarm.aggregator.features import sidecars as module
from manta_swarm.aggregator.features.sidecars import AuditorSidecar, Sidecar
from manta_swarm.aggregator.settings.inviting import auditor_key, is_named
from manta_swarm.peer.config import PeerConfig
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.verdicts import AuditRules
from manta_swarm.runtime.child import Restart
from tests.consoles import Lines
from tests.memory_log import until
from tests.network.processes import DEADLINE_S

ADDRESSES = ("/ip4/192.0.2.7/tcp/31000/p2p/12D3KooX", "/ip4/127.0.0.1/tcp/31000/p2p/12D3KooX")


def auditor(directory: Path, lines: Lines, share: float = 0.25, data_root: Path | None = None) -> AuditorSidecar:
    """Return the auditor of a run that names it."""
    ledger = SimpleNamespace(run=b"\xab" * 32, settled=False)
    manifest = SimpleNamespace(audit_rules=AuditRules((auditor_key(directory),)))
    context: Any = SimpleNamespace(directory=directory, console=lines, ledger=ledger, manifest=manifest)
    return AuditorSidecar(context, share, data_root=data_root)


def test_it_runs_where_the_manifest_names_the_key_of_its_folder_and_nowhere_else(tmp_path: Path) -> None:
    rules = AuditRules((Identity(b"\x01" * 32).public_key,))
    assert not is_named(tmp_path, rules)
    assert not (tmp_path / "auditor").exists()
    key = auditor_key(tmp_path)
    assert auditor_key(tmp_path) == key
    assert not is_named(tmp_path, rules)
    assert not is_named(tmp_path, None)
    assert is_named(tmp_path, replace(rules, named=tuple(sorted((key, *rules.named)))))


def test_it_audits_only_and_takes_the_share_of_the_time_that_the_operator_says(tmp_path: Path) -> None:
    def command(share: float, data_root: Path | None = None) -> list[str]:
        return auditor(tmp_path, Lines(), share, data_root)._command(ADDRESSES)

    words = command(0.25, tmp_path)
    assert words[:5] == [sys.executable, "-P", "-m", "manta_swarm.peer.cli", "join"]
    given = dict(zip(words[5::2], words[6::2], strict=False))
    assert (given["--initial-peers"], given["--dir"]) == (ADDRESSES[1], str(tmp_path / "auditor"))
    assert ("--audit-only" in words, words[words.index("--audit") + 1], words[words.index("--data-root") + 1]) == (
        True,
        "25%",
        str(tmp_path),
    )
    assert "1%" in command(0.001)
    for word in [word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")]:
        assert word in {*PeerConfig.model_fields, "threads"}


@pytest.mark.swarm
def test_one_that_ends_is_started_again_and_none_is_left_when_the_operator_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, lines = tmp_path / "auditor", Lines()
    program = f"""
import json, os, signal
os.chdir({str(home)!r})
open("lives", "a").write("x")
open("new", "w").write(json.dumps({{"peer": "12D3KooY", "key": "", "pid": os.getpid()}}))
os.replace("new", "status.json")
signal.pause()
"""
    monkeypatch.setattr(Sidecar, "_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(module, "_AGAIN", Restart(0.05, 0.2))

    def lives() -> int:
        return len((home / "lives").read_text()) if (home / "lives").exists() else 0

    def pid() -> int:
        return int((home / "status.json").read_text().split('"pid": ')[1].rstrip("}"))

    async def story() -> None:
        running = asyncio.create_task(auditor(tmp_path, lines).run(ADDRESSES))
        await until(lambda: lives() == 1 and (home / "status.json").exists())
        first = psutil.Process(pid())
        first.kill()
        await until(lambda: lives() == 2 and pid() != first.pid)
        last = psutil.Process(pid())
        running.cancel()
        await asyncio.wait([running])
        assert not last.is_running()

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await story()

    asyncio.run(bounded())
    assert len(lines) == 1
    assert "the auditor was ended by SIGKILL; it is started again" in lines[0]


@pytest.mark.swarm
def test_an_operator_whose_auditor_cannot_be_used_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    monkeypatch.setattr(Sidecar, "_command", lambda *_: [sys.executable, "-c", "print('manta-peer: no data'); raise SystemExit(2)"])
    asyncio.run(auditor(tmp_path, lines).run(ADDRESSES))
    assert lines == ["the auditor: no data; this operator audits nothing until it is started again"]
