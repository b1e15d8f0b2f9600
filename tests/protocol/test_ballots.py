"""Operators that agree on a log: simulated with everything that may happen to them, and the cases that chance seldom finds."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manta_swarm.protocol.ballots import (
    NOBODY,
    AcceptedBatch,
    Ballot,
    Certificate,
    EntryBatch,
    Forked,
    KeptUnderBallot,
    NotNext,
    OperatorMemory,
    Outdated,
    Promise,
    Takeover,
    Voting,
    accept,
    check_vote,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, ProofError, SignatureError
from manta_swarm.protocol.signing import sha256
from tests.protocol.operators_world import IDENTITIES, RUN, World, contribution, root_of, run

KEYS = [identity.public_key for identity in IDENTITIES]


def batch_of(*entries: bytes, first: int = 0) -> EntryBatch:
    return EntryBatch(first, entries, root_of(entries))


def ballot(term: int, place: int = 0) -> Ballot:
    return Ballot(term, KEYS[place])


def taking_over(term: int, *known: Sequence[AcceptedBatch | KeptUnderBallot]) -> Takeover:
    """A writer among three operators, some of which promised to listen to it, and told what they accepted and kept."""
    takeover = Takeover(ballot(term), 3, 2)
    for key, of_one in zip(KEYS, known, strict=False):
        accepted, kept = (tuple(each for each in of_one if isinstance(each, kind)) for kind in (AcceptedBatch, KeptUnderBallot))
        takeover.add(key, Promise(0, accepted, kept))  # type: ignore[arg-type]
    return takeover


@settings(max_examples=120)
@given(st.integers(0, 10**9), st.sampled_from([(3, 2), (4, 3)]))
@example(122634, (3, 2))  # two writers keep a contribution for two rounds
def test_whatever_happens_no_inclusion_promise_is_lost_and_no_two_histories_begin_and_a_majority_goes_on(
    seed: int, sizes: tuple[int, int]
) -> None:
    n, quorum = sizes
    world = run(seed, n=n, quorum=quorum, steps=1500)
    world.go_on(world.rng.sample(range(n), world.rng.randint(quorum, n)))


@settings(max_examples=80)
@given(st.integers(0, 10**9))
def test_with_one_liar_of_four_no_two_heads_of_a_size_count_and_nobody_honest_signs_two(seed: int) -> None:
    run(seed, n=4, quorum=3, steps=1500, liars=1)


def test_a_minority_commits_nothing() -> None:
    world = World(3, n=4, quorum=3, crash=0.0, loss=0.0)
    with pytest.raises(AssertionError, match="no 1 rounds more"):
        world.go_on([0, 2], rounds=1, most_steps=5000)
    assert world.published == ()


def test_a_new_writer_proposes_again_what_may_have_been_decided_and_the_newest_of_several() -> None:
    older, newer = AcceptedBatch(ballot(1), batch_of(b"a")), AcceptedBatch(ballot(2), batch_of(b"b"))
    assert not taking_over(9, [newer]).is_ready
    takeover = taking_over(9, [newer], [older])
    assert takeover.is_ready
    assert takeover.to_propose() == newer.batch


def test_what_was_accepted_before_a_later_writer_kept_inclusion_promises_is_not_proposed_again() -> None:
    """That writer had a quorum's word that nothing was decided; proposing it now would leave its inclusion promises out of their round."""
    batch, digest = batch_of(b"a"), sha256(b"inclusion_promise")
    assert taking_over(3, [AcceptedBatch(ballot(1), batch)], [KeptUnderBallot(ballot(2, 1), 0, 1, digest)]).to_propose() is None
    # What was kept by the writer of the batch, or one before it, says nothing against it;
    assert taking_over(3, [AcceptedBatch(ballot(2, 1), batch)], [KeptUnderBallot(ballot(2, 1), 0, 2, digest)]).to_propose() == batch
    # nor what was kept by a writer that began after this batch: it was decided, and this one missed that.
    assert taking_over(5, [AcceptedBatch(ballot(2, 1), batch), KeptUnderBallot(ballot(3), 1, 2, digest)], []).to_propose() == batch


def test_of_contributions_that_exclude_each_other_the_one_kept_last_comes_first() -> None:
    old, new = KeptUnderBallot(ballot(1), 0, 1, contribution(0, 0)), KeptUnderBallot(ballot(2, 1), 0, 1, contribution(0, 1))
    assert taking_over(3, [old], [new]).kept() == [(new, (KEYS[1],)), (old, (KEYS[0],))]


def test_a_contribution_that_writers_kept_for_two_rounds_counts_in_that_of_the_newest_ballot() -> None:
    older, newer = KeptUnderBallot(ballot(2), 0, 3, contribution(0, 12)), KeptUnderBallot(ballot(4), 0, 2, contribution(0, 12))
    assert taking_over(7, [newer], [older]).kept() == [(newer, (KEYS[0],))]
    later = KeptUnderBallot(
        ballot(4), 0, 3, contribution(0, 12)
    )  # under one ballot that of the later round: for the older no quorum had it
    assert taking_over(7, [newer], [later]).kept() == taking_over(7, [], [later]).kept() == [(later, (KEYS[1],))]
    assert taking_over(7, [later], [newer]).kept() == [(later, (KEYS[0],))]


def test_a_promise_shuts_out_older_writers_and_one_of_the_same_term_with_a_smaller_key() -> None:
    small, large = sorted((Ballot(5, KEYS[0]), Ballot(5, KEYS[1])))
    memory = OperatorMemory().listening_to(large)
    assert memory.listening_to(large) == memory
    for old in (small, Ballot(4, KEYS[1]), NOBODY):
        with pytest.raises(Outdated):
            memory.listening_to(old)
        with pytest.raises(Outdated):
            memory.accepting(old, batch_of(b"a"), 0)


def test_one_ballot_has_one_batch_for_a_place_and_it_begins_where_the_log_ends() -> None:
    memory = OperatorMemory().accepting(ballot(1), batch_of(b"a"), 0)
    assert memory.promised == ballot(1)
    assert memory.accepting(ballot(1), batch_of(b"a"), 0) == memory
    with pytest.raises(EncodingError, match="second batch"):
        memory.accepting(ballot(1), batch_of(b"b"), 0)
    assert memory.accepting(ballot(2), batch_of(b"b"), 0).accepted == (AcceptedBatch(ballot(2), batch_of(b"b")),)
    with pytest.raises(NotNext):
        memory.accepting(ballot(2), batch_of(b"b"), 1)


def test_a_certificate_needs_the_votes_of_different_operators_for_just_that_batch() -> None:
    batch, others = batch_of(b"a"), batch_of(b"b")
    voting = Voting(RUN, ballot(1), batch, KEYS, 3)
    votes = [accept(RUN, ballot(1), batch.size, batch.root, identity) for identity in IDENTITIES]
    for vote in (votes[0], votes[0], votes[1]):
        voting.add(vote)
    assert voting.certificate is None
    for wrong in (
        accept(RUN, ballot(2), batch.size, batch.root, IDENTITIES[2]),
        accept(RUN, ballot(1), others.size, others.root, IDENTITIES[2]),
        accept(sha256(b"other run"), ballot(1), batch.size, batch.root, IDENTITIES[2]),
    ):
        with pytest.raises(SignatureError):
            voting.add(wrong)
    voting.add(votes[2])
    found = voting.certificate
    assert found is not None
    found.check(RUN, KEYS, 3)
    check_vote(found.votes[0], RUN, ballot(1), batch.size, batch.root)
    again = unpack(Certificate, pack(found), max_bytes=4096)
    assert again == found
    twice = Certificate(found.ballot, found.size, found.root, (votes[0], votes[0], votes[1]))
    for broken, keys in ((twice, KEYS), (found, KEYS[:2])):
        with pytest.raises(ProofError):
            broken.check(RUN, keys, 3)


def test_who_signed_a_root_signs_no_other_before_its_log_goes_on_from_it() -> None:
    batch, other = batch_of(b"a"), batch_of(b"b", b"c")
    certificate, against = (Certificate(ballot(1), each.size, each.root, ()) for each in (batch, other))
    memory = OperatorMemory().signing(certificate, 0)
    assert memory.signing(certificate, 0) == memory
    with pytest.raises(Forked):
        memory.signing(against, 0)
    assert memory.signing(against, 1).certificate == (against,)
