"""A run whose data set travels: who joins with the join line alone gets the shards, checked, from whoever has them, and trains."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.log.storage import is_at_rest, reading
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.automl.data.shards.layout import LIST_NAME, ShardList, parse_list
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.protocol.microbatches import held_shards
from manta_swarm.protocol.records import Header, open_entry
from manta_swarm.runtime.disk import load_identity
from tests import forked
from tests.automl.data.files import noise, write_picture
from tests.network.processes import ROOT, Programs, Status, small_run

pytestmark = pytest.mark.swarm

LIAR = "tests.network.damaged_shards"


def _make_set(folder: Path) -> ShardList:
    """Write a set of noise in shards of about 40 kB."""
    for label in range(2):
        for number in range(50):
            write_picture(folder / "own" / f"class-{label}" / f"{number}.png", noise(36, 36, 3, seed=50 * label + number))
    shard_images(folder / "own", folder / "noise", lambda _done, _total: None, shard_bytes=40 << 10)
    return parse_list((folder / "noise" / LIST_NAME).read_bytes())


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _agree(one: Status, other: Status) -> bool:
    return bool(one["round"] == other["round"] >= 1 and one["state"] == other["state"])


def _claimed(directory: Path) -> dict[bytes, set[int]]:
    """Return what the claims in a log say of the shards that their keys hold."""
    with reading(directory, at_rest=is_at_rest(directory)) as connection:
        entries = [open_entry(bytes(data)) for (data,) in connection.execute("SELECT bytes FROM entries")]
    claims = [signed.unchecked() for entry in entries if isinstance(entry, Header) for signed in entry.claims]
    return {key: {claim.shards for claim in claims if claim.key == key} for key in {claim.key for claim in claims}}


def test_who_has_no_data_gets_the_shards_from_others_trains_and_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "MODULES", (*forked.MODULES, LIAR))
    list_ = _make_set(tmp_path / "data")
    config = small_run(rounds=10_000, first_open_s=1.0, min_open_s=1.0)
    config = config.model_copy(update={"data": config.data.model_copy(update={"dataset": "shards-noise", "share_shards": True})})
    limit = list_.size_bytes - 100_000
    with Programs(tmp_path, config) as programs:
        address = programs.start_aggregator("--data-root", str(tmp_path / "data"))["addresses"][0]
        where = (address, str(tmp_path / "data" / "noise"), str(tmp_path / "liar"))
        programs.start_command("liar", "-P", "-m", LIAR, *where, environment={"PYTHONPATH": ROOT})
        programs.wait_until(lambda: "ready" in programs.log("liar"), "who sends damaged shards is there")
        programs.start_peer("all", "all")
        programs.start_peer("part", "part", "--data-limit", f"{limit / 1e6:.6f}MB")

        def counted(name: str) -> int:
            return int(programs.status(name).get("rounds_counted", 0))

        programs.wait_until(lambda: min(counted("all"), counted("part")) >= 1, "both are counted")
        programs.wait_until(lambda: _agree(programs.status("all"), programs.status("part")), "both hold the same state of a round")
        for name in ("all", "part"):
            programs.interrupt(name)
            programs.wait_for_end(name)
        programs.kill("liar")
        programs.interrupt("aggregator")
        programs.wait_for_end("aggregator")
        logs = programs.log("all") + programs.log("part")

    assert "sent damaged data" in logs
    shards = tmp_path / "data" / "noise"
    assert _names(tmp_path / "all" / "data" / "noise") == _names(shards)
    for peer in ("all", "part"):
        for path in (tmp_path / peer / "data" / "noise").iterdir():
            assert path.read_bytes() == (shards / path.name).read_bytes()
    assert verify_directory(tmp_path / "aggregator").rounds >= 1
    claimed = _claimed(tmp_path / "aggregator")
    keys = {name: load_identity(tmp_path / name / "identity.key").public_key for name in ("all", "part")}
    (count,) = claimed[keys["part"]]
    assert claimed[keys["all"]] == {0}
    assert 0 < count < list_.num_train_shards
    held = (*held_shards(config.run.seed, keys["part"], list_.num_train_shards, count), *range(list_.num_train_shards, len(list_.shards)))
    assert _names(tmp_path / "part" / "data" / "noise") == {LIST_NAME, *(f"shard-{number:05}.bin" for number in held)}
