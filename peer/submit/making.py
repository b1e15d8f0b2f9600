"""What a peer hands in, as bytes: its own contribution, and its cohort's. Pure, and heavy: for the compute thread."""

import logging
from dataclasses import dataclass

import numpy as np

from manta_swarm.codec.coding import Body, body_groups, encode, parse
from manta_swarm.codec.residuals import covered, given, left_over, residual_digest, vector_digest
from manta_swarm.network.blobs import Blob
from manta_swarm.peer.cohort.cohort import Gathered
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.submit.residuals import Residual
from manta_swarm.peer.train.work import Learnt, Made, Vector, claim_of, made_of
from manta_swarm.protocol.records import Claim, Contribution, Header
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class Own:
    """A peer's own contribution, with what its cohort needs for the one of all."""

    made: Made
    claim: Signed[Claim]  # the one that it lists
    given: Vector  # (N,): what was learnt and the part of the residual, before coding


def own_contribution(context: RunContext, learnt: Learnt, founder: PublicKey, residual: Residual, lot_ms: int) -> Own | None:
    """Return this peer's own contribution of what was learnt, whose claim may stand in one of ``founder``'s too.

    None: its values are not finite.
    """
    whole = given(learnt.vector, residual.values, context.manifest.exchange.residual_percent, learnt.coverage)
    if not bool(np.isfinite(whole).all()):
        return None
    claim = claim_of(
        learnt,
        context.identity,
        context.run,
        payout=context.terms.payout,
        founder=founder,
        given=vector_digest(whole),
        residual=residual.digest,
        lot_ms=lot_ms,
        shards=context.terms.shards,
        partner=context.terms.partner(),
    )
    return Own(made_of([claim], whole, learnt, context.identity, context.run, context.manifest.exchange.codec), claim, whole)


def cohort_contribution(context: RunContext, gathered: Gathered, learnt: Learnt) -> Made:
    """Return the contribution of a cohort that this peer founded.

    Raises:
        ValueError: the mean holds values that are not finite.
    """
    codec = context.manifest.exchange.codec
    return made_of(gathered.claims, gathered.mean, learnt, context.identity, context.run, codec, gathered.dropped)


def cohort_body(context: RunContext, contribution: Contribution, mean: Vector, learnt: Learnt) -> tuple[Blob, Body, Vector] | None:
    """Return the body of a cohort's ``contribution``, coded again from its ``mean`` (N,), and what that leaves out (N,).

    None: its founder coded something else.
    """
    codec, floor = context.manifest.exchange.codec, learnt.base.floor
    data = encode(codec, covered(mean, learnt.coverage), floor)
    body = parse(codec, data, len(mean))
    blob, left = Blob.of(body_groups(codec, data, len(mean))), left_over(mean, body, floor)
    if blob.root == contribution.body and residual_digest(left) == contribution.residual:
        return blob, body, left
    logger.warning("the founder coded something else than it says round=%d", contribution.round)
    return None


def weight_of(context: RunContext, learnt: Learnt) -> int:
    """Return what the samples of what was learnt weigh in a cohort's mean."""
    return min(learnt.pile.samples, context.manifest.exchange.weight_cap)


def is_common(header: Header) -> bool:
    """Return whether others had a part in one of several local steps of a contribution that lists one claim."""
    means, own = header.contribution.unchecked().steps, header.claims[0].unchecked().steps
    return len(own) > 1 and any(step.mean != each.vector for step, each in zip(means, own, strict=True))


def named_by_claim(claim: Claim, learnt: Vector, residual: Vector | None) -> dict[bytes, Vector]:
    """Return the vectors (N,) that a claim names and whoever checks it may ask for, by their digests.

    These are the ``residual`` that was used, None: zeros; and with one local step what was ``learnt``. Of several steps the own vectors are
    known as they are taken.
    """
    used = {claim.residual: residual} if claim.residual and residual is not None else {}
    own = {claim.steps[0].vector: learnt} if len(claim.steps) == 1 else {}
    return {**own, **used}
