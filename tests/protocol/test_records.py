"""Records: what they refuse, what their signatures cover, and that whatever a table may hold the log can keep."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import encode, pack, to_value, unpack
from protocol.errors import EncodingError, SignatureError
from protocol.records import (
    MAX_ARCHITECTURE_TEXT,
    MAX_ARCHITECTURES,
    MAX_CLAIM_BYTES,
    MAX_COSTS,
    MAX_ENTRY_BYTES,
    MAX_GROUP,
    MAX_MANIFEST_BYTES,
    MAX_ROUND_BYTES,
    Announcement,
    Claim,
    Entry,
    LotRecord,
    Manifest,
    Proposal,
    Receipt,
    Round,
    SignedClaim,
    SignedManifest,
    Statement,
    Vote,
    check_name,
    check_vote,
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

ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
RUN = sha256(b"run")
CLAIM = Claim(RUN, 1, RUN, ALICE.public_key, "east", (("r32", 16),), 1, sha256(b"lots"))
STATEMENT = Statement(RUN, 1, RUN, table_digest((b"t" * 32,)), sha256(b"mean"), sha256(b"state"))


def test_a_manifest_comes_back_under_its_operator_s_signature(manifest: Manifest, signed_manifest: SignedManifest) -> None:
    assert signed_manifest.open() == manifest
    assert signed_manifest.run == sha256(pack(manifest))
    assert manifest.cost_table() == dict(manifest.costs)


def test_a_manifest_under_another_signature_or_changed_is_refused(manifest: Manifest, signed_manifest: SignedManifest) -> None:
    with pytest.raises(SignatureError):
        SignedManifest.sign(manifest, ALICE).open()
    changed = pack(replace(manifest, seed=manifest.seed + 1))
    with pytest.raises(SignatureError):
        SignedManifest(changed, signed_manifest.signature).open()
    with pytest.raises(EncodingError):
        SignedManifest(signed_manifest.payload + b"0", signed_manifest.signature).open()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Two Words"},
        {"name": ""},
        {"supernet": "../secret"},
        {"task": "speech"},
        {"algorithm": "magic"},
        {"schedule": "growing"},
        {"data_digest": b"short"},
        {"initial_state": b"d" * 33},
        {"seed": -1},
        {"num_rounds": 0},
        {"target_batch": 0},
        {"lot_samples": 65_537},
        {"max_claim_samples": 0},
        {"round_deadline_ms": 0},
        {"reward_pool": 0},
        {"costs": (("r32", 1), ("r32", 2))},
        {"costs": (("r32", -1),)},
        {"costs": (("", 1),)},
        {"costs": (("r" * 41, 1),)},
        {"costs": tuple((f"r{number}", 1) for number in range(4097))},
        {"operators": ()},
        {"operators": (b"k" * 31,)},
        {"operators": ((1).to_bytes(32, "little"),)},
    ],
)
def test_a_manifest_out_of_range_is_refused_also_when_it_is_decoded(manifest: Manifest, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(manifest, **change)
    fields = {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__} | change
    encoded = encode(tuple(to_value(value) for value in fields.values()))
    with pytest.raises(EncodingError):
        unpack(Manifest, encoded, max_bytes=MAX_MANIFEST_BYTES)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "lion"},
        {"learning_rate": "1e-3"},
        {"learning_rate": "-1"},
        {"learning_rate": ".5"},
        {"learning_rate": "00.5"},
        {"learning_rate": "inf"},
        {"learning_rate": "٣"},
        {"learning_rate": "0.1\n"},
        {"beta1": "1"},
        {"beta2": "1.5"},
        {"epsilon": "0"},
        {"warmup_percent": 101},
    ],
)
def test_an_optimizer_out_of_range_is_refused(manifest: Manifest, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(manifest.optimizer, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"run": b"r"},
        {"last_commit": b""},
        {"lots_root": b"l" * 31},
        {"cohort": "East"},
        {"round": 0},
        {"round": 2**40 + 1},
        {"lots": 0},
        {"work": ()},
        {"work": (("b", 1), ("a", 1))},
        {"work": (("a", 1), ("a", 1))},
        {"work": (("", 1),)},
        {"work": (("a" * 401, 1),)},
        {"work": (("a", 0),)},
        {"work": (("a", -1),)},
        {"work": tuple((f"a{number:02}", 1) for number in range(9))},
    ],
)
def test_a_claim_out_of_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(CLAIM, **change)


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "a" * 63])
def test_plain_names_are_taken(name: str) -> None:
    check_name(name, "a name")


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", ".a", "a" * 64, "é", "a\n", "a/b"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        check_name(name, "a name")


def test_a_claim_opens_only_under_its_own_key_s_signature() -> None:
    signed = SignedClaim.sign(CLAIM, ALICE)
    assert signed.open() == CLAIM
    with pytest.raises(SignatureError):
        SignedClaim.sign(CLAIM, BOB).open()
    with pytest.raises(SignatureError):
        SignedClaim(pack(replace(CLAIM, work=(("r32", 17),))), signed.signature).open()
    with pytest.raises(SignatureError):
        SignedClaim(signed.payload, ALICE.sign("proposal", signed.payload)).open()
    with pytest.raises(EncodingError):
        SignedClaim(signed.payload + b"0", signed.signature).open()


def test_a_vote_holds_for_its_statement_only() -> None:
    vote = sign_vote(STATEMENT, ALICE)
    check_vote(STATEMENT, vote)
    with pytest.raises(SignatureError):
        check_vote(replace(STATEMENT, mean=sha256(b"another")), vote)
    with pytest.raises(SignatureError):
        check_vote(STATEMENT, Vote(BOB.public_key, vote.signature))


def records() -> list[Any]:
    signed, vote = SignedClaim.sign(CLAIM, ALICE), sign_vote(STATEMENT, ALICE)
    return [
        CLAIM,
        signed,
        STATEMENT,
        vote,
        Announcement(RUN, ALICE.public_key, "east", RUN, 1, 16, 1, 5),
        LotRecord(0, "r32", 16, "0.693147", b"p" * 32),
        Proposal(STATEMENT, (signed,), (vote,)),
        Round(STATEMENT, (signed.digest,), (vote,)),
        Entry("claim", pack(signed)),
        Receipt(claim_entry(signed), 3, (b"h" * 32,), "a note\n\n— name abcd\n"),
    ]


@pytest.mark.parametrize("record", records(), ids=lambda record: type(record).__name__)
def test_every_record_comes_back(record: Any) -> None:
    assert unpack(type(record), pack(record), max_bytes=MAX_ROUND_BYTES) == record


def test_entries_open_as_what_they_are() -> None:
    signed = SignedClaim.sign(CLAIM, ALICE)
    round_ = Round(STATEMENT, (signed.digest,), (sign_vote(STATEMENT, ALICE),))
    assert open_entry(claim_entry(signed)) == signed
    assert open_entry(round_entry(round_)) == round_
    assert commit_digest(round_entry(round_)) == sha256(round_entry(round_))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode(("verdict", b"")),
        encode(("claim", b"")),
        encode(("round", pack(SignedClaim.sign(CLAIM, ALICE)))),
        encode(("claim", pack(SignedClaim.sign(CLAIM, ALICE)), b"")),
        claim_entry(SignedClaim.sign(CLAIM, ALICE)) + b"0",
        claim_entry(SignedClaim(b"0" * MAX_ENTRY_BYTES, b"")),
        encode(("round", b"0" * MAX_ROUND_BYTES)),
    ],
)
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        open_entry(data)


def claim_of(size_bytes: int) -> Claim:
    """A claim whose payload has ``size_bytes``: four texts of four-byte characters and four plain ones."""
    full = tuple((chr(0x1F600 + number) * 200, 1) for number in range(4))
    candidates = (replace(CLAIM, work=(("a" * first, 1), ("b" * 200, 1), ("c" * 200, 1), ("d" * 200, 1), *full)) for first in range(1, 201))
    return next(claim for claim in candidates if len(pack(claim)) == size_bytes)


def test_the_largest_group_s_round_fits_an_entry() -> None:
    votes = tuple(Vote(bytes([number]) * 32, bytes(64)) for number in range(MAX_GROUP))
    large = replace(STATEMENT, round=2**40)
    entry = round_entry(Round(large, tuple(bytes([number]) * 32 for number in range(MAX_GROUP)), votes))
    assert len(entry) <= MAX_ROUND_BYTES
    assert isinstance(open_entry(entry), Round)


def test_rounds_and_proposals_have_bounds() -> None:
    vote = sign_vote(STATEMENT, ALICE)
    signed = SignedClaim.sign(CLAIM, ALICE)
    for build in (
        lambda: Round(STATEMENT, (), ()),
        lambda: Round(STATEMENT, (b"short",), ()),
        lambda: Round(STATEMENT, (b"d" * 32,), (vote, vote)),
        lambda: Round(STATEMENT, (b"d" * 32,) * (MAX_GROUP + 1), ()),
        lambda: Proposal(STATEMENT, (), ()),
        lambda: Proposal(STATEMENT, (signed,), (vote, vote)),
        lambda: Proposal(STATEMENT, (signed,) * (MAX_GROUP + 1), ()),
    ):
        with pytest.raises(ValueError, match=r"."):
            build()


@given(st.integers(1, 10_000))
def test_a_quorum_is_the_least_number_of_at_least_two_thirds(members: int) -> None:
    votes = quorum(members)
    assert 3 * votes >= 2 * members > 3 * (votes - 1)
    assert votes <= members


def test_a_table_is_sorted_by_cohort_and_then_by_key() -> None:
    pairs = []
    for cohort, identity in (("west", ALICE), ("east", BOB), ("east", ALICE), ("north", BOB)):
        claim = replace(CLAIM, cohort=cohort, key=identity.public_key)
        pairs.append((SignedClaim.sign(claim, identity), claim))
    order = [(claim.cohort, claim.key) for _, claim in sort_table(pairs)]
    assert order == sorted(order)
    assert [cohort for cohort, _ in order] == ["east", "east", "north", "west"]


def test_a_table_s_digest_depends_on_its_order() -> None:
    one, two = sha256(b"1"), sha256(b"2")
    assert table_digest((one, two)) == sha256(one + two) != table_digest((two, one))


def test_the_largest_claim_of_plain_text_opens() -> None:
    work = tuple((chr(ord("a") + number) * MAX_ARCHITECTURE_TEXT, 2**40) for number in range(MAX_ARCHITECTURES))
    large = replace(CLAIM, round=2**40, cohort="c" * 63, work=work, lots=2**32)
    signed = SignedClaim.sign(large, ALICE)
    assert signed.open() == large
    assert open_entry(claim_entry(signed)) == signed


def test_a_manifest_with_as_many_prices_as_there_may_be_opens(manifest: Manifest, operator: Identity) -> None:
    costs = tuple((f"{number:040}", 2**62 - 1) for number in range(MAX_COSTS))
    full = replace(manifest, costs=costs, operators=(operator.public_key, *(Identity(bytes([seed]) * 32).public_key for seed in range(15))))
    assert SignedManifest.sign(full, operator).open() == full


def test_every_claim_that_opens_has_an_entry_that_the_log_may_keep() -> None:
    signed = SignedClaim.sign(claim_of(MAX_CLAIM_BYTES), ALICE)
    assert len(signed.payload) == MAX_CLAIM_BYTES
    signed.open()
    assert len(claim_entry(signed)) == MAX_ENTRY_BYTES
    assert open_entry(claim_entry(signed)) == signed
    too_long = SignedClaim.sign(claim_of(MAX_CLAIM_BYTES + 1), ALICE)
    with pytest.raises(EncodingError):
        too_long.open()
    with pytest.raises(EncodingError):
        open_entry(claim_entry(too_long))
