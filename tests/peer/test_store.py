import json
import os
import stat
from pathlib import Path

import pytest
import torch

from peer.store import PeerStore
from protocol.errors import StorageError, UserError
from protocol.records import Claim, SignedClaim
from protocol.signing import Identity, sha256
from swarm.disk import load_identity, only_process

RUN, OTHER_RUN = sha256(b"run"), sha256(b"other run")
PEER = Identity(b"\x0b" * 32)


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path / "peer")


def claim(round_: int = 1) -> SignedClaim:
    return SignedClaim.sign(Claim(RUN, round_, sha256(b"commit"), PEER.public_key, "here", (("r32", 16),), 1, sha256(b"lots")), PEER)


def frozen_path(store: PeerStore) -> Path:
    (path,) = store.directory.glob("runs/*/frozen")
    return path


def test_the_directory_is_made_with_those_above_it_and_is_the_owners_alone(tmp_path: Path) -> None:
    store = PeerStore(tmp_path / "a" / "b" / "peer")
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700


def test_a_file_in_the_directorys_place_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "peer").write_text("not a directory")
    with pytest.raises(UserError, match=r"cannot make the directory .*peer.*--dir"):
        PeerStore(tmp_path / "peer")
    assert (tmp_path / "peer").read_text() == "not a directory"


def test_an_identity_is_made_once_and_only_its_owner_can_read_it(store: PeerStore) -> None:
    first = load_identity(store.identity_path)
    assert stat.S_IMODE(store.identity_path.stat().st_mode) == 0o600
    assert load_identity(store.identity_path).public_key == first.public_key


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_an_identity_that_others_can_open_is_refused_with_the_command_that_helps(store: PeerStore, mode: int) -> None:
    load_identity(store.identity_path)
    store.identity_path.chmod(mode)
    with pytest.raises(UserError, match=f"chmod 600 {store.identity_path}"):
        load_identity(store.identity_path)


@pytest.mark.parametrize("data", [b"", b"garbage", bytes(68), b"\x08\x01\x12\x40" + b"\x01" * 64])
def test_an_identity_that_is_none_is_refused_and_left_as_it_is(store: PeerStore, data: bytes) -> None:
    store.identity_path.touch(mode=0o600)
    store.identity_path.write_bytes(data)
    with pytest.raises(UserError, match="is no identity"):
        load_identity(store.identity_path)
    assert store.identity_path.read_bytes() == data


def test_only_one_program_uses_a_directory_at_a_time(store: PeerStore) -> None:
    with only_process(store.directory):
        with pytest.raises(UserError, match=f"another peer or aggregator uses {store.directory}"), only_process(store.directory):
            pass
        with pytest.raises(UserError, match="another"), only_process(store.directory / "." / "runs" / ".."):
            pass
    with only_process(store.directory):
        pass


def test_the_last_run_is_remembered(store: PeerStore) -> None:
    assert store.last_run() is None
    store.remember_run(OTHER_RUN, ("/ip4/10.0.0.1/tcp/1",))
    store.remember_run(RUN, ("/ip4/10.0.0.2/tcp/2", "/ip4/10.0.0.3/tcp/3"))
    assert PeerStore(store.directory).last_run() == (RUN.hex(), ("/ip4/10.0.0.2/tcp/2", "/ip4/10.0.0.3/tcp/3"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"run": "aa"}',
        '{"run": 5, "initial_peers": ["/a"]}',
        '{"run": "aa", "initial_peers": "/a"}',
        '{"run": "aa", "initial_peers": []}',
        '{"run": "aa", "initial_peers": [1]}',
        "\xff",
    ],
)
def test_a_spoilt_memory_of_the_last_run_is_none(store: PeerStore, text: str) -> None:
    (store.directory / "last.json").write_bytes(text.encode("latin-1"))
    assert store.last_run() is None


def test_frozen_work_comes_back_to_the_bit(store: PeerStore) -> None:
    gradient = torch.tensor([0.1, -1e-45, 3.4e38, 0.0, -0.0])
    store.save_frozen(RUN, claim(), gradient)
    found = PeerStore(store.directory).load_frozen(RUN)
    assert found is not None
    assert found.claim == claim()
    assert found.gradient.numpy().tobytes() == gradient.numpy().tobytes()


def test_the_newest_frozen_work_replaces_the_older(store: PeerStore) -> None:
    for round_ in (1, 2):
        store.save_frozen(RUN, claim(round_), torch.full((3,), float(round_)))
    found = store.load_frozen(RUN)
    assert found is not None
    assert found.claim.open().round == 2
    assert found.gradient.tolist() == [2.0, 2.0, 2.0]


def test_each_run_has_its_own_frozen_work(store: PeerStore) -> None:
    store.save_frozen(RUN, claim(), torch.ones(3))
    assert store.load_frozen(OTHER_RUN) is None


def test_work_that_was_not_written_whole_leaves_the_older_work_in_place(store: PeerStore) -> None:
    store.save_frozen(RUN, claim(1), torch.ones(3))
    (frozen_path(store).with_name("frozen.part")).write_bytes(b"half of someth")  # as a crash leaves it
    found = store.load_frozen(RUN)
    assert found is not None
    assert found.claim.open().round == 1
    store.save_frozen(RUN, claim(2), torch.ones(3))
    assert [path.name for path in frozen_path(store).parent.iterdir()] == ["frozen"]


def test_a_disk_that_refuses_is_a_storage_error_and_the_older_work_stays(store: PeerStore) -> None:
    store.save_frozen(RUN, claim(1), torch.ones(3))
    frozen_path(store).with_name("frozen.part").mkdir()
    with pytest.raises(StorageError, match=r"frozen: .*check the disk"):
        store.save_frozen(RUN, claim(2), torch.ones(3))
    found = store.load_frozen(RUN)
    assert found is not None
    assert found.claim.open().round == 1


@pytest.mark.parametrize("damage", ["empty", "cut", "no claim", "another claim", "no gradient"])
def test_damaged_frozen_work_is_not_passed_over_in_silence(store: PeerStore, damage: str) -> None:
    """Without it the peer would claim a second time for the round: the person decides."""
    store.save_frozen(RUN, claim(), torch.ones(3))
    path = frozen_path(store)
    data = path.read_bytes()
    damaged = {
        "empty": b"",
        "cut": data[:-5],
        "no claim": data.replace(b'"claim"', b'"blame"'),
        "another claim": data.replace(b'"claim":"', b'"claim":"ff', 1).replace(b"  ", b"", 1),
        "no gradient": data.replace(b'"gradient"', b'"dradient"'),
    }[damage]
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match=r"frozen is damaged .*delete the file"):
        store.load_frozen(RUN)
    assert path.read_bytes() == damaged


def test_the_status_is_json_and_whole_at_every_moment(store: PeerStore) -> None:
    path = store.directory / "status.json"
    store.write_status({"round": 1})
    before = os.open(path, os.O_RDONLY)  # who reads the old one reads it to its end
    store.write_status({"round": 2, "attempts_dropped": {"weather": 3}})
    assert json.loads(os.read(before, 1000)) == {"round": 1}
    os.close(before)
    assert json.loads(path.read_text()) == {"round": 2, "attempts_dropped": {"weather": 3}}
