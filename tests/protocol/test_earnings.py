"""What a table pays, from its claims alone: as much as the ledger says, and nothing from claims that are not the table's."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.earnings import TableClaims, earned
from protocol.errors import RemoteFault
from protocol.ledger import Ledger
from protocol.records import Header, Round, SignedClaim
from protocol.signing import Identity
from protocol.table import claims_of_bits
from tests.audited import audited_ledger, work_of
from tests.contributions import PEERS, cohort_header_of, commit, header_of, in_order, listing
from tests.protocol.ledgers import ledger_of

Lots = tuple[int, int]
work = st.tuples(st.integers(0, 20), st.integers(0, 20)).filter(any)


def paid(ledger: Ledger, headers: list[Header]) -> dict[bytes, int]:
    assert ledger.newest is not None
    return earned(ledger.manifest, ledger.course, ledger.newest, TableClaims(tuple(in_order(headers))))


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(PEERS[2:6]), work, min_size=1), st.lists(work, min_size=2, max_size=2))
def test_a_table_of_claims_pays_what_the_ledger_pays(alone: dict[Identity, Lots], mates: list[Lots]) -> None:
    ledger = ledger_of()
    headers = [header_of(ledger, peer, lots=lots) for peer, lots in alone.items()]
    headers.append(cohort_header_of(ledger, PEERS[:2], lots=mates[0]))
    commit(ledger, headers)
    assert {key: share for key, share in paid(ledger, headers).items() if share} == ledger.credits()


mates = st.lists(st.sampled_from(PEERS[:5]), min_size=2, max_size=5, unique=True)
proven_keys = st.sets(st.sampled_from(PEERS[:5]))


@settings(max_examples=40, deadline=None)
@given(mates, proven_keys)
def test_claims_alone_prove_what_a_round_paid_also_in_mixed_cohorts(cohort: list[Identity], proven: set[Identity]) -> None:
    ledger = audited_ledger(proven=tuple(sorted(peer.public_key for peer in proven)))
    founder = cohort[0]
    claims = [work_of(ledger, peer, founder=founder.public_key) for peer in cohort]
    headers = [listing(claims, founder), *(listing([work_of(ledger, peer)], peer) for peer in PEERS[5:7])]
    commit(ledger, headers)
    table, entry = ledger.table_at(1), ledger.newest
    assert table is not None
    assert entry is not None
    bits = tuple(one.row.unproven_claims for one in table)
    found = TableClaims(tuple(in_order(headers)), bits)
    pending = {key: share.amount for key, share in ledger.standing.accounts.pending[1].items()}
    assert earned(ledger.manifest, ledger.course, entry, found) == pending
    others = {1 << place for place in range(len(cohort) + 1)}
    of_cohort = next(place for place, one in enumerate(table) if len(one.keys) > 1)
    for other in others - {bits[of_cohort]}:  # who is proven cannot be told otherwise, though all have as many samples
        with pytest.raises(RemoteFault):
            earned(ledger.manifest, ledger.course, entry, replace(found, unproven=(*bits[:of_cohort], other, *bits[of_cohort + 1 :])))


def test_the_bits_of_claims_are_no_more_than_the_claims() -> None:
    assert list(claims_of_bits(0b101, 3)) == [True, False, True]
    with pytest.raises(ValueError, match="more claims than there are"):
        claims_of_bits(0b100, 2)


def test_aged_work_is_of_the_table_that_it_counts_in() -> None:
    ledger = ledger_of()
    aged = header_of(ledger, PEERS[0])
    commit(ledger, [header_of(ledger, PEERS[1])])
    before = ledger.credits()
    headers = [aged, header_of(ledger, PEERS[1], lots=(1, 0))]
    commit(ledger, headers)
    assert {key: before.get(key, 0) + share for key, share in paid(ledger, headers).items()} == ledger.credits()


def forged(header: Header) -> Header:
    return Header(header.contribution, tuple(SignedClaim(claim.payload, bytes(64)) for claim in header.claims))


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger, found: found[:-1],
        lambda ledger, found: [*found, header_of(ledger, PEERS[5])],
        lambda ledger, found: [header_of(ledger, PEERS[0], round=1, lots=(9, 9)), *found[1:]],
        lambda ledger, found: [Header(found[0].contribution, found[1].claims), *found[1:]],
        lambda ledger, found: [forged(found[0]), *found[1:]],
        lambda ledger, found: [Header(replace(found[0].contribution, signature=bytes(64)), found[0].claims), *found[1:]],
        lambda ledger, found: [header_of(ledger, PEERS[0], round=1, lots=(1, 1, 1)), *found[1:]],
        lambda ledger, found: [header_of(ledger, PEERS[0], round=3), *found[1:]],
    ],
    ids=["one less", "one more", "more work", "other claims", "unsigned claim", "unsigned contribution", "other work", "later"],
)
def test_claims_that_are_not_the_tables_are_refused(change: Callable[[Ledger, list[Header]], list[Header]]) -> None:
    ledger = ledger_of()
    headers = [header_of(ledger, peer) for peer in PEERS[:2]]
    commit(ledger, headers)
    assert isinstance(ledger.newest, Round)
    with pytest.raises(RemoteFault):
        earned(ledger.manifest, ledger.course, ledger.newest, TableClaims(tuple(change(ledger, in_order(headers)))))
