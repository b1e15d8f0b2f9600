"""What an operator's program says when it begins."""

from aggregator.introduction import introduction
from aggregator.status import OperatorStatus
from tests.audited import audited_ledger


def test_where_a_considerable_part_of_the_run_would_never_be_final_it_says_so() -> None:
    for num_rounds, said in ((40, ["what the last 8 of 40 rounds pay stays pending: the run ends before it is final"]), (400, [])):
        ledger = audited_ledger(num_rounds)
        status = OperatorStatus(ledger.run.hex(), "digits", "classification", "digits", "classifier-tiny", num_rounds)
        lines = list(introduction(status, ledger, num_weights=1000, keep_bodies=4, join=()))
        assert [line.split(";")[0] for line in lines if "stays pending" in line] == said
        assert "lots are computed again: credit is pending for 8 rounds, and void if it was not earned" in lines
