"""What of a run's pay becomes final, as it is said beforehand, against accounts that go on to the run's last round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounts import Accounts
from protocol.audits import AUDITED
from protocol.horizon import STAYS_ALL, STAYS_LATER, STAYS_NOTHING, Horizon, told_words
from tests.audited import OPERATOR, TRUST
from tests.runs import manifest_of

KEY, OTHER = b"k" * 32, b"o" * 32
PAID = st.lists(st.integers(0, 5), min_size=1, max_size=12)  # by each round of a run


def after(paid: list[int], pending_rounds: int, round_: int) -> Accounts:
    """Return the accounts after a round of a run that pays KEY so much each round, and OTHER one unit."""
    accounts = Accounts(pending_rounds)
    for each, amount in enumerate(paid[:round_], 1):
        accounts.earn(each, {OTHER: 1, **({KEY: amount} if amount else {})})
    return accounts


@given(PAID, st.integers(0, 14), st.data())
def test_what_is_said_after_any_round_is_what_accounts_come_to_at_the_end(
    paid: list[int], pending_rounds: int, data: st.DataObject
) -> None:
    horizon = Horizon(len(paid), pending_rounds)
    round_ = data.draw(st.integers(1, len(paid)))
    account = after(paid, pending_rounds, round_).of(KEY)
    of_these = {each for each, _ in account.pending}
    end = after(paid, pending_rounds, len(paid)).of(KEY)
    stays = sum(amount for each, amount in end.pending if each in of_these)
    outlook = horizon.outlook(account.pending)
    assert (outlook.stays, outlook.final + outlook.stays) == (stays, account.credit - account.final)
    assert all((horizon.final_with(each) is None) == (each in dict(end.pending)) for each in of_these)
    if outlook.final:  # one round before it is not all final yet
        final, before = (after(paid, pending_rounds, each).of(KEY) for each in (outlook.until, outlook.until - 1))
        left = [{each for each, _ in one.pending} & of_these - {each for each, _ in end.pending} for one in (final, before)]
        assert (not left[0], bool(left[1])) == (True, True)


@given(PAID, st.integers(1, 14), st.data())
def test_what_the_logs_word_says_of_it_holds_whatever_rounds_it_is_of(paid: list[int], pending_rounds: int, data: st.DataObject) -> None:
    horizon = Horizon(len(paid), pending_rounds)
    round_ = data.draw(st.integers(1, len(paid)))
    pending = after(paid, pending_rounds, round_).of(KEY).pending
    until = max((each for each, _ in pending), default=-pending_rounds) + pending_rounds
    outlook = horizon.outlook(pending)
    stays, by = horizon.told(round_, until)
    if stays == STAYS_NOTHING:
        assert (outlook.stays, by) == (0, outlook.until)
    elif stays == STAYS_ALL:
        assert (outlook.final, by) == (0, 0)
    else:
        assert outlook.stays == sum(amount for each, amount in pending if each > horizon.last_final) > 0
        assert outlook.until <= by


def test_it_is_said_in_words_that_people_know() -> None:
    horizon = Horizon(num_rounds=40, pending_rounds=30)
    some = ((10, 2000), (11, 9_000_000), (40, 401_171))
    assert horizon.outlook(some[:1]).words() == "final with round 40"
    assert horizon.outlook(some).words() == "2000 of it final with round 40; 9401171 stays pending: the run ends with round 40"
    assert horizon.outlook(some).words("{:,}".format).startswith("2,000 of it final with round 40; 9,401,171 stays pending")
    assert horizon.outlook(some[1:]).words() == "stays pending: the run ends with round 40"
    assert horizon.outlook(()).words() == ""


@pytest.mark.parametrize(
    ("round_", "until", "words"),
    [
        (5, 35, "the last of it final with round 35"),
        (10, 40, "the last of it final with round 40"),
        (
            12,
            42,
            "what rounds up to 10 paid is final by round 40; what later ones pay stays pending: the run ends with round 40",
        ),
        (40, 70, "stays pending: the run ends with round 40"),
    ],
)
def test_the_logs_word_is_put_in_words(round_: int, until: int, words: str) -> None:
    horizon = Horizon(num_rounds=40, pending_rounds=30)
    stays, by = horizon.told(round_, until)
    assert told_words(stays, by, horizon.last_final, horizon.num_rounds) == words


def test_where_the_run_is_no_longer_than_that_nothing_becomes_final() -> None:
    horizon = Horizon(num_rounds=30, pending_rounds=30)
    assert (horizon.last_final, horizon.told(3, 33)) == (0, (STAYS_ALL, 0))
    assert Horizon(31, 30).told(3, 33) == (STAYS_LATER, 31)


def test_in_a_run_without_audits_all_is_final_at_once() -> None:
    manifest = manifest_of(OPERATOR, num_rounds=9)
    assert Horizon.of(manifest) == Horizon(9, 0)
    assert (Horizon.of(manifest).last_final, Horizon.of(manifest).final_with(9)) == (9, 9)
    assert TRUST.mode == AUDITED
    assert Horizon.of(manifest_of(OPERATOR, num_rounds=9, trust=TRUST)) == Horizon(9, TRUST.pending_rounds)
