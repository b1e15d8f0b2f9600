"""What the model of audits says of its own parameters, each sentence for the usual ones unless it says otherwise."""

import statistics

import pytest

from tests.protocol.audit_model import (
    ROUNDS_A_DAY,
    Account,
    Actor,
    Economy,
    Rules,
    crowd,
    faker,
    free_keys,
    gain,
    ghost_cohort_peer,
    honest,
    is_laptop_open,
    poisoner,
    withholder,
)

HONEST = 12
ROUNDS = 800


def play(*beside: Actor, rules: Rules | None = None, rounds: int = ROUNDS, **options: object) -> Economy:
    """Return the economy of twelve honest peers and those beside them."""
    return Economy(rules or Rules(), [*crowd(HONEST), *beside], **options).run(rounds)  # type: ignore[arg-type]


def one_honest(economy: Economy) -> Account:
    """Return the account of an honest peer, checked: nobody honest is accused, or demoted without having been away."""
    for number in range(HONEST):
        account = economy.accounts[f"honest-{number}"]
        assert (account.guilty, account.demoted) == (0, 0)
    return economy.accounts["honest-0"]


def test_those_who_work_share_the_pool_alike() -> None:
    alone = play()
    one_honest(alone)
    assert [account.pay for account in alone.accounts.values()] == pytest.approx([ROUNDS / HONEST] * HONEST)
    assert alone.audited / alone.handed_in < 0.1


@pytest.mark.parametrize(("percent", "rounds"), [(5, ROUNDS), (25, ROUNDS), (100, 2 * ROUNDS)])
def test_whoever_leaves_out_work_is_paid_less_for_the_work_that_it_does(percent: float, rounds: int) -> None:
    parts = []
    for seed in range(3):
        economy = play(faker("faker", percent), seed=seed, rounds=rounds)
        parts.append(economy.accounts["faker"].pay_a_trained / one_honest(economy).pay_a_trained)
        assert economy.accounts["faker"].guilty > 0
    assert statistics.mean(parts) < 0.99


def test_pay_that_is_final_too_soon_makes_lying_pay() -> None:
    rules = Rules(audit_percent=2, kept_rounds=5, judged_rounds=5, pending_rounds=10)
    assert gain(rules, 1.0) > 20


@pytest.mark.parametrize("free", [free_keys("free", 100), free_keys("free", 2, claims=32)], ids=["100 alone", "2 of 32"])
def test_free_keys_take_no_pay_and_at_most_a_fifth_of_the_weight(free: Actor) -> None:
    rounds = 2 * Rules().pending_rounds
    economy = play(free, rounds=rounds)
    assert economy.accounts["free"].pay == 0
    assert economy.accounts["free"].weight / rounds <= 0.2 + 1e-9
    assert one_honest(economy).pay > 0.9 * rounds / HONEST
    assert economy.unjudged == 0


@pytest.mark.parametrize(("known_percent", "is_proven"), [(Rules().known_percent, True), (0, False)])
def test_a_newcomer_is_proven_beside_a_hundred_free_keys_since_half_of_the_draws_are_for_those_that_were_good_before(
    known_percent: float, is_proven: bool
) -> None:
    rules = Rules(known_percent=known_percent)
    economy = play(free_keys("free", 100), honest("newcomer", proven=False), rules=rules, rounds=ROUNDS // 2)
    assert (economy.accounts["newcomer"].first_proven is not None) == is_proven


def test_a_newcomer_is_proven_after_so_many_good_contributions() -> None:
    economy = play(honest("newcomer", proven=False))
    proven = economy.accounts["newcomer"].first_proven
    assert proven is not None
    assert Rules().proven_after <= proven < 4 * Rules().proven_after


def test_a_laptop_that_is_closed_without_a_word_keeps_nine_tenths_of_its_pay() -> None:
    parts = []
    for seed in range(3):
        economy = play(honest("laptop", is_there=is_laptop_open), seed=seed, rounds=ROUNDS_A_DAY)
        assert economy.accounts["laptop"].guilty == 0
        parts.append(economy.accounts["laptop"].pay_a_trained / one_honest(economy).pay_a_trained)
    assert statistics.mean(parts) > 0.9


@pytest.mark.parametrize("shows_vectors", [True, False])
def test_a_cohort_peer_that_never_worked_earns_its_founder_nothing(shows_vectors: bool) -> None:
    economy = play(ghost_cohort_peer("ghost", shows_vectors=shows_vectors))
    usual = one_honest(economy)
    assert economy.accounts["ghost"].pay <= usual.pay + 1e-6
    assert economy.accounts["ghost"].guilty + economy.accounts["ghost"].demoted > 0


def test_who_shows_nothing_when_asked_is_paid_nothing() -> None:
    economy = play(withholder("withholds", cohort_peers=2))
    assert economy.accounts["withholds"].pay < 1
    one_honest(economy)


def test_a_founder_whose_body_does_not_follow_is_found_and_paid_nothing() -> None:
    economy = play(poisoner("poisons"))
    assert economy.accounts["poisons"].pay == 0
    assert economy.accounts["poisons"].guilty == 1


def test_one_named_auditor_of_four_that_accuses_everybody_takes_nothing_from_anybody() -> None:
    economy = play(rules=Rules(auditors=4, quorum=3), liars={0: "guilty"})
    assert one_honest(economy).pay == pytest.approx(ROUNDS / HONEST)


def test_one_named_auditor_of_four_that_finds_everything_good_does_not_save_who_does_nothing() -> None:
    economy = play(faker("faker", 100), rules=Rules(auditors=4, quorum=3), liars={0: "good"}, rounds=2 * ROUNDS)
    assert economy.accounts["faker"].guilty > 10
    assert economy.accounts["faker"].pay_a_trained < one_honest(economy).pay_a_trained * 1.02
