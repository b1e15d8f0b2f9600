"""Contributions of several claims in the log: who consented, whom a fault is put down to, and in which runs they name residuals."""

from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.protocol.errors import ClaimError, LedgerError, SignatureError
from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.ledger import KEPT_TABLES, Ledger
from manta_swarm.protocol.records import Claim, ClaimStep, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import PEERS, claim_of, cohort_header_of, commit, header_of, listing, with_contribution
from tests.protocol.ledgers import append, ledger_of, not_taken, refused
from tests.runs import EXCHANGE

A, B, C, D, E = PEERS[:5]  # in the order of their keys
SPARSE = replace(EXCHANGE, codec="topk-256-4")
LEFT, OTHER = sha256(b"left"), sha256(b"another")


def keys(*peers: Identity) -> tuple[bytes, ...]:
    return tuple(peer.public_key for peer in peers)


def claims_of(ledger: Ledger, founder: Identity, *members: Identity, **changes: Any) -> list[Signed[Claim]]:
    return [claim_of(ledger, member, founder=founder.public_key, **changes) for member in members]


# What a cohort's contribution is.


def test_a_cohort_s_contribution_weighs_by_the_samples_of_all() -> None:
    ledger = ledger_of()
    microbatches = {A: (1, 1), B: (30, 0), C: (0, 2)}
    claims = [
        claim_of(ledger, peer, founder=B.public_key, microbatches=each, microbatch_ms=each[0] + 1) for peer, each in microbatches.items()
    ]
    header = listing(claims, B)
    listed = ledger.listed(header, 1)
    assert (listed.keys, listed.claims, listed.cohort) == (keys(A, B, C), tuple(claim.digest for claim in claims), "here")
    assert (listed.founder, listed.weighing.samples, listed.cohort) == (B.public_key, 32 + 80 + 32, "here")
    assert (listed.counted, listed.microbatches_ms) == (32 + 480 + 32, (2, 31, 1))
    commit(ledger, [header, header_of(ledger, D)])
    assert ledger.last_keys == set(keys(A, B, C, D))
    assert ledger.newest is not None
    assert (ledger.newest.first, ledger.newest.contributions) == (0, 2)
    weights = dict(zip(keys(A, B, C, D), (16 * 25, 80 * 10, 32 * 15, 32 * 25), strict=True))  # each claim's own, capped for itself
    assert ledger.credits() == {key: pytest.approx(1_000 * weight / sum(weights.values()), abs=1) for key, weight in weights.items()}


def test_a_full_cohort_is_taken_and_not_one_more() -> None:
    ledger = ledger_of()
    members = sorted((Identity(sha256(b"member %d" % i)) for i in range(MAX_COHORT + 1)), key=lambda member: member.public_key)
    header = cohort_header_of(ledger, members[:MAX_COHORT])
    fork = ledger.copy()
    commit(fork, [header])
    assert len(fork.last_keys) == MAX_COHORT
    with pytest.raises(ValueError, match="a step has a claim in it"):  # nobody can say of so many who did
        cohort_header_of(ledger, members)


@pytest.mark.parametrize("founder", [A, B, C])
def test_the_founder_may_be_any_of_the_members(founder: Identity) -> None:
    ledger = ledger_of()
    header = listing(claims_of(ledger, founder, A, B, C), founder)
    commit(ledger, [header])
    assert ledger.last_keys == set(keys(A, B, C))


def test_a_member_alone_needs_nobody_though_its_claim_names_a_founder() -> None:
    ledger = ledger_of()
    signed = claims_of(ledger, A, B)[0]
    alone = listing([signed], B)
    assert ledger.listed(alone, 1).founder == B.public_key
    together = listing([*claims_of(ledger, A, A), signed], A)
    assert ledger.listed(together, 1).claims[1] == ledger.listed(alone, 1).claims[0] == signed.digest
    commit(ledger, [alone, header_of(ledger, A)])
    assert ledger.last_keys == set(keys(A, B))


# Who may not list whom.


def test_a_claim_is_listed_by_nobody_but_the_founder_whom_it_names_and_its_own_key() -> None:
    ledger = ledger_of()
    of_a = claims_of(ledger, A, B)
    for others, founder in (([], C), ([], A), (claims_of(ledger, C, C), C), (claims_of(ledger, B, C), B), (claims_of(ledger, A, C), B)):
        wrong = listing([*of_a, *others], founder)
        with pytest.raises(LedgerError, match=r"another cohort|founder has none"):
            ledger.listed(wrong, 1)
        refused(ledger, entry_of(wrong))


def test_a_founder_who_has_no_claim_of_its_own_hands_in_nothing() -> None:
    ledger = ledger_of()
    for header in (listing(claims_of(ledger, A, B, C), A), listing(claims_of(ledger, A, B), A)):
        not_taken(ledger, header, "founder has none")


def test_claims_are_in_the_order_of_their_keys_and_none_twice() -> None:
    ledger = ledger_of()
    one, other = claims_of(ledger, A, A, B)
    good = listing([one, other], A)
    for claims in ((other, one), (one, one), (one, other, other)):
        wrong = replace(with_contribution(good, A, claims=tuple(claim.digest for claim in claims)), claims=claims)
        not_taken(ledger, wrong, "not sorted")


@pytest.mark.parametrize("change", [{"cohort": "there"}, {"round": 1}, {"founder": B.public_key}], ids=repr)
def test_claims_of_another_cohort_or_base_are_not_listed_together(change: dict[str, Any]) -> None:
    ledger = ledger_of()
    commit(ledger, [header_of(ledger, E)])
    own, other = claims_of(ledger, A, A)[0], claim_of(ledger, B, **{"founder": A.public_key, **change})
    header = listing([own, other], A)
    header = with_contribution(header, A, round=2, base=ledger.last_commit)
    with pytest.raises(ClaimError, match="another base, or of another cohort") as raised:
        ledger.listed(header, 2)
    assert raised.value.keys == keys(B)
    refused(ledger, entry_of(header), ClaimError, match="another base, or of another cohort")


# Whom a fault is put down to.

CLAIM_FAULTS: dict[str, dict[str, Any]] = {
    "too few architectures": {"microbatches": (4,)},
    "too many samples": {"microbatches": (40, 1)},
    "a residual out of nothing": {"residual": OTHER},
    "another number of steps": {"steps": (ClaimStep(0, 1, (), OTHER), ClaimStep(2, 3, (), OTHER))},
    "microbatches of other architectures": {"microbatches": (3, 1), "steps": (ClaimStep(0, 3, (), OTHER),)},
    "another name": {"cohort": "there"},
    "another founder": {"founder": C.public_key},
    "another run": {"run": OTHER},
    "another base": {"base": OTHER},
}


@pytest.mark.parametrize("fault", CLAIM_FAULTS)
@pytest.mark.parametrize("faulty", [(B,), (A,), (B, D), (A, D)], ids=lambda peers: "".join("ABCD"[PEERS.index(peer)] for peer in peers))
def test_the_keys_of_all_faulty_claims_are_named_and_the_others_stand_without_them(fault: str, faulty: tuple[Identity, ...]) -> None:
    if fault == "another name" and A in faulty:
        return  # a founder of another name than the rest: then it is the others who differ
    ledger = ledger_of()
    changes = {"founder": A.public_key, **CLAIM_FAULTS[fault]}
    claims = {peer: claims_of(ledger, A, peer)[0] for peer in (A, B, C, D)}
    wrong = claims | {peer: claim_of(ledger, peer, **changes) for peer in faulty}
    header = with_contribution(listing(wrong.values(), A), A, run=ledger.run, base=ledger.run)
    with pytest.raises(ClaimError) as raised:
        ledger.listed(header, 1)
    assert raised.value.keys == keys(*sorted(faulty, key=lambda peer: peer.public_key))
    assert raised.value.key == raised.value.keys[0]
    rest = {peer: claim for peer, claim in claims.items() if peer not in faulty}
    if A in rest:
        commit(ledger, [listing(rest.values(), A)])
    else:  # without their founder each hands in alone
        commit(ledger, [listing([claim], peer) for peer, claim in rest.items()])
    assert ledger.last_keys == {peer.public_key for peer in (A, B, C, D) if peer not in faulty}


def test_members_whose_work_on_this_base_counted_already_are_named() -> None:
    ledger = ledger_of()
    claims = claims_of(ledger, A, A, B, C, D)
    commit(ledger, [listing([claims[1]], B), listing([claims[3]], D)])  # these handed in alone
    with pytest.raises(ClaimError, match="in the log already") as raised:
        ledger.listed(listing(claims, A), 2)
    assert raised.value.keys == keys(B, D)
    commit(ledger, [listing([claims[0], claims[2]], A)])
    assert ledger.last_keys == set(keys(A, C))


def test_what_leaving_claims_out_would_not_help_names_nobody() -> None:
    ledger = ledger_of()
    header = cohort_header_of(ledger, [A, B, C])
    forged = replace(header, claims=(header.claims[0], Signed.sign(header.claims[1].open(), D), header.claims[2]))
    with pytest.raises(SignatureError):
        ledger.listed(forged, 1)
    for change in ({"base": OTHER}, {"round": 2}, {"run": OTHER}, {"residual": LEFT}):
        with pytest.raises(LedgerError) as raised:
            ledger.listed(with_contribution(header, A, **change), 1)
        assert not isinstance(raised.value, ClaimError)
    old = cohort_header_of(ledger, [A, B])
    for _ in range(5):
        commit(ledger, [header_of(ledger, E)])
    with pytest.raises(LedgerError, match="commits old") as raised:
        ledger.listed(old, 6)
    assert not isinstance(raised.value, ClaimError)


def test_a_key_stands_in_one_contribution_of_a_table_whichever_comes_first() -> None:
    ledger = ledger_of()
    together, alone = cohort_header_of(ledger, [A, B, C]), listing(claims_of(ledger, A, B), B)
    append(ledger, together)
    refused(ledger, entry_of(alone), ClaimError, match="twice in one table")
    other = ledger_of()
    append(other, listing(claims_of(other, A, A), A), alone)
    refused(other, entry_of(listing(claims_of(other, C, B, C), C)), ClaimError, match="twice in one table")


# Where a key's work is.


def test_the_log_says_in_which_table_a_key_s_work_on_a_base_is() -> None:
    ledger = ledger_of(num_rounds=20)
    aged = listing(claims_of(ledger, A, C), C)  # on the run's start
    commit(ledger, [cohort_header_of(ledger, [A, B])])
    commit(ledger, [cohort_header_of(ledger, [A, B]), aged])
    assert [ledger.claim_listed(A.public_key, number) for number in range(4)] == [None, 1, 2, None]
    assert [ledger.claim_listed(C.public_key, number) for number in range(4)] == [None, 2, None, None]
    assert ledger.claim_listed(D.public_key, 1) is None
    for _ in range(KEPT_TABLES - 1):
        commit(ledger, [header_of(ledger, E)])
    assert [ledger.claim_listed(peer.public_key, 1) for peer in (A, C)] == [None, 2]
    commit(ledger, [header_of(ledger, E)])
    assert ledger.claim_listed(C.public_key, 1) is None


# Residuals.


def test_where_bodies_leave_residuals_a_claim_may_name_any() -> None:
    ledger = ledger_of(exchange=SPARSE)
    commit(ledger, [cohort_header_of(ledger, [A, B], residual=OTHER, left=LEFT)])
    claims = [claim_of(ledger, A, residual=LEFT), claim_of(ledger, B, founder=A.public_key, residual=OTHER)]
    commit(ledger, [listing(claims, A, left=LEFT), header_of(ledger, C, residual=LEFT)])
    assert ledger.round == 2


def test_bodies_that_leave_nothing_have_no_residuals() -> None:
    ledger = ledger_of()
    for header in (header_of(ledger, A, left=LEFT), header_of(ledger, A, residual=LEFT)):
        not_taken(ledger, header, "residual")
