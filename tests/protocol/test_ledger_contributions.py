"""Which claims and contributions may stand in the log, as entries and as what is handed in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.protocol.errors import SignatureError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import sha256
from tests.contributions import PEERS, commit, header_of, in_order, round_of, with_contribution
from tests.protocol.ledgers import append, ledger_of, not_taken, refused
from tests.runs import EXCHANGE, FixedTrainingSpec

# Claims.

CLAIM_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "another run": ({"run": sha256(b"another")}, "another run"),
    "another base": ({"base": sha256(b"another")}, "another base"),
    "a base of another round": ({"round": 1, "base": None}, "another base"),
    "a base to come": ({"round": 3}, "another base"),
    "too few architectures": ({"microbatches": (4,)}, "ask for 1"),
    "too many architectures": ({"microbatches": (1, 1, 1)}, "ask for 3"),
    "too many samples": ({"microbatches": (40, 1)}, "656 samples"),
}


@pytest.mark.parametrize("fault", CLAIM_FAULTS)
def test_a_faulty_claim_is_refused_as_an_entry_and_in_a_header(ledger: Ledger, fault: str) -> None:
    changes, match = CLAIM_FAULTS[fault]
    changes = {name: ledger.last_commit if value is None else value for name, value in changes.items()}
    faulty = header_of(ledger, PEERS[3], **changes)
    not_taken(ledger, faulty, match)


def test_a_claim_signed_by_another_key_is_refused(ledger: Ledger) -> None:
    good = header_of(ledger, PEERS[3])
    forged = replace(good, claims=(Signed.sign(good.claims[0].open(), PEERS[4]),))
    not_taken(ledger, forged, error=SignatureError)


def test_a_claim_may_have_just_as_many_samples_as_the_manifest_allows(ledger: Ledger) -> None:
    listed = ledger.listed(header_of(ledger, PEERS[3], microbatches=(40, 0)), 2)
    assert listed.counted == 640


def test_what_is_listed_says_what_its_contribution_is() -> None:
    ledger = ledger_of(FixedTrainingSpec(roles=3))
    aged = header_of(ledger, PEERS[0], cohort="room-2", body=sha256(b"body"))  # "2" is 50
    commit(ledger, [header_of(ledger, PEERS[1])])
    listed = ledger.listed(aged, 2)
    assert (listed.contribution, listed.founder, listed.body) == (aged.contribution.digest, PEERS[0].public_key, sha256(b"body"))
    assert (listed.weighing.age, listed.weighing.role) == (1, 50 % 3)


# Contributions.


def sign_again(**changes: Any) -> Callable[[Header], Header]:
    return lambda header: with_contribution(header, PEERS[3], **changes)


CONTRIBUTION_FAULTS: dict[str, tuple[Callable[[Header], Header], str]] = {
    "another run": (sign_again(run=sha256(b"another")), "another run"),
    "another base": (sign_again(base=sha256(b"another")), "another base"),
    "a round to come": (sign_again(round=3), "another base"),
    "other claims": (sign_again(claims=(sha256(b"another"),)), "other claims"),
    "a founder who has no claim": (lambda header: with_contribution(header, PEERS[4], founder=PEERS[4].public_key), "the founder has none"),
}


@pytest.mark.parametrize("fault", CONTRIBUTION_FAULTS)
def test_a_faulty_contribution_is_refused_as_an_entry_and_in_a_header(ledger: Ledger, fault: str) -> None:
    build, match = CONTRIBUTION_FAULTS[fault]
    good = header_of(ledger, PEERS[3])
    faulty = build(good)
    not_taken(ledger, faulty, match)
    ledger.append(entry_of(good))


def test_a_contribution_signed_by_another_than_its_founder_is_refused(ledger: Ledger) -> None:
    good = header_of(ledger, PEERS[3])
    forged = replace(good, contribution=Signed.sign(good.contribution.open(), PEERS[4]))
    not_taken(ledger, forged, error=SignatureError)


def test_a_header_of_more_or_other_claims_than_its_contribution_lists_is_refused(ledger: Ledger) -> None:
    good, other = header_of(ledger, PEERS[3]), header_of(ledger, PEERS[4])
    for claims in (other.claims, good.claims + other.claims, good.claims * 2):
        not_taken(ledger, replace(good, claims=claims), "other claims")


@pytest.mark.parametrize("age", range(MAX_AGE + 3))
def test_a_contribution_of_any_age_up_to_four_commits_is_taken(age: int) -> None:
    ledger = ledger_of()
    commit(ledger, [header_of(ledger, PEERS[0])])
    aged = header_of(ledger, PEERS[1])
    for _ in range(age):
        commit(ledger, [header_of(ledger, PEERS[0])])
    if age > MAX_AGE:
        not_taken(ledger, aged, f"{age} commits old")
        return
    commit(ledger, [aged, header_of(ledger, PEERS[0])])
    table = ledger.table_at(ledger.round)
    assert table is not None
    assert {one.founder: one.weighing.age for one in table} == {PEERS[0].public_key: 0, PEERS[1].public_key: age}


@pytest.mark.parametrize("sorted_after", range(7))
def test_nothing_is_taken_over_a_sort_of_the_weights(sorted_after: int) -> None:
    ledger = ledger_of(FixedTrainingSpec(sorts=frozenset({sorted_after})))
    aged = []
    for number in range(1, 6):
        aged.append(header_of(ledger, PEERS[number]))  # the round after its base is ``number``
        commit(ledger, [header_of(ledger, PEERS[0])])
    for number, header in enumerate(aged, 1):
        if 6 - number > MAX_AGE:
            continue
        if number <= sorted_after <= 5:  # the update that ended that round lies between its base and the base of round 6
            refused(ledger, entry_of(header), match="another order")
        else:
            assert ledger.listed(header, 6).weighing.age == 6 - number


def test_a_key_s_work_on_a_base_counts_once_however_old_it_is() -> None:
    ledger = ledger_of()
    first, again = (
        header_of(ledger, PEERS[0], microbatches=microbatches, body=sha256(bytes(microbatches))) for microbatches in ((1, 1), (2, 2))
    )
    commit(ledger, [first])
    for _ in range(MAX_AGE):
        for header in (first, again):
            not_taken(ledger, header, "on this base is in the log already")
        commit(ledger, [header_of(ledger, PEERS[1])])
    refused(ledger, entry_of(again), match="commits old")


@pytest.mark.parametrize("age", range(1, MAX_AGE + 1))
def test_work_that_counted_late_does_not_count_again(age: int) -> None:
    ledger = ledger_of()
    aged, again = (header_of(ledger, PEERS[0], body=sha256(name)) for name in (b"first", b"again"))
    for _ in range(age):
        commit(ledger, [header_of(ledger, PEERS[1])])
    newer = header_of(ledger, PEERS[0])
    commit(ledger, [aged])
    for _ in range(MAX_AGE - age):
        refused(ledger, entry_of(again), match="in the log already")
        commit(ledger, [header_of(ledger, PEERS[1])])
    ledger.listed(newer, ledger.round + 1)  # on another base it is other work


def test_a_key_stands_once_in_a_table_also_with_work_on_two_bases() -> None:
    ledger = ledger_of()
    aged = header_of(ledger, PEERS[0])
    commit(ledger, [header_of(ledger, PEERS[1])])
    newer = header_of(ledger, PEERS[0])
    for first, second in ((aged, newer), (newer, aged), (newer, newer)):
        fork = ledger.copy()
        fork.append(entry_of(first))
        refused(fork, entry_of(second), match="twice in one table")


def test_two_contributions_of_a_table_or_of_two_may_name_one_body(ledger: Ledger) -> None:
    body = sha256(b"body")
    commit(ledger, [header_of(ledger, peer, body=body) for peer in PEERS[:2]])
    commit(ledger, [header_of(ledger, peer, body=body) for peer in PEERS[2:4]])
    assert [[one.body for one in ledger.table_at(number) or ()] for number in (2, 3)] == [[body] * 2] * 2


def test_a_table_is_sorted_by_founder(ledger: Ledger) -> None:
    first, second = in_order(header_of(ledger, peer) for peer in PEERS[:2])
    append(ledger, second)
    refused(ledger, entry_of(first), match="sorted by founder")


def test_a_table_has_no_more_contributions_than_the_manifest_allows() -> None:
    ledger = ledger_of(exchange=replace(EXCHANGE, max_rows=3))
    headers = in_order(header_of(ledger, peer) for peer in PEERS[:4])
    append(ledger, *headers[:3])
    refused(ledger, entry_of(headers[3]), match="at most 3")
    ledger.append(entry_of(round_of(ledger, [ledger.listed(header, 1) for header in headers[:3]])))
