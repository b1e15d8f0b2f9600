"""The round's state machine and the table, case by case; what chance finds is in test_rounds_faults.py."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil

import pytest

from protocol.errors import AttemptFailed, LedgerError, RemoteFault, SignatureError
from protocol.ledger import Ledger
from protocol.records import (
    Claim,
    Proposal,
    Round,
    SignedClaim,
    SignedManifest,
    Statement,
    commit_digest,
    round_entry,
    sign_vote,
)
from protocol.rounds import CommitKind, Phase, RoundMachine, Standing, VoteError
from protocol.signing import Identity, sha256
from protocol.table import Table, TableError
from tests.runs import manifest_of

OPERATOR = Identity(sha256(b"operator"))
PEERS = [Identity(sha256(b"peer %d" % i)) for i in range(7)]
OPENED_MS = 10_000
SIGNED_MANIFEST = SignedManifest.sign(manifest_of(OPERATOR, target_batch=100), OPERATOR)
MANIFEST, RUN = SIGNED_MANIFEST.open(), SIGNED_MANIFEST.run
START = Standing.start(MANIFEST, RUN)


def claim_of(
    peer: Identity, round: int = 1, last_commit: bytes = RUN, samples: int = 60, cohort: str = "home", run: bytes = RUN
) -> SignedClaim:
    return SignedClaim.sign(Claim(run, round, last_commit, peer.public_key, cohort, (("r32 k3", samples),), 1, sha256(b"lots")), peer)


def table_of(claims: Sequence[SignedClaim], attempt: bytes = b"a" * 20, round: int = 1, last_commit: bytes = RUN) -> Table:
    return Table.settle(attempt, claims, manifest=MANIFEST, run=RUN, round=round, last_commit=last_commit)


def statement_of(
    claims: Sequence[SignedClaim], round: int = 1, last_commit: bytes = RUN, mean: bytes = b"m", state: bytes = b"s"
) -> Statement:
    return Statement(RUN, round, last_commit, table_of(claims, round=round, last_commit=last_commit).digest, sha256(mean), sha256(state))


def commit_of(peers: Sequence[Identity], round: int = 1, last_commit: bytes = RUN, mean: bytes = b"m", state: bytes = b"s") -> Round:
    """What the log has when ``peers``, with the claims of ``claim_of``, have agreed."""
    claims = table_of([claim_of(peer, round, last_commit) for peer in peers], round=round, last_commit=last_commit).claims
    statement = statement_of(claims, round, last_commit, mean, state)
    votes = sorted((sign_vote(statement, peer) for peer in peers), key=lambda vote: vote.key)
    return Round(statement, tuple(claim.digest for claim in claims), tuple(votes))


def commits(count: int, peers: Sequence[Identity] = PEERS[1:3]) -> list[Round]:
    """A history of ``count`` rounds."""
    rounds: list[Round] = []
    for number in range(1, count + 1):
        last = commit_digest(round_entry(rounds[-1])) if rounds else RUN
        rounds.append(commit_of(peers, number, last, b"m%d" % number, b"s%d" % number))
    return rounds


def machine(peer: Identity = PEERS[0]) -> RoundMachine:
    return RoundMachine(MANIFEST, RUN, peer.public_key, START)


def closed(peer: Identity = PEERS[0], samples: int = 60) -> RoundMachine:
    one = machine(peer)
    assert one.lot_trained(1, samples)
    assert one.freeze(claim_of(peer, samples=samples))
    return one


def reducing(peers: Sequence[Identity] = PEERS[:3], attempt: bytes = b"a" * 20) -> RoundMachine:
    """The first of ``peers``, at a table with the others."""
    one = closed(peers[0])
    one.settle(table_of([claim_of(peer) for peer in peers], attempt))
    return one


def proposed(peers: Sequence[Identity] = PEERS[:3], mean: bytes = b"m", state: bytes = b"s") -> RoundMachine:
    one = reducing(peers)
    one.agree(b"a" * 20, sha256(mean), sha256(state))
    return one


def behind() -> RoundMachine:
    one = machine()
    one.committed(commit_of(PEERS[1:3]))
    return one


def finished() -> RoundMachine:
    one = machine()
    for commit in commits(4):
        one.committed(commit)
    one.caught_up(sha256(b"s4"))
    return one


IN_PHASE: dict[Phase, Callable[[], RoundMachine]] = {
    Phase.BEHIND: behind,
    Phase.TRAINING: machine,
    Phase.CLOSED: closed,
    Phase.REDUCING: reducing,
    Phase.PROPOSED: proposed,
    Phase.FINISHED: finished,
}


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_is_reached_by_the_calls_that_lead_to_it(phase: Phase) -> None:
    assert IN_PHASE[phase]().phase is phase


def test_two_peers_go_through_a_round_and_the_log_takes_their_proposal() -> None:
    ledger = Ledger(SIGNED_MANIFEST)
    members = [closed(peer) for peer in PEERS[:2]]
    table = members[0].settled_table(b"a" * 16, [claim_of(peer) for peer in PEERS[:2]])
    proposals: list[Proposal] = []
    for one in members:
        one.settle(table)
    statements = [one.agree(b"a" * 16, sha256(b"m"), sha256(b"s")) for one in members]
    for one in members:
        for statement, peer in zip(statements, PEERS[:2], strict=True):
            proposal = one.receive_vote(b"a" * 16, sign_vote(statement, peer))
            proposals += [proposal] if proposal else []
    assert len(proposals) == 2
    assert proposals[0] == proposals[1]
    for entry in ledger.proposal_entries(proposals[0]):
        ledger.append(entry)
    proposal = proposals[0]
    round_ = Round(proposal.statement, tuple(claim.digest for claim in proposal.claims), proposal.votes)
    for one in members:
        commit = one.committed(round_)
        assert (commit.kind, commit.counted, commit.samples_lost) == (CommitKind.APPLY, True, 0)
        assert (one.phase, one.round, one.samples, one.claim) == (Phase.TRAINING, 2, 0, None)
        assert (one.last_commit, one.state) == (ledger.last_commit, sha256(b"s")) == (ledger.last_commit, ledger.state)


# Lots and claims.


def test_lots_add_up_while_training_and_late_ones_do_not_count() -> None:
    one = machine()
    assert one.lot_trained(1, 40)
    assert one.lot_trained(1, 20)
    assert one.samples == 60
    assert one.freeze(claim_of(PEERS[0]))
    assert not one.lot_trained(1, 16)
    assert one.samples == 60
    one.committed(commit_of(PEERS[:2]))
    one.caught_up(sha256(b"s"))
    assert not one.lot_trained(1, 16)
    assert one.lot_trained(2, 8)
    assert one.samples == 8


@pytest.mark.parametrize("phase", set(Phase) - {Phase.TRAINING})
def test_a_lot_counts_in_no_phase_but_training(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    before = one.samples
    assert not one.lot_trained(one.round, 16)
    assert one.samples == before


def test_a_lot_without_samples_or_of_a_round_to_come_is_refused() -> None:
    for round, samples in ((1, 0), (1, -5), (2, 16)):
        with pytest.raises(ValueError, match="lot of"):
            machine().lot_trained(round, samples)


def test_a_round_closes_at_the_target_or_at_the_deadline_but_never_without_a_lot() -> None:
    one = machine()
    assert not one.should_close(1_000, OPENED_MS + 5_000, OPENED_MS)
    one.lot_trained(1, 16)
    assert not one.should_close(99, OPENED_MS + 999, OPENED_MS)
    assert one.should_close(100, OPENED_MS, OPENED_MS)
    assert one.should_close(16, OPENED_MS + 1_000, OPENED_MS)
    assert not closed().should_close(1_000, OPENED_MS + 5_000, OPENED_MS)


def test_a_claim_of_anything_but_the_lots_trained_is_not_frozen() -> None:
    wrong = (
        claim_of(PEERS[1]),
        claim_of(PEERS[0], samples=61),
        claim_of(PEERS[0], round=2),
        claim_of(PEERS[0], last_commit=sha256(b"fork")),
        claim_of(PEERS[0], run=sha256(b"other")),
    )
    for claim in wrong:
        one = machine()
        one.lot_trained(1, 60)
        with pytest.raises(RuntimeError):
            one.freeze(claim)
        assert one.phase is Phase.TRAINING


@pytest.mark.parametrize("phase", set(Phase) - {Phase.TRAINING})
def test_a_second_claim_is_frozen_in_no_phase(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    before = one.claim
    with pytest.raises(RuntimeError, match="cannot be frozen"):
        one.freeze(claim_of(PEERS[0], one.round, one.last_commit))
    assert one.claim == before


def test_a_claim_whose_round_was_committed_while_it_was_made_is_not_frozen() -> None:
    one = machine()
    one.lot_trained(1, 60)
    assert one.committed(commit_of(PEERS[1:3])).samples_lost == 60
    assert not one.freeze(claim_of(PEERS[0]))
    one.caught_up(sha256(b"s"))
    assert not one.freeze(claim_of(PEERS[0]))
    assert (one.phase, one.samples, one.claim) == (Phase.TRAINING, 0, None)


# Restart.


def test_a_restarted_peer_goes_on_with_the_claim_it_stored() -> None:
    one = machine()
    one.restore(claim_of(PEERS[0]), lots_kept=True)
    assert (one.phase, one.samples, one.claim, one.can_join) == (Phase.CLOSED, 60, claim_of(PEERS[0]), True)
    one.settle(table_of([claim_of(PEERS[0])]))
    assert one.phase is Phase.REDUCING


def test_a_restarted_peer_without_its_lots_joins_no_group_until_they_are_trained_anew() -> None:
    one = machine()
    one.restore(claim_of(PEERS[0]), lots_kept=False)
    assert (one.phase, one.samples, one.can_join) == (Phase.CLOSED, 0, False)
    table = table_of([claim_of(peer) for peer in PEERS[:3]])
    assert not one.may_start(table, OPENED_MS, OPENED_MS)
    with pytest.raises(RuntimeError):
        one.settle(table)
    one.retrained()
    assert (one.samples, one.can_join, one.may_start(table, OPENED_MS, OPENED_MS)) == (60, True, True)


def test_a_claim_without_its_lots_still_counts_when_others_commit_it() -> None:
    one = machine()
    one.restore(claim_of(PEERS[0]), lots_kept=False)
    commit = one.committed(commit_of(PEERS[:3]))
    assert (commit.kind, commit.counted, commit.samples_lost) == (CommitKind.FETCH, True, 0)


@pytest.mark.parametrize("phase", [*Phase])
def test_lots_are_trained_anew_only_where_they_are_gone(phase: Phase) -> None:
    with pytest.raises(RuntimeError, match="anew"):
        IN_PHASE[phase]().retrained()


def test_a_stored_claim_of_a_later_round_waits_for_its_round_and_forbids_another_before() -> None:
    first, second = commits(2)
    one = machine()
    claim = claim_of(PEERS[0], 3, commit_digest(round_entry(second)))
    one.restore(claim, lots_kept=True)
    assert one.phase is Phase.TRAINING
    one.lot_trained(1, 60)
    assert not one.should_close(1_000, OPENED_MS + 5_000, OPENED_MS)
    with pytest.raises(RuntimeError, match="cannot be frozen"):
        one.freeze(claim_of(PEERS[0]))
    assert one.committed(first).samples_lost == 60
    one.committed(second)
    one.caught_up(sha256(b"s2"))
    assert (one.phase, one.claim, one.can_join) == (Phase.CLOSED, claim, True)


def test_a_stored_claim_that_stands_on_another_history_joins_no_group() -> None:
    one = behind()
    one.restore(claim_of(PEERS[0], 2, sha256(b"fork")), lots_kept=True)
    one.caught_up(sha256(b"s"))
    assert (one.phase, one.can_join, one.samples) == (Phase.CLOSED, False, 0)


def test_a_stored_claim_of_a_past_round_is_without_effect() -> None:
    one = behind()
    one.restore(claim_of(PEERS[0]), lots_kept=True)
    one.caught_up(sha256(b"s"))
    assert (one.phase, one.claim) == (Phase.TRAINING, None)
    one.lot_trained(2, 60)
    assert one.freeze(claim_of(PEERS[0], 2, one.last_commit))


def test_a_claim_is_not_restored_over_lots_another_claim_or_for_somebody_else() -> None:
    training = machine()
    training.lot_trained(1, 16)
    for one, claim in (
        (training, claim_of(PEERS[0])),
        (closed(), claim_of(PEERS[0])),
        (machine(), claim_of(PEERS[1])),
        (machine(), claim_of(PEERS[0], run=sha256(b"other"))),
    ):
        with pytest.raises(RuntimeError):
            one.restore(claim, lots_kept=True)


# Tables.


def test_a_table_is_in_the_order_of_cohorts_and_then_keys_however_its_claims_came() -> None:
    claims = [claim_of(peer, cohort="ab"[i % 2]) for i, peer in enumerate(PEERS)]
    expected = sorted(("ab"[i % 2], peer.public_key) for i, peer in enumerate(PEERS))
    table = table_of(claims)
    assert [(claim.cohort, claim.key) for claim in table.opened] == expected
    assert [claim.open() for claim in table.claims] == list(table.opened)
    assert table.keys == tuple(key for _, key in expected)
    assert table == table_of(claims[::-1])
    assert table.digest == sha256(b"".join(claim.digest for claim in table.claims))


def test_weights_are_samples_capped_by_the_manifest() -> None:
    table = table_of([claim_of(PEERS[0], samples=79, cohort="a"), claim_of(PEERS[1], samples=10**9, cohort="b")])
    assert table.weights == (79, 80)
    assert table.samples == 159


@pytest.mark.parametrize(
    "claims",
    [
        [],
        [claim_of(PEERS[0]), claim_of(PEERS[0])],
        [claim_of(PEERS[0]), claim_of(PEERS[0], samples=61)],
        [claim_of(PEERS[0]), claim_of(PEERS[1], round=2)],
        [claim_of(PEERS[0]), claim_of(PEERS[1], last_commit=sha256(b"fork"))],
        [claim_of(PEERS[0]), claim_of(PEERS[1], run=sha256(b"other"))],
        [claim_of(PEERS[0])] * 257,
    ],
    ids=["nobody", "the same twice", "a key twice", "another round", "another commit", "another run", "too many"],
)
def test_claims_that_do_not_fit_together_make_no_table(claims: list[SignedClaim]) -> None:
    with pytest.raises(TableError):
        table_of(claims)


def test_a_claim_with_a_false_signature_or_an_unpriced_architecture_makes_no_table() -> None:
    honest = claim_of(PEERS[0])
    with pytest.raises(SignatureError):
        table_of([SignedClaim(honest.payload, claim_of(PEERS[1]).signature)])
    unpriced = Claim(RUN, 1, RUN, PEERS[0].public_key, "home", (("r32 k9", 60),), 1, sha256(b"lots"))
    with pytest.raises(LedgerError):
        table_of([SignedClaim.sign(unpriced, PEERS[0])])
    with pytest.raises(RemoteFault):
        table_of([SignedClaim(b"\x00", bytes(64))])


@pytest.mark.parametrize("size", [0, 15, 33])
def test_an_attempt_has_an_id_of_16_to_32_bytes(size: int) -> None:
    with pytest.raises(TableError):
        table_of([claim_of(PEERS[0])], attempt=bytes(size))


def test_a_group_starts_with_enough_samples_or_past_the_deadline_and_with_the_own_claim() -> None:
    one = closed()
    alone, pair = (table_of([claim_of(peer) for peer in PEERS[:count]]) for count in (1, 2))
    assert not one.may_start(alone, OPENED_MS + 999, OPENED_MS)
    assert one.may_start(alone, OPENED_MS + 1_000, OPENED_MS)
    assert one.may_start(pair, OPENED_MS, OPENED_MS)
    assert not one.may_start(table_of([claim_of(peer) for peer in PEERS[1:4]]), OPENED_MS + 5_000, OPENED_MS)
    altered = table_of([claim_of(PEERS[0], samples=61), claim_of(PEERS[1])])
    assert not one.may_start(altered, OPENED_MS + 5_000, OPENED_MS)
    one.committed(commit_of(PEERS[1:3]))
    assert not one.may_start(pair, OPENED_MS + 5_000, OPENED_MS)


@pytest.mark.parametrize("phase", set(Phase) - {Phase.CLOSED})
def test_a_table_is_settled_in_no_phase_but_closed(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    table = table_of([claim_of(peer) for peer in PEERS[:2]], b"b" * 20)
    before = one.table
    assert not one.may_start(table, OPENED_MS + 5_000, OPENED_MS)
    with pytest.raises(RuntimeError, match="cannot be settled"):
        one.settle(table)
    assert one.table == before


# Votes.


@pytest.mark.parametrize("size", range(1, 8))
def test_the_proposal_comes_once_with_two_thirds_of_the_table(size: int) -> None:
    peers = PEERS[:size]
    one = proposed(peers)
    assert one.statement is not None
    needed = ceil(Fraction(2, 3) * size)
    for count, peer in enumerate(peers, 1):
        proposal = one.receive_vote(b"a" * 20, sign_vote(one.statement, peer))
        assert (proposal is not None) == (count == needed)
        assert (one.proposal is not None) == (count >= needed)
        if proposal:
            assert [vote.key for vote in proposal.votes] == sorted(peer.public_key for peer in peers[:count])
            Ledger(SIGNED_MANIFEST).proposal_entries(proposal)
    assert one.proposal is not None
    assert len(one.proposal.votes) == size


def test_votes_that_come_before_the_own_statement_are_judged_once_it_exists() -> None:
    one = reducing(PEERS[:4])
    right = statement_of([claim_of(peer) for peer in PEERS[:4]])
    wrong = statement_of([claim_of(peer) for peer in PEERS[:4]], state=b"false")
    for vote in (sign_vote(right, PEERS[1]), sign_vote(wrong, PEERS[2]), sign_vote(right, PEERS[3])):
        assert one.receive_vote(b"a" * 20, vote) is None
    assert one.agree(b"a" * 20, sha256(b"m"), sha256(b"s")) == right
    assert one.votes_refused == {"other statement": 1}
    proposal = one.receive_vote(b"a" * 20, sign_vote(right, PEERS[0]))
    assert proposal is not None
    assert {vote.key for vote in proposal.votes} == {PEERS[i].public_key for i in (0, 1, 3)}


def test_a_member_that_voted_falsely_before_the_own_statement_may_still_vote_truly() -> None:
    one = reducing()
    one.receive_vote(b"a" * 20, sign_vote(statement_of([claim_of(PEERS[1])]), PEERS[1]))
    right = one.agree(b"a" * 20, sha256(b"m"), sha256(b"s"))
    one.receive_vote(b"a" * 20, sign_vote(right, PEERS[1]))
    assert one.receive_vote(b"a" * 20, sign_vote(right, PEERS[0])) is not None


@pytest.mark.parametrize("phase", [Phase.REDUCING, Phase.PROPOSED])
def test_a_repeated_vote_is_counted_once(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    vote = sign_vote(statement_of([claim_of(peer) for peer in PEERS[:3]]), PEERS[1])
    for _ in range(3):
        assert one.receive_vote(b"a" * 20, vote) is None
    assert one.votes_refused == {"twice": 2}
    if phase is Phase.REDUCING:
        one.agree(b"a" * 20, sha256(b"m"), sha256(b"s"))
    assert one.proposal is None


@pytest.mark.parametrize("phase", [Phase.REDUCING, Phase.PROPOSED])
def test_a_stranger_s_vote_is_refused_and_counted(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    statement = statement_of([claim_of(peer) for peer in PEERS[:3]])
    for stranger in PEERS[3:]:
        with pytest.raises(VoteError, match="outside"):
            one.receive_vote(b"a" * 20, sign_vote(statement, stranger))
    assert one.votes_refused == {"stranger": 4}
    assert one.proposal is None


def test_a_vote_on_another_statement_is_refused_and_counted() -> None:
    claims = [claim_of(peer) for peer in PEERS[:3]]
    one = proposed()
    for other in (
        statement_of(claims, mean=b"false"),
        statement_of(claims, state=b"false"),
        statement_of(claims[:2]),
        statement_of([claim_of(peer, 2) for peer in PEERS[:3]], round=2),
    ):
        with pytest.raises(VoteError, match="another statement"):
            one.receive_vote(b"a" * 20, sign_vote(other, PEERS[1]))
    assert one.votes_refused == {"other statement": 4}
    assert one.proposal is None


@pytest.mark.parametrize("phase", Phase)
def test_a_vote_for_an_attempt_not_under_way_is_only_tallied(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    vote = sign_vote(statement_of([claim_of(peer) for peer in PEERS[:3]]), PEERS[1])
    assert one.receive_vote(b"z" * 20, vote) is None
    assert one.votes_refused == {"late": 1}
    assert (one.phase, one.proposal) == (phase, None)


def test_the_votes_of_a_dropped_attempt_do_not_count_in_the_next() -> None:
    one = proposed()
    statement = statement_of([claim_of(peer) for peer in PEERS[:3]])
    one.receive_vote(b"a" * 20, sign_vote(statement, PEERS[1]))
    assert one.fail(b"a" * 20, "timeout")
    one.settle(table_of([claim_of(peer) for peer in PEERS[:3]], b"b" * 20))
    one.agree(b"b" * 20, sha256(b"m"), sha256(b"s"))
    assert one.receive_vote(b"b" * 20, sign_vote(statement, PEERS[0])) is None
    assert one.receive_vote(b"b" * 20, sign_vote(statement, PEERS[1])) is not None


# Attempts.


def test_a_failed_attempt_is_dropped_whole_and_the_claim_stays() -> None:
    for one in (reducing(), proposed()):
        assert one.fail(b"a" * 20, "a member died")
        assert (one.phase, one.claim, one.samples) == (Phase.CLOSED, claim_of(PEERS[0]), 60)
        assert (one.attempt, one.table, one.statement, one.proposal) == (None, None, None, None)
        assert one.attempts_dropped == {"a member died": 1}
        assert not one.fail(b"a" * 20, "again")
        assert one.attempts_dropped == {"a member died": 1}


def test_the_failure_of_an_older_attempt_leaves_the_one_under_way_alone() -> None:
    one = proposed()
    assert not one.fail(b"b" * 20, "timeout")
    assert one.phase is Phase.PROPOSED


def test_who_reduced_to_the_end_of_an_overtaken_attempt_is_told_to_drop_the_copy() -> None:
    dropped, overtaken = reducing(), reducing()
    dropped.fail(b"a" * 20, "timeout")
    overtaken.committed(commit_of(PEERS[1:3]))
    for one in (dropped, overtaken, closed(), machine(), finished()):
        with pytest.raises(AttemptFailed):
            one.agree(b"a" * 20, sha256(b"m"), sha256(b"s"))


def test_an_attempt_has_one_statement() -> None:
    one = proposed()
    with pytest.raises(RuntimeError, match="one statement"):
        one.agree(b"a" * 20, sha256(b"m2"), sha256(b"s2"))


# Commits.

OURS, OTHERS = commit_of(PEERS[:3]), commit_of(PEERS[1:3], state=b"t")


@pytest.mark.parametrize(
    ("make", "round_", "kind", "counted", "lost", "dropped"),
    [
        (machine, OTHERS, CommitKind.FETCH, False, 0, {}),
        (closed, OTHERS, CommitKind.FETCH, False, 60, {}),
        (closed, OURS, CommitKind.FETCH, True, 0, {}),
        (reducing, OTHERS, CommitKind.FETCH, False, 60, {"overtaken": 1}),
        (reducing, OURS, CommitKind.FETCH, True, 0, {"overtaken": 1}),
        (proposed, OTHERS, CommitKind.FETCH, False, 60, {"overtaken": 1}),
        (proposed, OURS, CommitKind.APPLY, True, 0, {}),
        (lambda: proposed(state=b"mine"), OURS, CommitKind.FETCH, True, 0, {"disagreed": 1}),
        (behind, commit_of(PEERS[1:3]), CommitKind.STALE, False, 0, {}),
        (behind, commit_of(PEERS[1:3], 2, commit_digest(round_entry(commit_of(PEERS[1:3])))), CommitKind.FETCH, False, 0, {}),
        (finished, commits(4)[3], CommitKind.STALE, False, 0, {}),
        (finished, commits(4)[1], CommitKind.STALE, False, 0, {}),
    ],
)
def test_a_commit_is_understood_in_every_phase(
    make: Callable[[], RoundMachine], round_: Round, kind: CommitKind, counted: bool, lost: int, dropped: dict[str, int]
) -> None:
    one = make()
    phase, state = one.phase, one.state
    commit = one.committed(round_)
    assert (commit.kind, commit.counted, commit.samples_lost) == (kind, counted, lost)
    assert commit.standing == Standing.after(round_)
    assert one.attempts_dropped == dropped
    assert one.state == (round_.statement.state if kind is CommitKind.APPLY else state)
    after = {CommitKind.APPLY: Phase.TRAINING, CommitKind.FETCH: Phase.BEHIND, CommitKind.STALE: phase}
    assert one.phase is after[kind]
    assert one.committed(round_).kind is CommitKind.STALE


def test_lots_of_a_round_that_others_committed_are_lost_and_told() -> None:
    one = machine()
    one.lot_trained(1, 16)
    commit = one.committed(OTHERS)
    assert (commit.kind, commit.counted, commit.samples_lost) == (CommitKind.FETCH, False, 16)
    assert one.samples == 0


def test_a_peer_that_dropped_an_attempt_learns_that_it_was_committed() -> None:
    one = proposed()
    one.fail(b"a" * 20, "timeout")
    commit = one.committed(OURS)
    assert (commit.kind, commit.counted, commit.samples_lost) == (CommitKind.FETCH, True, 0)
    assert one.missing == (Standing(1, commit_digest(round_entry(OURS)), sha256(b"m"), sha256(b"s")),)
    one.caught_up(sha256(b"s"))
    assert (one.phase, one.round, one.claim, one.samples) == (Phase.TRAINING, 2, None, 0)


def test_a_peer_in_a_second_attempt_does_not_apply_that_copy_when_the_first_is_committed() -> None:
    one = proposed()
    one.fail(b"a" * 20, "timeout")
    one.settle(table_of([claim_of(peer) for peer in PEERS[:2]], b"b" * 20))
    one.agree(b"b" * 20, sha256(b"m2"), sha256(b"s2"))
    commit = one.committed(OURS)
    assert (commit.kind, commit.counted, one.state) == (CommitKind.FETCH, True, MANIFEST.initial_state)
    assert one.attempts_dropped == {"timeout": 1, "overtaken": 1}


def test_a_commit_further_ahead_is_fetched_and_leaves_open_whether_the_own_claim_counted() -> None:
    third = commits(3)[2]
    for make, counted, lost in ((machine, False, 0), (closed, None, 0), (reducing, None, 0), (proposed, None, 0)):
        one = make()
        commit = one.committed(third)
        assert (commit.kind, commit.counted, commit.samples_lost) == (CommitKind.FETCH, counted, lost)
        assert (one.phase, one.round, one.state, one.claim) == (Phase.BEHIND, 4, MANIFEST.initial_state, None)


def test_a_peer_behind_catches_up_commit_by_commit_or_at_once() -> None:
    first, second, third = commits(3)
    stepwise, at_once = machine(), machine()
    for one in (stepwise, at_once):
        for commit in (first, second, third):
            one.committed(commit)
        assert [standing.round for standing in one.missing] == [1, 2, 3]
    for count, state in enumerate((b"s1", b"s2", b"s3"), 1):
        stepwise.caught_up(sha256(state))
        assert stepwise.held is not None
        assert (stepwise.held.round, len(stepwise.missing)) == (count, 3 - count)
    at_once.caught_up(sha256(b"s3"))
    for one in (stepwise, at_once):
        assert (one.phase, one.round, one.state) == (Phase.TRAINING, 4, sha256(b"s3"))


@pytest.mark.parametrize("phase", Phase)
def test_no_state_but_a_missing_commit_s_is_caught_up_with(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    state = one.state
    for wrong in (sha256(b"any"), MANIFEST.initial_state):
        with pytest.raises(RuntimeError, match="no missing commit"):
            one.caught_up(wrong)
    assert (one.phase, one.state) == (phase, state)


def test_a_newcomer_holds_nothing_until_it_has_the_newest_state() -> None:
    one = RoundMachine(MANIFEST, RUN, PEERS[0].public_key)
    assert (one.phase, one.held, one.state, one.round) == (Phase.BEHIND, None, None, 1)
    assert one.missing == (START,)
    assert not one.lot_trained(1, 16)
    second = commits(2)[1]
    assert one.committed(second).kind is CommitKind.FETCH
    assert one.missing == (START, Standing.after(second))
    one.caught_up(sha256(b"s2"))
    assert (one.phase, one.round, one.last_commit) == (Phase.TRAINING, 3, commit_digest(round_entry(second)))


def test_a_newcomer_to_a_run_without_a_commit_needs_the_first_state() -> None:
    one = RoundMachine(MANIFEST, RUN, PEERS[0].public_key)
    one.caught_up(MANIFEST.initial_state)
    assert (one.phase, one.round, one.last_commit) == (Phase.TRAINING, 1, RUN)


def test_the_run_is_finished_once_the_last_state_is_held() -> None:
    one = machine()
    for commit in commits(4):
        one.committed(commit)
    assert one.phase is Phase.BEHIND
    one.caught_up(sha256(b"s4"))
    assert one.phase is Phase.FINISHED
    assert not one.should_close(1_000, OPENED_MS + 5_000, OPENED_MS)


@pytest.mark.parametrize("phase", Phase)
def test_a_log_that_contradicts_itself_is_refused_and_changes_nothing(phase: Phase) -> None:
    one = IN_PHASE[phase]()
    contradictions = [
        Round(Statement(run, number, last_commit, *[sha256(b"any")] * 3), (sha256(b"claim"),), ())
        for run, number, last_commit in (
            (sha256(b"other"), min(one.round, 4), one.last_commit),
            (RUN, 5, one.last_commit),
            (RUN, min(one.round, 4), sha256(b"fork")),
        )
    ]
    before = (one.state, one.round, one.last_commit, one.claim, one.attempt, one.missing)
    for round_ in contradictions:
        with pytest.raises(LedgerError):
            one.committed(round_)
    assert (one.state, one.round, one.last_commit, one.claim, one.attempt, one.missing) == before
    assert one.phase is phase
