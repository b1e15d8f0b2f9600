"""Which vectors of a claim an audit may ask for, and the question for a page of one.

A claim and the records of its steps name vectors by digest: the weights before each step, this peer's gradients, the cohort's means, what
was learnt, and the residual that was used. Who made the claim keeps those that ``vectors_asked`` names and hands them to whoever asks
(docs/protocol.md, section 27). They are float32, little-endian; nothing here knows what is in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.audits import Trust
from protocol.evidence import Records
from protocol.fields import check_digest, require
from protocol.records import Claim
from protocol.trust import drawn, is_whole, lots_audited

ASK = "vectors"  # a method of peers and of the log; its answer is the bytes of the page
PAGE_BYTES = 1 << 20
MAX_ASK_BYTES = 128
MAX_VECTOR_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class AskVector:
    """A question for a page of a vector: its bytes from ``first`` on, ``PAGE_BYTES`` or what is left."""

    claim: bytes  # SignedClaim.digest
    digest: bytes  # SHA-256 of the vector
    first: int  # place of the page's first byte, a multiple of ``PAGE_BYTES``

    def __post_init__(self) -> None:
        check_digest(self.claim, "claim")
        check_digest(self.digest, "digest")
        require(0 <= self.first < MAX_VECTOR_BYTES and self.first % PAGE_BYTES == 0, "a page begins at a multiple of its size")


def step_asked(beacon: bytes, claim: bytes, local_steps: int) -> int:
    """Return the one step of a claim of ``local_steps`` whose gradient is looked at, from 0; ``claim`` is its digest."""
    return drawn("audited step", beacon, claim, 0) % local_steps


def vectors_asked(trust: Trust, beacon: bytes, signed_digest: bytes, claim: Claim, records: Records) -> tuple[bytes, ...]:
    """Return the digests of all vectors that an audit may ask of a claim's key, none twice.

    It is the same whether the claim is audited or not: its key does not know whether it is proven by then.

    Args:
        trust: the manifest's.
        beacon: of the claim's table.
        signed_digest: of the SignedClaim.
        claim: what it says.
        records: its own, under its roots.
    """
    steps, asked = records.steps, list[bytes]()
    for place in lots_audited(trust, beacon, signed_digest, claim.lots):
        if 0 < (step := records.lots[place].step) < len(steps):
            asked.append(steps[step].state)
    if steps:
        whole, step = is_whole(trust, beacon, signed_digest), step_asked(beacon, signed_digest, len(claim.steps))
        asked += [each.mean for each in (steps if whole else steps[: step + 1])]
        asked += [each.vector for each in (steps if whole else steps[step : step + 1])]
    asked += [claim.vector, claim.residual]
    return tuple(dict.fromkeys(digest for digest in asked if digest))


def are_answered_for(claims: Sequence[Claim], *, is_sparse: bool) -> bool:
    """Return whether a founder could check all that the body of a contribution of these claims is made of.

    Alone it can. Of one step and a dense codec each member gives the vector that its claim names. Of several steps all have learnt the
    same; who adds the same residual gives the same.
    """
    if len(claims) == 1:
        return True
    if len(claims[0].steps) == 1:
        return not is_sparse
    return all(claim.residual == claims[0].residual for claim in claims)
