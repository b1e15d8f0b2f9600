"""What a person is told of what audits found: of which contribution, what it means, and what can be done."""

import pytest

from manta_swarm.network.peer_status import FaultSeen
from manta_swarm.peer.status import advice, fault_line, is_guilty, pending_words, plain_fault, unproven_words, verdict
from manta_swarm.protocol.reputation import FALSE, WITHHELD, Fault

CONTRIBUTION = bytes(range(32))


@pytest.mark.parametrize(
    ("reason", "means", "remedy"),
    [
        (WITHHELD, "nobody brought that in time", "keep the peer running, on a disk with room"),
        (FALSE, "it is not what it says", "run manta-peer doctor"),
    ],
)
def test_a_fault_is_a_sentence_that_says_what_it_means_and_what_to_do(reason: str, means: str, remedy: str) -> None:
    line = fault_line(plain_fault(Fault(12, reason, CONTRIBUTION)))
    assert line.startswith(f"contribution 0001020304050607 was found {reason} with round 12: ")
    assert means in line
    assert remedy in line
    assert is_guilty(Fault(12, reason, CONTRIBUTION)) == (reason == FALSE)


def test_a_verdict_names_its_round_and_the_contribution() -> None:
    assert verdict(Fault(12, FALSE, CONTRIBUTION)) == (
        "audits found this peer guilty with round 12: its contribution 0001020304050607 was computed again, and is not what it says; "
        "what was pending is not paid, and its work counts no more"
    )


def test_who_is_guilty_is_told_to_look_at_the_computer_and_how_to_begin_anew() -> None:
    assert "manta-peer doctor" in advice()
    assert "--dir" in advice()


def test_a_reason_of_another_version_is_shown_as_it_is() -> None:
    assert fault_line(FaultSeen(3, "new", "ab" * 32)) == "contribution abababababababab was found new with round 3"


def test_when_it_is_paid_and_when_a_key_is_proven() -> None:
    assert "with round 35" in pending_words(35, 40)
    assert "settled after its last round, 40" in pending_words(0, 40)
    assert unproven_words(3, 20).startswith("not proven yet: 3 of 20 contributions found good so far")
