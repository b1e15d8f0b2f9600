"""Verdicts computed again from a folder alone: true ones come out the same, false ones do not, and what is gone is said to be gone."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from aggregator.audits.records import FOLDER
from aggregator.audits.repeating import repeat
from aggregator.cli import main
from protocol.audits import DIFFERS, HOLDS, LOT, SUM, SignedFinding
from protocol.records import entry_of
from tests.aggregator import real_run
from tests.aggregator.audits.real_lots import ONE, OTHER, THIRD, Scene
from tests.aggregator.real_run import OPERATOR
from tests.command import typed


def test_true_findings_come_out_again_and_a_false_one_does_not(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "run")
    with scene.run.log:
        works = [scene.train(ONE), scene.train(OTHER, seed=99), scene.train(THIRD, body="false")]
        scene.give(*works)
        scene.commit(works)
        real_run.commit(scene.run, [real_run.made(scene.run.log.ledger, ONE, seed=1)])
        scene.audits.committed()
        asyncio.run(scene.until(lambda: len(scene.findings) >= 4))
        lies = [
            replace(found, outcome=DIFFERS) if found.outcome == HOLDS and found.claim == works[0].claim.digest else found
            for found in scene.findings
            if found.claim != works[2].claim.digest or found.check == SUM
        ]
        signed = sorted((SignedFinding.sign(found, OPERATOR) for found in lies), key=lambda each: each.digest)
        real_run.commit(scene.run, [real_run.made(scene.run.log.ledger, ONE, seed=2)], extras=[entry_of(each) for each in signed])
    found = {(one.key, one.finding.check): (one.outcome, one.agrees) for one in repeat(tmp_path / "run", None)}
    assert found == {
        (ONE.public_key, LOT): (HOLDS, False),
        (OTHER.public_key, LOT): (DIFFERS, True),
        (THIRD.public_key, SUM): (DIFFERS, True),
    }
    ended = typed(main, "ledger", "verdicts", "--dir", tmp_path / "run")
    assert ended.exit_code == 1
    assert "2 findings repeated, 1 contradicted, 0 that cannot be repeated here" in ended.output
    shutil.rmtree(tmp_path / "run" / FOLDER)
    ended = typed(main, "ledger", "verdicts", "--dir", tmp_path / "run", "--all")
    assert ended.exit_code == 0
    assert "0 findings repeated, 0 contradicted, 3 that cannot be repeated here" in ended.output
