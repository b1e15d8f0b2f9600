"""The round as a peer sees it, case by case; what chance finds is in test_rounds_faults.py."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.rounds import CommitRef, PeerStage, RoundMachine
from manta_swarm.protocol.signing import sha256
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
    finished,
    header_of,
    history,
    inclusion_promise_of,
    learn,
    machine,
    promised,
    signed,
    trained,
)
from tests.runs import FixedTrainingSpec

IN_STAGE: dict[PeerStage, Callable[[], RoundMachine]] = {
    PeerStage.BEHIND: behind,
    PeerStage.WORKING: machine,
    PeerStage.SIGNED: signed,
    PeerStage.PROMISED: promised,
    PeerStage.FINISHED: finished,
}


# A round.


@pytest.mark.parametrize("stage", PeerStage)
def test_every_stage_is_reached_by_the_calls_that_lead_to_it(stage: PeerStage) -> None:
    assert IN_STAGE[stage]().stage is stage


def test_a_round_from_the_first_microbatch_to_the_next_state() -> None:
    one = machine()
    assert (one.round, one.held, one.missing, one.newest, one.base) == (1, START, None, START, START)
    for microbatches in (1, 2, 3):
        assert one.microbatch_started() == START
        assert one.microbatch_trained(MICROBATCH)
        assert one.samples == microbatches * MICROBATCH
    header = header_of(microbatches=3)
    assert one.sign(header)
    assert (one.stage, one.samples, one.inclusion_promise) == (PeerStage.SIGNED, 0, None)
    assert one.signed is not None
    assert (one.signed.header, one.signed.opened, one.signed.samples) == (header, header.contribution.open(), 3 * MICROBATCH)
    assert (one.signed.claim, one.signed.accepted) == (header.claims[0].digest, None)
    one.promised(inclusion_promise_of(header, 1))
    assert (one.stage, one.inclusion_promise, one.may_work_ahead) == (PeerStage.PROMISED, inclusion_promise_of(header, 1), False)
    commit = one.committed(ROUNDS[0])
    assert (commit.is_news, commit.commit_ref, commit.samples_lost) == (True, COMMIT_REFS[1], 0)
    assert commit.promised is not None
    assert (commit.promised.header, commit.inclusion_promise) == (header, inclusion_promise_of(header, 1))
    assert (one.stage, one.signed, one.inclusion_promise, one.missing, one.round) == (PeerStage.BEHIND, None, None, COMMIT_REFS[1], 2)
    one.caught_up(ROUNDS[0].state)
    assert (one.stage, one.held, one.missing) == (PeerStage.WORKING, COMMIT_REFS[1], None)
    assert one.microbatch_started() == COMMIT_REFS[1]
    assert not one.dropped


def test_a_peer_without_a_state_fetches_the_run_s_first_or_the_newest() -> None:
    one = machine(None)
    assert (one.stage, one.held, one.missing, one.round) == (PeerStage.BEHIND, None, START, 1)
    one.caught_up(MANIFEST.initial_state)
    assert (one.stage, one.held) == (PeerStage.WORKING, START)
    one = machine(None)
    learn(one, 5)
    assert (one.stage, one.missing, one.round) == (PeerStage.BEHIND, COMMIT_REFS[5], 6)
    one.caught_up(ROUNDS[4].state)
    assert one.microbatch_started() == COMMIT_REFS[5]


def test_a_commit_ref_says_what_the_entry_says() -> None:
    assert (START.round, START.commit, START.state, START.min_exponent, START.entry) == (0, RUN, MANIFEST.initial_state, -32, None)
    after = CommitRef.after(ROUNDS[0])
    assert (after.round, after.state, after.min_exponent, after.entry) == (1, ROUNDS[0].state, -31, ROUNDS[0])
    assert after.commit == ROUNDS[1].base


# Microbatches.


@pytest.mark.parametrize("stage", [PeerStage.BEHIND, PeerStage.SIGNED, PeerStage.PROMISED, PeerStage.FINISHED])
def test_a_microbatch_is_started_only_while_working(stage: PeerStage) -> None:
    with pytest.raises(RuntimeError, match="no microbatch"):
        IN_STAGE[stage]().microbatch_started()


def test_several_microbatches_may_be_under_way_and_come_back_in_any_order_and_nothing_is_signed_before() -> None:
    one = machine()
    assert [one.microbatch_started() for _ in range(3)] == [START] * 3
    assert one.microbatch_trained(MICROBATCH)
    assert not one.microbatch_trained(0)
    with pytest.raises(RuntimeError, match="under way"):
        one.sign(header_of(microbatches=1))
    assert one.microbatch_trained(MICROBATCH)
    assert one.samples == 2 * MICROBATCH
    assert one.sign(header_of(microbatches=2))


def test_work_is_overdue_until_the_last_microbatch_from_before_the_commit_is_back() -> None:
    one = machine()
    one.microbatch_started()
    one.microbatch_started()
    learn(one, 1)
    assert not one.microbatch_trained(0)
    assert (one.is_overdue, one.stage) == (True, PeerStage.WORKING)
    with pytest.raises(RuntimeError, match="no microbatch"):
        one.microbatch_started()
    assert not one.microbatch_trained(0)
    assert (one.is_overdue, one.stage) == (False, PeerStage.BEHIND)


def test_microbatches_can_be_given_up() -> None:
    one = trained(2)
    assert (one.discard(), one.discard(), one.samples) == (2 * MICROBATCH, 0, 0)
    assert not one.sign(header_of(microbatches=2))
    learn(one, 1)
    assert one.stage is PeerStage.BEHIND


def test_a_microbatch_without_a_state_counts_nothing() -> None:
    assert not machine(None).microbatch_trained(MICROBATCH)


# Signing.


@pytest.mark.parametrize(
    "header",
    [
        header_of(microbatches=1),
        header_of(COMMIT_REFS[1], microbatches=2),
        header_of(replace(START, commit=sha256(b"fork")), microbatches=2),
        header_of(microbatches=2, peer=OTHER),
        header_of(microbatches=2, run=sha256(b"other")),
    ],
    ids=["fewer microbatches", "another round", "another base", "another peer", "another run"],
)
def test_what_is_not_of_exactly_the_microbatches_trained_is_not_signed(header: Header) -> None:
    one = trained(2)
    with pytest.raises(RuntimeError):
        one.sign(header)
    assert (one.stage, one.samples, one.signed) == (PeerStage.WORKING, 2 * MICROBATCH, None)


@pytest.mark.parametrize("make", [signed, promised])
def test_a_second_contribution_is_not_signed_while_one_waits(make: Callable[[], RoundMachine]) -> None:
    with pytest.raises(RuntimeError, match="waits"):
        make().sign(header_of())


# Inclusion promises.


def test_inclusion_promises_of_something_else_or_too_late_change_nothing() -> None:
    header = header_of()
    for one, inclusion_promise in (
        (signed(), inclusion_promise_of(header_of(COMMIT_REFS[1]), 1)),
        (signed(), inclusion_promise_of(header, 1, run=sha256(b"other"))),
        (machine(), inclusion_promise_of(header, 1)),
    ):
        before = one.stage
        one.promised(inclusion_promise)
        assert (one.stage, one.inclusion_promise) == (before, None)
    late = signed()
    learn(late, 1)
    late.promised(inclusion_promise_of(header, 1))  # it may be in that table: handed in again, the log says so
    assert (late.stage, late.inclusion_promise) == (PeerStage.SIGNED, None)
    late.promised(inclusion_promise_of(header, 2))
    late.promised(inclusion_promise_of(header, 2))
    assert (late.stage, late.inclusion_promise) == (PeerStage.BEHIND, inclusion_promise_of(header, 2))


def test_an_inclusion_promise_for_a_later_round_waits_for_that_round() -> None:
    one = promised(2)
    assert one.committed(ROUNDS[0]).promised is None
    one.caught_up(ROUNDS[0].state)
    assert (one.stage, one.round) == (PeerStage.PROMISED, 2)
    of_round = one.committed(ROUNDS[1]).promised
    assert of_round is not None
    assert of_round.header == header_of()


def test_a_commit_after_the_inclusion_promise_s_round_keeps_the_promise_too() -> None:
    commit = promised(1).committed(ROUNDS[2])
    assert commit.promised is not None
    assert (commit.promised.header, commit.inclusion_promise, commit.samples_lost) == (header_of(), inclusion_promise_of(header_of(), 1), 0)


def test_what_is_listed_already_waits_for_its_commit_so_that_no_second_one_is_made_on_its_base() -> None:
    one = signed(2)
    assert one.listed() == 2 * MICROBATCH
    assert (one.stage, one.signed, one.may_work_ahead, one.listed()) == (PeerStage.PROMISED, None, False, 0)
    with pytest.raises(RuntimeError):
        one.microbatch_started()
    learn(one, 1)
    one.caught_up(ROUNDS[0].state)
    assert one.microbatch_started() == COMMIT_REFS[1]
    assert not one.dropped


def test_what_was_listed_before_the_newest_commit_is_over_at_once() -> None:
    one = signed()
    learn(one, 1)
    assert one.listed() == MICROBATCH
    assert one.stage is PeerStage.BEHIND


def test_what_the_log_refuses_is_lost_and_the_base_may_be_worked_on_again() -> None:
    one = signed(3)
    assert (one.refused("bad body"), one.refused("bad body")) == (3 * MICROBATCH, 0)
    assert one.dropped == {"bad body": 1}
    assert one.microbatch_started() == START


# Commits at every moment.


@pytest.mark.parametrize(("done", "under_way"), [(1, 1), (0, 1), (2, 0)])
def test_a_commit_leaves_the_work_under_way_to_be_finished_signed_and_handed_in_aged(done: int, under_way: int) -> None:
    one = trained(done)
    for _ in range(under_way):
        one.microbatch_started()
    assert learn(one, 1) == [0]
    assert (one.stage, one.is_overdue, one.base) == (PeerStage.WORKING, True, START)
    for _ in range(under_way):
        assert one.microbatch_trained(MICROBATCH)
    with pytest.raises(RuntimeError):
        one.microbatch_started()
    header = header_of(microbatches=done + under_way)
    assert one.sign(header)
    assert (one.stage, one.is_overdue, one.round) == (PeerStage.SIGNED, False, 2)
    one.promised(inclusion_promise_of(header, 2))
    assert one.stage is PeerStage.BEHIND
    one.caught_up(ROUNDS[0].state)
    assert one.stage is PeerStage.PROMISED
    assert one.committed(ROUNDS[1]).promised is not None


def test_a_commit_while_nothing_is_promised_leaves_the_contribution_to_be_handed_in_again() -> None:
    one = signed()
    commit = one.committed(ROUNDS[0])
    assert (commit.promised, commit.inclusion_promise, commit.samples_lost) == (None, None, 0)
    assert (one.stage, one.missing) == (PeerStage.SIGNED, COMMIT_REFS[1])


def test_commits_known_before_or_older_are_no_news() -> None:
    one = machine(COMMIT_REFS[2])
    learn(one, 4)
    for number in (1, 2, 3, 4):
        commit = one.committed(ROUNDS[number - 1])
        assert (commit.is_news, commit.promised, commit.samples_lost) == (False, None, 0)
    assert (one.held, one.missing) == (COMMIT_REFS[2], COMMIT_REFS[4])


def test_a_contradicting_commit_is_refused_and_changes_nothing() -> None:
    fork = history(5, b"fork")
    wrong = [fork[1], fork[2], fork[3], replace(fork[0], run=sha256(b"other")), replace(ROUNDS[7], round=9)]
    one = machine(COMMIT_REFS[2])
    learn(one, 3)
    for round_ in wrong:
        with pytest.raises(LedgerError):
            one.committed(round_)
    assert (one.held, one.missing, one.round) == (COMMIT_REFS[2], COMMIT_REFS[3], 4)


# Catching up.


@pytest.mark.parametrize("make", [behind, machine])
def test_only_a_state_of_a_commit_not_held_yet_is_caught_up_with(make: Callable[[], RoundMachine]) -> None:
    one = make()
    for state in (sha256(b"another"), MANIFEST.initial_state):
        before = one.stage, one.held, one.missing
        with pytest.raises(RuntimeError):
            one.caught_up(state)
        assert (one.stage, one.held, one.missing) == before


def test_a_state_that_was_the_newest_when_it_was_asked_for_is_a_step_on_the_way() -> None:
    one = machine()
    learn(one, 1, 2, 4)
    one.caught_up(ROUNDS[1].state)
    assert (one.stage, one.held, one.missing) == (PeerStage.BEHIND, COMMIT_REFS[2], COMMIT_REFS[4])
    with pytest.raises(RuntimeError):
        one.caught_up(ROUNDS[0].state)
    one.caught_up(ROUNDS[3].state)
    assert (one.stage, one.held) == (PeerStage.WORKING, COMMIT_REFS[4])


def test_a_state_that_took_a_hundred_rounds_to_fetch_is_still_a_step_on_the_way() -> None:
    rounds = history(101)
    one = RoundMachine(replace(MANIFEST, num_rounds=200), RUN, PEER.public_key, FixedTrainingSpec(), START)
    for round_ in rounds:
        one.committed(round_)
    one.caught_up(rounds[0].state)
    assert (one.stage, one.held, one.round) == (PeerStage.BEHIND, CommitRef.after(rounds[0]), 102)


# Too old.


def test_a_contribution_without_an_inclusion_promise_is_dropped_when_no_round_can_take_it_any_more() -> None:
    one = signed(2)
    assert learn(one, *range(1, MAX_AGE + 2)) == [0] * MAX_AGE + [2 * MICROBATCH]
    assert (one.stage, one.signed, one.dropped) == (PeerStage.BEHIND, None, {"too old": 1})


def test_a_contribution_with_an_inclusion_promise_is_never_too_old() -> None:
    one = promised(MAX_AGE + 2)
    assert learn(one, *range(1, MAX_AGE + 2)) == [0] * (MAX_AGE + 1)
    assert one.signed is not None
    assert one.committed(ROUNDS[MAX_AGE + 1]).promised is not None


def test_microbatches_are_dropped_when_no_round_can_take_them_any_more() -> None:
    one = trained(2)
    assert learn(one, *range(1, MAX_AGE + 2)) == [0] * MAX_AGE + [2 * MICROBATCH]
    assert (one.stage, one.samples) == (PeerStage.BEHIND, 0)
    assert not one.sign(header_of(microbatches=2))


def test_a_microbatch_whose_base_grew_too_old_meanwhile_is_not_counted() -> None:
    one = trained()
    one.microbatch_started()
    learn(one, *range(1, MAX_AGE + 2))
    assert one.stage is PeerStage.WORKING
    assert not one.microbatch_trained(MICROBATCH)
    assert (one.stage, one.samples) == (PeerStage.BEHIND, 0)


def test_nothing_from_before_a_sort_counts_after_it() -> None:
    after_2 = frozenset({2})
    one = signed(sorts=after_2)
    assert learn(one, 1, 2) == [0, MICROBATCH]
    one = trained(2, sorts=after_2)
    one.microbatch_started()
    assert learn(one, 1, 2) == [0, 2 * MICROBATCH]
    assert not one.microbatch_trained(MICROBATCH)
    one = trained(held=COMMIT_REFS[2], sorts=after_2)  # its base has the new order
    assert learn(one, 3) == [0]
    assert one.sign(header_of(COMMIT_REFS[2]))
    skipped = signed(sorts=after_2)
    assert learn(skipped, 3) == [MICROBATCH]


# Working ahead.


def test_a_peer_with_an_inclusion_promise_for_aged_work_may_work_on_the_newest_base() -> None:
    one = aged()
    assert (one.stage, one.may_work_ahead) == (PeerStage.PROMISED, True)
    assert one.microbatch_started() == COMMIT_REFS[2]
    assert one.microbatch_trained(MICROBATCH)
    assert one.may_work_ahead
    with pytest.raises(RuntimeError, match="waits"):
        one.sign(header_of(COMMIT_REFS[2]))
    assert one.committed(ROUNDS[2]).promised is not None
    assert (one.stage, one.is_overdue, one.base) == (PeerStage.WORKING, True, COMMIT_REFS[2])
    assert one.sign(header_of(COMMIT_REFS[2]))
    assert (one.stage, one.round) == (PeerStage.SIGNED, 4)


def test_work_ahead_that_is_overdue_waits_for_the_contribution_before_it() -> None:
    one = aged(round=4)
    one.microbatch_started()
    learn(one, 3)
    assert (one.stage, one.is_overdue, one.may_work_ahead) == (PeerStage.BEHIND, True, False)
    assert one.microbatch_trained(MICROBATCH)
    one.caught_up(ROUNDS[2].state)
    assert (one.stage, one.may_work_ahead) == (PeerStage.PROMISED, False)
    with pytest.raises(RuntimeError, match="no microbatch"):
        one.microbatch_started()
    assert one.committed(ROUNDS[3]).promised is not None
    assert one.stage is PeerStage.WORKING
    assert one.sign(header_of(COMMIT_REFS[2]))


# The end of the run.


def test_the_last_commit_ends_whatever_is_under_way() -> None:
    sorts: frozenset[int] = frozenset()
    for one, lost in (
        (trained(2, COMMIT_REFS[7], sorts), 2 * MICROBATCH),
        (signed(1, COMMIT_REFS[6], sorts), MICROBATCH),
        (promised(8, COMMIT_REFS[7]), 0),
        (promised(9, COMMIT_REFS[7]), MICROBATCH),
        (machine(COMMIT_REFS[7]), 0),
    ):
        assert one.committed(ROUNDS[7]).samples_lost == lost
        assert (one.stage, one.samples, one.signed) == (PeerStage.BEHIND, 0, None)
        assert one.dropped == ({"the run was over": 1} if lost == MICROBATCH else {})
        one.caught_up(ROUNDS[7].state)
        assert one.stage is PeerStage.FINISHED


def test_a_microbatch_under_way_at_the_last_commit_is_not_counted() -> None:
    one = machine(COMMIT_REFS[7])
    one.microbatch_started()
    learn(one, 8)
    assert not one.microbatch_trained(MICROBATCH)
    assert one.stage is PeerStage.BEHIND


# Restart.


def test_a_restarted_peer_goes_on_with_the_contribution_that_it_stored() -> None:
    one = machine()
    one.restore(header_of(microbatches=2))
    assert (one.stage, one.inclusion_promise) == (PeerStage.SIGNED, None)
    assert one.signed is not None
    assert (one.signed.header, one.signed.samples) == (header_of(microbatches=2), 2 * MICROBATCH)
    one.promised(inclusion_promise_of(header_of(microbatches=2), 1))
    assert one.committed(ROUNDS[0]).promised is not None


def test_a_restarted_peer_whose_state_is_older_than_its_contribution_works_on_nothing_older() -> None:
    header = header_of(COMMIT_REFS[3])
    for settle in (
        lambda one: one.listed(),
        lambda one: one.refused("no"),
        lambda one: one.promised(inclusion_promise_of(header, 4)),
    ):
        one = machine(COMMIT_REFS[1])
        one.restore(header)
        assert one.stage is PeerStage.SIGNED
        settle(one)
        assert one.stage is PeerStage.PROMISED
        learn(one, 2)
        one.caught_up(ROUNDS[1].state)
        assert one.stage is PeerStage.PROMISED  # on the base of round 2 it may have worked before
        learn(one, 4)
        one.caught_up(ROUNDS[3].state)
        assert one.microbatch_started() == COMMIT_REFS[4]


def test_a_contribution_that_no_round_can_take_any_more_is_not_handed_in_again_after_a_restart() -> None:
    for one, stage in ((machine(COMMIT_REFS[MAX_AGE + 1]), PeerStage.WORKING), (machine(COMMIT_REFS[8]), PeerStage.FINISHED)):
        one.restore(header_of())
        assert (one.stage, one.signed, one.dropped) == (stage, None, {})
    one = machine(COMMIT_REFS[3], sorts=frozenset({2}))
    one.restore(header_of(COMMIT_REFS[1]))
    assert one.stage is PeerStage.WORKING


def test_a_contribution_is_not_restored_over_work_or_another_one_or_for_somebody_else() -> None:
    for one, header in (
        (trained(), header_of()),
        (signed(), header_of()),
        (machine(), header_of(peer=OTHER)),
        (machine(), header_of(run=sha256(b"other"))),
    ):
        with pytest.raises(RuntimeError):
            one.restore(header)
