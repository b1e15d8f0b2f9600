"""Cosignatures against an independent computation of C2SP's form, and lines that are none."""

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.cosignatures import (
    COSIGNATURE,
    Cosignature,
    cosign,
    cosignatures_of,
    with_cosignatures,
    witness_key,
    witness_name,
)
from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.merkle import root
from manta_swarm.protocol.notes import MAX_SIGNATURES, TreeHead, head_text, key_id, open_tree_head, origin, sign_tree_head, signature_line
from manta_swarm.protocol.signing import Identity

OPERATOR, WITNESS, OTHER = Identity(b"o" * 32), Identity(b"w" * 32), Identity(b"x" * 32)
LOG = origin(b"\xab" * 32)
HEAD = TreeHead(LOG, 3, root([b"l" * 32] * 3))
NOTE = sign_tree_head(HEAD, LOG, OPERATOR)
TIME_S = 1_700_000_000
NAME = witness_name(WITNESS.public_key)


def cosigned(witness: Identity = WITNESS, time_s: int = TIME_S, head: TreeHead = HEAD) -> Cosignature:
    return cosign(head_text(head), time_s, witness)


def test_a_line_has_the_form_of_the_specification() -> None:
    """The bytes as C2SP's tlog-cosignature says them, put together here from its text."""
    dash, name, encoded = cosigned().line.removesuffix("\n").split(" ")
    data = base64.b64decode(encoded)
    assert (dash, name) == ("—", f"manta/witness/{WITNESS.public_key.hex()}")
    assert data[:4] == hashlib.sha256(name.encode() + b"\n\x04" + WITNESS.public_key).digest()[:4]
    assert int.from_bytes(data[4:12], "big") == TIME_S
    text = NOTE.partition("\n\n")[0] + "\n"
    Ed25519PublicKey.from_public_bytes(WITNESS.public_key).verify(data[12:], f"cosignature/v1\ntime {TIME_S}\n{text}".encode())
    assert witness_key(WITNESS.public_key) == f"{name}+{data[:4].hex()}+{base64.b64encode(COSIGNATURE + WITNESS.public_key).decode()}"


@given(st.integers(0, 2**40 - 1), st.integers(0, 2**62), st.binary(min_size=32, max_size=32))
def test_every_cosignature_comes_back(time_s: int, size: int, root_: bytes) -> None:
    head = TreeHead(LOG, size, root_)
    note = with_cosignatures(sign_tree_head(head, LOG, OPERATOR), [cosigned(time_s=time_s, head=head)])
    assert cosignatures_of(note) == [cosigned(time_s=time_s, head=head)]
    assert open_tree_head(note, LOG, OPERATOR.public_key) == head


def test_of_many_witnesses_each_counts_once_and_strangers_lines_are_passed_over() -> None:
    stranger = sign_tree_head(HEAD, "witness.example", OTHER).rpartition("\n\n")[2]
    note = with_cosignatures(NOTE + stranger, [cosigned(), cosigned(OTHER), cosigned(time_s=TIME_S + 1)])
    assert cosignatures_of(note) == [cosigned(time_s=TIME_S + 1), cosigned(OTHER)]
    assert cosignatures_of(NOTE) == []


def wrong_lines() -> list[str]:
    own = key_id(NAME, WITNESS.public_key, COSIGNATURE)
    time, signature = TIME_S.to_bytes(8, "big"), cosigned().signature
    low_order = bytes(32)
    return [
        signature_line(NAME, own + (TIME_S + 1).to_bytes(8, "big") + signature),  # another time
        signature_line(NAME, own + time + signature[::-1]),
        signature_line(NAME, own + time + signature[:-1]),
        signature_line(NAME, own + time + signature + b"\0"),
        signature_line(NAME, own + b"\xff" * 8 + signature),
        signature_line(NAME, key_id(NAME, WITNESS.public_key) + time + signature),  # of type 0x01
        signature_line(witness_name(OTHER.public_key), own + time + signature),
        signature_line(witness_name(low_order), key_id(witness_name(low_order), low_order, COSIGNATURE) + time + bytes([1]) + bytes(63)),
        cosigned(head=TreeHead(LOG, 4, HEAD.root)).line,
    ]


@pytest.mark.parametrize("line", wrong_lines())
def test_a_line_of_a_witness_that_does_not_hold_is_refused(line: str) -> None:
    with pytest.raises((SignatureError, EncodingError)):
        cosignatures_of(NOTE + line)


def test_a_tree_heads_signature_is_no_cosignature_and_the_other_way_round() -> None:
    with pytest.raises(SignatureError):
        cosignatures_of(sign_tree_head(HEAD, NAME, WITNESS))
    text = head_text(HEAD)
    own = signature_line(LOG, key_id(LOG, OPERATOR.public_key) + cosigned(OPERATOR).signature)
    with pytest.raises(SignatureError):
        open_tree_head(f"{text}\n{own}", LOG, OPERATOR.public_key)


def test_a_note_has_a_bounded_number_of_lines() -> None:
    line = cosigned().line
    assert len(cosignatures_of(NOTE + line * (MAX_SIGNATURES - 1))) == 1
    with pytest.raises(EncodingError, match="at most 100"):
        cosignatures_of(NOTE + line * MAX_SIGNATURES)
    with pytest.raises(EncodingError, match="at most 100"):
        open_tree_head(NOTE + line * MAX_SIGNATURES, LOG, OPERATOR.public_key)
