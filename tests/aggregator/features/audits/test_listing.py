"""The verdicts of a log, shown to whoever has its folder."""

from pathlib import Path

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.features.audits.facts import verdicts_in
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import Outcome
from tests.aggregator.audited_log import AuditedRun
from tests.audited import AUDITOR, verdict_of
from tests.command import typed
from tests.contributions import PEERS

A, B, C = PEERS[:3]


def test_what_takes_something_away_is_shown_and_all_of_it_if_that_is_asked_for(tmp_path: Path) -> None:
    run = AuditedRun(tmp_path, num_rounds=12)
    with run.log:
        run.round()
        run.round()
        good, void = verdict_of(run.ledger, A), verdict_of(run.ledger, B, Outcome.VOID)
        run.round(good, void)
        run.rounds_to_the_end()
        last = verdict_of(run.ledger, C)
        run.settle(last)
        indices = {run.log.entry(place): place for place in range(run.log.head.size)}
    found = list(verdicts_in(tmp_path))
    assert {one.verdict for one in found} == {good.open(), void.open(), last.open()}
    assert [one.index for one in found] == sorted(one.index for one in found)
    assert all(len(indices) > one.index for one in found)
    assert {one.keys for one in found if not one.is_good} == {(B.public_key,)}

    shown = typed(main, "ledger", "verdicts", "--dir", tmp_path)
    assert shown.exit_code == 0, shown.errors
    assert f"{peer_name(B.public_key)} void, says {peer_name(AUDITOR.public_key)}" in shown.output
    assert shown.output.splitlines()[-1] == "1 verdict"
    whole = typed(main, "ledger", "verdicts", "--dir", tmp_path, "--all")
    assert whole.output.splitlines()[-1] == "3 verdicts"
    assert f"{peer_name(A.public_key)} good" in whole.output
    of_one = typed(main, "ledger", "verdicts", "--dir", tmp_path, "--all", "--peer", peer_name(C.public_key))
    assert of_one.output.splitlines()[-1] == "1 verdict"
    for wrong in (("--peer", "nobody"), ("--dir", tmp_path / "nothing")):
        refused = typed(main, "ledger", "verdicts", "--dir", tmp_path, *wrong)
        assert refused.exit_code == 2
