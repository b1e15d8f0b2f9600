"""What verdicts add up to: each row of the table of outcomes, who may say what, and when a round is paid, and to whom."""

from collections.abc import Sequence

import pytest

from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.reputation import FALSE, WITHHELD, PayableWork, Pools, Reputation
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import AuditRules, Outcome, Verdict

GOOD, UNPAID, DEMOTED, VOID = Outcome.GOOD, Outcome.UNPAID, Outcome.DEMOTED, Outcome.VOID
RUN = sha256(b"run")


def key_of(name: str) -> bytes:
    return Identity(sha256(name.encode())).public_key


A, B, C, NEW = (key_of(name) for name in ("a", "b", "c", "new"))
AUDITORS = tuple(sorted(key_of(f"auditor {number}") for number in range(4)))
POOLS = Pools(work=1000, audits=100)


def rules(named: Sequence[bytes] = AUDITORS[:1], *, proven: Sequence[bytes] = (A, B, C), proven_after: int = 2) -> AuditRules:
    """Return rules by which all is drawn."""
    return AuditRules(tuple(named), tuple(sorted(proven)), proven_after, 100, 100, kept_rounds=2, pending_rounds=5)


class Rounds:
    """A run of rounds, in each of which some keys hand in."""

    def __init__(self, of: AuditRules | None, *first: Sequence[bytes], more: int = 0) -> None:
        """Begin with a round of these contributions, if there are any, and ``more`` rounds after it."""
        self.reputation = Reputation(of, POOLS)
        self.verdicts: list[Verdict] = []
        if first:
            self.turn(*first)
        self.turns(more)

    def works(self, *contributions: Sequence[bytes], accounts: dict[bytes, bytes] | None = None) -> tuple[PayableWork, ...]:
        round_ = self.reputation.round + 1
        return tuple(
            PayableWork(
                sha256(b"%d" % round_ + b"".join(keys)),
                tuple(keys),
                tuple((accounts or {}).get(key, key) for key in keys),
                (10,) * len(keys),
                100 * len(keys),
                tuple(map(self.reputation.is_proven, keys)),
            )
            for keys in contributions
        )

    def turn(self, *contributions: Sequence[bytes], accounts: dict[bytes, bytes] | None = None) -> None:
        works = self.works(*contributions, accounts=accounts)
        verdicts, self.verdicts = self.verdicts, []
        self.reputation.turn(self.reputation.round + 1, sha256(b"commit %d" % self.reputation.round), verdicts, works)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn([C])

    def say(self, keys: Sequence[bytes], round_: int, outcomes: Sequence[Outcome], auditor: bytes, by: bytes | None = None) -> None:
        """Put in a verdict on what ``keys`` handed in, before the next round."""
        contribution = sha256(b"%d" % round_ + b"".join(keys))
        verdict = Verdict(RUN, auditor, round_, contribution, tuple(map(int, outcomes)), by or auditor)
        self.reputation.check(verdict)
        self.verdicts.append(verdict)

    def auditor(self, keys: Sequence[bytes], round_: int) -> bytes:
        return self.reputation.audits[sha256(b"%d" % round_ + b"".join(keys))].auditor


def test_without_audits_a_round_is_paid_with_its_entry() -> None:
    rounds = Rounds(None, [A], [B, C])
    assert rounds.reputation.earned == {A: 333, B: 333, C: 334} or sum(rounds.reputation.earned.values()) == 1000
    assert rounds.reputation.is_proven(NEW)
    assert not rounds.reputation.pending


def test_a_proven_key_is_paid_once_its_round_is_old_enough_though_nobody_judged_it() -> None:
    rounds = Rounds(rules(), [A], [B], more=4)
    assert not rounds.reputation.credits()
    rounds.turns(1)
    assert rounds.reputation.credits() == {A: 500, B: 500}


def test_a_newcomer_is_paid_for_what_was_found_good_and_is_proven_after_so_much_of_it() -> None:
    rounds = Rounds(rules())
    for round_ in (1, 2):
        rounds.turn([A], [NEW])
        rounds.turn([A])
        rounds.say([NEW], 2 * round_ - 1, [GOOD], AUDITORS[0])
    assert not rounds.reputation.is_proven(NEW)
    rounds.turn([A], [NEW])
    assert rounds.reputation.is_proven(NEW)
    rounds.turns(5)
    assert rounds.reputation.earned[NEW] == 500 + 500  # the third was handed in before it was proven, and nobody judged it


def test_a_claim_pays_the_account_that_it_names() -> None:
    rounds = Rounds(rules())
    rounds.turn([A], [B], accounts={A: NEW, B: NEW})
    rounds.turns(5)
    assert rounds.reputation.credits() == {NEW: 1000}
    assert rounds.reputation.earned == {A: 500, B: 500}


def test_a_false_vector_makes_its_key_guilty_and_leaves_the_others_what_they_did() -> None:
    rounds = Rounds(rules(), [A, B], [C])
    rounds.turn([A], [B], [C])
    rounds.say([A, B], 1, [GOOD, VOID], AUDITORS[0])
    rounds.turns(1)
    reputation = rounds.reputation
    assert (reputation.guilty[B].reason, reputation.is_proven(B), reputation.is_proven(A)) == (FALSE, False, True)
    rounds.turns(3)
    assert reputation.earned == {A: 500, C: 500, AUDITORS[0]: 100}
    rounds.turns(1)
    assert reputation.earned == {A: 1000, C: 1000, AUDITORS[0]: 100}  # what B handed in before it was found out is not paid


def test_what_was_not_brought_is_not_paid_and_its_keys_begin_anew() -> None:
    rounds = Rounds(rules(), [A, B], [C], more=1)
    with pytest.raises(LedgerError, match="may still come"):
        rounds.say([A, B], 1, [DEMOTED, UNPAID], AUDITORS[0])
    rounds.turns(1)
    rounds.say([A, B], 1, [DEMOTED, UNPAID], AUDITORS[0])
    rounds.turns(1)
    reputation = rounds.reputation
    assert [reputation.is_proven(key) for key in (A, B)] == [False, True]
    assert [fault.reason for fault in reputation.faults[A]] == [WITHHELD]
    assert not reputation.guilty
    rounds.turns(2)
    assert reputation.earned == {C: 1000, AUDITORS[0]: 100}


def test_a_founder_is_not_paid_as_soon_as_a_vector_that_it_counted_is_found_false() -> None:
    rounds = Rounds(rules(), [A, B], [C], more=1)
    with pytest.raises(LedgerError, match="may still come"):
        rounds.say([A, B], 1, [UNPAID, GOOD], AUDITORS[0])
    rounds.say([A, B], 1, [UNPAID, VOID], AUDITORS[0])
    rounds.turns(1)
    reputation = rounds.reputation
    assert (set(reputation.guilty), reputation.is_proven(A)) == ({B}, True)
    rounds.turns(3)
    assert reputation.earned == {C: 1000, AUDITORS[0]: 100}


def test_a_demoted_key_is_proven_again_by_as_much_good_work_as_one_that_is_new() -> None:
    rounds = Rounds(rules(), [A])
    rounds.turn([A])
    rounds.say([A], 1, [GOOD], AUDITORS[0])
    rounds.turns(2)
    rounds.say([A], 2, [DEMOTED], AUDITORS[0])
    for _ in range(2):
        rounds.turn([A])
        rounds.turns(1)
        assert not rounds.reputation.is_proven(A)
        rounds.say([A], rounds.reputation.round - 1, [GOOD], AUDITORS[0])
    rounds.turns(1)
    assert rounds.reputation.is_proven(A)


def test_good_is_the_word_of_the_one_auditor_drawn() -> None:
    rounds = Rounds(rules(AUDITORS), [NEW], [C], more=1)
    drawn = rounds.auditor([NEW], 1)
    for auditor in AUDITORS:
        if auditor != drawn:
            rounds.say([NEW], 1, [GOOD], auditor)
    rounds.turns(1)
    assert not rounds.reputation.good[NEW]
    rounds.say([NEW], 1, [GOOD], drawn)
    rounds.turns(1)
    assert rounds.reputation.good[NEW] == 1


def test_one_liar_of_four_auditors_takes_nothing_from_anybody() -> None:
    rounds = Rounds(rules(AUDITORS), [A], [C], more=1)
    for auditor in AUDITORS[:2]:
        rounds.say([A], 1, [VOID], auditor)
        rounds.turns(1)
        assert rounds.reputation.is_proven(A)
    rounds.say([A], 1, [VOID], AUDITORS[2])
    rounds.turns(1)
    assert A in rounds.reputation.guilty


def test_auditors_that_differ_in_how_much_agree_on_the_least() -> None:
    rounds = Rounds(rules(AUDITORS), [A], [C], more=2)
    for auditor, outcome in zip(AUDITORS, (VOID, VOID, UNPAID), strict=False):
        rounds.say([A], 1, [outcome], auditor)
    rounds.turns(1)
    assert not rounds.reputation.guilty
    assert rounds.reputation.is_proven(A)
    rounds.turns(2)
    assert A not in rounds.reputation.earned


def test_a_quorum_overrules_the_good_word_of_the_one_auditor_drawn() -> None:
    rounds = Rounds(rules(AUDITORS), [NEW], [C], more=1)
    drawn = rounds.auditor([NEW], 1)
    rounds.say([NEW], 1, [GOOD], drawn)
    rounds.turns(1)
    for auditor in AUDITORS:
        if auditor != drawn:
            rounds.say([NEW], 1, [VOID], auditor)
    rounds.turns(3)
    assert NEW in rounds.reputation.guilty
    assert NEW not in rounds.reputation.earned


def test_what_a_quorum_finds_unpaid_no_longer_counts_as_good_work() -> None:
    rounds = Rounds(rules(AUDITORS[:3], proven_after=1), [NEW], more=2)
    drawn = rounds.auditor([NEW], 1)
    rounds.say([NEW], 1, [GOOD], drawn)
    rounds.turns(1)
    assert rounds.reputation.is_proven(NEW)
    for other in AUDITORS[:3]:
        if other != drawn:
            rounds.say([NEW], 1, [UNPAID], other)
    rounds.turns(1)
    assert not rounds.reputation.is_proven(NEW)
    assert not rounds.reputation.faults  # it lost that one contribution, and was not demoted


def test_audits_pay_those_whose_work_said_what_it_came_to() -> None:
    rounds = Rounds(rules(), [A], [C], more=1)
    rounds.say([A], 1, [GOOD], AUDITORS[0], by=B)
    rounds.say([C], 1, [GOOD], AUDITORS[0])
    rounds.turns(4)
    assert rounds.reputation.earned == {A: 500, B: 50, C: 500, AUDITORS[0]: 50}


def test_an_audit_that_said_something_else_than_it_came_to_is_not_paid() -> None:
    rounds = Rounds(rules(AUDITORS), [NEW], [C], more=1)
    drawn = rounds.auditor([NEW], 1)
    for auditor in AUDITORS:
        rounds.say([NEW], 1, [GOOD if auditor == drawn else VOID], auditor)
    rounds.turns(4)
    assert drawn not in rounds.reputation.earned
    assert sorted(rounds.reputation.earned[auditor] for auditor in AUDITORS if auditor != drawn) == [33, 33, 34]


def test_an_auditor_judges_a_contribution_once_and_none_that_is_paid() -> None:
    rounds = Rounds(rules(), [A], more=1)
    rounds.say([A], 1, [GOOD], AUDITORS[0])
    rounds.turns(1)
    with pytest.raises(LedgerError, match="has judged"):
        rounds.say([A], 1, [VOID], AUDITORS[0])
    rounds.turns(3)
    with pytest.raises(LedgerError, match="not audited"):
        rounds.say([A], 1, [VOID], AUDITORS[0])


def test_of_two_verdicts_of_one_auditor_before_one_round_the_first_counts() -> None:
    rounds = Rounds(rules(), [A], more=1)
    rounds.say([A], 1, [GOOD], AUDITORS[0])
    rounds.say([A], 1, [VOID], AUDITORS[0])
    rounds.turns(1)
    assert not rounds.reputation.guilty


def test_an_auditor_that_hands_in_is_not_asked_about_its_own_work() -> None:
    rounds = Rounds(rules(AUDITORS[:2], proven=(A, AUDITORS[0])), [AUDITORS[0]], more=1)
    assert rounds.auditor([AUDITORS[0]], 1) == AUDITORS[1]
    with pytest.raises(LedgerError, match="may not look"):
        rounds.say([AUDITORS[0]], 1, [GOOD], AUDITORS[0])


def test_the_settlement_pays_what_is_pending_by_the_verdicts_that_are_there() -> None:
    rounds = Rounds(rules(), [A], [NEW])
    rounds.turn([A], [B])
    rounds.say([NEW], 1, [GOOD], AUDITORS[0])
    rounds.reputation.settle(rounds.verdicts)
    assert rounds.reputation.earned == {A: 1000, NEW: 500, B: 500, AUDITORS[0]: 100}
    assert not rounds.reputation.pending


def test_what_a_round_paid_is_told_with_the_entry_that_paid_it_and_its_audits_as_they_stood() -> None:
    rounds = Rounds(rules(), [A], [B], more=2)
    rounds.say([B], 1, [VOID], AUDITORS[0])
    rounds.turns(3)
    (paid,) = rounds.reputation.paid_now
    assert (paid.round, {key: amount for key, amount in paid.shares.items() if amount}) == (1, {A: 1000})
    assert [(audit.work.keys, audit.outcomes) for audit in paid.audits] == [((A,), ()), ((B,), (VOID,))]
    rounds.turns(1)
    assert [each.round for each in rounds.reputation.paid_now] == [2]
    rounds.reputation.settle([])
    assert [each.round for each in rounds.reputation.paid_now] == [3, 4, 5, 6, 7]


def test_what_somebody_asked_before_a_verdict_changes_nothing_of_the_pay() -> None:
    asked, not_asked = (Rounds(rules(), [A], [B], more=2) for _ in range(2))
    assert [asked.reputation.standing(key).pending[0] for key in (A, B)] == [(1, 500), (1, 500)]
    for rounds in (asked, not_asked):
        rounds.say([B], 1, [VOID], AUDITORS[0])
        rounds.turns(1)
        assert rounds.reputation.standing(A).pending == ((1, 1000),)
        rounds.turns(2)
    assert asked.reputation.earned == not_asked.reputation.earned == {A: 1000, AUDITORS[0]: 100}


def test_a_copy_goes_its_own_way() -> None:
    rounds = Rounds(rules(), [A], more=1)
    before = rounds.reputation.copy()
    rounds.say([A], 1, [VOID], AUDITORS[0])
    rounds.turns(1)
    assert A in rounds.reputation.guilty
    assert (before.guilty, before.round, before.is_proven(A)) == ({}, 2, True)
