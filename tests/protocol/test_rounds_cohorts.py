"""The round as a peer sees it, with a cohort, in several local steps, and on a slow line, case by case."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from manta_swarm.protocol.errors import SignatureError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.rounds import PeerStage, RoundMachine
from manta_swarm.protocol.signing import sha256
from tests.contributions import listing
from tests.protocol.machines import (
    COMMIT_REFS,
    MANIFEST,
    MICROBATCH,
    OTHER,
    PEER,
    ROUNDS,
    RUN,
    START,
    aged,
    behind,
    claim_of,
    finished,
    header_of,
    history,
    inclusion_promise_of,
    learn,
    machine,
    promised,
    signed,
    together_of,
    trained,
)
from tests.runs import FixedTrainingSpec

# With a cohort.


def test_the_inclusion_promise_of_a_contribution_that_lists_the_signed_claim_is_as_good_as_its_own() -> None:
    one, together = signed(), together_of()
    one.accepted(together.contribution, inclusion_promise_of(together, 1))
    assert (one.stage, one.inclusion_promise) == (PeerStage.PROMISED, inclusion_promise_of(together, 1))
    commit = one.committed(ROUNDS[0])
    assert commit.promised is not None
    assert (commit.promised.header, commit.promised.accepted) == (header_of(), together.contribution)
    assert commit.promised.claim in together.contribution.open().claims
    assert (commit.inclusion_promise, commit.samples_lost, one.stage) == (inclusion_promise_of(together, 1), 0, PeerStage.BEHIND)


def test_a_cohort_s_contribution_without_the_claim_or_without_its_inclusion_promise_changes_nothing() -> None:
    together, without = together_of(), header_of(peer=OTHER)
    other_work = together_of(microbatches=2)
    elsewhere = listing([claim_of(run=sha256(b"other")), claim_of(run=sha256(b"other"), peer=OTHER)], OTHER)
    for header, inclusion_promise in (
        (without, inclusion_promise_of(without, 1)),
        (other_work, inclusion_promise_of(other_work, 1)),
        (elsewhere, inclusion_promise_of(elsewhere, 1)),
        (together, inclusion_promise_of(header_of(), 1)),
        (together, inclusion_promise_of(together, 1, run=sha256(b"other"))),
        (together, inclusion_promise_of(together, 0 + 1)),
    ):
        one = signed()
        if header == together and inclusion_promise == inclusion_promise_of(together, 1):
            learn(one, 1)  # too late
        before = one.stage
        one.accepted(header.contribution, inclusion_promise)
        assert (one.stage, one.inclusion_promise) == (before, None)
    for one in (machine(), behind()):
        one.accepted(together.contribution, inclusion_promise_of(together, 2))
        assert (one.signed, one.inclusion_promise) == (None, None)
    with pytest.raises(SignatureError):
        signed().accepted(replace(together.contribution, signature=bytes(64)), inclusion_promise_of(together, 1))


def test_the_first_inclusion_promise_stays() -> None:
    together = together_of()
    one = promised()
    one.accepted(together.contribution, inclusion_promise_of(together, 1))
    assert one.inclusion_promise == inclusion_promise_of(header_of(), 1)
    assert one.signed is not None
    assert one.signed.accepted is None
    one = signed()
    one.accepted(together.contribution, inclusion_promise_of(together, 1))
    one.promised(inclusion_promise_of(header_of(), 1))
    assert one.inclusion_promise == inclusion_promise_of(together, 1)


def test_what_the_cohort_handed_in_aged_may_be_worked_ahead_of_too() -> None:
    one, together = signed(), together_of()
    learn(one, 1)
    one.accepted(together.contribution, inclusion_promise_of(together, 2))
    one.caught_up(ROUNDS[0].state)
    assert (one.stage, one.may_work_ahead) == (PeerStage.PROMISED, True)


@pytest.mark.parametrize(
    "header",
    [together_of(founder=PEER), together_of(founder=OTHER), listing([claim_of()], OTHER)],
    ids=["founder", "member", "another's signature"],
)
def test_only_what_a_peer_hands_in_alone_is_signed_or_restored(header: Header) -> None:
    with pytest.raises(RuntimeError, match="alone"):
        trained().sign(header)
    with pytest.raises(RuntimeError, match="alone"):
        machine().restore(header)


def test_a_base_whose_promise_was_kept_is_not_worked_on_again() -> None:
    one = machine(COMMIT_REFS[1])
    one.restore(header_of(COMMIT_REFS[2]))  # the state of round 2 was lost with the machine
    learn(one, 2)
    one.promised(inclusion_promise_of(header_of(COMMIT_REFS[2]), 3))
    learn(one, 3)
    one.caught_up(ROUNDS[1].state, took_long=True)
    assert one.stage is PeerStage.BEHIND


# Several local steps.


def test_a_microbatch_that_a_step_lacks_is_started_though_the_work_is_overdue() -> None:
    one = trained()
    learn(one, 1)
    with pytest.raises(RuntimeError, match="no microbatch"):
        one.microbatch_started()
    assert one.microbatch_started(to_finish=True) == START
    assert one.microbatch_trained(MICROBATCH)
    assert one.sign(header_of(microbatches=2))


def test_work_ahead_is_finished_whatever_comes_of_the_contribution_before_it() -> None:
    one = aged(round=4)
    one.microbatch_started()
    assert one.microbatch_trained(MICROBATCH)
    learn(one, 3)
    assert one.stage is PeerStage.BEHIND
    assert one.microbatch_started(to_finish=True) == COMMIT_REFS[2]
    assert one.microbatch_trained(MICROBATCH)


@pytest.mark.parametrize("make", [behind, signed, promised, finished])
def test_there_is_nothing_to_finish_where_nothing_was_begun(make: Callable[[], RoundMachine]) -> None:
    with pytest.raises(RuntimeError, match="no microbatch"):
        make().microbatch_started(to_finish=True)


def test_work_that_became_too_old_is_not_finished() -> None:
    one = trained()
    learn(one, *range(1, MAX_AGE + 2))
    with pytest.raises(RuntimeError, match="no microbatch"):
        one.microbatch_started(to_finish=True)


# A slow line.


def slow(reached: int = 1, newest: int = 2) -> RoundMachine:
    """One that fetched a state for about as long as a round takes."""
    one = machine()
    learn(one, *range(1, newest + 1))
    one.caught_up(COMMIT_REFS[reached].state, took_long=True)
    return one


def test_a_peer_on_a_slow_line_works_on_what_it_reached_before_it_fetches_again() -> None:
    one = slow()
    assert (one.stage, one.held, one.missing, one.is_overdue) == (PeerStage.WORKING, COMMIT_REFS[1], COMMIT_REFS[2], False)
    for _ in range(2):
        assert one.microbatch_started() == COMMIT_REFS[1]
        assert one.microbatch_trained(MICROBATCH)
    assert one.base == COMMIT_REFS[1]
    header = header_of(COMMIT_REFS[1], 2)
    assert one.sign(header)
    one.promised(inclusion_promise_of(header, 3))
    assert (one.stage, one.missing) == (PeerStage.BEHIND, COMMIT_REFS[2])  # once
    learn(one, 3)
    one.caught_up(ROUNDS[2].state, took_long=True)
    assert (one.stage, one.held, one.missing) == (PeerStage.WORKING, COMMIT_REFS[3], None)


def test_the_next_commit_ends_that_work_as_it_does_any_other() -> None:
    one = slow()
    one.microbatch_started()
    learn(one, 3)
    assert (one.stage, one.is_overdue) == (PeerStage.WORKING, True)
    assert one.microbatch_trained(MICROBATCH)
    with pytest.raises(RuntimeError, match="no microbatch"):
        one.microbatch_started()
    assert one.sign(header_of(COMMIT_REFS[1]))


def test_a_state_too_old_to_work_on_is_left_for_the_newest() -> None:
    one = slow()
    assert learn(one, 3, 4, 5) == [0, 0, 0]
    assert (one.stage, one.is_overdue) == (PeerStage.WORKING, False)
    learn(one, 6)
    assert one.stage is PeerStage.BEHIND
    assert slow(1, 6).stage is PeerStage.BEHIND


def test_what_waits_is_settled_before_work_on_an_old_state() -> None:
    one = signed()
    learn(one, 1, 2)
    one.caught_up(ROUNDS[0].state, took_long=True)
    assert one.stage is PeerStage.SIGNED
    one.promised(inclusion_promise_of(header_of(), 3))
    assert one.stage is PeerStage.BEHIND


def test_work_on_an_old_state_that_the_log_refuses_or_that_is_given_up_is_not_begun_again() -> None:
    for is_signed in (True, False):
        one = slow()
        one.microbatch_started()
        assert one.microbatch_trained(MICROBATCH)
        assert not is_signed or one.sign(header_of(COMMIT_REFS[1]))
        assert (one.refused("bad body") if is_signed else one.discard()) == MICROBATCH
        assert one.stage is PeerStage.BEHIND


def test_at_a_line_so_slow_that_each_fetch_takes_a_round_every_second_round_has_its_work() -> None:
    """One commit while it fetches, one while it trains: without working behind it would fetch for ever."""
    rounds = history(40)
    one = RoundMachine(replace(MANIFEST, num_rounds=50), RUN, PEER.public_key, FixedTrainingSpec(), START)
    one.committed(rounds[0])
    commits, done = iter(rounds[1:]), 0
    for _ in range(10):
        assert one.stage is PeerStage.BEHIND
        target = one.missing
        assert target is not None
        one.committed(next(commits))
        one.caught_up(target.state, took_long=True)
        assert one.microbatch_started() == target
        one.committed(next(commits))
        assert one.microbatch_trained(MICROBATCH)
        header = header_of(target)
        assert one.sign(header)
        one.promised(inclusion_promise_of(header, one.round))
        promised = one.committed(next(commits)).promised
        done += promised is not None
    assert done == 10
