"""What an operator's program says when it begins."""

from manta_swarm.aggregator.introduction import introduction
from manta_swarm.aggregator.status import AggregatorStatus
from tests.audited import audited_ledger


def test_who_audits_and_when_a_round_is_paid_is_said() -> None:
    for auditors, named in ((1, "1 named auditor"), (4, "4 named auditors")):
        ledger = audited_ledger(auditors=auditors)
        status = AggregatorStatus(run=ledger.run.hex(), name="digits", num_rounds=40)
        lines = list(introduction(status, ledger, num_weights=1000, keep_bodies=4))
        assert (
            f"100 % of the contributions of proven peers are computed again, by {named}: a round is paid after 6 rounds, "
            "or once the run is settled"
        ) in lines
