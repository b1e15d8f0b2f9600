"""Whether lying pays: the closed form against the model of the audit economy and against counting, and what makes a run's rules safe."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.auditing import MOST_GAIN, gain, least_pending_rounds, most_gain
from manta_swarm.protocol.verdicts import LEAST_PENDING, AuditRules
from tests.audited import AUDITOR
from tests.protocol import audit_model

RULES = AuditRules((AUDITOR.public_key,))


def test_the_defaults_leave_less_to_gain_than_a_contribution() -> None:
    assert most_gain(RULES) < MOST_GAIN
    assert least_pending_rounds(RULES) <= RULES.pending_rounds


@given(st.integers(1, 100), st.integers(63, 400), st.integers(1, 100))
def test_the_model_says_the_same(audit: int, pending: int, percent: int) -> None:
    rules = replace(RULES, audit_percent=audit, pending_rounds=pending)
    model = audit_model.Rules(audit_percent=audit, pending_rounds=pending - RULES.kept_rounds, kept_rounds=0, judged_rounds=0)
    assert gain(rules, percent / 100) == pytest.approx(audit_model.gain(model, percent / 100))


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_counted_lives_gain_as_much(part: float) -> None:
    rules, rng, lives = replace(RULES, audit_percent=10, pending_rounds=10, kept_rounds=3), random.Random(5), 20_000
    total = 0.0
    for _ in range(lives):
        left_out, drawn = list[bool](), list[bool]()
        while not left_out or not (left_out[-1] and drawn[-1]):
            left_out.append(rng.random() < part)
            drawn.append(rng.random() < 0.1)
        paid_before = len(left_out) + rules.kept_rounds - rules.pending_rounds
        for number, (is_left_out, is_drawn) in enumerate(zip(left_out[:-1], drawn[:-1], strict=True)):
            is_paid = number < paid_before or (is_drawn and not is_left_out)
            total += is_paid - (not is_left_out)
    assert gain(rules, part) == pytest.approx(total / lives, abs=0.15)


@given(st.integers(1, 100))
def test_so_many_pending_rounds_are_enough_and_one_less_is_not(audit: int) -> None:
    rules = replace(RULES, audit_percent=audit)
    least = least_pending_rounds(rules)
    assert most_gain(replace(rules, pending_rounds=least)) <= MOST_GAIN
    if least > rules.kept_rounds + LEAST_PENDING:
        assert most_gain(replace(rules, pending_rounds=least - 1)) > MOST_GAIN
