"""The log's rules: what may follow, what may not, and that a refused entry leaves no trace."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.encoding import encode
from protocol.errors import EncodingError, LedgerError, RemoteFault, SignatureError
from protocol.ledger import Ledger
from protocol.records import (
    Claim,
    Manifest,
    Proposal,
    Round,
    SignedClaim,
    SignedManifest,
    Statement,
    Vote,
    claim_entry,
    commit_digest,
    open_entry,
    quorum,
    round_entry,
    sign_vote,
    sort_table,
    table_digest,
)
from protocol.signing import Identity, sha256

PEERS = sorted((Identity(f"peer {number}".encode().ljust(32, b".")) for number in range(8)), key=lambda peer: peer.public_key)
SMALL, LARGE = "r32 u0.0:k3e2", "r32 u0.0:k5e3"  # cost 15 and 30


@pytest.fixture
def ledger(signed_manifest: SignedManifest) -> Ledger:
    return Ledger(signed_manifest)


def claim_of(ledger: Ledger, peer: Identity, samples: int = 16, **changes: Any) -> SignedClaim:
    """A claim for the next round; ``changes`` replaces fields."""
    claim = Claim(ledger.run, ledger.round + 1, ledger.last_commit, peer.public_key, "east", ((SMALL, samples),), 1, sha256(b"lots"))
    return SignedClaim.sign(replace(claim, **changes), peer)


def table_of(claims: list[SignedClaim]) -> tuple[SignedClaim, ...]:
    return tuple(signed for signed, _ in sort_table([(claim, claim.open()) for claim in claims]))


def statement_of(ledger: Ledger, claims: tuple[SignedClaim, ...], **changes: Any) -> Statement:
    round_ = ledger.round + 1
    digest = table_digest(tuple(claim.digest for claim in claims))
    statement = Statement(ledger.run, round_, ledger.last_commit, digest, sha256(b"mean"), sha256(f"state {round_}".encode()))
    return replace(statement, **changes)


def votes_of(statement: Statement, voters: list[Identity]) -> tuple[Vote, ...]:
    return tuple(sign_vote(statement, voter) for voter in sorted(voters, key=lambda voter: voter.public_key))


def proposal_of(ledger: Ledger, peers: list[Identity], **changes: Any) -> Proposal:
    table = table_of([claim_of(ledger, peer) for peer in peers])
    statement = statement_of(ledger, table, **changes)
    return Proposal(statement, table, votes_of(statement, peers))


def commit(ledger: Ledger, proposal: Proposal) -> list[bytes]:
    entries = ledger.proposal_entries(proposal)
    for entry in entries:
        ledger.append(entry)
    return entries


def seen(ledger: Ledger, rounds: int = 5) -> tuple[object, ...]:
    """Everything that a caller can see."""
    keys = [peer.public_key for peer in PEERS]
    return (
        (ledger.size, ledger.round, ledger.last_commit, ledger.state, ledger.finished, ledger.credits()),
        [(ledger.round_at(round_), ledger.commit_at(round_), ledger.equivocators(round_)) for round_ in range(rounds)],
        [ledger.claim_at(round_, key) for round_ in range(rounds) for key in keys],
    )


def refused(ledger: Ledger, entry: bytes, error: type[RemoteFault] = LedgerError, match: str = "") -> None:
    before = seen(ledger)
    with pytest.raises(error) as raised:
        ledger.append(entry)
    assert match in str(raised.value)
    assert seen(ledger) == before


def test_a_run_starts_at_its_manifest(ledger: Ledger, manifest: Manifest, signed_manifest: SignedManifest) -> None:
    assert (ledger.size, ledger.round, ledger.finished, ledger.credits()) == (0, 0, False, {})
    assert ledger.last_commit == ledger.run == signed_manifest.run == ledger.commit_at(0)
    assert ledger.state == manifest.initial_state
    with pytest.raises(SignatureError):
        Ledger(SignedManifest.sign(manifest, PEERS[0]))


def test_claims_and_a_round_follow_each_other_to_the_end_of_the_run(ledger: Ledger, manifest: Manifest) -> None:
    for number in range(1, manifest.num_rounds + 1):
        proposal = proposal_of(ledger, PEERS[:3])
        entries = commit(ledger, proposal)
        assert [open_entry(entry) for entry in entries[:-1]] == list(proposal.claims)
        assert ledger.round == number
        assert ledger.last_commit == commit_digest(entries[-1]) == ledger.commit_at(number)
        assert ledger.state == proposal.statement.state
        assert ledger.round_at(number) == open_entry(entries[-1])
    assert ledger.finished
    assert ledger.size == 4 * manifest.num_rounds
    assert sum(ledger.credits().values()) == manifest.num_rounds * manifest.reward_pool
    with pytest.raises(LedgerError, match="finished"):
        ledger.proposal_entries(proposal_of(ledger, PEERS[:3]))
    refused(ledger, claim_entry(claim_of(ledger, PEERS[0])), match="for round 4")
    refused(ledger, round_entry(Round(statement_of(ledger, proposal.claims), (sha256(b"c"),), ())), match="finished")


def test_the_same_bytes_have_one_index_and_are_not_taken_twice(ledger: Ledger) -> None:
    first, second = (claim_entry(claim_of(ledger, peer)) for peer in PEERS[:2])
    assert ledger.entry_index(first) is None
    ledger.append(first)
    ledger.append(second)
    assert (ledger.entry_index(first), ledger.entry_index(second)) == (0, 1)
    refused(ledger, first, match="as number 0")
    entries = commit(ledger, proposal_of(ledger, PEERS[:2]))
    assert len(entries) == 1
    assert ledger.entry_index(entries[0]) == 2
    refused(ledger, entries[0], match="as number 2")
    refused(ledger, first, match="as number 0")


def test_the_whole_log_replayed_gives_the_same_state(ledger: Ledger, signed_manifest: SignedManifest) -> None:
    entries = [claim_entry(claim_of(ledger, PEERS[5])), claim_entry(claim_of(ledger, PEERS[0], 1))]
    for entry in entries:
        ledger.append(entry)
    for _ in range(3):
        entries += commit(ledger, proposal_of(ledger, PEERS[:4]))
    replayed = Ledger(signed_manifest)
    for entry in entries:
        replayed.append(entry)
    assert seen(replayed) == seen(ledger)


CLAIM_FAULTS: dict[str, tuple[dict[str, Any], type[RemoteFault]]] = {
    "another run": ({"run": sha256(b"another")}, LedgerError),
    "a round after the next": ({"round": 2}, LedgerError),
    "an unpriced architecture": ({"work": (("r64", 4),)}, LedgerError),
    "an architecture with a place twice": ({"work": (("r32 u0.0:k3e2 u0.0:k5e3", 4),)}, LedgerError),
    "another key's signature": ({"key": PEERS[1].public_key}, SignatureError),
    "a key of low order": ({"key": (1).to_bytes(32, "little")}, SignatureError),
}


@pytest.mark.parametrize("fault", CLAIM_FAULTS)
def test_a_faulty_claim_is_refused_alone_and_in_a_proposal(ledger: Ledger, fault: str) -> None:
    changes, error = CLAIM_FAULTS[fault]
    faulty = claim_of(ledger, PEERS[0], **changes)
    refused(ledger, claim_entry(faulty), error)
    table = (faulty, claim_of(ledger, PEERS[2]), claim_of(ledger, PEERS[3]))
    statement = statement_of(ledger, table)
    with pytest.raises(error):
        ledger.proposal_entries(Proposal(statement, table, votes_of(statement, PEERS[2:4])))
    assert ledger.size == 0


@pytest.mark.parametrize("data", [b"", b"\x00", encode(("claim", b"\x80")), encode(("verdict", b"")), b"\xff" * 70_000])
def test_bytes_that_are_no_entry_are_refused(ledger: Ledger, data: bytes) -> None:
    refused(ledger, data, EncodingError)


def test_a_late_claim_is_logged_and_earns_nothing(ledger: Ledger) -> None:
    late = claim_of(ledger, PEERS[5])
    commit(ledger, proposal_of(ledger, PEERS[:3]))
    before = ledger.credits()
    ledger.append(claim_entry(late))
    assert ledger.claim_at(1, PEERS[5].public_key) == late
    assert ledger.credits() == before
    assert PEERS[5].public_key not in before


def test_a_second_claim_is_evidence_a_third_is_refused_and_the_key_earns_nothing_in_that_round(ledger: Ledger, manifest: Manifest) -> None:
    cheat, *honest = (peer.public_key for peer in PEERS[:3])
    second, third = (claim_entry(claim_of(ledger, PEERS[0], samples)) for samples in (50, 60))
    first = proposal_of(ledger, PEERS[:3])
    commit(ledger, first)
    assert set(ledger.credits()) == {cheat, *honest}
    ledger.append(second)  # after the commit: what the key had earned goes to the others
    assert ledger.equivocators(1) == {cheat}
    assert ledger.claim_at(1, cheat) in first.claims
    assert ledger.credits() == dict.fromkeys(sorted(honest), manifest.reward_pool // 2)
    refused(ledger, third, match="more than 2")
    commit(ledger, proposal_of(ledger, PEERS[:3]))
    assert ledger.equivocators(2) == frozenset()
    assert cheat in ledger.credits()


def test_a_claim_that_differs_from_the_logged_one_may_stand_in_a_table_but_earns_nothing(ledger: Ledger) -> None:
    ledger.append(claim_entry(claim_of(ledger, PEERS[0], 99)))
    entries = commit(ledger, proposal_of(ledger, PEERS[:3]))
    assert len(entries) == 4
    assert ledger.equivocators(1) == {PEERS[0].public_key}
    assert set(ledger.credits()) == {peer.public_key for peer in PEERS[1:3]}


def test_a_round_of_cheats_alone_pays_nothing(ledger: Ledger) -> None:
    for peer in PEERS[:2]:
        ledger.append(claim_entry(claim_of(ledger, peer, 99)))
    commit(ledger, proposal_of(ledger, PEERS[:2]))
    assert ledger.credits() == {}


def test_credits_follow_cost_and_capped_samples(ledger: Ledger) -> None:
    claims = [
        claim_of(ledger, PEERS[0], work=((SMALL, 20),)),  # 300
        claim_of(ledger, PEERS[1], work=((LARGE, 20),)),  # 600
        claim_of(ledger, PEERS[2], work=((SMALL, 200), (LARGE, 200))),  # 400 samples, capped to 100 of cost 22.5 each: 2250
    ]
    table = table_of(claims)
    statement = statement_of(ledger, table)
    commit(ledger, Proposal(statement, table, votes_of(statement, PEERS[:3])))
    # 1000 in the ratio 300 : 600 : 2250 is 95.24, 190.48 and 714.29: the rest of one goes to the largest remainder
    assert ledger.credits() == {PEERS[0].public_key: 95, PEERS[1].public_key: 191, PEERS[2].public_key: 714}


def broken_statement(**changes: Any) -> Callable[[Ledger], Proposal]:
    return lambda ledger: proposal_of(ledger, PEERS[:3], **changes)


def reordered(ledger: Ledger) -> Proposal:
    table = table_of([claim_of(ledger, peer) for peer in PEERS[:3]])[::-1]
    statement = statement_of(ledger, table)
    return Proposal(statement, table, votes_of(statement, PEERS[:3]))


def key_twice(ledger: Ledger) -> Proposal:
    table = table_of([claim_of(ledger, PEERS[0], 1, cohort="west"), claim_of(ledger, PEERS[0], 2), claim_of(ledger, PEERS[1])])
    statement = statement_of(ledger, table)
    return Proposal(statement, table, votes_of(statement, PEERS[:2]))


def claim_twice(ledger: Ledger) -> Proposal:
    table = (claim_of(ledger, PEERS[0]),) * 2
    statement = statement_of(ledger, table)
    return Proposal(statement, table, votes_of(statement, [PEERS[0], PEERS[0]]))


def foreign_claim(**changes: Any) -> Callable[[Ledger], Proposal]:
    def build(ledger: Ledger) -> Proposal:
        table = table_of([claim_of(ledger, PEERS[0], **changes), claim_of(ledger, PEERS[1]), claim_of(ledger, PEERS[2])])
        statement = statement_of(ledger, table)
        return Proposal(statement, table, votes_of(statement, PEERS[:3]))

    return build


def voted(votes: Callable[[Statement], tuple[Vote, ...]]) -> Callable[[Ledger], Proposal]:
    def build(ledger: Ledger) -> Proposal:
        proposal = proposal_of(ledger, PEERS[:3])
        return replace(proposal, votes=votes(proposal.statement))

    return build


def forged(statement: Statement) -> tuple[Vote, ...]:
    good = votes_of(statement, PEERS[:2])
    return (good[0], Vote(good[1].key, good[0].signature))


def with_one_on_another_mean(statement: Statement) -> tuple[Vote, ...]:
    return (*votes_of(statement, PEERS[:2]), sign_vote(replace(statement, mean=sha256(b"false")), PEERS[2]))


PROPOSAL_FAULTS: dict[str, tuple[Callable[[Ledger], Proposal], type[RemoteFault]]] = {
    "another run": (broken_statement(run=sha256(b"another")), LedgerError),
    "the round before": (broken_statement(round=1), LedgerError),
    "a round too far": (broken_statement(round=3), LedgerError),
    "another last commit": (broken_statement(last_commit=sha256(b"another")), LedgerError),
    "the digest of another table": (broken_statement(table=sha256(b"another")), LedgerError),
    "a table out of order": (reordered, LedgerError),
    "a key twice": (key_twice, LedgerError),
    "a claim twice": (claim_twice, LedgerError),
    "a claim for the round before": (foreign_claim(round=1), LedgerError),
    "a claim on another commit": (foreign_claim(last_commit=sha256(b"another")), LedgerError),
    "no votes": (voted(lambda statement: ()), LedgerError),
    "one vote too few": (voted(lambda statement: votes_of(statement, PEERS[:1])), LedgerError),
    "votes out of order": (voted(lambda statement: votes_of(statement, PEERS[:3])[::-1]), LedgerError),
    "a vote twice": (voted(lambda statement: votes_of(statement, [PEERS[0]] * 3)), LedgerError),
    "a vote from outside the table": (voted(lambda statement: votes_of(statement, [*PEERS[:2], PEERS[7]])), LedgerError),
    "a forged vote": (voted(forged), SignatureError),
    "a vote on another mean": (voted(with_one_on_another_mean), SignatureError),
}


@pytest.mark.parametrize("fault", PROPOSAL_FAULTS)
def test_a_faulty_proposal_is_refused_whole_and_so_is_its_round_entry(ledger: Ledger, fault: str) -> None:
    commit(ledger, proposal_of(ledger, PEERS[:2]))  # so that there is a round before
    build, error = PROPOSAL_FAULTS[fault]
    proposal = build(ledger)
    before = seen(ledger)
    with pytest.raises(error):
        ledger.proposal_entries(proposal)
    assert seen(ledger) == before
    for claim in proposal.claims:
        if ledger.entry_index(claim_entry(claim)) is None:
            ledger.append(claim_entry(claim))
    digests = tuple(claim.digest for claim in proposal.claims)
    refused(ledger, round_entry(Round(proposal.statement, digests, proposal.votes)), error)
    commit(ledger, proposal_of(ledger, PEERS[3:6]))  # and the run goes on


def test_a_round_of_claims_that_are_not_in_the_log_is_refused(ledger: Ledger) -> None:
    entries = ledger.proposal_entries(proposal_of(ledger, PEERS[:3]))
    for entry in entries[:2]:
        ledger.append(entry)
    refused(ledger, entries[-1], match="not in the log")
    ledger.append(entries[2])
    ledger.append(entries[3])


def test_of_two_proposals_for_a_round_the_log_takes_one(ledger: Ledger) -> None:
    first, second = proposal_of(ledger, PEERS[:3]), proposal_of(ledger, PEERS[3:6])
    late = ledger.proposal_entries(second)
    commit(ledger, first)
    with pytest.raises(LedgerError, match="cannot follow"):
        ledger.proposal_entries(second)
    with pytest.raises(LedgerError, match="cannot follow"):
        ledger.proposal_entries(first)
    for entry in late[:-1]:
        ledger.append(entry)
    refused(ledger, late[-1], match="cannot follow")


def test_asking_for_the_entries_of_a_proposal_changes_nothing(ledger: Ledger) -> None:
    before = seen(ledger)
    proposal = proposal_of(ledger, PEERS)
    assert ledger.proposal_entries(proposal) == ledger.proposal_entries(proposal)
    assert seen(ledger) == before


@pytest.mark.parametrize("members", range(1, 9))
def test_two_thirds_of_the_table_commit_and_one_less_does_not(ledger: Ledger, members: int) -> None:
    proposal = proposal_of(ledger, PEERS[:members])
    with pytest.raises(LedgerError, match="votes where"):
        ledger.proposal_entries(replace(proposal, votes=proposal.votes[: quorum(members) - 1]))
    commit(ledger, replace(proposal, votes=proposal.votes[: quorum(members)]))
    assert set(ledger.credits()) == {peer.public_key for peer in PEERS[:members]}  # who did not vote earns too


@settings(max_examples=60)
@given(st.data())
def test_a_changed_bit_of_an_entry_is_always_refused(signed_manifest: SignedManifest, data: st.DataObject) -> None:
    ledger = Ledger(signed_manifest)
    entries = ledger.proposal_entries(proposal_of(ledger, PEERS[:3]))
    place = data.draw(st.integers(0, len(entries) - 1))
    for entry in entries[:place]:
        ledger.append(entry)
    bit = data.draw(st.integers(0, 8 * len(entries[place]) - 1))
    changed = bytearray(entries[place])
    changed[bit // 8] ^= 1 << bit % 8
    refused(ledger, bytes(changed), RemoteFault)
    ledger.append(entries[place])


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_any_valid_history_conserves_the_pool_and_whatever_is_refused_changes_nothing(
    signed_manifest: SignedManifest, manifest: Manifest, chance: random.Random
) -> None:
    ledger = Ledger(signed_manifest)
    log: list[bytes] = []
    spare: list[bytes] = []
    for _ in range(20):
        peers = chance.sample(PEERS, chance.randint(1, 4))
        try:
            if chance.random() < 0.3:
                log += commit(ledger, proposal_of(ledger, peers))
            elif chance.random() < 0.3 and spare:
                replay = chance.choice(spare)
                ledger.append(replay)
                log.append(replay)
            else:
                entry = claim_entry(claim_of(ledger, peers[0], chance.randint(1, 3)))
                spare.append(entry)
                ledger.append(entry)
                log.append(entry)
        except LedgerError:
            pass
        assert ledger.size == len(log)
        assert [ledger.entry_index(entry) for entry in log] == list(range(len(log)))
    paid = ledger.credits()
    paying = 0
    for number in range(1, ledger.round + 1):
        round_ = ledger.round_at(number)
        assert round_ is not None
        members = {open_claim.key for open_claim in claims_in(log, round_)}
        paying += bool(members - ledger.equivocators(number))
    assert sum(paid.values()) == paying * manifest.reward_pool
    replayed = Ledger(signed_manifest)
    for entry in log:
        replayed.append(entry)
    assert seen(replayed) == seen(ledger)


def claims_in(log: list[bytes], round_: Round) -> list[Claim]:
    records = [open_entry(entry) for entry in log]
    return [record.open() for record in records if isinstance(record, SignedClaim) and record.digest in round_.claims]
