"""Which vectors have to be shown before a question about a claim can be answered: a pure function of the claims and of its records.

Whose records cannot be an honest peer's needs no vector to be found out, so none is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.audits import LOT, SUM, WHOLE
from protocol.evidence import Records
from protocol.fields import DIGEST_BYTES
from protocol.records import Claim, SignedClaim
from protocol.vectors import are_answered_for


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the contribution that lists the claim that it is about."""

    check: str  # one of ``protocol.audits.CHECKS``
    lot: int  # its place; of other checks 0
    step: int  # whose gradient is looked at, see ``protocol.vectors.step_asked``
    is_deep: bool  # projections did not fit: vectors decide, also where the records of lots otherwise do


def wanted(
    asked: Asked, signed: SignedClaim, claims: Sequence[tuple[SignedClaim, Claim]], founder: bytes, records: Records, *, is_sparse: bool
) -> tuple[tuple[SignedClaim, bytes], ...]:
    """Return what an answer needs: vectors by their digests, each with the claim that names it.

    Args:
        asked: the question.
        signed: the claim.
        claims: all of its contribution, in their order.
        founder: the contribution's.
        records: of the claim, under its roots.
        is_sparse: whether the run's codec is.
    """
    claim = next(opened for each, opened in claims if each == signed)
    needs = [(signed, digest) for digest in wanted_of_one(asked, claim, len(claims), records, is_sparse=is_sparse)]
    if asked.check == SUM and claim.key == founder and are_answered_for([each for _, each in claims], is_sparse=is_sparse):
        if len(claim.steps) > 1 or is_sparse:
            needs += [(signed, claim.vector), (signed, claim.residual)]
        elif asked.is_deep:
            needs += [(each, opened.vector) for each, opened in claims]
    return tuple(dict.fromkeys((each, digest) for each, digest in needs if digest))


def wanted_of_one(asked: Asked, claim: Claim, num_claims: int, records: Records, *, is_sparse: bool) -> tuple[bytes, ...]:
    """Return the digests of the vectors that an answer needs of the claim that it is about; ``num_claims`` are in its contribution."""
    if len(claim.steps) > 1:
        return tuple(dict.fromkeys(_of_steps(asked, claim, records)))
    return tuple(_of_one_step(asked, claim, num_claims, is_sparse=is_sparse))


def is_by_body(claim: Claim, num_claims: int, *, is_sparse: bool) -> bool:
    """Return whether it is the body that all lots of a claim are compared with: where that is, but for rounding, what they gave."""
    return len(claim.steps) == 1 and num_claims == 1 and not is_sparse


def _of_one_step(asked: Asked, claim: Claim, num_claims: int, *, is_sparse: bool) -> list[bytes]:
    if asked.check == LOT:
        return []
    if asked.check == WHOLE:
        return [] if is_by_body(claim, num_claims, is_sparse=is_sparse) else [claim.vector]
    return [claim.vector] if is_sparse or asked.is_deep else []


def _of_steps(asked: Asked, claim: Claim, records: Records) -> list[bytes]:
    steps = records.steps
    if len(steps) != len(claim.steps) or any({len(each.state), len(each.vector), len(each.mean)} != {DIGEST_BYTES} for each in steps):
        return []
    if asked.check == LOT:
        step = records.lots[asked.lot].step
        return [steps[step].state] if 0 < step < len(steps) else []
    if asked.check == WHOLE:
        return [digest for each in steps for digest in (each.mean, each.vector)]
    return [*(each.mean for each in steps[: asked.step + 1]), steps[asked.step].vector]
