"""What is handed in to ``protocol.closing``, and when, for its tests: by peers alone, and by cohorts."""

from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.signing import sha256

A, B, C, D, E, F = KEYS = sorted(sha256(b"key %d" % i) for i in range(6))
OPEN_MS, START = 1_000, 50_000
DEADLINE = START + OPEN_MS
GRACE = 250


def work(founder: bytes, number: int = 1) -> bytes:
    """A contribution of a founder, told apart from its others by a number."""
    return sha256(founder + bytes([number]))


def opened(*expected: bytes, round: int = 7, open_ms: int = OPEN_MS, max_rows: int = 8, shares_keys: bool = False) -> Closing:
    """A round that opens at START, after a table of ``expected``."""
    closing = Closing(max_rows, shares_keys=shares_keys)
    closing.open(round, open_ms, frozenset(expected), START)
    return closing


def claims(*keys: bytes, base: int = 7, number: int = 0) -> dict[bytes, bytes]:
    """Each key's claim on a base; who trained twice on it has another one, told apart by a number."""
    return {key: sha256(key + bytes([base, number])) for key in keys}


def header(closing: Closing, founder: bytes, contribution: bytes, now: int, base: int = 7) -> int:
    """The header of a peer alone."""
    return closing.header(founder, claims(founder, base=base), base, contribution, now)


def restore(closing: Closing, founder: bytes, contribution: bytes, round: int, now: int) -> None:
    """What a peer alone handed in before a crash."""
    closing.restore(founder, claims(founder), 7, contribution, round, now)


def hand_in(closing: Closing, founder: bytes, now: int = START, number: int = 1) -> int:
    """Header and body at once, and the body is good."""
    header(closing, founder, work(founder, number), now)
    round_ = closing.arrived(work(founder, number), now)
    closing.good(work(founder, number))
    return round_


def table(*founders: bytes) -> tuple[bytes, ...]:
    return tuple(work(founder) for founder in sorted(founders))


def cohort(closing: Closing, founder: bytes, *members: bytes, now: int = START, base: int = 7, number: int = 9) -> bytes:
    """The header of a founder with members; return the contribution."""
    contribution = work(founder, number)
    closing.header(founder, claims(founder, *members, base=base), base, contribution, now)
    return contribution


def bring(closing: Closing, contribution: bytes, now: int = START) -> bytes:
    """The body, which is good."""
    closing.arrived(contribution, now)
    closing.good(contribution)
    return contribution
