"""The systemd unit of a peer: written into a folder of the test's, read by systemd itself where it is."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.peer.commands import service
from manta_swarm.peer.commands.upkeep import install_command
from manta_swarm.protocol.errors import UserError


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in systemctl's place that writes down what it is asked for, and fails if a file says so."""
    programs = tmp_path / "programs"
    programs.mkdir()
    path = programs / "systemctl"
    path.write_text(f'#!/bin/sh\necho "$@" >> {programs}/asked\ntest ! -e {programs}/fails || {{ echo no bus >&2; exit 1; }}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return programs


def asked(programs: Path) -> list[str]:
    path = programs / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_a_service_is_installed_started_stopped_and_removed(tmp_path: Path, systemctl: Path) -> None:
    path = tmp_path / "config" / "systemd" / "user" / "manta-peer.service"
    assert "started" in service.install(tmp_path / "peer", starts=True)[1]
    assert f'"--dir" "{tmp_path / "peer"}"' in path.read_text()
    assert asked(systemctl) == ["--user daemon-reload", "--user enable --now manta-peer.service"]
    with pytest.raises(UserError, match="there already"):
        service.install(tmp_path / "peer", starts=True)
    service.remove()
    assert not path.exists()
    assert asked(systemctl)[2:] == ["--user disable --now manta-peer.service", "--user daemon-reload"]
    with pytest.raises(UserError, match="no service is installed"):
        service.remove()


def test_where_systemd_does_not_answer_the_person_hears_what_to_type(tmp_path: Path, systemctl: Path) -> None:
    (systemctl / "fails").touch()
    assert "no bus" in service.install(tmp_path / "peer", starts=True)[1]
    assert "no bus" in service.remove()[0]


def test_what_needs_a_person_is_not_started_again(tmp_path: Path) -> None:
    lines = service.unit_text(tmp_path).splitlines()
    assert {"Restart=on-failure", "RestartPreventExitStatus=2 3 4"} <= set(lines)


def test_a_service_that_knows_no_run_says_so(tmp_path: Path, systemctl: Path) -> None:
    for settings, knows in (("", False), ('initial_peers = ["/ip4/203.0.113.7/tcp/31000/p2p/12D3Koo"]\n', True)):
        (tmp_path / "peer.toml").write_text(settings)
        ended = CliRunner().invoke(install_command, ["--dir", str(tmp_path)])
        assert (ended.exit_code, "it knows no run yet" in ended.output) == (0, not knows)
        service.unit_path().unlink()


def test_it_may_be_written_only(tmp_path: Path, systemctl: Path) -> None:
    assert "enable --now" in service.install(tmp_path / "peer", starts=False)[1]
    assert asked(systemctl) == []


def test_without_systemd_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in (lambda: service.install(tmp_path, starts=True), service.remove):
        with pytest.raises(UserError, match="needs systemd"):
            command()


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("name", ["peer", "two words", 'odd % $ " name'])
def test_systemd_takes_the_unit(tmp_path: Path, name: str) -> None:
    path = tmp_path / "manta-peer.service"
    path.write_text(service.unit_text(tmp_path / name))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = ["systemd-analyze", "--user", "verify", path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
