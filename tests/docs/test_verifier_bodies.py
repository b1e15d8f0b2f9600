"""docs/verifier.py on the folders of runs with bodies and states: dense, sparse and audited ones; and what is tampered there is refused."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.log.tiles import export
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import TrustSection
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import weighed_in
from manta_swarm.protocol.records import Threshold, entry_of
from manta_swarm.protocol.signing import peer_name, sha256
from manta_swarm.protocol.table import weights, weights_root
from manta_swarm.protocol.verdicts import Outcome, Settlement
from tests.aggregator import real_run
from tests.aggregator.real_run import CONFIG, SHRINKING, THIN_PARTS
from tests.audited import AUDITOR, verdict_of
from tests.docs.test_verifier import refused
from tests.docs.verifiers import VERIFIER, verifier

RUNS = {"dense": CONFIG, "sparse": THIN_PARTS, "shrinking": SHRINKING}
ONE, TWO, THREE = real_run.PEERS
AUDITED = CONFIG.model_copy(
    update={
        "trust": TrustSection(
            mode="audited",
            proven=(peer_name(ONE.public_key),),
            auditors=(peer_name(AUDITOR.public_key),),
            proven_after=2,
            audit_percent=100,
            newcomer_percent=100,
            kept_rounds=1,
            pending_rounds=4,
        )
    }
)


@pytest.fixture(scope="module", params=RUNS)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that came to its end."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    run = real_run.opened(folder, RUNS[request.param])
    real_run.play(run, CONFIG.run.rounds)
    run.log.close()
    return folder


def counted(said: dict[str, str]) -> tuple[int, ...]:
    """Return how many bodies, means and states held."""
    return tuple(int(said[kind].partition(" ")[0]) for kind in ("bodies", "means", "states"))


def test_a_whole_run_holds_and_so_does_its_export(played: Path, tmp_path: Path) -> None:
    ledger, said = verifier.verify_all(played, verifier.Asked(is_whole=True))
    found = verify_directory(played)
    assert dict(ledger.credits) == found.credits
    assert (len(ledger.rounds) - 1, said["run"]) == (found.rounds, found.run.hex())
    assert counted(said) == (27, 9, 9)
    export(played, tmp_path / "export")
    exported, said = verifier.verify_all(tmp_path / "export")
    assert (exported.credits, counted(said)) == (ledger.credits, (0, 0, 0))


def judged(ledger: Ledger) -> list[bytes]:
    """Return the entries of verdicts on all that the newest round but one has: THREE's work is false, all other is good."""
    drawn = [audit.work.keys[0] for audit in ledger.reputation.audits.values() if audit.round == ledger.round - 1]
    of_three = [verdict_of(ledger, THREE, Outcome.VOID)] if THREE.public_key in drawn else []
    verdicts = [*of_three, *(verdict_of(ledger, peer) for peer in (ONE, TWO) if peer.public_key in drawn)]
    return list(map(entry_of, sorted(verdicts, key=lambda verdict: verdict.digest)))


def test_an_audited_run_holds_with_its_verdicts_weights_pay_and_settlement(tmp_path: Path) -> None:
    run = real_run.opened(tmp_path / "run", AUDITED)
    for _ in range(CONFIG.run.rounds):
        real_run.commit(run, real_run.everybodys(run.log.ledger), before=judged(run.log.ledger))
    last = judged(run.log.ledger)
    run.log.commit([*last, entry_of(Settlement(run.log.ledger.run, run.log.ledger.last_commit))])
    theirs = run.log.ledger.reputation
    run.log.close()
    ledger, said = verifier.verify_all(tmp_path / "run", verifier.Asked(is_whole=True))
    assert dict(ledger.credits) == verify_directory(tmp_path / "run").credits == theirs.credits()
    assert [ledger.is_proven(peer.public_key) for peer in real_run.PEERS] == [True, True, False]
    assert ledger.guilty == set(theirs.guilty) == {THREE.public_key}
    assert (ledger.is_settled, THREE.public_key in ledger.credits, AUDITOR.public_key in ledger.credits) == (True, False, True)
    assert counted(said) == (27, 9, 9)
    export(tmp_path / "run", tmp_path / "export")
    assert verifier.verify_all(tmp_path / "export")[0].credits == ledger.credits


def test_weights_that_say_that_another_key_is_proven_are_refused(tmp_path: Path) -> None:
    run = real_run.opened(tmp_path / "run", AUDITED)
    made = real_run.everybodys(run.log.ledger)
    listed = [replace(run.log.ledger.listed(one.header, 1).weighing, unproven=0) for one in made]
    weighed = weighed_in([run.log.ledger.listed(one.header, 1) for one in made], weights(listed), weights(listed))
    real_run.commit(run, made, weights=weights_root(weighed))
    run.log.close()
    refused(tmp_path / "run", "V1", "round 1")


def lied(tmp_path: Path, **lies: Any) -> Path:
    """The folder of a run whose second round lies."""
    run = real_run.opened(tmp_path / "run")
    real_run.play(run, 1)
    real_run.commit(run, real_run.everybodys(run.log.ledger), **lies)
    run.log.close()
    return tmp_path / "run"


LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "weights": ("V1", {"weights": sha256(b"another")}),
    "mean": ("V2", {"mean": sha256(b"another")}),
    "thresholds": ("V3", {"thresholds": (Threshold(0, 1, 1),)}),
    "state": ("U2", {"state": sha256(b"another")}),
}


@pytest.mark.parametrize("name", LIES)
def test_a_round_that_lies_of_what_its_bodies_come_to_is_refused(tmp_path: Path, name: str) -> None:
    rule, lies = LIES[name]
    refused(lied(tmp_path, **lies), rule, "round 2")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tampered") / "run"
    run = real_run.opened(folder)
    real_run.play(run, 2)
    run.log.close()
    return folder


@pytest.fixture
def copy(dense: Path, tmp_path: Path) -> Path:
    """A copy of a run of two rounds."""
    shutil.copytree(dense, tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def restored(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the body of the first contribution in a file, with the digest that its storage has."""
    data = path.read_bytes()
    length, header = (int.from_bytes(data[at : at + 8], "big") for at in (8, 16))
    start, end = 24 + header, 16 + length
    stored = data[:start] + change(data[start:end])
    path.write_bytes(stored + sha256(stored) + data[end + 32 :])


def test_a_body_that_is_damaged_is_missing(copy: Path) -> None:
    flip(copy / "bodies" / "round-00000002.bodies", -40)
    refused(copy, "D1", "round 2")


def test_another_body_than_the_contribution_names_is_refused(copy: Path) -> None:
    restored(copy / "bodies" / "round-00000002.bodies", lambda body: body[:1] + bytes([body[1] ^ 1]) + body[2:])
    refused(copy, "D1", "round 2")


def test_a_body_that_no_values_are_coded_to_is_refused(copy: Path) -> None:
    restored(copy / "bodies" / "round-00000002.bodies", lambda body: b"\x14" + body[1:])
    refused(copy, "D2", "round 2")


def test_a_snapshot_that_is_changed_is_refused(copy: Path) -> None:
    flip(copy / "snapshots" / "round-00000001.safetensors", -2)
    refused(copy, "U1", "snapshots/round-00000001.safetensors")


@pytest.mark.parametrize(
    ("rule", "where", "statement"),
    [
        ("T4", "node 1/0", "UPDATE nodes SET hash = zeroblob(32) WHERE level = 1 AND position = 0"),
        ("T4", "the tree", "DELETE FROM nodes WHERE level = 1 AND position = 0"),
        ("T3", "the tree", "UPDATE log SET root = zeroblob(32)"),
        ("T3", "log.sqlite3", "DELETE FROM entries WHERE position IN (4, 5)"),
    ],
)
def test_a_database_that_is_changed_is_refused(copy: Path, rule: str, where: str, statement: str) -> None:
    with closing(sqlite3.connect(copy / "log.sqlite3")) as database:
        database.execute(statement)
        database.commit()
    refused(copy, rule, where)


def test_the_command_says_what_holds_and_what_does_not(copy: Path) -> None:
    def ended(*arguments: str) -> tuple[int, list[str], str]:
        done = subprocess.run([sys.executable, str(VERIFIER), *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines(), done.stderr

    code, lines, _ = ended(str(copy))
    said = dict(line.split(": ", 1) for line in lines)
    assert (code, counted(said), len(said)) == (0, (6, 2, 2), 12)
    assert said["entries"] == "8 keep the rules, up to round 2 of 9 (6 contributions, 2 rounds)"
    (copy / "credits").write_text("{}")
    assert ended(str(copy), "--credits", str(copy / "credits"))[0] == 2
    (copy / "bodies" / "round-00000001.bodies").unlink()
    code, lines, _ = ended(str(copy), "--whole")
    assert (code, lines) == (1, ["refused: round 2: D3: a whole folder has the bodies of each round (of 1 of 2 rounds)"])
    flip(copy / "snapshots" / "round-00000002.safetensors", -2)
    code, lines, _ = ended(str(copy))
    assert (code, lines) == (
        1,
        ["refused: snapshots/round-00000002.safetensors: U1: a snapshot is the state that the log names (another digest)"],
    )
    code, lines, errors = ended(str(copy.parent / "nothing"))
    assert (code, lines, len(errors.splitlines())) == (2, [], 1)
