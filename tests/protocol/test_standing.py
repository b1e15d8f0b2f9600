"""What audits add up to in a log: who may say what of whom, and what becomes of trust, weight and credit."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.accounts import Account, Fault, Void
from protocol.audits import (
    DIFFERS,
    HOLDS,
    PATIENCE,
    SUM,
    THERE,
    WHOLE,
    WITHHELD,
    LotEvidence,
    SignedFinding,
)
from protocol.errors import SignatureError
from protocol.ledger import Ledger
from protocol.records import entry_of
from protocol.rewards import share_out
from protocol.signing import Identity, sha256
from protocol.standing import LEFT, OUTVOTED
from protocol.table import weights
from tests.audited import (
    OPERATOR,
    SECOND,
    THIRD,
    audited_ledger,
    claimed_of,
    finding_of,
    go_on,
    records_of,
    tree_of,
    work_of,
    works_of,
)
from tests.contributions import PEERS, listing, round_of
from tests.protocol.ledgers import ledger_of, refused

A, B, C = PEERS[:3]
SALT = b"s" * 16
NAMED = {"auditors": tuple(sorted((SECOND.public_key, THIRD.public_key)))}


def ready(*peers: Identity, rounds: int = 2, **changes: Any) -> Ledger:
    """A run in which these peers worked; claims of the round before its newest may be audited."""
    ledger = audited_ledger(**changes)
    for _ in range(rounds):
        go_on(ledger, peers)
    return ledger


def guilty(ledger: Ledger) -> dict[bytes, str]:
    return {key: fault.reason for key, fault in ledger.standing.guilty.items()}


# What is taken.


def test_an_open_run_takes_no_extras() -> None:
    ledger, audited = ledger_of(), ready(A)
    refused(ledger, entry_of(finding_of(audited, OPERATOR, A, run=ledger.run)), match="open run")
    refused(ledger, entry_of(finding_of(audited, OPERATOR, A)), match="another run")


def test_a_finding_takes_effect_with_the_round_that_follows_it() -> None:
    ledger = ready(A, B)
    ledger.append(entry_of(finding_of(ledger, OPERATOR, A, DIFFERS)))
    assert not ledger.is_between_rounds
    assert guilty(ledger) == {}
    fork = ledger.copy()
    for each in (ledger, fork):
        headers = works_of(each, [A, B])
        listed = [each.listed(header, 3) for header in headers]
        for entry in (*map(entry_of, headers), entry_of(round_of(each, listed))):
            each.append(entry)
        assert guilty(each) == {A.public_key: DIFFERS}
    assert vars(fork)["standing"] == vars(ledger)["standing"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"run": sha256(b"another run")}, "another run"),
        ({"claim": sha256(b"another claim")}, "no claim"),
        ({"round": 2}, "no claim"),
        ({"round": 3}, "no claim"),
        ({"row": 1}, "no claim"),
        ({"evidence": (LotEvidence(b"junk", ()),)}, "evidence"),
        ({"evidence": (LotEvidence(records_of(A.public_key)[0], (sha256(b"node"),)),)}, "evidence"),
    ],
    ids=str,
)
def test_a_finding_on_what_is_not_there_is_refused(changes: dict[str, Any], match: str) -> None:
    ledger = ready(A)
    changed = replace(finding_of(ledger, OPERATOR, A).open(), **changes)
    refused(ledger, entry_of(SignedFinding.sign(changed, OPERATOR)), match=match)


def test_a_finding_on_a_lot_that_the_beacon_did_not_choose_is_refused() -> None:
    ledger = ready(A)
    good = finding_of(ledger, OPERATOR, A).open()
    other = (good.lot + 1) % 3
    proof = tuple(tree_of(A.public_key).inclusion_proof(other, 3))
    chosen = replace(good, lot=other, evidence=(LotEvidence(records_of(A.public_key)[other], proof),))
    refused(ledger, entry_of(SignedFinding.sign(chosen, OPERATOR)), match="another lot")


def test_who_is_not_asked_has_no_say() -> None:
    ledger = ready(A, B)
    for stranger in (A, B, SECOND):
        refused(ledger, entry_of(finding_of(ledger, stranger, A)), match="not asked")
    signed = finding_of(ledger, OPERATOR, A)
    forged = SignedFinding(signed.payload, B.sign("finding", signed.payload))
    refused(ledger, entry_of(forged), SignatureError)


def test_an_auditor_has_no_say_on_its_own_contribution() -> None:
    ledger = ready(A, OPERATOR, rounds=1)
    mates = listing([work_of(ledger, each, founder=A.public_key) for each in (A, OPERATOR)], A)
    listed = ledger.listed(mates, 2)
    for entry in (*map(entry_of, [mates]), entry_of(round_of(ledger, [listed]))):
        ledger.append(entry)
    go_on(ledger, [A])
    refused(ledger, entry_of(finding_of(ledger, OPERATOR, A)), match="not asked")
    refused(ledger, entry_of(finding_of(ledger, OPERATOR, OPERATOR)), match="not asked")


def test_a_finding_is_not_taken_twice_nor_in_another_run_or_round() -> None:
    ledger = ready(A, B)
    signed = finding_of(ledger, OPERATOR, A)
    ledger.append(entry_of(signed))
    refused(ledger, entry_of(signed), match="sorted by digest")
    go_on(ledger, [A, B])
    refused(ledger, entry_of(signed), match="has answered")
    refused(ledger, entry_of(finding_of(ledger, OPERATOR, A, WITHHELD, round=1)), match="has answered")
    other = ready(A, B, pending_rounds=9)
    refused(other, entry_of(signed), match="another run")


def test_a_finding_comes_while_what_it_needs_is_kept() -> None:
    ledger = ready(A)
    kept = ledger.manifest.trust.kept_rounds
    for _ in range(kept - 1):
        go_on(ledger, [A])
    assert ledger.round == 1 + kept
    signed = finding_of(ledger, OPERATOR, A, round=1)
    ledger.check_extra(signed)
    go_on(ledger, [A])
    refused(ledger, entry_of(signed), match="any more")
    for _ in range(PATIENCE + 2):
        go_on(ledger, [A])
    assert min(ledger.standing.tables) == ledger.round - kept - PATIENCE - 1


def test_whoever_accuses_at_the_last_moment_has_not_the_last_word() -> None:
    ledger = ready(A, rounds=1, proven=tuple(sorted((B.public_key, C.public_key))), whole_percent=100)
    while ledger.round <= ledger.manifest.trust.kept_rounds:
        go_on(ledger, [A])
    whole = {"check": WHOLE, "lot": 0, "evidence": ()}
    go_on(ledger, [A], [finding_of(ledger, each, A, DIFFERS, round=1, **whole) for each in (B, C)])
    refused(ledger, entry_of(finding_of(ledger, OPERATOR, A, round=1)), match="any more")
    for _ in range(PATIENCE - 1):
        (due,) = (each for each in ledger.standing.due() if each.claimed.round == 1)
        assert (due.question.check, due.is_accused) == (WHOLE, True)
        go_on(ledger, [A])
    go_on(ledger, [A], [finding_of(ledger, OPERATOR, A, round=1, **whole)])
    assert guilty(ledger) == {B.public_key: OUTVOTED, C.public_key: OUTVOTED}
    assert not [each for each in ledger.standing.due() if each.claimed.round == 1]


def test_a_whole_claim_is_found_good_or_false_only_where_the_beacon_asks_for_all_of_it() -> None:
    ledger = ready(A, whole_percent=0)
    refused(ledger, entry_of(finding_of(ledger, OPERATOR, A, DIFFERS, check=WHOLE, lot=0, evidence=())), match="single lots")


def test_an_auditor_that_was_not_shown_what_two_others_were_is_not_found_lying() -> None:
    ledger = ready(A, B, kept_rounds=8, pending_rounds=13, **NAMED)
    go_on(ledger, [A, B], [finding_of(ledger, each, A, HOLDS, round=1) for each in (SECOND, THIRD)])
    for _ in range(4):
        go_on(ledger, [A, B])
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A, WITHHELD, round=1)])
    assert guilty(ledger) == {}
    assert ledger.standing.account(A.public_key).void == ()


def test_extras_stand_in_one_order_before_all_contributions() -> None:
    ledger = ready(A, B)
    first, second = sorted((finding_of(ledger, OPERATOR, peer) for peer in (A, B)), key=lambda each: each.digest)
    ledger.append(entry_of(second))
    refused(ledger, entry_of(first), match="sorted")
    ledger = ready(A, B)
    ledger.append(entry_of(works_of(ledger, [A])[0]))
    refused(ledger, entry_of(first), match="after the contributions")


def test_extras_alone_make_no_round() -> None:
    ledger = ready(A)
    listed = [ledger.listed(header, 3) for header in works_of(ledger, [A])]
    ledger.append(entry_of(finding_of(ledger, OPERATOR, A)))
    refused(ledger, entry_of(round_of(ledger, listed)), match="without contributions")


# Who is proven, and weighs fully.


def test_what_is_found_good_makes_a_key_proven_and_its_samples_weigh_fully() -> None:
    ledger = ready(A, B, proven=(B.public_key,), proven_samples=96)
    seen = []
    for _ in range(4):
        seen.append(
            (
                ledger.standing.is_proven(A.public_key),
                [ledger.listed(header, ledger.round + 1).weighing for header in works_of(ledger, [A, B])],
            )
        )
        go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A)])
    assert [is_proven for is_proven, _ in seen] == [False, False, True, True]  # two claims of 48 samples
    assert [[row.unproven for row in rows] for _, rows in seen] == [[48, 0], [48, 0], [0, 0], [0, 0]]
    assert weights(seen[0][1]) == (65_535 // 4, 65_535)
    assert weights(seen[2][1]) == (65_535, 65_535)
    assert ledger.standing.samples[A.public_key] == 4 * 48


def test_a_claim_is_counted_once_whatever_is_found_of_it() -> None:
    ledger = ready(A, whole_percent=100, **NAMED)
    more = [finding_of(ledger, each, A) for each in (SECOND, THIRD)]
    whole = [finding_of(ledger, each, A, check=WHOLE, lot=0, evidence=()) for each in (OPERATOR, SECOND)]
    added = finding_of(ledger, OPERATOR, A, check=SUM, lot=0, evidence=())
    go_on(ledger, [A], [finding_of(ledger, OPERATOR, A), *more, *whole, added])
    assert ledger.standing.samples[A.public_key] == 48
    assert guilty(ledger) == {}


def test_proven_keys_may_audit_and_two_of_them_are_as_good_as_one_that_is_named() -> None:
    keys = tuple(sorted(each.public_key for each in (B, C)))
    ledger = ready(A, B, C, proven=keys)
    go_on(ledger, [A, B, C], [finding_of(ledger, B, A)])
    assert ledger.standing.samples[A.public_key] == 0
    go_on(ledger, [A, B, C], [finding_of(ledger, C, A, round=1)])
    assert ledger.standing.samples[A.public_key] == 48


# Guilt.


def test_guilt_voids_what_is_pending_and_nothing_that_is_final() -> None:
    ledger = ready(A, B, rounds=10)
    share = share_out(900, {A.public_key: 1, B.public_key: 1})[A.public_key]
    before = ledger.standing.account(A.public_key)
    assert before == Account(2 * share, tuple((round_, share) for round_ in range(3, 11)), ())
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A, DIFFERS)])
    fault = Fault(11, DIFFERS, claimed_of(ledger, A, 9).digest)
    # what was pending before round 11, and what it earned in round 11
    assert ledger.standing.account(A.public_key) == Account(2 * share, (), (Void(9 * share, fault),))
    assert ledger.credit_of(A.public_key) == 2 * share
    assert ledger.standing.account(B.public_key).void == ()
    go_on(ledger, [A, B])
    assert ledger.standing.account(A.public_key) == Account(2 * share, (), (Void(10 * share, fault),))
    assert ledger.standing.account(B.public_key).credit == 12 * share
    assert not ledger.standing.is_proven(A.public_key)


def test_who_is_guilty_is_never_trusted_again_and_weighs_as_who_is_new() -> None:
    ledger = ready(A, B, proven=tuple(sorted((A.public_key, B.public_key))))
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A, DIFFERS)])
    for _ in range(4):
        refused(ledger, entry_of(finding_of(ledger, OPERATOR, A)), match="decided")
        go_on(ledger, [A, B])
    rows = [ledger.listed(header, ledger.round + 1).weighing for header in works_of(ledger, [A, B])]
    assert [row.unproven for row in rows] == [48, 0]
    assert not any(due.claimed.key == A.public_key for due in ledger.standing.due())


def test_who_withholds_loses_what_is_pending_and_may_begin_anew() -> None:
    ledger = ready(A, B, rounds=THERE, proven=(A.public_key,))
    share = ledger.shares([ledger.listed(header, THERE + 1) for header in works_of(ledger, [A, B])])[A.public_key]
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A, WITHHELD, round=1)])  # that round has a claim of A: it was there all the time
    assert guilty(ledger) == {}
    assert not ledger.standing.is_proven(A.public_key)
    account = ledger.standing.account(A.public_key)
    assert account.credit == share  # what the newest round paid came after
    assert account.void == (Void(THERE * share, Fault(THERE + 1, WITHHELD, claimed_of(ledger, A, 1).digest)),)
    for _ in range(2):
        go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A)])
    assert ledger.standing.is_proven(A.public_key)


def test_what_who_left_showed_nobody_is_not_paid_and_costs_it_nothing_else() -> None:
    ledger = ready(A, B, proven=(A.public_key,), kept_rounds=6, pending_rounds=12)
    share = ledger.standing.account(A.public_key).pending[0][1]
    for _ in range(THERE - 1):
        go_on(ledger, [B])
    left = claimed_of(ledger, A, 2)
    go_on(ledger, [B], [finding_of(ledger, OPERATOR, A, WITHHELD, round=2)])
    void = Void(share, Fault(ledger.round, LEFT, left.digest))
    assert ledger.standing.account(A.public_key) == Account(0, ((1, share),), (void,))
    assert (guilty(ledger), ledger.standing.is_proven(A.public_key)) == ({}, True)
    refused(ledger, entry_of(finding_of(ledger, OPERATOR, A, round=2)), match="decided")
    go_on(ledger, [A, B])
    assert len(ledger.standing.account(A.public_key).pending) == 2  # it goes on as before


@pytest.mark.parametrize("is_good_first", [False, True])
def test_a_claim_that_was_not_shown_whole_is_not_counted_whatever_else_is_found_of_it(is_good_first: bool) -> None:
    ledger = ready(A, B, whole_percent=100)
    good = finding_of(ledger, OPERATOR, A, round=1)
    whole = finding_of(ledger, OPERATOR, A, WITHHELD, round=1, check=WHOLE, lot=0)
    for said in (good, whole) if is_good_first else (whole, good):
        go_on(ledger, [B], [said])
        assert ledger.standing.samples[A.public_key] == (48 if is_good_first and said == good else 0)


def test_a_claim_that_counts_no_more_since_its_key_fell_is_not_taken_off_what_was_found_good_since() -> None:
    ledger = ready(A, B, rounds=5, whole_percent=100, kept_rounds=12, pending_rounds=20)
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A, round=4)])
    go_on(ledger, [B], [finding_of(ledger, OPERATOR, A, WITHHELD, round=1)])
    assert ledger.standing.samples[A.public_key] == 0
    go_on(ledger, [B], [finding_of(ledger, OPERATOR, A, round=5)])
    go_on(ledger, [B], [finding_of(ledger, OPERATOR, A, WITHHELD, round=4, check=WHOLE, lot=0)])
    assert [void.fault.reason for void in ledger.standing.account(A.public_key).void] == [WITHHELD, LEFT]
    assert ledger.standing.samples[A.public_key] == 48


def test_two_of_three_named_auditors_decide_and_the_third_is_found_lying() -> None:
    ledger = ready(A, B, **NAMED)
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A, DIFFERS), finding_of(ledger, SECOND, A, HOLDS)])
    assert guilty(ledger) == {}
    (due,) = (due for due in ledger.standing.due() if due.claimed == claimed_of(ledger, A, 1))
    assert due.is_accused
    assert len(due.votes) == 2
    go_on(ledger, [A, B], [finding_of(ledger, THIRD, A, DIFFERS, round=1)])
    assert guilty(ledger) == {A.public_key: DIFFERS, SECOND.public_key: OUTVOTED}
    refused(ledger, entry_of(finding_of(ledger, SECOND, B)), match="not asked")


def test_one_accusation_stands_after_some_rounds_if_nobody_contradicts() -> None:
    ledger = ready(A, B, **NAMED)
    go_on(ledger, [A, B], [finding_of(ledger, SECOND, A, DIFFERS)])
    for _ in range(PATIENCE - 1):
        go_on(ledger, [A, B])
        assert guilty(ledger) == {}
    go_on(ledger, [A, B])
    assert guilty(ledger) == {A.public_key: DIFFERS}


def test_an_accusation_on_the_last_day_is_decided_before_anything_is_final() -> None:
    ledger = ready(A, B, **NAMED)
    for _ in range(2):
        go_on(ledger, [A, B])
    assert ledger.round == 4  # kept for 3 rounds: the last in which the table of round 1 is audited
    go_on(ledger, [A, B], [finding_of(ledger, SECOND, A, DIFFERS, round=1)])
    while not guilty(ledger):
        assert ledger.standing.account(A.public_key).final == 0
        go_on(ledger, [A, B])
    assert ledger.round == 5 + PATIENCE
    assert ledger.credit_of(A.public_key) == 0


def test_who_accuses_everybody_is_outvoted_and_costs_nobody_anything() -> None:
    ledger = ready(A, B, C, proven=(C.public_key,))
    honest = {key: ledger.credit_of(key) for key in (A.public_key, B.public_key)}
    go_on(ledger, [A, B, C], [finding_of(ledger, C, peer, DIFFERS) for peer in (A, B)])
    go_on(ledger, [A, B, C], [finding_of(ledger, OPERATOR, peer, HOLDS, round=1) for peer in (A, B)])
    assert guilty(ledger) == {C.public_key: OUTVOTED}
    assert ledger.credit_of(C.public_key) == 0
    for key, credit in honest.items():
        assert ledger.credit_of(key) == 2 * credit
        assert ledger.standing.samples[key] == 48


def test_an_auditor_that_says_two_things_is_heard_once() -> None:
    ledger = ready(A, B, **NAMED)
    both = sorted((finding_of(ledger, SECOND, A, outcome) for outcome in (HOLDS, DIFFERS)), key=lambda each: each.digest)
    go_on(ledger, [A, B], both)
    (votes,) = ledger.standing.votes.values()
    assert [vote.outcome for vote in votes] == [both[0].open().outcome]


# What audits pay.


def test_audits_are_paid_out_of_a_part_of_the_pool_that_work_does_not_have() -> None:
    ledger = ready(A, B, **NAMED)
    assert sum(ledger.shares([ledger.listed(header, 3) for header in works_of(ledger, [A, B])]).values()) == 900
    assert ledger.standing.asked[1].worth == 100 // 2
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A)])
    assert ledger.standing.account(OPERATOR.public_key).pending == ((3, 25),)
    go_on(ledger, [A, B], [finding_of(ledger, SECOND, A, round=1)])  # nobody asked for a second opinion
    assert ledger.credit_of(SECOND.public_key) == 0
    go_on(ledger, [A, B], [finding_of(ledger, SECOND, A, DIFFERS)])
    go_on(ledger, [A, B], [finding_of(ledger, OPERATOR, A, round=3), finding_of(ledger, THIRD, A, round=3)])
    assert ledger.standing.account(SECOND.public_key).void[0].amount == 25
    assert ledger.credit_of(OPERATOR.public_key) == 25 + 12
    assert ledger.credit_of(THIRD.public_key) == 12


def test_where_it_takes_two_to_find_a_claim_good_both_are_paid() -> None:
    ledger = ready(A, B, C, proven=tuple(sorted(peer.public_key for peer in (B, C))))
    worth = ledger.standing.asked[1].worth
    go_on(ledger, [A, B, C], [finding_of(ledger, B, A)])
    go_on(ledger, [A, B, C], [finding_of(ledger, C, A, round=1)])
    paid = {peer: dict(ledger.standing.account(peer.public_key).pending) for peer in (A, B, C)}
    assert paid[B][3] - paid[A][3] == worth // 2
    assert paid[C][4] - paid[A][4] == worth // 4
    go_on(ledger, [A, B, C], [finding_of(ledger, OPERATOR, A, round=1)])  # and nobody for what is decided
    assert ledger.credit_of(OPERATOR.public_key) == 0


def test_in_an_open_run_all_is_final_at_once() -> None:
    ledger = ledger_of()
    go_on(ledger, [A, B])
    assert ledger.standing.account(A.public_key) == Account(500, (), ())
    assert ledger.credits() == {A.public_key: 500, B.public_key: 500}
    assert ledger.standing.tables == {}
    assert ledger.standing.due() == []
    assert ledger.standing.is_proven(A.public_key)
