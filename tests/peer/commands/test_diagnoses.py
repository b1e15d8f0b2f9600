"""What doctor makes of figures: what is good, what is bad, and that whatever is bad has a remedy; and this computer as it is."""

from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.peer.commands import diagnoses
from manta_swarm.peer.commands.about import general_lines, lines_of_run
from manta_swarm.peer.commands.diagnoses import Diagnosis, Severity, exit_code
from manta_swarm.peer.commands.doctor import of_this_computer
from manta_swarm.peer.config import load_config
from manta_swarm.peer.limits.sensors import Gpu
from manta_swarm.protocol.footprint import ExpectedTable, Sizes, data_bytes, peer_disk
from manta_swarm.protocol.manifest import TravellingShards
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.verdicts import AuditRules
from tests.memory_log import OPERATOR, signed_manifest

CARD = Gpu("H100", 40.0, 100.0, 80 * 10**9, 10**9)


def gpus(**changes: object) -> Diagnosis:
    usual = {"wants_none": False, "cards": 1, "driver": "550.1", "found": [CARD], "torch_cuda": "12.4", "torch_counts": 1, "version": "2.6"}
    return diagnoses.gpus(**{**usual, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("diagnosis", "state", "words"),
    [
        (gpus(), Severity.GOOD, "H100 (80 GB, 1.0 in use), driver 550.1"),
        (gpus(wants_none=True, driver=None, found=[]), Severity.GOOD, "as the settings say"),
        (gpus(cards=0, driver=None, found=[], torch_counts=0), Severity.NOTE, "no NVIDIA GPU"),
        (gpus(driver=None, found=[], torch_counts=0), Severity.BAD, "no driver"),
        (gpus(torch_cuda=None, torch_counts=0), Severity.BAD, "built for the CPU"),
        (gpus(torch_counts=0), Severity.BAD, "cannot use them with driver 550.1"),
        (gpus(found=[CARD, CARD]), Severity.GOOD, "torch sees 1"),
        (diagnoses.operators([True] * 4, 3), Severity.GOOD, "4 of 4 answer"),
        (diagnoses.operators([True, True, False, True], 3), Severity.NOTE, "3 of 4 answer"),
        (diagnoses.operators([True, False, False, True], 3), Severity.BAD, "2 of 4 answer"),
        (diagnoses.memory(2 * 10**9, 0), Severity.GOOD, "2.0 GB"),
        (diagnoses.memory(2 * 10**9, 8), Severity.BAD, "3.9 GB"),
        (diagnoses.disk(10**8, "/x"), Severity.BAD, "0.1 GB are free at /x"),
        (diagnoses.disk(5 * 10**8, "/x"), Severity.NOTE, "0.5 GB"),
        (diagnoses.disk(10**10, "/x"), Severity.GOOD, "10.0 GB"),
        (diagnoses.threads(4, 8, None), Severity.GOOD, "4 can be used of 8"),
        (diagnoses.threads(4, 4, 9), Severity.NOTE, "the settings say 9"),
        (diagnoses.files(64), Severity.BAD, "up to 64"),
        (diagnoses.files(None), Severity.GOOD, "as many as needed"),
        (diagnoses.clock(0.2, 0.5), Severity.GOOD, "to within 0.25 s"),
        (diagnoses.clock(-2.0, 0.1), Severity.GOOD, "2.0 s ahead of the log's"),
        (diagnoses.clock(60.0, 0.1), Severity.BAD, "60.0 s behind the log's"),
        (diagnoses.clock(3.5, 2.0), Severity.GOOD, "behind"),  # it may be less: the answer was long under way
        (diagnoses.aggregator("/ip4/x", True, 0.02), Severity.GOOD, "within 20 ms"),
        (diagnoses.aggregator("/ip4/x", True, 2.0), Severity.NOTE, "after 2.0 s"),
        (diagnoses.aggregator("/ip4/x", False, None), Severity.BAD, "does not answer"),
    ],
)
def test_a_figure_is_judged_and_what_is_bad_has_a_remedy(diagnosis: Diagnosis, state: Severity, words: str) -> None:
    assert diagnosis.state is state
    assert words in diagnosis.said
    assert diagnosis.remedy or state is not Severity.BAD
    assert exit_code([diagnosis]) == int(state is Severity.BAD)
    assert diagnosis.lines()[0].startswith({Severity.GOOD: "ok ", Severity.NOTE: "note", Severity.BAD: "BAD "}[state])


def test_this_computer_is_looked_at_and_nothing_is_made_on_it(tmp_path: Path) -> None:
    found = {diagnosis.what: diagnosis for diagnosis in of_this_computer(load_config({"dir": tmp_path / "peer", "gpus": "none"}))}
    assert set(found) == {"disk", "key", "threads", "open files", "programs", "arithmetic", "GPUs", "memory"}
    assert found["arithmetic"].state is Severity.GOOD
    assert found["key"].state is Severity.NOTE
    assert not (tmp_path / "peer").exists()


def test_what_is_wrong_on_this_computer_is_found(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_bytes(b"no key")
    (tmp_path / "identity.key").chmod(0o600)
    found = {diagnosis.what: diagnosis for diagnosis in of_this_computer(load_config({"dir": tmp_path, "gpus": "0,99"}))}
    assert found["key"].state is found["GPUs"].state is Severity.BAD
    assert "is no identity" in found["key"].said
    assert "is not there" in found["GPUs"].said


def test_what_is_said_about_a_run_has_its_sizes(tmp_path: Path) -> None:
    assert any(str(tmp_path) in line for line in general_lines(tmp_path))
    signed = signed_manifest()
    text = "\n".join(lines_of_run(signed.open(), signed.run, Sizes(205_696, 452_000, 2_713_000), None, load_config({"dir": tmp_path})))
    for words in ("205,696 weights", "2.7 MB", "about 452.7 kB", signed.run.hex()[:16]):
        assert words in text


def test_what_audits_and_travelling_shards_make_of_a_run_is_said(tmp_path: Path) -> None:
    shards = TravellingShards(list_root=bytes(32), list_bytes=1_000, size_bytes=50_000_000, train_shards=4)
    exchange = replace(signed_manifest().open().exchange, codec="topk-192-4", local_steps=4, first_min_exponent=-28, max_claim_samples=4096)
    rules = AuditRules((OPERATOR.public_key,), kept_rounds=8, pending_rounds=13)
    manifest = replace(signed_manifest().open(), exchange=exchange, audits=(rules,), shards=(shards,))
    newest = round_of_three()
    sizes, config = Sizes(100_000, 6_000, 800_000), load_config({"dir": tmp_path, "data_limit": "20MB", "audit": "10%"})
    text = "\n".join(lines_of_run(manifest, bytes(32), sizes, newest, config))
    disk = peer_disk(manifest, sizes, ExpectedTable(rows=3, open_s=2.0), data_bytes(manifest, 20_000_000))
    for words in (
        "downloaded once, when you join: 20.8 MB: the state 800.0 kB, training data 20.0 MB",
        "a round, with 3 contributions as round 7 had, and 2 s as the next one takes",
        "sent to audits, too: 2.0 MB of each contribution that they draw: about 5% of yours once you are proven, 100.0 kB a round",
        f"on the disk: about {disk.usual / 1e6:.1f} MB once 13 rounds are over (for audits 6.8 MB",
        f"at most {disk.most / 1e6:.1f} MB",
        "for your audits of others 2.0 MB of a contribution of one peer",
    ):
        assert words in text, text


def test_a_disk_that_the_run_would_fill_is_bad() -> None:
    assert diagnoses.room(10 * 10**9, 2 * 10**9, "/here").state is Severity.GOOD
    short = diagnoses.room(2 * 10**9, 2 * 10**9, "/here")
    assert (short.state, "make room" in short.remedy) == (Severity.BAD, True)


def round_of_three() -> Round:
    """Return round 7, of three contributions, after which the next one is open for two seconds."""
    digest = b"\xff" * 32
    return Round(digest, 7, digest, 18, 3, digest, digest, digest, (), -28, 2_000)
