"""What fields of records have in common: ranges, digests, names."""

import re

from manta_swarm.protocol.errors import SignatureError
from manta_swarm.protocol.signing import check_public_key

MAX_ROUND = 2**40
DIGEST_BYTES = 32

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def require(condition: bool, what: str) -> None:
    """Refuse a record of which ``condition`` does not hold.

    Raises:
        ValueError: it does not; ``what`` says what would.
    """
    if not condition:
        raise ValueError(what)


def check_digest(value: bytes, what: str) -> None:
    """Refuse what has not the length of a digest.

    Raises:
        ValueError: the digest is refused.
    """
    if len(value) != DIGEST_BYTES:
        raise ValueError(f"{what} has {len(value)} bytes, not {DIGEST_BYTES}")


def check_key(value: bytes, what: str) -> None:
    """Refuse what cannot be a public key.

    Raises:
        ValueError: the key is refused.
    """
    try:
        check_public_key(value)
    except SignatureError as error:
        raise ValueError(f"{what}: {error}") from error


def check_name(value: str, what: str) -> None:
    """Refuse what is not a plain lower-case name of 1-63 letters, digits, dots, dashes and underscores.

    Raises:
        ValueError: the name is refused.
    """
    if _NAME.fullmatch(value) is None:
        raise ValueError(f"{what} must be a plain lower-case name, not {value!r}")
