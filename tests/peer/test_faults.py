"""What a person is told of verdicts: when, of which round, what for, and what can be done."""

import pytest

from peer.faults import advice, is_guilty, verdict
from protocol.accounts import Fault
from protocol.audits import DIFFERS, WITHHELD
from protocol.standing import LEFT, OUTVOTED, REASONS

CLAIM = bytes(range(32))


def test_a_verdict_names_its_round_and_the_claims() -> None:
    assert verdict(Fault(12, DIFFERS, CLAIM), 9) == (
        "audits found this peer guilty with round 12: lots of its claim of round 9 were computed again, and are not what it said; "
        "its pending credit is void, and its work counts no more"
    )
    assert "as an auditor of claim 0001020304050607 was" in verdict(Fault(12, OUTVOTED, CLAIM), None)


def test_who_is_guilty_is_told_to_look_at_the_computer_and_how_to_begin_anew() -> None:
    assert "manta-peer doctor" in advice()
    assert "--dir" in advice()


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_words(reason: str) -> None:
    fault = Fault(3, reason, CLAIM)
    assert is_guilty(fault) == (reason not in (WITHHELD, LEFT))
    assert "round 3" in verdict(fault, None)
