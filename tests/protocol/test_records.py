"""Records: that they come back, which ranges they refuse, and what bytes that mean harm come to."""

from dataclasses import fields, replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.affinity import MAX_DISTANCES, NUM_STEPS, Position
from manta_swarm.protocol.encoding import encode, pack, to_value, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import (
    GREATEST_MIN_EXPONENT,
    LEAST_MIN_EXPONENT,
    MAX_COHORT,
    MAX_LOCAL_STEPS,
    MAX_MICROBATCH_MS,
    MAX_OPEN_MS,
    MAX_ROWS,
    Exchange,
)
from manta_swarm.protocol.fields import MAX_ROUND, check_name
from manta_swarm.protocol.manifest import MAX_COSTS, MAX_MANIFEST_BYTES, Manifest, SignedManifest
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.records import (
    MAX_ANNOUNCEMENT_BYTES,
    MAX_ARCHITECTURES,
    MAX_ENTRY_BYTES,
    MAX_INDEX,
    MAX_MICROBATCHES,
    MAX_PAYLOAD_BYTES,
    MAX_ROLES,
    MAX_SKIPPED,
    Announcement,
    Claim,
    ClaimStep,
    Contribution,
    Entry,
    Header,
    InclusionPromise,
    Receipt,
    Round,
    StepMean,
    Threshold,
    entry_of,
    open_entry,
)
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from tests.audited import RULES
from tests.protocol.record_samples import (
    ALICE,
    ANNOUNCEMENT,
    BASE,
    BOB,
    CLAIM,
    CONTRIBUTION,
    HEADER,
    INCLUSION_PROMISE,
    LARGEST_ANNOUNCEMENT,
    LARGEST_CLAIM,
    LARGEST_CONTRIBUTION,
    LARGEST_HEADER,
    LARGEST_ROUND,
    POSITION,
    ROUND,
    RUN,
    SETTLEMENT,
    SIGNED_CLAIM,
    SIGNED_CONTRIBUTION,
    THRESHOLD,
    VERDICT,
)
from tests.runs import EXCHANGE, manifest_of

RECORDS: list[Any] = [
    EXCHANGE,
    manifest_of(ALICE),
    SignedManifest.sign(manifest_of(ALICE), ALICE),
    CLAIM,
    LARGEST_CLAIM,
    SIGNED_CLAIM,
    CONTRIBUTION,
    SIGNED_CONTRIBUTION,
    HEADER,
    LARGEST_HEADER,
    INCLUSION_PROMISE,
    Signed.sign(INCLUSION_PROMISE, BOB),
    THRESHOLD,
    ROUND,
    LARGEST_ROUND,
    ANNOUNCEMENT,
    LARGEST_ANNOUNCEMENT,
    VERDICT,
    Signed.sign(VERDICT, ALICE),
    SETTLEMENT,
    RULES,
    LARGEST_CONTRIBUTION,
    Entry("contribution", pack(HEADER)),
    Receipt(entry_of(HEADER), 3, (b"h" * 32,), "a note\n\n— name abcd\n"),
]


def form_of(record: Any) -> Any:
    """Return what ``unpack`` reads it as."""
    return Signed[record.of] if isinstance(record, Signed) else type(record)


def type_name(record: Any) -> str:
    return type(record).__name__


# What comes back.


@pytest.mark.parametrize("record", RECORDS, ids=type_name)
def test_every_record_comes_back(record: Any) -> None:
    assert unpack(form_of(record), pack(record), max_bytes=MAX_ENTRY_BYTES) == record


digests = st.binary(min_size=32, max_size=32)
residuals = st.one_of(st.just(b""), digests)
rounds = st.integers(1, MAX_ROUND)
keys = st.integers(0, 2**64).map(lambda seed: Identity(sha256(b"%d" % seed)).public_key)
names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)


@st.composite
def steps_and_work(draw: st.DrawFn) -> tuple[tuple[ClaimStep, ...], tuple[int, ...]]:
    """Steps whose indices increase, and how many microbatches of some architectures those are."""
    steps = list[ClaimStep]()
    for _ in range(draw(st.integers(1, 4))):
        first = (steps[-1].last + 1 if steps else 0) + draw(st.integers(0, 1000))
        every, microbatches = draw(st.integers(1, MAX_ARCHITECTURES)), draw(st.integers(1, 70))
        between = range(first + every, first + (microbatches - 1) * every, every)
        skipped = draw(st.sets(st.sampled_from(between), max_size=MAX_SKIPPED)) if between else set()
        steps.append(ClaimStep(first, first + (microbatches - 1) * every, tuple(sorted(skipped)), draw(digests), every))
    left, work = sum(step.count for step in steps), list[int]()
    for _ in range(draw(st.integers(0, MAX_ARCHITECTURES - 1))):
        work.append(draw(st.integers(0, left)))
        left -= work[-1]
    return tuple(steps), (*work, left)


claims = st.builds(
    lambda made, given, **rest: Claim(steps=made[0], work=made[1], given=given[0], residual=given[1], **rest),
    steps_and_work(),
    st.one_of(st.just((b"", b"")), st.tuples(digests, residuals)),
    run=digests,
    round=rounds,
    base=digests,
    cohort=names,
    key=digests,
    payout=keys,
    founder=digests,
    microbatch_ms=st.integers(1, MAX_MICROBATCH_MS),
)
contributions = st.builds(
    lambda included, **rest: Contribution(included=1 + included % (2 ** len(rest["claims"]) - 1), **rest),
    included=st.integers(0, 2**MAX_COHORT),
    steps=st.lists(st.builds(StepMean, digests, st.integers(1, 2**MAX_COHORT - 1)), min_size=1, max_size=32).map(tuple),
    run=digests,
    round=rounds,
    base=digests,
    founder=digests,
    claims=st.lists(digests, min_size=1, max_size=MAX_COHORT).map(tuple),
    body=digests,
    residual=residuals,
)
thresholds = st.sets(st.integers(0, MAX_ROLES - 1)).flatmap(
    lambda roles: st.tuples(
        *(st.builds(Threshold, st.just(role), st.integers(0, 2**62 - 1), st.integers(1, 2**48)) for role in sorted(roles))
    )
)
committed = st.builds(
    Round,
    run=digests,
    round=rounds,
    base=digests,
    first=st.integers(0, MAX_SIZE - 1),
    contributions=st.integers(1, MAX_ROWS),
    weights=digests,
    mean=digests,
    state=digests,
    thresholds=thresholds,
    min_exponent=st.integers(LEAST_MIN_EXPONENT, GREATEST_MIN_EXPONENT),
    open_ms=st.integers(1, MAX_OPEN_MS),
)
tags = st.binary(min_size=8, max_size=8)
positions = st.builds(
    Position,
    st.integers(0, 1),
    st.one_of(st.just(b""), st.binary(min_size=16, max_size=16)),
    st.one_of(st.just(b""), tags),
    st.dictionaries(tags, st.integers(0, NUM_STEPS - 1), max_size=MAX_DISTANCES).map(lambda found: tuple(sorted(found.items()))),
)
others = st.one_of(
    st.builds(InclusionPromise, run=digests, round=rounds, contribution=digests),
    st.builds(Announcement, digests, digests, names, st.integers(0, MAX_ROUND), st.integers(0, 2**62 - 1), positions),
)


@given(st.one_of(claims, contributions, committed, others))
def test_whatever_is_in_range_comes_back_and_fits_an_entry(record: Any) -> None:
    data = pack(record)
    assert unpack(form_of(record), data, max_bytes=MAX_PAYLOAD_BYTES) == record
    assert pack(unpack(form_of(record), data, max_bytes=MAX_PAYLOAD_BYTES)) == data


def test_the_largest_announcement_fits() -> None:
    assert unpack(Announcement, pack(LARGEST_ANNOUNCEMENT), max_bytes=MAX_ANNOUNCEMENT_BYTES) == LARGEST_ANNOUNCEMENT


# What is refused.


def refused(record: Any, change: dict[str, Any]) -> None:
    """Neither built nor read."""
    with pytest.raises(ValueError, match=r"."):
        replace(record, **change)
    values = {field.name: getattr(record, field.name) for field in fields(record)} | change
    with pytest.raises(EncodingError):
        unpack(form_of(record), encode(tuple(to_value(value) for value in values.values())), max_bytes=MAX_MANIFEST_BYTES)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Two Words"},
        {"name": ""},
        {"dataset": "../secret"},
        {"supernet": "../secret"},
        {"task": "speech"},
        {"algorithm": "magic"},
        {"schedule": "growing"},
        {"cohorts": "whoever"},
        {"data_digest": b"short"},
        {"initial_state": b"d" * 33},
        {"seed": -1},
        {"num_rounds": 0},
        {"num_rounds": MAX_ROUND + 1},
        {"microbatch_samples": 0},
        {"microbatch_samples": 65_537},
        {"microbatch_samples": 81},  # more than anybody's weight
        {"exchange": replace(EXCHANGE, local_steps=41)},  # each has a microbatch, and a claim at most 40
        {"reward_pool": 0},
        {"reward_pool": 2**48 + 1},
        {"costs": (("r32", 1), ("r32", 2))},
        {"costs": (("r32", -1),)},
        {"costs": (("r32", 2**62),)},
        {"costs": (("", 1),)},
        {"costs": (("r" * 41, 1),)},
        {"costs": tuple((f"r{number}", 1) for number in range(MAX_COSTS + 1))},
        {"operators": ()},
        {"operators": (b"k" * 31,)},
        {"operators": ((1).to_bytes(32, "little"),)},
        {"operators": (ALICE.public_key,) * 17},
    ],
    ids=repr,
)
def test_a_manifest_out_of_range_is_refused_also_when_it_is_read(manifest: Manifest, change: dict[str, Any]) -> None:
    refused(manifest, change)


def test_a_manifest_with_an_exchange_out_of_range_is_refused_when_it_is_read(manifest: Manifest) -> None:
    for name, value in {"max_rows": 257, "local_steps": 1_025, "first_min_exponent": GREATEST_MIN_EXPONENT + 1, "codec": "topk"}.items():
        values = {field.name: getattr(EXCHANGE, field.name) for field in fields(Exchange)} | {name: value}
        whole = {field.name: to_value(getattr(manifest, field.name)) for field in fields(manifest)} | {"exchange": tuple(values.values())}
        with pytest.raises(EncodingError, match=r"exchange"):
            unpack(Manifest, encode(tuple(whole.values())), max_bytes=MAX_MANIFEST_BYTES)


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
        {"outer_rate": "0"},
        {"outer_rate": "0.000"},
        {"outer_rate": "x"},
        {"outer_momentum": "1"},
        {"outer_momentum": "-0.5"},
        {"warmup_percent": -1},
        {"warmup_percent": 101},
    ],
    ids=repr,
)
def test_an_optimizer_out_of_range_is_refused(manifest: Manifest, change: dict[str, Any]) -> None:
    refused(manifest.optimizer, change)


SHORT, LONG = b"d" * 31, b"d" * 33
TWO_STEPS = (ClaimStep(0, 1, (), RUN), ClaimStep(2, 2, (), RUN))
OUT_OF_RANGE: list[tuple[Any, dict[str, Any]]] = [
    *((CLAIM, {field: wrong}) for field in ("run", "base", "key", "founder") for wrong in (b"", SHORT, LONG)),
    (CLAIM, {"key": SHORT, "founder": SHORT}),
    (CLAIM, {"round": 0}),
    (CLAIM, {"round": MAX_ROUND + 1}),
    (CLAIM, {"cohort": "East"}),
    (CLAIM, {"steps": ()}),
    (CLAIM, {"steps": tuple(ClaimStep(n, n, (), RUN) for n in range(MAX_LOCAL_STEPS + 1)), "work": (MAX_LOCAL_STEPS + 1,)}),
    (CLAIM, {"steps": TWO_STEPS[::-1]}),
    (CLAIM, {"steps": (TWO_STEPS[0], ClaimStep(1, 2, (), RUN)), "work": (4,)}),  # index 1 in both
    (CLAIM, {"given": SHORT}),
    (CLAIM, {"given": LONG}),
    (CLAIM, {"given": b"", "residual": RUN}),  # a part of nothing
    (CLAIM, {"work": (2, 0, 2)}),  # its steps have three
    *((CLAIM.steps[0], {"vector": wrong}) for wrong in (b"", SHORT, LONG)),
    (CLAIM.steps[0], {"first": -1}),
    (CLAIM.steps[0], {"first": 4, "skipped": ()}),
    (CLAIM.steps[0], {"last": MAX_INDEX, "skipped": ()}),
    (CLAIM.steps[0], {"skipped": (0,)}),
    (CLAIM.steps[0], {"skipped": (3,)}),
    (CLAIM.steps[0], {"skipped": (2, 1)}),
    (CLAIM.steps[0], {"skipped": (1, 1)}),
    (CLAIM.steps[0], {"last": 999, "skipped": tuple(range(1, MAX_SKIPPED + 2))}),
    (CLAIM.steps[0], {"every": 0}),
    (CLAIM.steps[0], {"every": 2, "skipped": ()}),
    (CLAIM.steps[0], {"last": 4, "every": 2, "skipped": (1,)}),
    (CLAIM.steps[0], {"last": 66, "every": MAX_ARCHITECTURES + 1, "skipped": ()}),
    *((CONTRIBUTION.steps[0], {"mean": wrong}) for wrong in (b"", SHORT, LONG)),
    (CONTRIBUTION.steps[0], {"included": 0}),
    (CONTRIBUTION.steps[0], {"included": 2**MAX_COHORT}),
    (CONTRIBUTION, {"steps": ()}),
    (CONTRIBUTION, {"steps": CONTRIBUTION.steps * (MAX_LOCAL_STEPS + 1)}),
    (CONTRIBUTION, {"included": 0}),
    (CONTRIBUTION, {"included": 2}),
    (CLAIM, {"work": ()}),
    (CLAIM, {"work": (0,)}),
    (CLAIM, {"work": (0, 0)}),
    (CLAIM, {"work": (2, -1)}),
    (CLAIM, {"work": (MAX_MICROBATCHES + 1,)}),
    (CLAIM, {"work": (1,) * (MAX_ARCHITECTURES + 1)}),
    (CLAIM, {"residual": SHORT}),
    (CLAIM, {"residual": LONG}),
    (CLAIM, {"partner": SHORT}),
    (CLAIM, {"partner": CLAIM.key}),
    (CLAIM, {"microbatch_ms": 0}),
    (CLAIM, {"microbatch_ms": MAX_MICROBATCH_MS + 1}),
    *((CONTRIBUTION, {field: wrong}) for field in ("run", "base", "founder", "body") for wrong in (b"", SHORT, LONG)),
    (CONTRIBUTION, {"round": 0}),
    (CONTRIBUTION, {"round": MAX_ROUND + 1}),
    (CONTRIBUTION, {"claims": ()}),
    (CONTRIBUTION, {"claims": (SHORT,)}),
    (CONTRIBUTION, {"claims": (RUN, BASE, LONG)}),
    (CONTRIBUTION, {"claims": (RUN,) * (MAX_COHORT + 1)}),
    (CONTRIBUTION, {"residual": SHORT}),
    (CONTRIBUTION, {"residual": LONG}),
    *((INCLUSION_PROMISE, {field: wrong}) for field in ("run", "contribution") for wrong in (b"", SHORT, LONG)),
    (INCLUSION_PROMISE, {"round": 0}),
    (INCLUSION_PROMISE, {"round": MAX_ROUND + 1}),
    (THRESHOLD, {"role": -1}),
    (THRESHOLD, {"role": MAX_ROLES}),
    (THRESHOLD, {"norm": -1}),
    (THRESHOLD, {"norm": 2**62}),
    (THRESHOLD, {"samples": 0}),
    (THRESHOLD, {"samples": 2**48 + 1}),
    *((ROUND, {field: wrong}) for field in ("run", "base", "weights", "mean", "state") for wrong in (b"", SHORT, LONG)),
    (ROUND, {"round": 0}),
    (ROUND, {"round": MAX_ROUND + 1}),
    (ROUND, {"contributions": 0}),
    (ROUND, {"contributions": MAX_ROWS + 1}),
    (ROUND, {"first": -1}),
    (ROUND, {"first": MAX_SIZE}),
    (ROUND, {"thresholds": (THRESHOLD, THRESHOLD)}),
    (ROUND, {"thresholds": (THRESHOLD, replace(THRESHOLD, role=0))}),
    (ROUND, {"min_exponent": LEAST_MIN_EXPONENT - 1}),
    (ROUND, {"min_exponent": GREATEST_MIN_EXPONENT + 1}),
    (ROUND, {"open_ms": 0}),
    (ROUND, {"open_ms": MAX_OPEN_MS + 1}),
    *((VERDICT, {field: wrong}) for field in ("run", "auditor", "contribution", "by") for wrong in (b"", SHORT, LONG)),
    (VERDICT, {"auditor": (1).to_bytes(32, "little")}),
    (VERDICT, {"round": 0}),
    (VERDICT, {"round": MAX_ROUND + 1}),
    (VERDICT, {"outcomes": ()}),
    (VERDICT, {"outcomes": (0,) * (MAX_COHORT + 1)}),
    (VERDICT, {"outcomes": (4,)}),
    (VERDICT, {"outcomes": (-1,)}),
    *((VERDICT, {"outcomes": (outcome,)}) for outcome in (1, 2, 3)),  # by the work of another
    *((SETTLEMENT, {field: wrong}) for field in ("run", "commit") for wrong in (b"", SHORT, LONG)),
    (RULES, {"named": ()}),
    (RULES, {"named": RULES.named * 2}),
    (RULES, {"proven": (SHORT,)}),
    (RULES, {"proven_after": 0}),
    (RULES, {"audit_percent": 0}),
    (RULES, {"audit_percent": 101}),
    (RULES, {"newcomer_percent": 0}),
    (RULES, {"kept_rounds": 0}),
    (RULES, {"pending_rounds": RULES.kept_rounds + 2}),
    (RULES, {"pool_percent": 51}),
    (ANNOUNCEMENT, {"run": SHORT}),
    (ANNOUNCEMENT, {"cohort": ""}),
    (ANNOUNCEMENT, {"cohort": "east.size-1"}),
    (ANNOUNCEMENT, {"size": 0}),
    (ANNOUNCEMENT, {"size": 5}),
    (ANNOUNCEMENT, {"round": -1}),
    (ANNOUNCEMENT, {"round": MAX_ROUND + 1}),
    (ANNOUNCEMENT, {"sequence": -1}),
    (ANNOUNCEMENT, {"sequence": 2**62}),
    (POSITION, {"is_grouped": 2}),
    (POSITION, {"host": SHORT}),
    (POSITION, {"site": SHORT}),
    (POSITION, {"distances": ((b"t" * 8, NUM_STEPS),)}),
    (POSITION, {"distances": ((b"t" * 8, -1),)}),
    (POSITION, {"distances": ((b"t" * 7, 0),)}),
    (POSITION, {"distances": ((b"t" * 8, 0), (b"s" * 8, 0))}),
    (POSITION, {"distances": ((b"t" * 8, 0), (b"t" * 8, 1))}),
    (POSITION, {"distances": tuple((bytes([tag]) * 8, 0) for tag in range(MAX_DISTANCES + 1))}),
]


@pytest.mark.parametrize(("record", "change"), OUT_OF_RANGE, ids=lambda value: repr(value) if type(value) is dict else type_name(value))
def test_a_record_out_of_range_is_refused_also_when_it_is_read(record: Any, change: dict[str, Any]) -> None:
    refused(record, change)


def test_a_header_has_the_claims_of_a_cohort_at_most() -> None:
    assert len(Header(SIGNED_CONTRIBUTION, (SIGNED_CLAIM,) * MAX_COHORT).claims) == MAX_COHORT
    for count in (0, MAX_COHORT + 1):
        refused(Header(SIGNED_CONTRIBUTION, (SIGNED_CLAIM,)), {"claims": (SIGNED_CLAIM,) * count})


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "a" * 63])
def test_plain_names_are_taken(name: str) -> None:
    check_name(name, "a name")


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", ".a", "a" * 64, "é", "a\n", "a/b"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        check_name(name, "a name")


# Bytes that mean harm.


@pytest.mark.parametrize("record", RECORDS, ids=type_name)
def test_a_field_of_another_type_is_refused(record: Any) -> None:
    values = list(to_value(record))
    for place, value in enumerate(values):
        others = [other for other in (None, True, 1.0, 1, "1", b"1", (b"1",)) if type(other) is not type(value)]
        for wrong in (*others, [[[]]], 2**64, -(2**63) - 1):
            data = cbor2.dumps([*values[:place], wrong, *values[place + 1 :]])
            with pytest.raises(EncodingError):
                unpack(form_of(record), data, max_bytes=MAX_MANIFEST_BYTES)


@pytest.mark.parametrize("record", RECORDS, ids=type_name)
def test_a_field_less_or_more_is_refused(record: Any) -> None:
    values = to_value(record)
    assert isinstance(values, tuple)
    for wrong in (values[:-1], values[1:], (*values, 0), (*values, b""), (), (values,), 7, b"", "text"):
        with pytest.raises(EncodingError):
            unpack(form_of(record), encode(wrong), max_bytes=MAX_MANIFEST_BYTES)


HOSTILE = [
    b"",
    b"\x00",
    b"\xff",
    b"\x8b",  # an array of eleven that is not there
    b"\x9f" + b"\x00" * 11 + b"\xff",  # of no stated length
    b"\x9b" + b"\xff" * 8,  # of 2^64 - 1
    b"\x9a\x7f\xff\xff\xff",
    b"\x81" * 4000,  # very deep
    b"\x8b" + b"\x5b" + b"\xff" * 8,  # a string of 2^64 - 1 bytes
    b"\xd8\x1c\x81\xd8\x1d\x00",  # shared references
    b"\xc2\x5a\x00\x00\x00\x10" + b"\xff" * 16,  # a large number
    b"\xa1\x00\x00",  # a map
    b"\xfb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
]


@pytest.mark.parametrize("cls", sorted({form_of(record) for record in RECORDS}, key=str))
@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: data[:12].hex())
def test_bytes_of_hostile_shape_are_refused(cls: type, data: bytes) -> None:
    with pytest.raises(EncodingError):
        unpack(cls, data, max_bytes=MAX_MANIFEST_BYTES)
    with pytest.raises(EncodingError):
        open_entry(data)


@given(st.sampled_from(RECORDS), st.data())
def test_changed_bytes_are_refused_or_the_bytes_of_another_record(record: Any, data: st.DataObject) -> None:
    changed = bytearray(pack(record))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(changed) - 1))
        replacement = data.draw(st.binary(max_size=3))
        changed[place : place + data.draw(st.integers(0, 2))] = replacement
        if not changed:
            break
    try:
        found = unpack(form_of(record), bytes(changed), max_bytes=MAX_MANIFEST_BYTES)
    except EncodingError:
        return
    assert pack(found) == changed


@pytest.mark.parametrize(
    "data",
    [
        encode(("finding", b"")),
        encode(("verdict", b"")),
        encode(("settlement", pack(VERDICT))),
        encode(("", b"")),
        encode(("claim", pack(SIGNED_CLAIM))),
        encode(("contribution", b"")),
        encode(("contribution", pack(SIGNED_CONTRIBUTION))),
        encode(("round", pack(HEADER))),
        encode(("contribution", pack(ROUND))),
        encode(("contribution", pack(HEADER), b"")),
        entry_of(HEADER) + b"0",
        entry_of(ROUND)[:-1],
        entry_of(Header(SIGNED_CONTRIBUTION, (Signed(Claim, b"0" * MAX_ENTRY_BYTES, b""),))),
        encode(("round", b"0" * MAX_ENTRY_BYTES)),
    ],
)
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        open_entry(data)
