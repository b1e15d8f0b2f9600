import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.peer.store import KeptContribution, LastRun, PeerStore
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import header_of
from tests.runs import FixedTrainingSpec, manifest_of

RUN, OTHER_RUN = sha256(b"run"), sha256(b"other run")
PEER, OPERATOR = Identity(b"\x0b" * 32), Identity(b"\x01" * 32)
LEDGER = Ledger(SignedManifest.sign(manifest_of(OPERATOR), OPERATOR), FixedTrainingSpec())
BODY = bytes(range(256)) * 5


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path / "peer")


def header(microbatches: int = 1) -> Header:
    """Return a header; another number of microbatches makes it another one."""
    return header_of(LEDGER, PEER, microbatches=(microbatches, 1))


def signed_path(store: PeerStore) -> Path:
    (path,) = store.directory.glob("runs/*/signed")
    return path


def test_the_directory_is_made_with_those_above_it_and_is_the_owners_alone(tmp_path: Path) -> None:
    store = PeerStore(tmp_path / "a" / "b" / "peer")
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700


def test_a_file_in_the_directorys_place_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "peer").write_text("not a directory")
    with pytest.raises(UserError, match=r"cannot make the directory .*peer.*--dir"):
        PeerStore(tmp_path / "peer")
    assert (tmp_path / "peer").read_text() == "not a directory"


def test_the_last_run_is_remembered(store: PeerStore) -> None:
    assert store.last_run() is None
    store.remember_run(OTHER_RUN, ("/ip4/10.0.0.1/tcp/1",))
    store.remember_run(RUN, ("/ip4/10.0.0.2/tcp/2", "/ip4/10.0.0.3/tcp/3"))
    assert PeerStore(store.directory).last_run() == LastRun(RUN.hex(), ("/ip4/10.0.0.2/tcp/2", "/ip4/10.0.0.3/tcp/3"))


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


def test_the_newest_signed_work_of_each_run_comes_back_to_the_bit(store: PeerStore) -> None:
    store.signed(RUN).save(KeptContribution(header(1), BODY))
    store.signed(RUN).save(KeptContribution(header(2), BODY[1:]))
    assert PeerStore(store.directory).signed(RUN).load(KeptContribution) == KeptContribution(header(2), BODY[1:])
    assert store.signed(OTHER_RUN).load(KeptContribution) is None


def test_a_disk_that_refuses_is_a_storage_error_and_the_older_work_stays(store: PeerStore) -> None:
    store.signed(RUN).save(KeptContribution(header(1), BODY))
    signed_path(store).with_name("signed.part").mkdir()
    with pytest.raises(StorageError, match=r"signed: .*check the disk"):
        store.signed(RUN).save(KeptContribution(header(2), BODY))
    assert store.signed(RUN).load(KeptContribution) == KeptContribution(header(1), BODY)


@pytest.mark.parametrize("damage", ["empty", "cut", "longer", "another header", "another body", "no header"])
def test_damaged_signed_work_is_not_passed_over_in_silence(store: PeerStore, damage: str) -> None:
    """Without its signed work the peer would claim a second time for the same base, so the person decides."""
    store.signed(RUN).save(KeptContribution(header(), BODY))
    path = signed_path(store)
    data = path.read_bytes()
    key = header().contribution.open().founder
    path.write_bytes(
        {
            "empty": b"",
            "cut": data[:-5],
            "longer": data + b"\x00",
            "another header": data.replace(key, bytes(32)),
            "another body": data.replace(BODY[-300:], bytes(300)),
            "no header": data[:20] + b"\xff" + data[21:],
        }[damage]
    )
    damaged = path.read_bytes()
    assert damaged != data
    with pytest.raises(StorageError, match=r"signed is damaged .*delete the file"):
        store.signed(RUN).load(KeptContribution)
    assert path.read_bytes() == damaged


def test_a_file_that_cannot_be_read_is_a_storage_error(store: PeerStore) -> None:
    store.signed(RUN).save(KeptContribution(header(), BODY))
    path = signed_path(store)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=r"signed: .*check the disk"):
        store.signed(RUN).load(KeptContribution)


def test_the_status_is_json_and_whole_at_every_moment(store: PeerStore) -> None:
    path = store.directory / "status.json"
    first = PeerStatus("12D3KooWpeer", "aa", round=1)
    second = replace(first, round=2, dropped={"too old": 3})
    store.write_status(first)
    before = os.open(path, os.O_RDONLY)  # who reads the old one reads it to its end
    store.write_status(second)
    assert PeerStatus.of(os.read(before, 100_000)) == first
    os.close(before)
    assert PeerStatus.read(store.directory) == second
