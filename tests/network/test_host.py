"""What a host is called in a run."""

import uuid
from pathlib import Path

import pytest

from manta_swarm.network import lan
from manta_swarm.network.lan import host_digest
from manta_swarm.protocol.signing import sha256

RUN, OTHER = sha256(b"run"), sha256(b"other")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return where this host's names are."""
    machine, boot = tmp_path / "machine-id", tmp_path / "boot_id"
    monkeypatch.setattr(lan, "_MACHINE_IDS", (machine, tmp_path / "none"))
    monkeypatch.setattr(lan, "_BOOT_ID", boot)
    return machine, boot


def test_all_on_a_host_say_the_same_in_a_run_and_something_else_in_another(files: tuple[Path, Path]) -> None:
    files[0].write_text("aa\n")
    files[1].write_text("bb\n")
    digest = host_digest(RUN)
    assert len(digest) == 16
    assert host_digest(RUN) == digest != host_digest(OTHER)


@pytest.mark.parametrize("which", [0, 1])
def test_another_machine_or_a_copy_of_it_says_something_else(files: tuple[Path, Path], which: int) -> None:
    for file in files:
        file.write_text("aa\n")
    digest = host_digest(RUN)
    files[which].write_text("cc\n")
    assert host_digest(RUN) != digest


def test_without_such_files_the_address_of_its_hardware_names_it(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, "getnode", lambda: 0x02_00_00_00_00_01)
    digest = host_digest(RUN)
    assert len(digest) == 16
    monkeypatch.setattr(uuid, "getnode", lambda: 0x02_00_00_00_00_02)
    assert host_digest(RUN) != digest
    monkeypatch.setattr(uuid, "getnode", lambda: 0x03_00_00_00_00_02)  # made up: another process finds another one
    assert host_digest(RUN) == b""


def test_this_host_has_a_digest_or_none() -> None:
    assert len(host_digest(RUN)) in (0, 16)
