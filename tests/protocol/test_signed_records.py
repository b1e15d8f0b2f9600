"""What the signatures of records cover, how long records are, and that whatever opens the log can keep."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, SignatureError
from manta_swarm.protocol.manifest import MAX_COSTS, MAX_OPERATORS, Manifest, SignedManifest
from manta_swarm.protocol.records import (
    MAX_CLAIM_BYTES,
    MAX_ENTRY_BYTES,
    MAX_HEADER_BYTES,
    Claim,
    ClaimStep,
    Contribution,
    Header,
    commit_digest,
    entry_of,
    open_entry,
)
from manta_swarm.protocol.signed import Signed, is_signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.versions import PROTOCOL
from tests.protocol.record_samples import (
    ALICE,
    BASE,
    BOB,
    CLAIM,
    CONTRIBUTION,
    HEADER,
    INCLUSION_PROMISE,
    LARGEST_CLAIM,
    LARGEST_HEADER,
    LARGEST_ROUND,
    ROUND,
    SIGNED_CLAIM,
    SIGNED_CONTRIBUTION,
)
from tests.protocol.test_measures import MEASURE
from tests.runs import manifest_of

# Signatures.


def test_a_run_has_the_digest_of_its_manifest_which_has_a_table_of_costs(manifest: Manifest, signed_manifest: SignedManifest) -> None:
    assert signed_manifest.run == sha256(pack(manifest))
    assert manifest.cost_table() == dict(manifest.costs)


def test_a_second_operator_s_signature_does_not_start_a_run(operator: Identity) -> None:
    two = manifest_of(operator, operators=(operator.public_key, ALICE.public_key), quorum=2)
    with pytest.raises(SignatureError):
        SignedManifest.sign(two, ALICE).open()


@pytest.mark.parametrize(("operators", "quorum"), [(1, 0), (1, 2), (2, 1), (3, 1), (4, 2), (4, 5), (7, 3), (8, 5), (0, 0)])
def test_a_quorum_is_more_than_half_of_at_most_seven_operators(operators: int, quorum: int) -> None:
    keys = tuple(Identity(bytes([seed]) * 32).public_key for seed in range(operators))
    with pytest.raises(ValueError, match="operators"):
        manifest_of(ALICE, operators=keys, quorum=quorum)


def test_no_operator_counts_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        manifest_of(ALICE, operators=(ALICE.public_key, ALICE.public_key), quorum=2)


PRIVATE = Ed25519PrivateKey.from_private_bytes(b"a" * 32)  # Alice's
Sign, Open = Callable[[Any, Identity], Any], Callable[[Any], Any]
SIGNED: list[tuple[str, Any, Sign, Open, dict[str, Any]]] = [  # kind, record, how it is signed and opened, another one
    ("claim", CLAIM, Signed.sign, Signed.open, {"work": (2, 1, 0)}),
    ("contribution", CONTRIBUTION, Signed.sign, Signed.open, {"body": sha256(b"another")}),
    ("inclusion-promise", INCLUSION_PROMISE, Signed.sign, lambda signed: signed.open_by([ALICE.public_key]), {"round": 5}),
    ("measure", MEASURE, Signed.sign, Signed.open, {"largest": 91}),
    ("manifest", manifest_of(ALICE), SignedManifest.sign, SignedManifest.open, {"seed": 8}),
]


@pytest.mark.parametrize(("kind", "record", "sign", "opened", "change"), SIGNED, ids=[kind for kind, *_ in SIGNED])
def test_a_record_opens_only_under_its_own_signer_s_signature(
    kind: str, record: Any, sign: Sign, opened: Open, change: dict[str, Any]
) -> None:
    signed = sign(record, ALICE)
    assert opened(signed) == record
    wrong: list[tuple[Any, type[RemoteFault]]] = [
        (sign(record, BOB), SignatureError),
        (replace(signed, payload=pack(replace(record, **change))), SignatureError),
        (replace(signed, signature=ALICE.sign("another", signed.payload)), SignatureError),
        (replace(signed, signature=PRIVATE.sign(f"manta/{kind}/v{PROTOCOL + 1}\n".encode() + signed.payload)), SignatureError),
        (replace(signed, signature=signed.signature[:-1]), SignatureError),
        (replace(signed, signature=signed.signature + b"0"), SignatureError),
        (replace(signed, signature=b""), SignatureError),
        (replace(signed, payload=signed.payload + b"0"), EncodingError),
        (replace(signed, payload=b""), EncodingError),
    ]
    for one, error in wrong:
        with pytest.raises(error):
            opened(one)
    Ed25519PublicKey.from_public_bytes(ALICE.public_key).verify(signed.signature, f"manta/{kind}/v{PROTOCOL}\n".encode() + signed.payload)


def test_a_claim_is_no_contribution_though_both_are_a_payload_and_a_signature() -> None:
    with pytest.raises(EncodingError):
        replace(SIGNED_CLAIM, of=Contribution).open()
    with pytest.raises(EncodingError):
        replace(SIGNED_CONTRIBUTION, of=Claim).open()


def test_records_with_their_signatures_are_told_apart() -> None:
    assert is_signed(SIGNED_CLAIM, Claim)
    assert not is_signed(SIGNED_CLAIM, Contribution)
    assert not is_signed(CLAIM, Claim)


def test_a_digest_covers_the_signature() -> None:
    """Ed25519 lets a signer make any number of signatures of one payload: each is another record."""
    for signed in (SIGNED_CLAIM, SIGNED_CONTRIBUTION):
        assert signed.digest == sha256(pack(signed))
        assert replace(signed, signature=bytes(64)).digest != signed.digest


def test_a_claim_of_a_key_of_low_order_opens_for_nobody() -> None:
    key = (1).to_bytes(32, "little")
    forged = Signed(Claim, pack(replace(CLAIM, key=key, founder=key)), key + bytes(32))
    with pytest.raises(SignatureError, match="low order"):
        forged.open()


# Sizes.


def test_a_claim_is_short() -> None:
    assert len(pack(SIGNED_CLAIM)) < 440
    step = ClaimStep(0, 399, (), BASE)
    four = replace(LARGEST_CLAIM, steps=(step,), work=(100,) * 4)  # 700 would make 1 GB a day of 1,000 peers and a round a minute
    assert len(pack(Signed.sign(four, ALICE))) < 540
    largest = Signed.sign(LARGEST_CLAIM, ALICE)
    assert len(pack(largest)) < 900
    assert largest.open() == LARGEST_CLAIM


def test_a_contribution_is_short_and_one_of_a_full_cohort_fits() -> None:
    assert len(entry_of(HEADER)) < len(pack(SIGNED_CLAIM)) + 320
    full = entry_of(LARGEST_HEADER)
    assert len(full) <= MAX_ENTRY_BYTES
    assert open_entry(full) == LARGEST_HEADER


def test_a_round_s_entry_is_short() -> None:
    assert len(entry_of(ROUND)) < 330
    assert len(entry_of(LARGEST_ROUND)) < 430
    assert open_entry(entry_of(LARGEST_ROUND)) == LARGEST_ROUND
    assert commit_digest(entry_of(ROUND)) == sha256(entry_of(ROUND))


def test_a_longer_payload_than_there_may_be_is_refused() -> None:
    for cls in (Claim, Contribution):
        with pytest.raises(EncodingError, match="at most"):
            Signed(cls, bytes(MAX_CLAIM_BYTES + 1), bytes(64)).open()


def test_every_header_that_may_be_handed_in_has_an_entry_that_the_log_may_keep() -> None:
    rest = MAX_HEADER_BYTES - len(pack(Header(SIGNED_CONTRIBUTION, (Signed(Claim, bytes(60_000), bytes(64)),)))) + 60_000
    header = Header(SIGNED_CONTRIBUTION, (Signed(Claim, bytes(rest), bytes(64)),))
    assert len(pack(header)) == MAX_HEADER_BYTES
    assert len(entry_of(header)) <= MAX_ENTRY_BYTES
    assert open_entry(entry_of(header)) == header


def test_a_manifest_with_as_many_prices_as_there_may_be_opens(manifest: Manifest, operator: Identity) -> None:
    costs = tuple((f"{number:040}", 2**62 - 1) for number in range(MAX_COSTS))
    operators = (operator.public_key, *(Identity(bytes([seed]) * 32).public_key for seed in range(MAX_OPERATORS - 1)))
    full = replace(manifest, costs=costs, operators=operators, quorum=MAX_OPERATORS)
    assert SignedManifest.sign(full, operator).open() == full
