"""What a round pays for serving bytes: at most its part of the pool, by whom claims thank, and by nobody whose word does not count."""

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.accounts import Fault, Void
from protocol.audits import AUDITED, DIFFERS, Trust
from protocol.earnings import TableClaims, earned, earned_unchecked
from protocol.encoding import encode, pack, unpack
from protocol.errors import EncodingError, RemoteFault
from protocol.ledger import Ledger
from protocol.listed import entries_of
from protocol.private import PrivateData
from protocol.records import Claim, Header, entry_of
from protocol.rewards import share_out
from protocol.serving import MAX_SERVED_BYTES, MAX_THANKED, Thanks, claims_of_bits, most_thanked, serving_shares
from protocol.signing import Identity
from tests.audited import OPERATOR, audited_ledger, claimed_of, finding_of, work_of
from tests.contributions import PEERS, claim_of, commit, header_of, in_order, listing, round_of
from tests.protocol.ledgers import claim_entry, ledger_of, refused
from tests.protocol.record_samples import CLAIM
from tests.runs import manifest_of

A, B, C, D = PEERS[:4]
STRANGER = bytes([7]) * 32
KEYS = [bytes([letter]) * 32 for letter in range(6)]
thanks_of_keys = st.dictionaries(st.sampled_from(KEYS), st.integers(1, MAX_SERVED_BYTES), max_size=MAX_THANKED).map(
    lambda found: tuple(sorted(found.items()))
)
tables = st.lists(st.tuples(st.sampled_from(KEYS), thanks_of_keys), max_size=6, unique_by=lambda one: one[0])


def thanking(**served: int) -> Thanks:
    """Return thanks to peers by the letters that name them here."""
    peers = {"a": A, "b": B, "c": C, "d": D}
    return tuple(sorted((peers[name].public_key, count) for name, count in served.items()))


# The rule.


@given(st.integers(0, 2**48), tables)
def test_no_more_is_paid_than_there_is_and_nobody_moves_more_than_an_equal_part(pool: int, said: list[tuple[bytes, Thanks]]) -> None:
    paid = serving_shares(pool, said, KEYS)
    assert sum(paid.values()) <= pool
    for place, (key, _) in enumerate(said):
        silent = serving_shares(pool, [*said[:place], (key, ()), *said[place + 1 :]], KEYS)
        moved = {each: paid.get(each, 0) - silent.get(each, 0) for each in KEYS}
        assert min(moved.values()) >= 0
        assert sum(moved.values()) <= pool // len(said)


@given(st.integers(0, 2**48), tables, st.randoms(use_true_random=False), st.sets(st.sampled_from(KEYS)))
def test_the_order_of_claims_changes_nothing_and_no_fraction_is_made_up(
    pool: int, said: list[tuple[bytes, Thanks]], rng: random.Random, table: set[bytes]
) -> None:
    turned = rng.sample(said, len(said))
    paid = serving_shares(pool, said, table)
    assert serving_shares(pool, turned, table) == paid
    assert paid.keys() <= table
    exact = {key: Fraction(0) for key in table}
    for _, thanks in said:
        for key, count in thanks:
            if key in table:
                exact[key] += Fraction(pool, len(said)) * Fraction(count, sum(each for _, each in thanks))
    assert all(0 <= exact[key] - paid.get(key, 0) <= 2 * len(said) for key in table)


def test_what_nobody_is_thanked_for_and_what_goes_to_others_than_the_tables_is_paid_to_nobody() -> None:
    said = [(KEYS[0], ((KEYS[1], 3), (KEYS[2], 1))), (KEYS[1], ()), (KEYS[2], ((KEYS[0], 1), (STRANGER, 1)))]
    assert serving_shares(1_000, said, KEYS) == {KEYS[0]: 166, KEYS[1]: 249, KEYS[2]: 83}
    assert serving_shares(1_000, said[1:2], KEYS) == {}
    assert serving_shares(1_000, [], KEYS) == {}
    assert serving_shares(0, said, KEYS) == {}


def test_a_claim_thanks_those_of_most_bytes() -> None:
    served = [(bytes([number]) * 32, 100 + number) for number in range(MAX_THANKED + 2)]
    assert most_thanked(served) == tuple(served[2:])
    assert most_thanked([(KEYS[1], 2**50), (KEYS[0], 0)]) == ((KEYS[1], MAX_SERVED_BYTES),)
    assert most_thanked([]) == ()


def test_bits_say_which_claims_are_meant() -> None:
    assert list(claims_of_bits(0b101, 3)) == [True, False, True]
    for bits in (-1, 8):
        with pytest.raises(ValueError, match="more claims"):
            claims_of_bits(bits, 3)


# The records.


@pytest.mark.parametrize(
    "thanks",
    [
        ((B.public_key, 0),),
        ((B.public_key, MAX_SERVED_BYTES + 1),),
        ((B.public_key, -1),),
        ((b"short", 1),),
        ((CLAIM.key, 1),),
        ((KEYS[2], 1), (KEYS[1], 1)),
        ((KEYS[1], 1), (KEYS[1], 1)),
        tuple((bytes([number]) * 32, 1) for number in range(MAX_THANKED + 1)),
    ],
    ids=["nothing", "too much", "less than nothing", "no key", "itself", "not sorted", "twice", "too many"],
)
def test_malformed_thanks_are_refused(thanks: Any) -> None:
    with pytest.raises(ValueError, match="thank"):
        replace(CLAIM, thanks=thanks)
    fields = [getattr(CLAIM, name) for name in Claim.__dataclass_fields__]
    with pytest.raises(EncodingError):
        unpack(Claim, encode((*fields[:-1], thanks)), max_bytes=4_000)


def test_the_largest_thanks_come_back() -> None:
    claim = replace(CLAIM, thanks=tuple((bytes([number]) * 32, MAX_SERVED_BYTES) for number in range(MAX_THANKED)))
    assert unpack(Claim, pack(claim), max_bytes=4_000) == claim


def test_a_run_that_pays_nothing_for_serving_takes_no_thanks() -> None:
    ledger = ledger_of()
    refused(ledger, claim_entry(header_of(ledger, A, thanks=thanking(b=1))), match="pays nothing for serving")
    ledger = ledger_of(serving_pool_percent=1)
    ledger.append(claim_entry(header_of(ledger, A, thanks=thanking(b=1))))


def test_the_parts_of_a_pool_leave_some_for_work() -> None:
    audited = Trust(AUDITED, audit_pool_percent=50)
    assert manifest_of(A).serving_pool_percent == 0
    assert manifest_of(A, serving_pool_percent=50).work_pool == 500
    manifest = manifest_of(A, serving_pool_percent=49, trust=audited)
    assert (manifest.work_pool, manifest.audit_pool, manifest.serving_pool) == (10, 500, 490)
    for changes in ({"serving_pool_percent": 51}, {"serving_pool_percent": -1}, {"serving_pool_percent": 50, "trust": audited}):
        with pytest.raises(ValueError, match="pool"):
            manifest_of(A, **changes)


# In a log.


def serving_round(ledger: Ledger, thanks: dict[Identity, Thanks]) -> list[Header]:
    """Append a round in which each of these works and thanks; return what was handed in."""
    headers = in_order(listing([work_of(ledger, peer, thanks=said)], peer) for peer, said in thanks.items())
    commit(ledger, headers)
    return headers


def test_an_open_run_pays_by_the_word_of_all() -> None:
    ledger = ledger_of(serving_pool_percent=20)
    commit(ledger, [header_of(ledger, A, thanks=thanking(b=3, c=1)), header_of(ledger, B, thanks=thanking(a=1)), header_of(ledger, C)])
    work = share_out(800, dict.fromkeys((A.public_key, B.public_key, C.public_key), 1))
    serving = {A.public_key: 66, B.public_key: 49, C.public_key: 16}
    assert ledger.credits() == {key: work[key] + serving[key] for key in work}
    assert ledger.standing.serving == serving


def test_in_an_audited_run_keys_that_are_not_proven_move_nothing() -> None:
    ledger = audited_ledger(serving=20, proven=(A.public_key,))
    crowd = PEERS[1:7]
    headers = serving_round(ledger, {A: thanking(b=1)} | {peer: thanking(c=2**40) if peer is not C else () for peer in crowd})
    assert ledger.standing.serving == {B.public_key: 200}
    assert sum(ledger.credits().values()) == 900
    found = TableClaims(tuple(headers), tuple(one.row.unproven_claims for one in ledger.table_at(1) or ()))
    assert ledger.newest is not None
    shares = earned(ledger.manifest, ledger.course, ledger.newest, found)
    assert shares.together == ledger.credits()
    assert shares.serving == {B.public_key: 200}
    assert earned_unchecked(ledger.manifest, ledger.course, found) == shares


def test_thanks_to_the_guilty_are_void_and_their_own_count_no_more() -> None:
    ledger = audited_ledger(serving=20, proven=tuple(sorted((A.public_key, B.public_key))))
    for _ in range(2):
        serving_round(ledger, {A: thanking(b=1), B: thanking(a=1), C: ()})
    share, before = ledger.shares(ledger.table_at(2) or ()), ledger.credit_of(A.public_key)
    assert share.serving == {A.public_key: 100, B.public_key: 100}
    finding = finding_of(ledger, OPERATOR, A, DIFFERS)
    fault = Fault(3, DIFFERS, claimed_of(ledger, A).digest)
    headers = in_order(listing([work_of(ledger, peer, thanks=said)], peer) for peer, said in {A: thanking(b=1), B: thanking(a=1)}.items())
    listed = [ledger.listed(header, 3) for header in headers]
    for entry in (entry_of(finding), *entries_of(headers), entry_of(round_of(ledger, listed))):
        ledger.append(entry)
    void = before + ledger.shares(listed).of(A.public_key)
    assert ledger.standing.account(A.public_key).void == (Void(void, fault),)
    serving_round(ledger, {A: thanking(b=1), B: thanking(a=1), C: ()})
    serving = ledger.shares(ledger.table_at(4) or ()).serving
    assert serving == {A.public_key: 200}  # of B's word alone; and void, as all that the guilty earn
    assert ledger.standing.account(A.public_key).credit == 0
    assert sum(void.amount for void in ledger.standing.account(A.public_key).void) > void


mates = st.lists(st.sampled_from(PEERS[:5]), min_size=2, max_size=5, unique=True)
proven_keys = st.sets(st.sampled_from(PEERS[:5]))


@settings(max_examples=40, deadline=None)
@given(mates, proven_keys, st.data())
def test_claims_alone_prove_what_serving_paid_also_in_mixed_cohorts(cohort: list[Identity], proven: set[Identity], data: Any) -> None:
    ledger = audited_ledger(serving=30, proven=tuple(sorted(peer.public_key for peer in proven)))

    def thanks(own: Identity) -> Thanks:
        keys = st.sampled_from([peer.public_key for peer in PEERS[:6] if peer is not own])
        said: dict[bytes, int] = data.draw(st.dictionaries(keys, st.integers(1, 100), max_size=4))
        return tuple(sorted(said.items()))

    founder = cohort[0]
    claims = [work_of(ledger, peer, founder=founder.public_key, thanks=thanks(peer)) for peer in cohort]
    headers = [listing(claims, founder), *(listing([work_of(ledger, peer, thanks=thanks(peer))], peer) for peer in PEERS[5:7])]
    commit(ledger, headers)
    table, entry = ledger.table_at(1), ledger.newest
    assert table is not None
    assert entry is not None
    bits = tuple(one.row.unproven_claims for one in table)
    found = TableClaims(tuple(in_order(headers)), bits)
    assert earned(ledger.manifest, ledger.course, entry, found).together == ledger.standing.accounts.pending[1]
    assert sum(ledger.standing.serving.values()) <= 300
    others = {1 << place for place in range(len(cohort) + 1)}
    of_cohort = next(place for place, one in enumerate(table) if len(one.keys) > 1)
    for other in others - {bits[of_cohort]}:  # who is proven cannot be told otherwise, though all have as many samples
        with pytest.raises(RemoteFault):
            earned(ledger.manifest, ledger.course, entry, replace(found, unproven=(*bits[:of_cohort], other, *bits[of_cohort + 1 :])))


def test_a_cap_holds_for_work_and_serving_together() -> None:
    private = {"data": "private", "private": (PrivateData(("cat", "dog"), 1, 30),)}
    ledger = ledger_of(serving_pool_percent=50, **private)
    commit(
        ledger,
        [header_of(ledger, A, thanks=thanking(b=1)), header_of(ledger, B, lots=(1, 0)), header_of(ledger, C, thanks=thanking(b=1))],
    )
    assert ledger.credit_of(B.public_key) == 300
    assert ledger.standing.serving[B.public_key] == 300 - ledger.shares(ledger.table_at(1) or ()).work[B.public_key] < 332


def test_a_copy_of_a_ledger_goes_its_own_way() -> None:
    ledger = ledger_of(serving_pool_percent=20)
    other = ledger.copy()
    commit(ledger, [header_of(ledger, A, thanks=thanking(b=1)), listing([claim_of(ledger, B)], B)])
    assert ledger.standing.serving == {B.public_key: 100}
    assert other.standing.serving == {}
