"""Cosignatures of tree heads: C2SP tlog-cosignature (https://c2sp.org/tlog-cosignature), Ed25519 with a time, of signature type 0x04.

A witness says with one that it has signed no other tree of that size for this log, nor one that this does not go on from. Its name in
a note has its key, so a line is checked with nothing but the note; whose key that is, and what it is worth, is for the reader to know.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.notes import key_id, signature_line, split_note, verifier_key
from manta_swarm.protocol.signing import Identity, PublicKey, verify_note

COSIGNATURE = b"\x04"  # C2SP's signature type
MAX_COSIGNATURES = 32  # that a log hands out with a head
_NAME = re.compile(r"manta/witness/([0-9a-f]{64})")
_TIME_BYTES, _SIGNATURE_BYTES = 8, 64
_MAX_TIME_S = 2**40  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness's word on a tree head."""

    key: PublicKey
    time_s: int  # since 1970, by the witness's clock
    signature: bytes

    def __post_init__(self) -> None:
        if len(self.key) != 32 or len(self.signature) != _SIGNATURE_BYTES or not 0 <= self.time_s < _MAX_TIME_S:
            raise ValueError("no cosignature has such a key, signature or time")

    @property
    def line(self) -> str:
        """The cosignature as a signature line of a note, with its end."""
        name = witness_name(self.key)
        return signature_line(name, key_id(name, self.key, COSIGNATURE) + self.time_s.to_bytes(_TIME_BYTES, "big") + self.signature)

    def check(self, text: str) -> None:
        """Check that it is of a note with this text.

        Raises:
            SignatureError: it is not.
        """
        verify_note(self.key, _message(text, self.time_s), self.signature)


def witness_name(key: bytes) -> str:
    """Return the name of a witness's key in a note."""
    return f"manta/witness/{key.hex()}"


def witness_key(key: bytes) -> str:
    """Return a witness's key as C2SP's tools are given it."""
    return verifier_key(witness_name(key), key, COSIGNATURE)


def cosign(text: str, time_s: int, witness: Identity) -> Cosignature:
    """Return a witness's cosignature of a tree head's text. Only ``aggregator.features.witness.rule`` may: it keeps it first."""
    return Cosignature(witness.public_key, time_s, witness.sign_note(_message(text, time_s)))


def cosignatures_of(note: str) -> list[Cosignature]:
    """Return the cosignatures in a note that name their witness as here, each one's last; they hold. Other lines are passed over.

    Raises:
        EncodingError: it is no note, or such a line is malformed.
        SignatureError: one does not hold.
    """
    text, signatures = split_note(note)
    found: dict[bytes, Cosignature] = {}
    for name, data in signatures:
        if _NAME.fullmatch(name) is None:
            continue
        cosignature = cosignature_in(name, data)
        cosignature.check(text)
        found[cosignature.key] = cosignature
    return list(found.values())


def with_cosignatures(note: str, cosignatures: Iterable[Cosignature]) -> str:
    """Return a note with these lines too. That they are of its text is for the caller to know."""
    return note + "".join(each.line for each in cosignatures)


def cosignature_in(name: str, data: bytes) -> Cosignature:
    """Return the cosignature in a note's line, by its name and its bytes with the key's id; it is not checked yet.

    Raises:
        EncodingError: it is none, or malformed.
        SignatureError: its id is of another key than its name.
    """
    named = _NAME.fullmatch(name)
    if named is None:
        raise EncodingError("no name of a witness")
    key = PublicKey(bytes.fromhex(named[1]))
    if data[:4] != key_id(name, key, COSIGNATURE):
        raise SignatureError(f"a line of {name} is by another key, or no cosignature")
    if len(data) != 4 + _TIME_BYTES + _SIGNATURE_BYTES:
        raise EncodingError("a cosignature has a time and a signature, and nothing more")
    try:
        return Cosignature(key, int.from_bytes(data[4 : 4 + _TIME_BYTES], "big"), data[4 + _TIME_BYTES :])
    except ValueError as error:
        raise EncodingError(str(error)) from error


def _message(text: str, time_s: int) -> str:
    """Return what is signed: never the beginning of a record or of a tree head."""
    return f"cosignature/v1\ntime {time_s}\n{text}"
