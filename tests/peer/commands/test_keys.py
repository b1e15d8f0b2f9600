"""The person's key: where it is, its copy, and back; and the settings file that a person starts with."""

import stat
import tomllib
from pathlib import Path

import pytest

from manta_swarm.peer.commands.keys import backup, make, own_identity, restore, shown
from manta_swarm.peer.commands.settings_file import settings_text, write_settings
from manta_swarm.peer.config import PeerConfig, load_config
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.console import Form, PrintingConsole
from manta_swarm.runtime.disk import only_process


def test_a_new_key_is_told_once_with_its_place(tmp_path: Path) -> None:
    console = PrintingConsole(Form.SILENT)
    store = PeerStore(tmp_path / "peer")
    first = own_identity(store, console)
    assert own_identity(store, console).public_key == first.public_key
    (line,) = console.last()
    assert str(tmp_path / "peer" / "identity.key") in line
    assert shown(tmp_path / "peer").startswith(peer_name(first.public_key))


def test_a_key_can_be_made_before_the_first_join_and_is_not_made_twice(tmp_path: Path) -> None:
    told = make(tmp_path / "peer")
    assert stat.S_IMODE((tmp_path / "peer" / "identity.key").stat().st_mode) == 0o600
    console = PrintingConsole(Form.SILENT)
    assert told.startswith(f"{peer_name(own_identity(PeerStore(tmp_path / 'peer'), console).public_key)} (")
    assert console.last() == ()  # it is not new any more
    before = (tmp_path / "peer" / "identity.key").read_bytes()
    with pytest.raises(UserError, match="is there already: manta-peer identity shows it"):
        make(tmp_path / "peer")
    assert (tmp_path / "peer" / "identity.key").read_bytes() == before


def test_a_key_comes_back_from_its_copy(tmp_path: Path) -> None:
    copy, new = tmp_path / "copy", tmp_path / "new"
    identity = own_identity(PeerStore(tmp_path / "old"), PrintingConsole(Form.SILENT))
    backup(tmp_path / "old", copy)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert peer_name(identity.public_key) in restore(new, copy)
    assert stat.S_IMODE((new / "identity.key").stat().st_mode) == 0o600
    assert own_identity(PeerStore(new), PrintingConsole(Form.SILENT)).public_key == identity.public_key
    assert "already" in restore(new, copy)


def test_the_account_of_privacy_is_named_too(tmp_path: Path) -> None:
    own_identity(PeerStore(tmp_path / "old"), PrintingConsole(Form.SILENT))
    (tmp_path / "old" / "privacy").touch()
    assert "privacy" in backup(tmp_path / "old", tmp_path / "copy")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    for name in ("old", "other"):
        own_identity(PeerStore(tmp_path / name), PrintingConsole(Form.SILENT))
    backup(tmp_path / "old", tmp_path / "copy")
    before = (tmp_path / "copy").read_bytes(), (tmp_path / "other" / "identity.key").read_bytes()
    with pytest.raises(UserError, match="there already"):
        backup(tmp_path / "other", tmp_path / "copy")
    with pytest.raises(UserError, match="another key"):
        restore(tmp_path / "other", tmp_path / "copy")
    with only_process(tmp_path / "other"), pytest.raises(UserError, match="another peer"):
        restore(tmp_path / "other", tmp_path / "copy")
    assert ((tmp_path / "copy").read_bytes(), (tmp_path / "other" / "identity.key").read_bytes()) == before


@pytest.mark.parametrize("data", [b"", b"not a key", bytes(68), bytes(10_000)])
def test_what_is_no_copy_of_a_key(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "copy").write_bytes(data)
    with pytest.raises(UserError, match="no copy of a key"):
        restore(tmp_path / "new", tmp_path / "copy")
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="cannot read"):
        restore(tmp_path / "new", tmp_path / "nowhere")
    with pytest.raises(UserError, match="there is no key"):
        backup(tmp_path / "new", tmp_path / "another")


def test_the_settings_file_changes_nothing_as_it_is_and_holds_every_setting(tmp_path: Path) -> None:
    default = load_config({"dir": tmp_path / "peer"})
    path = write_settings(tmp_path / "peer")
    assert load_config({"dir": tmp_path / "peer"}) == default
    with pytest.raises(UserError, match="there already"):
        write_settings(tmp_path / "peer")
    bare = "\n".join(line.removeprefix("#") for line in path.read_text().splitlines() if not line.startswith("# "))
    assert set(tomllib.loads(bare)) == set(PeerConfig.model_fields) - {"dir"}


def test_each_example_of_the_settings_file_is_one_that_is_taken(tmp_path: Path) -> None:
    for line in settings_text().splitlines():
        if line.startswith("#") and not line.startswith("# ") and "0123..." not in line:
            (tmp_path / "peer.toml").write_text(line.removeprefix("#"))
            load_config({"dir": tmp_path})
