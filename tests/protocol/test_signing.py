"""Signatures against RFC 8032's vectors; keys of low order against the curve itself."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.signing import Identity, check_public_key, peer_id, public_key_of, verify, verify_note

# RFC 8032 section 7.1, test 1.
RFC_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_KEY = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)

# The curve of RFC 8032 section 5.1: -x^2 + y^2 = 1 + d x^2 y^2 over the integers modulo P.
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
SQRT_MINUS_1 = pow(2, (P - 1) // 4, P)
L = 2**252 + 27742317777372353535851937790883648493  # the order of the large subgroup; the curve has 8 L points
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + product, -1, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, P) % P
    return x, y


def multiply(factor: int, point: Point) -> Point:
    total = NEUTRAL
    while factor:
        total = add(total, point) if factor & 1 else total
        point, factor = add(point, point), factor >> 1
    return total


def point_at(y: int) -> Point | None:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    for candidate in (x, x * SQRT_MINUS_1 % P):
        if candidate * candidate % P == square:
            return candidate, y
    return None


def low_order_points() -> set[Point]:
    """All eight: L times any point lies in the subgroup of order 8, and one of order 8 makes them all."""
    for y in range(2, 100):
        point = point_at(y)
        if point is None:
            continue
        torsion = multiply(L, point)
        group = {multiply(factor, torsion) for factor in range(8)}
        if len(group) == 8:
            return group
    raise AssertionError("no point of order 8 found")


def encodings(point: Point) -> list[bytes]:
    """Every 32 bytes that a lenient reader takes for this point: both signs of x, and y + P where it still fits."""
    return [(y | sign << 255).to_bytes(32, "little") for y in (point[1], point[1] + P) if y < 2**255 for sign in (0, 1)]


LOW_ORDER = low_order_points()


def test_there_are_eight_points_of_low_order() -> None:
    assert len(LOW_ORDER) == 8
    assert all(multiply(8, point) == NEUTRAL for point in LOW_ORDER)


@pytest.mark.parametrize("key", sorted({key for point in LOW_ORDER for key in encodings(point)}), ids=bytes.hex)
def test_every_encoding_of_every_low_order_key_is_refused(key: bytes) -> None:
    with pytest.raises(SignatureError):
        check_public_key(key)
    forged = key + bytes(32)  # R = A, S = 0: what holds for a key of order 1 whatever the message
    with pytest.raises(SignatureError):
        verify("claim", key, b"any", forged)
    with pytest.raises(SignatureError):
        verify_note(key, "any\n", forged)
    with pytest.raises(SignatureError):
        public_key_of(peer_id(key))


def test_the_library_alone_would_take_a_signature_of_the_identity_key_for_anything() -> None:
    key = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(key).verify(key + bytes(32), b"one message")
    Ed25519PublicKey.from_public_bytes(key).verify(key + bytes(32), b"another")


@pytest.mark.parametrize("key", [b"", b"k" * 31, b"k" * 33, P.to_bytes(32, "little"), (P + 3).to_bytes(32, "little"), b"\xff" * 32])
def test_malformed_keys_are_refused(key: bytes) -> None:
    with pytest.raises(SignatureError):
        verify("claim", key, b"payload", bytes(64))


def test_a_y_that_is_on_no_point_of_the_curve_verifies_nothing() -> None:
    y = next(y for y in range(2, 100) if point_at(y) is None)
    with pytest.raises(SignatureError):
        verify("claim", y.to_bytes(32, "little"), b"payload", bytes(64))


def test_keys_and_signatures_are_those_of_rfc_8032() -> None:
    identity = Identity(RFC_SEED)
    assert identity.public_key == RFC_KEY
    verify("claim", RFC_KEY, b"payload", identity.sign("claim", b"payload"))
    signed = b"manta/claim/v14\npayload"
    Ed25519PublicKey.from_public_bytes(RFC_KEY).verify(identity.sign("claim", b"payload"), signed)
    Ed25519PublicKey.from_public_bytes(RFC_KEY).verify(identity.sign_note("text\n"), b"text\n")


@given(st.binary(max_size=100), st.data())
def test_a_signature_holds_for_its_key_kind_and_payload_only(payload: bytes, data: st.DataObject) -> None:
    signature = ALICE.sign("claim", payload)
    verify("claim", ALICE.public_key, payload, signature)
    bit = data.draw(st.integers(0, 511))
    flipped = (int.from_bytes(signature, "big") ^ 1 << bit).to_bytes(64, "big")
    for key, kind, said, signed in (
        (BOB.public_key, "claim", payload, signature),
        (ALICE.public_key, "contribution", payload, signature),
        (ALICE.public_key, "claim", payload + b"0", signature),
        (ALICE.public_key, "claim", payload, flipped),
        (ALICE.public_key, "claim", payload, signature[:63]),
        (ALICE.public_key, "claim", payload, signature + b"0"),
        (ALICE.public_key, "claim", payload, b""),
    ):
        with pytest.raises(SignatureError):
            verify(kind, key, said, signed)


def test_a_second_signature_cannot_be_made_from_the_first_without_the_key() -> None:
    signature = ALICE.sign("claim", b"payload")
    scalar = int.from_bytes(signature[32:], "little") + L
    with pytest.raises(SignatureError):
        verify("claim", ALICE.public_key, b"payload", signature[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.parametrize(
    "text",
    [
        "manta/claim/v1\n",
        "manta/claim/v5\n",
        "manta/inclusion_promise/v1\nanything\n",
        "manta/a kind to come/v1\n",
        "manta/claim/v10\n",
        "manta//v3\n",
    ],
)
def test_no_note_is_signed_that_would_pass_for_a_record(text: str) -> None:
    with pytest.raises(ValueError, match="record"):
        ALICE.sign_note(text)


def test_a_note_and_a_record_never_pass_for_each_other() -> None:
    signature = ALICE.sign_note("manta/claim/v5/log\n0\n")
    verify_note(ALICE.public_key, "manta/claim/v5/log\n0\n", signature)
    with pytest.raises(SignatureError):
        verify("claim", ALICE.public_key, b"/log\n0\n", signature)
    with pytest.raises(SignatureError):
        verify_note(ALICE.public_key, "manta/claim/v5\npayload", ALICE.sign("contribution", b"payload"))


def test_a_peer_id_is_the_key_in_libp2p_s_form() -> None:
    # https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md: identity multihash (00 24) of the protobuf (08 01 12 20 key)
    assert peer_id(RFC_KEY).hex() == "002408011220" + RFC_KEY.hex()
    assert public_key_of(peer_id(RFC_KEY)) == RFC_KEY


@pytest.mark.parametrize(
    "wrong", [b"", peer_id(RFC_KEY)[:-1], peer_id(RFC_KEY) + b"0", b"\x12\x20" + bytes(32), b"\x01" + peer_id(RFC_KEY)[1:]]
)
def test_a_peer_id_of_another_kind_is_refused(wrong: bytes) -> None:
    with pytest.raises(SignatureError):
        public_key_of(wrong)


def test_a_private_key_comes_back_from_libp2p_s_form() -> None:
    # The protobuf of libp2p's crypto.proto: type Ed25519, 64 bytes of seed and public key.
    data = ALICE.to_libp2p()
    assert data == bytes.fromhex("08011240") + b"a" * 32 + ALICE.public_key
    assert Identity.from_libp2p(data).public_key == ALICE.public_key
    for wrong in (b"", data[:-1], data + b"0", b"\x08\x00" + data[2:], data[:36] + BOB.public_key):
        with pytest.raises(EncodingError):
            Identity.from_libp2p(wrong)
