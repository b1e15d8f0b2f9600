"""A record as one word that people hand on: a prefix that says what it is, then letters, digits, dashes and underscores. Pure."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TypeVar

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError

Record = TypeVar("Record")


def text_of(record: object, prefix: str) -> str:
    """Return a record's word."""
    return prefix + urlsafe_b64encode(pack(record)).decode().rstrip("=")


def record_in(kind: type[Record], text: str, prefix: str, max_bytes: int) -> Record:
    """Return the record of ``text_of``'s word, of at most ``max_bytes`` bytes.

    Raises:
        EncodingError: it is none.
    """
    if not text.startswith(prefix) or len(text) > max_letters(prefix, max_bytes):
        raise EncodingError(f"it does not begin with {prefix}, or is too long")
    code = text.removeprefix(prefix)
    try:
        data = urlsafe_b64decode(code.encode("ascii") + b"=" * (-len(code) % 4))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise EncodingError("it is letters, digits, dashes and underscores, and a part of it is missing") from error
    record = unpack(kind, data, max_bytes=max_bytes)
    if text_of(record, prefix) != text:
        raise EncodingError("it is written in another way than there is")
    return record


def max_letters(prefix: str, max_bytes: int) -> int:
    """Return how many letters a word of a record of ``max_bytes`` bytes may have."""
    return len(prefix) + -(-max_bytes * 4 // 3)
