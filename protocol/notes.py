"""Signed tree heads: C2SP tlog-checkpoint (https://c2sp.org/tlog-checkpoint) in a C2SP signed note (https://c2sp.org/signed-note).

Only the log's own Ed25519 signatures are made and checked here; lines by other keys are passed over: a witness's are for
``protocol.cosignatures``, and whether enough operators signed for ``protocol.operators``.
"""

import base64
import hashlib
import re
from dataclasses import dataclass

from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.merkle import HASH_BYTES, MAX_SIZE
from manta_swarm.protocol.signing import Identity, verify_note

MAX_NOTE_BYTES = 131_072  # room for 16 post-quantum signatures, which C2SP wants accepted
MAX_SIGNATURES = 100  # of a note: what Go's x/mod takes too
ED25519 = b"\x01"  # C2SP's signature type
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


def _has_control(text: str) -> bool:
    return any(character < " " for character in text)


def _is_key_name(name: str) -> bool:
    return name != "" and "+" not in name and not _has_control(name) and not any(character.isspace() for character in name)


@dataclass(frozen=True, slots=True)
class TreeHead:
    """What a log says of itself at one moment."""

    origin: str  # which log
    size: int  # entries
    root: bytes

    def __post_init__(self) -> None:
        if not self.origin or _has_control(self.origin):
            raise ValueError("an origin is one line of text")
        if not 0 <= self.size <= MAX_SIZE:
            raise ValueError(f"{self.size} is no tree size")
        if len(self.root) != HASH_BYTES:
            raise ValueError(f"a root has {HASH_BYTES} bytes, not {len(self.root)}")


def origin(run: bytes) -> str:
    """Return the origin line of a run's log, and the name of each of its operators' keys: the key's id tells whose a line is."""
    return f"manta/{run.hex()}"


def sign_tree_head(head: TreeHead, name: str, identity: Identity) -> str:
    """Return ``head`` as a note signed by ``identity`` under the key name ``name`` (C2SP: it should be the origin).

    Raises:
        ValueError: the name may not stand in a note.
    """
    if not _is_key_name(name):
        raise ValueError(f"{name!r} is no key name: no spaces, no plus")
    text = head_text(head)
    return f"{text}\n{signature_line(name, key_id(name, identity.public_key) + identity.sign_note(text))}"


def head_text(head: TreeHead) -> str:
    """Return what is signed of a tree head: its lines, without extensions."""
    return f"{head.origin}\n{head.size}\n{_to_base64(head.root)}\n"


def signature_line(name: str, signature: bytes) -> str:
    """Return a note's line, with its end, of a signature (the key's id, then its bytes) under a key's name."""
    return f"— {name} {_to_base64(signature)}\n"


def open_tree_head(note: str, name: str, public_key: bytes) -> TreeHead:
    """Return the tree head in ``note``, signed by ``public_key`` under ``name``. Its origin is for the caller to compare.

    Raises:
        EncodingError: no note, or not of a tree head.
        SignatureError: no signature by that key and name, or one that does not hold.
    """
    text, signatures = split_note(note)
    wanted = key_id(name, public_key)
    known = [signature[4:] for signer, signature in signatures if signer == name and signature[:4] == wanted]
    if not known:
        raise SignatureError(f"the tree head has no signature of {name}")
    for signature in known:
        verify_note(public_key, text, signature)
    return parse_tree_head(text)


def key_id(name: str, public_key: bytes, kind: bytes = ED25519) -> bytes:
    """Return the four bytes that point to a key of a signature type in a signature line."""
    return hashlib.sha256(name.encode() + b"\n" + kind + public_key).digest()[:4]


def verifier_key(name: str, public_key: bytes, kind: bytes = ED25519) -> str:
    """Return a key as C2SP's tools are given it, on one line: its name, its id and the key."""
    return f"{name}+{key_id(name, public_key, kind).hex()}+{_to_base64(kind + public_key)}"


def own_note(note: str, name: str) -> str:
    """Return a note with the signature lines under ``name`` alone.

    Raises:
        EncodingError: it is no note.
        SignatureError: it has no such line.
    """
    text, signatures = split_note(note)
    own = "".join(signature_line(signer, signature) for signer, signature in signatures if signer == name)
    if not own:
        raise SignatureError(f"the note has no signature of {name}")
    return f"{text}\n{own}"


def split_note(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Return a note's text, with its last newline, and its signatures as (key name, key id and signature).

    Raises:
        EncodingError: it is no note, or one too large, or with more than ``MAX_SIGNATURES``.
    """
    try:
        size_bytes = len(note.encode())
    except UnicodeEncodeError as error:
        raise EncodingError("a note is not UTF-8") from error
    if size_bytes > MAX_NOTE_BYTES:
        raise EncodingError(f"a note of {size_bytes} bytes where at most {MAX_NOTE_BYTES} are allowed")
    if _has_control(note.replace("\n", "")):
        raise EncodingError("a note has control characters")
    text, blank, tail = note.rpartition("\n\n")
    if not blank or not text or not tail.endswith("\n"):
        raise EncodingError("a note is a text, a blank line and signature lines")
    if tail.count("\n") > MAX_SIGNATURES:
        raise EncodingError(f"a note has at most {MAX_SIGNATURES} signatures")
    return f"{text}\n", [_parse_signature(line) for line in tail[:-1].split("\n")]


def _parse_signature(line: str) -> tuple[str, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    if dash != "—" or not _is_key_name(name):
        raise EncodingError("a signature line of a note is malformed")
    signature = _from_base64(encoded)
    if len(signature) < 5:
        raise EncodingError("a signature of a note is too short")
    return name, signature


def parse_tree_head(text: str) -> TreeHead:
    """Return the tree head that a note's text is, whoever signed it.

    Raises:
        EncodingError: it is none.
    """
    origin_, size, root, *extensions = (*text.removesuffix("\n").split("\n"), "", "")  # padded: a missing line is an empty one
    if not _SIZE.fullmatch(size) or "" in extensions[:-2]:
        raise EncodingError("a note is no tree head")
    try:
        return TreeHead(origin_, int(size), _from_base64(root))
    except ValueError as error:
        raise EncodingError(f"a note is no tree head: {error}") from error


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise EncodingError("malformed base64 in a note") from error
    if _to_base64(data) != text:
        raise EncodingError("base64 in a note is not canonical")
    return data
