"""What earlier versions left is opened by this one: keys, settings, signed work, logs, snapshots, networks. One folder for each version."""

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig, load_run_file
from manta_swarm.automl.export.description import Description
from manta_swarm.automl.latency.table import LatencyTable
from manta_swarm.automl.search.journal import FileJournal
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.automl.training.snapshot_header import read_header
from manta_swarm.automl.training.update import state_digest
from manta_swarm.peer.commands.earnings import runs_of
from manta_swarm.peer.config import load_config
from manta_swarm.peer.features.private.noise import NoiseAccount, epsilon_of
from manta_swarm.peer.store import KeptContribution, KeptResiduals, PeerStore
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.versions import PROTOCOL
from manta_swarm.runtime.disk import load_identity
from tests.contributions import PEERS
from tests.formats import make
from tests.formats.networks import GRAPHS, PACKED, PRESENTED, opened, shown, subnet_of

NETWORKS = ("network", *GRAPHS)
VERSIONS = sorted(path.name for path in make.ROOT.iterdir() if (path / "expected.json").exists())


class Kept:
    """A copy of a version's files, and what they hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
        for key in folder.rglob("identity.key"):
            key.chmod(0o600)  # which git does not keep

    @property
    def is_spoken(self) -> bool:
        """Whether it is of this program's version of the protocol."""
        return bool(self.expected["protocol"] == PROTOCOL)


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(Path(shutil.copytree(make.ROOT / request.param, tmp_path / "kept")))


def test_the_key_is_the_same(kept: Kept) -> None:
    assert peer_name(load_identity(kept.folder / "peer" / "identity.key").public_key) == kept.expected["peer"]


def test_settings_are_read(kept: Kept) -> None:
    config = load_config({"dir": kept.folder / "peer"})
    assert (config.cohort, config.listen, config.gpus) == ("home", ("none",), "0,1")
    assert (config.limits.duty, config.limits.schedule) == (60, ((22 * 60, 7 * 60),))
    last = PeerStore(kept.folder / "peer").last_run()
    assert last is not None
    assert last.run == kept.expected["run"]
    assert isinstance(load_run_file(kept.folder / "run.toml"), RunConfig)


def test_signed_work_and_residuals_are_still_there(kept: Kept) -> None:
    store, run = PeerStore(kept.folder / "peer"), bytes.fromhex(kept.expected["run"])
    residuals = store.residuals(run).load(KeptResiduals)
    assert residuals is not None
    assert residuals.held.hex() == kept.expected["residual"]
    assert store.residual(run, residuals.held).read() == make.RESIDUAL.tobytes()
    if kept.is_spoken:
        signed = store.signed(run).load(KeptContribution)
        assert signed is not None
        assert signed.header.contribution.digest.hex() == kept.expected["signed"]
        signed.header.contribution.open()


def test_a_payout_receipt_proves_what_was_earned(kept: Kept) -> None:
    (found,) = runs_of(kept.folder / "peer", verify=True)
    if not kept.is_spoken:
        assert "install manta-swarm" in found.problems[0]
        return
    assert found.problems == []
    assert [(one.round, peer_name(one.key), one.by) for one in found.rounds] == [(make.ROUNDS, kept.expected["peer"], "claims")]


def test_the_log_verifies_and_every_credit_is_there(kept: Kept) -> None:
    if not kept.is_spoken:
        with pytest.raises(UserError, match=r"holds a run of another version: .*install manta-swarm [0-9.]+"):
            verify_directory(kept.folder / "log")
        return
    found = verify_directory(kept.folder / "log")
    assert (found.run.hex(), found.rounds, found.root.hex()) == tuple(kept.expected[name] for name in ("run", "rounds", "root"))
    assert {peer_name(key): amount for key, amount in found.credits.items()} == kept.expected["credits"]


def test_the_log_goes_on_and_loses_no_credit(kept: Kept) -> None:
    if not kept.is_spoken:
        pytest.skip("a run goes on with releases of its own protocol version")
    before = verify_directory(kept.folder / "log").credits
    with Log.open(kept.folder / "log", load_identity(kept.folder / "log" / "identity.key")) as log:
        make.commit(log, PEERS[:2])
    after = verify_directory(kept.folder / "log")
    assert after.rounds == kept.expected["rounds"] + 1
    assert all(after.credits[key] >= amount for key, amount in before.items())
    assert sum(after.credits.values()) > sum(before.values())


def test_snapshots_and_latency_tables_are_read(kept: Kept) -> None:
    state, metadata = load_snapshot(kept.folder / "state.safetensors")
    assert (state_digest(state).hex(), metadata["supernet"]) == (kept.expected["state"], "classifier-tiny")
    assert LatencyTable.load(kept.folder / "table.json").supernet == "classifier-tiny"


@pytest.mark.parametrize("form", NETWORKS)
@pytest.mark.parametrize("version", VERSIONS)
def test_exported_networks_are_read_and_make_what_they_made(version: str, form: str) -> None:
    network, expected = opened(make.ROOT / version / "exported" / form), json.loads((make.ROOT / version / "expected.json").read_text())
    assert shown(network) == pytest.approx(expected["stereo" if form == PACKED else "classifier"], abs=0.002)
    assert (network.description.provenance.round, network.description.test_samples) == (7, 177)


def test_what_a_network_tells_of_pictures_and_classes_is_read(kept: Kept) -> None:
    told = Description.from_json((kept.folder / "exported" / PRESENTED).read_bytes()).presentation
    assert told is not None
    assert (told.preparation.kept_side, told.class_titles[0], told.licence) == (28, "T-shirt/top", "mit")


def test_a_search_goes_on_with_what_was_measured(kept: Kept) -> None:
    for _ in range(2):  # what is added by this version is there the next time, beside what was
        with FileJournal(kept.folder / "search.jsonl", TINY, make.SEARCH) as journal:
            assert journal.measured("search", TINY.smallest()) == make.MEASURED
            journal.add("search", TINY.largest(), make.MEASURED)
    assert journal.measured("search", TINY.largest()) == make.MEASURED


def test_the_account_of_noise_goes_on_with_what_was_spent(kept: Kept) -> None:
    account = NoiseAccount(kept.folder / "peer" / "privacy", make.DELTA)
    assert account.epsilon() == pytest.approx(kept.expected["epsilon"], rel=0.05)  # the library may come to say a little less
    account.spend(make.SIGMAS[0])
    again = NoiseAccount(kept.folder / "peer" / "privacy", make.DELTA)
    assert again.epsilon() == epsilon_of(Counter([*make.SIGMAS, make.SIGMAS[0]]), make.DELTA)


def test_the_present_version_has_a_folder_and_writes_what_is_in_it(tmp_path: Path) -> None:
    """Who changes a format sees it here: make the folder anew if the version is not released, else raise the version."""
    here, new = make.ROOT / make.version(), tmp_path / "new"
    make.make(new, with_graphs=False)
    names = {path.relative_to(new) for path in new.rglob("*") if path.is_file()}
    assert {path.relative_to(here) for path in here.rglob("*") if path.is_file()} == names | {Path("exported", name) for name in GRAPHS}
    # The bytes of some are a library's affair, and others say what is meant in words that may be better ones tomorrow.
    others = {Path(name) for name in ("log/log.sqlite3", "state.safetensors", "run.toml", "exported/network/README.md")}
    for name in sorted(names - others):
        assert (here / name).read_bytes() == (new / name).read_bytes(), f"{name}: python -m tests.formats.make --again"
    for name, space in GRAPHS.items():
        assert opened(here / "exported" / name).description == subnet_of(space, f"manta-swarm {make.version()}").description
    assert _entries(here) == _entries(new)
    assert read_header(here / "state.safetensors") == read_header(new / "state.safetensors")


def _entries(folder: Path) -> list[tuple[bytes]]:
    path = (folder / "log" / "log.sqlite3").absolute().as_uri()
    with closing(sqlite3.connect(f"{path}?immutable=1", uri=True)) as connection:
        return connection.execute("SELECT bytes FROM entries ORDER BY position").fetchall()
