"""docs/verifier.py on the folders of runs that the program committed: sparse ones, shrinking ones, and a dense one that is audited."""

from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.log.tiles import export
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import TrustSection
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import Outcome, Settlement
from tests.aggregator import real_run
from tests.aggregator.real_run import CONFIG, SHRINKING, THIN_PARTS
from tests.audited import AUDITOR, verdict_of
from tests.docs.verifiers import verifier

RUNS = {"sparse": THIN_PARTS, "shrinking": SHRINKING}
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


def counted(said: dict[str, str]) -> tuple[int, ...]:
    """Return how many bodies, means and states held."""
    return tuple(int(said[kind].partition(" ")[0]) for kind in ("bodies", "means", "states"))


def check(folder: Path) -> Any:
    """Check that a run of nine rounds holds with its bodies and states, and an export of it; return the verifier's ledger."""
    ledger, said = verifier.verify_all(folder, verifier.Asked(is_whole=True))
    found = verify_directory(folder)
    assert dict(ledger.credits) == found.credits
    assert (len(ledger.rounds) - 1, said["run"]) == (found.rounds, found.run.hex())
    assert counted(said) == (27, 9, 9)
    export(folder, folder.parent / "export")
    exported, said = verifier.verify_all(folder.parent / "export")
    assert (exported.credits, counted(said)) == (ledger.credits, (0, 0, 0))
    return ledger


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run_holds_and_so_does_its_export(tmp_path: Path, name: str) -> None:
    run = real_run.opened(tmp_path / "run", RUNS[name])
    real_run.play(run, CONFIG.run.rounds)
    run.log.close()
    check(tmp_path / "run")


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
    ledger = check(tmp_path / "run")
    assert dict(ledger.credits) == theirs.credits()
    assert [ledger.is_proven(peer.public_key) for peer in real_run.PEERS] == [True, True, False]
    assert ledger.guilty == set(theirs.guilty) == {THREE.public_key}
    assert (ledger.is_settled, THREE.public_key in ledger.credits, AUDITOR.public_key in ledger.credits) == (True, False, True)
