"""The local steps of claims and contributions in the log: whose indices they are, who counted in which, and who dropped out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import ClaimError, LedgerError
from protocol.ledger import Ledger
from protocol.lots import place_of_lot, work_of
from protocol.records import ClaimStep, Header, SignedClaim, StepMean, entry_of
from protocol.residuals import left_by
from protocol.signing import Identity, sha256
from tests.audited import RULES
from tests.claim_steps import MEAN, VECTOR
from tests.contributions import PEERS, claim_of, commit, listing, with_contribution
from tests.protocol.ledgers import ledger_of, refused
from tests.runs import EXCHANGE

A, B, C = PEERS[:3]  # in the order of their keys
STEPS = 3
LEFT = sha256(b"left")
WHOLE = tuple(ClaimStep(2 * step, 2 * step + 1, (), VECTOR) for step in range(STEPS))  # a lot of each architecture in each step


def ledger(*, is_audited: bool = False, local_steps: int = STEPS, **changes: Any) -> Ledger:
    audits = (RULES,) if is_audited else ()
    return ledger_of(exchange=replace(EXCHANGE, local_steps=local_steps, **changes), audits=audits)


def claimed(log: Ledger, peer: Identity, steps: Sequence[ClaimStep], founder: Identity = A, **changes: Any) -> SignedClaim:
    lots = (sum(step.count for step in steps) // 2,) * 2
    return claim_of(log, peer, steps=tuple(steps), lots=lots, founder=founder.public_key, **changes)


def refused_whole(log: Ledger, header: Header, match: str) -> None:
    with pytest.raises(LedgerError, match=match):
        log.listed(header, log.round + 1)


def test_the_lots_of_indices_are_counted_as_if_one_by_one_whatever_is_skipped() -> None:
    steps = (ClaimStep(3, 40, (4, 9, 12), VECTOR), ClaimStep(50, 50, (), VECTOR), ClaimStep(51, 51 + 5 * 19, (56, 66), VECTOR, 5))
    for count in range(1, 8):
        for peer in PEERS:
            expected = [0] * count
            for index in (index for step in steps for index in step.indices()):
                expected[place_of_lot(count, LEFT, peer.public_key, index)] += 1
            assert work_of(count, LEFT, peer.public_key, steps) == tuple(expected)
    assert sum(work_of(7, LEFT, A.public_key, (ClaimStep(5, 2**40 - 1, (7,), VECTOR),))) == 2**40 - 6


@pytest.mark.parametrize("is_audited", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_claim_alone_has_as_many_steps_as_the_run(count: int, is_audited: bool) -> None:
    log = ledger(is_audited=is_audited)
    steps = (*WHOLE, ClaimStep(6, 7, (), VECTOR))[:count]
    for founder in (A, B):
        header = listing([claimed(log, A, steps, founder)], A)
        with pytest.raises(LedgerError, match=r"local steps"):
            log.listed(header, 1)
    refused(log, entry_of(listing([claimed(log, A, steps)], A)), match=f"{count} local steps in a run of 3")


def test_a_claim_counts_the_lots_that_its_indices_are_of() -> None:
    log = ledger(local_steps=1)
    for steps in (ClaimStep(0, 3, (), VECTOR), ClaimStep(1, 5, (2,), VECTOR), ClaimStep(0, 6, (), VECTOR, 2)):
        right = work_of(2, log.last_commit, A.public_key, (steps,))
        commit(log.copy(), [listing([claim_of(log, A, steps=(steps,), lots=right)], A)])
        for wrong in ((right[0] + 1, right[1] - 1), (right[0] - 1, right[1] + 1)):
            if min(wrong) >= 0:
                refused(log, entry_of(listing([claim_of(log, A, steps=(steps,), lots=wrong)], A)), match="than its indices are of")
    every = ClaimStep(0, 9, (), VECTOR, 3)
    work = work_of(2, log.last_commit, A.public_key, (every,))
    refused(log, entry_of(listing([claim_of(log, A, steps=(every,), lots=work)], A)), match="some of its architectures")


def test_who_dropped_out_of_an_audited_run_s_cohort_is_listed_and_paid_up_to_there() -> None:
    log = ledger(is_audited=True, codec="topk-256-4")
    header = listing([claimed(log, A, WHOLE), claimed(log, B, WHOLE[:2]), claimed(log, C, WHOLE)], A, left=LEFT)
    opened = header.contribution.open()
    assert (opened.counted, [step.counted for step in opened.steps]) == (0b101, [0b111, 0b111, 0b101])
    commit(log, [header])
    listed = log.table_at(1)
    assert listed is not None
    assert (listed[0].weighing.samples, listed[0].counted) == (80 + 64 + 80, 96 + 64 + 96)
    weights = dict(zip(listed[0].keys, listed[0].weights, strict=True))
    assert 0 < weights[B.public_key] < weights[A.public_key] == weights[C.public_key]
    assert opened.in_body == (header.claims[0].digest, header.claims[2].digest)
    assert left_by([header]) == {peer.public_key: LEFT for peer in (A, C)}  # B gave nothing, and nothing is left to it


def test_in_an_open_run_nobody_is_listed_that_dropped_out() -> None:
    log = ledger()
    with pytest.raises(ClaimError, match=r"2 local steps in a run of 3") as raised:
        log.listed(listing([claimed(log, A, WHOLE), claimed(log, B, WHOLE[:2])], A), 1)
    assert raised.value.keys == (B.public_key,)


def test_a_founder_has_all_steps() -> None:
    log = ledger(is_audited=True)
    header = listing([claimed(log, A, WHOLE[:2]), claimed(log, B, WHOLE)], A)
    with pytest.raises(ClaimError, match=r"2 local steps in a run of 3"):
        log.listed(header, 1)


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
        ({"counted": 4}, "a body without its founder"),
        ({"counted": 7}, "a claim that gives nothing"),
        ({"counted": 1}, ""),  # C gave its last step, and nothing at the end
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
    refused_whole(log, changed, match)
    refused(log, entry_of(changed), match=match)


@pytest.mark.parametrize(("is_audited", "local_steps"), [(False, STEPS), (True, 1), (False, 1)])
def test_who_is_listed_is_in_the_body_but_for_an_audited_run_s_local_steps(is_audited: bool, local_steps: int) -> None:
    log = ledger(is_audited=is_audited, local_steps=local_steps)
    header = listing([claimed(log, peer, WHOLE[:local_steps]) for peer in (A, B)], A)
    refused_whole(log, with_contribution(header, A, counted=1), "a claim that is not in the body")
    commit(log, [header])


def test_who_had_the_other_view_is_named_in_stereo_runs_only() -> None:
    for task, is_taken in (("stereo", True), ("classification", False)):
        log = ledger_of(task=task)
        header = listing([claim_of(log, A, partner=B.public_key)], A)
        if is_taken:
            commit(log, [header])
        else:
            refused(log, entry_of(header), match="whose samples have one")
