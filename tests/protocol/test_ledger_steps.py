"""The local steps of claims and contributions in the log: whose indices they are, who counted in which, and who dropped out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.protocol.admission import LIST, AdmissionRule
from manta_swarm.protocol.errors import ClaimError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import left_by
from manta_swarm.protocol.microbatches import place_of_microbatch, work_of
from manta_swarm.protocol.records import Claim, ClaimStep, StepMean, entry_of
from manta_swarm.protocol.reputation import FALSE, Fault
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Outcome
from tests.audited import RULES, hand_in, verdict_of
from tests.claim_steps import MEAN, VECTOR
from tests.contributions import PEERS, claim_of, commit, listing, with_contribution
from tests.protocol.ledgers import ledger_of, not_taken, refused
from tests.runs import EXCHANGE

A, B, C, D = PEERS[:4]  # in the order of their keys
STEPS = 3
LEFT = sha256(b"left")
WHOLE = tuple(ClaimStep(2 * step, 2 * step + 1, (), VECTOR) for step in range(STEPS))  # a microbatch of each architecture in each step


def ledger(*, is_audited: bool = False, local_steps: int = STEPS, **changes: Any) -> Ledger:
    audits = (RULES,) if is_audited else ()
    return ledger_of(exchange=replace(EXCHANGE, local_steps=local_steps, **changes), audits=audits)


def claimed(log: Ledger, peer: Identity, steps: Sequence[ClaimStep], founder: Identity = A, **changes: Any) -> Signed[Claim]:
    microbatches = (sum(step.count for step in steps) // 2,) * 2
    return claim_of(log, peer, steps=tuple(steps), microbatches=microbatches, founder=founder.public_key, **changes)


def test_the_microbatches_of_indices_are_counted_as_if_one_by_one_whatever_is_skipped() -> None:
    steps = (ClaimStep(3, 40, (4, 9, 12), VECTOR), ClaimStep(50, 50, (), VECTOR), ClaimStep(51, 51 + 5 * 19, (56, 66), VECTOR, 5))
    for count in range(1, 8):
        for peer in PEERS:
            expected = [0] * count
            for index in (index for step in steps for index in step.indices()):
                expected[place_of_microbatch(count, LEFT, peer.public_key, index)] += 1
            assert work_of(count, LEFT, peer.public_key, steps) == tuple(expected)
    assert sum(work_of(7, LEFT, A.public_key, (ClaimStep(5, 2**40 - 1, (7,), VECTOR),))) == 2**40 - 6


@pytest.mark.parametrize("is_audited", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_claim_alone_has_as_many_steps_as_the_run(count: int, is_audited: bool) -> None:
    log = ledger(is_audited=is_audited)
    steps = (*WHOLE, ClaimStep(6, 7, (), VECTOR))[:count]
    for founder in (A, B):
        not_taken(log, listing([claimed(log, A, steps, founder)], A), f"{count} local steps in a run of 3")


def test_a_claim_counts_the_microbatches_that_its_indices_are_of() -> None:
    log = ledger(local_steps=1)
    for steps in (ClaimStep(0, 3, (), VECTOR), ClaimStep(1, 5, (2,), VECTOR), ClaimStep(0, 6, (), VECTOR, 2)):
        right = work_of(2, log.last_commit, A.public_key, (steps,))
        commit(log.copy(), [listing([claim_of(log, A, steps=(steps,), microbatches=right)], A)])
        for wrong in ((right[0] + 1, right[1] - 1), (right[0] - 1, right[1] + 1)):
            if min(wrong) >= 0:
                refused(log, entry_of(listing([claim_of(log, A, steps=(steps,), microbatches=wrong)], A)), match="than its indices are of")
    every = ClaimStep(0, 9, (), VECTOR, 3)
    work = work_of(2, log.last_commit, A.public_key, (every,))
    refused(log, entry_of(listing([claim_of(log, A, steps=(every,), microbatches=work)], A)), match="some of its architectures")


def test_who_dropped_out_of_an_audited_run_s_cohort_is_listed_and_paid_up_to_there() -> None:
    log = ledger(is_audited=True, codec="topk-256-4")
    header = listing([claimed(log, A, WHOLE), claimed(log, B, WHOLE[:2]), claimed(log, C, WHOLE)], A, left=LEFT)
    opened = header.contribution.open()
    assert (opened.included, [step.included for step in opened.steps]) == (0b101, [0b111, 0b111, 0b101])
    commit(log, [header])
    listed = log.table_at(1)
    assert listed is not None
    assert (listed[0].weighing.samples, listed[0].counted) == (80 + 64 + 80, 96 + 64 + 96)
    weights = dict(zip(listed[0].keys, listed[0].weights, strict=True))
    assert 0 < weights[B.public_key] < weights[A.public_key] == weights[C.public_key]
    assert opened.in_body == (header.claims[0].digest, header.claims[2].digest)
    assert left_by([header]) == {peer.public_key: LEFT for peer in (A, C)}  # B gave nothing, and nothing is left to it


def test_in_an_unaudited_run_nobody_is_listed_that_dropped_out() -> None:
    log = ledger()
    with pytest.raises(ClaimError, match=r"2 local steps in a run of 3") as raised:
        log.listed(listing([claimed(log, A, WHOLE), claimed(log, B, WHOLE[:2])], A), 1)
    assert raised.value.keys == (B.public_key,)


def test_a_founder_has_all_steps() -> None:
    log = ledger(is_audited=True)
    header = listing([claimed(log, A, WHOLE[:2]), claimed(log, B, WHOLE)], A)
    not_taken(log, header, "2 local steps in a run of 3", ClaimError)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"steps": ()}, None),
        ({"steps": (StepMean(MEAN, 7), StepMean(MEAN, 7))}, "the means of 2 local steps"),
        ({"steps": (StepMean(MEAN, 7), StepMean(MEAN, 7), StepMean(MEAN, 5), StepMean(MEAN, 5))}, "the means of 4 local steps"),
        ({"steps": (StepMean(MEAN, 7), StepMean(MEAN, 7), StepMean(MEAN, 7))}, "in step 2 others counted"),  # B has two steps
        ({"steps": (StepMean(MEAN, 5), StepMean(MEAN, 7), StepMean(MEAN, 5))}, "in step 0 others counted"),
        ({"steps": (StepMean(MEAN, 7), StepMean(MEAN, 6), StepMean(MEAN, 5))}, "in step 1 others counted"),  # without its founder
        ({"steps": (StepMean(MEAN, 15), StepMean(MEAN, 7), StepMean(MEAN, 5))}, "in step 0 others counted"),
        ({"included": 4}, "a body without its founder"),
        ({"included": 7}, "a claim that gives nothing"),
        ({"included": 1}, ""),  # C gave its last step, and nothing at the end
    ],
)
def test_a_contribution_says_who_counted_in_which_step_and_in_its_body(changes: dict[str, Any], match: str | None) -> None:
    log = ledger(is_audited=True)
    header = listing([claimed(log, A, WHOLE), claimed(log, B, WHOLE[:2]), claimed(log, C, WHOLE)], A)
    if match is None:
        with pytest.raises(ValueError, match=r"local steps"):
            with_contribution(header, A, **changes)
        return
    changed = with_contribution(header, A, **changes)
    if not match:
        commit(log, [changed])
        return
    not_taken(log, changed, match)


@pytest.mark.parametrize(("is_audited", "local_steps"), [(False, STEPS), (True, 1), (False, 1)])
def test_who_is_listed_is_in_the_body_but_for_an_audited_run_s_local_steps(is_audited: bool, local_steps: int) -> None:
    log = ledger(is_audited=is_audited, local_steps=local_steps)
    header = listing([claimed(log, peer, WHOLE[:local_steps]) for peer in (A, B)], A)
    not_taken(log, with_contribution(header, A, included=1), "a claim that is not in the body")
    commit(log, [header])


def test_who_had_the_other_view_is_named_in_stereo_runs_only() -> None:
    for task, is_taken in (("stereo", True), ("classification", False)):
        log = ledger_of(task=task)
        header = listing([claim_of(log, A, partner=B.public_key)], A)
        if is_taken:
            commit(log, [header])
        else:
            refused(log, entry_of(header), match="whose samples have one")


# Members for whom the others of their cohort must not pay.


def revoked(log: Ledger, peer: Identity) -> None:
    log.admitted.accesses.pop(peer.public_key, None)
    log.admitted.named -= {peer.public_key}


def found_guilty(log: Ledger, peer: Identity) -> None:
    log.reputation.guilty[peer.public_key] = Fault(1, FALSE, bytes(32))


def handed_in_alone(log: Ledger, peer: Identity) -> None:
    commit(log, [listing([claimed(log, peer, WHOLE, peer)], peer)])


@pytest.mark.parametrize("misses", [revoked, found_guilty, handed_in_alone])
def test_a_member_that_may_not_be_listed_any_more_costs_its_audited_cohort_nothing(misses: Callable[[Ledger, Identity], None]) -> None:
    rule = AdmissionRule(LIST, tuple(peer.public_key for peer in PEERS))
    log = ledger_of(exchange=replace(EXCHANGE, local_steps=STEPS), audits=(RULES,), admission=rule)
    header = listing([claimed(log, A, WHOLE), claimed(log, B, WHOLE[:2]), claimed(log, C, WHOLE)], A)
    for who in (B, C):
        after = log.copy()
        misses(after, who)
        (listed,) = (after.listed(header, after.round + 1),)
        place = listed.keys.index(who.public_key)
        assert [pay == 0 for pay in listed.weights] == [samples == 0 for samples in listed.samples] == [one == place for one in range(3)]
        full = log.listed(header, 1)
        assert listed.weighing.samples == listed.weighing.unproven == full.weighing.samples - full.samples[place]
        assert listed.counted == full.counted  # an audit computes all of it
        commit(after, [header])
        assert after.table_at(after.round) == (listed,)
    after = log.copy()
    misses(after, A)  # of its founder
    if misses is not found_guilty:  # whose new work the operator refuses
        with pytest.raises(ClaimError) as raised:
            after.listed(header, after.round + 1)
        assert raised.value.keys == (A.public_key,)


@pytest.mark.parametrize(("is_audited", "local_steps"), [(False, STEPS), (True, 1), (False, 1)])
def test_elsewhere_a_cohort_hands_in_without_whom_the_log_does_not_take(is_audited: bool, local_steps: int) -> None:
    log = ledger(is_audited=is_audited, local_steps=local_steps)
    header = listing([claimed(log, peer, WHOLE[:local_steps]) for peer in (A, B)], A)
    commit(log, [listing([claimed(log, B, WHOLE[:local_steps], B)], B)])
    with pytest.raises(ClaimError, match=r"in the log already") as raised:
        log.listed(header, 2)
    assert raised.value.keys == (B.public_key,)


def test_whoever_is_in_several_contributions_of_a_round_is_paid_in_its_own_or_in_the_first() -> None:
    log = ledger(is_audited=True)
    headers = [
        listing([claimed(log, A, WHOLE), claimed(log, C, WHOLE), claimed(log, D, WHOLE)], A),
        listing([claimed(log, B, WHOLE, B), claimed(log, C, WHOLE, B), claimed(log, D, WHOLE, B)], B),
        listing([claimed(log, D, WHOLE, D)], D),
    ]
    commit(log, headers)
    table = log.table_at(1)
    assert table is not None
    paid = [[key for key, weight in zip(one.keys, one.weights, strict=True) if weight] for one in table]
    assert paid == [[A.public_key, C.public_key], [B.public_key], [D.public_key]]
    works = log.reputation.pending[1]
    assert [work.weights for work in works] == [one.weights for one in table]


def test_an_audit_that_finds_unpaid_work_good_pays_nothing_and_proves_nothing() -> None:
    log = ledger(is_audited=True)
    alone = listing([claimed(log, B, WHOLE, B)], B)
    commit(log, [alone, listing([claimed(log, A, WHOLE), claimed(log, B, WHOLE)], A)])
    commit(log, [listing([claimed(log, C, WHOLE, C)], C)])
    of_cohort = verdict_of(log, A, round=1)
    of_alone = verdict_of(log, A, Outcome.GOOD, round=1, contribution=alone.contribution.digest)
    for verdict, good, paid in ((of_cohort, [1, 0], {A.public_key}), (of_alone, [1, 1], {A.public_key, B.public_key})):
        hand_in(log, [listing([claimed(log, C, WHOLE, C)], C)], [verdict])
        assert [log.reputation.good[peer.public_key] for peer in (A, B)] == good
        assert set(log.reputation.expected(1)) == paid
