"""What a peer hands in, as bytes, and what coding leaves out of it, which comes with a later contribution. For the compute thread.

A residual is what coding left out (error feedback), durable at the peer. It is used and left by digest (``protocol.records``): a claim
names the one of which a part was added to what was learnt, and once its contribution is in a table, what coding left out of the cohort's
vector takes its place. Until then, and if the contribution comes to nothing, the residual before stays. A peer that does not know which
residual holds uses none: zeros are always allowed, and only what was left out is lost. A peer that sat out so many rounds that an audit
would not find who left its residual uses none either (``protocol.listed``).
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manta_swarm.codec.coding import Body, body_groups, encode, parse
from manta_swarm.codec.residuals import covered, given, left_over, residual_digest, vector_digest
from manta_swarm.network.blobs import Blob
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.store import KeptResiduals
from manta_swarm.peer.submit.promises import KnownFates
from manta_swarm.peer.train.work import ClaimTerms, Learnt, Vector, claim_of
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.listed import is_added
from manta_swarm.protocol.records import Claim, Contribution, Header, StepMean
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey

_VALUE_BYTES = 4

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class Residual:
    """A residual by its digest."""

    digest: bytes  # empty: zeros
    values: Vector | None  # (N,); None: zeros

    @classmethod
    def of(cls, values: Vector | None) -> "Residual":
        """Return these values as a residual."""
        digest = b"" if values is None else residual_digest(values)
        return cls(digest, values if digest else None)


ZEROS = Residual(b"", None)


class Residuals:
    """Keeps the residual of one peer in one run, and what may take its place."""

    def __init__(self, context: RunContext) -> None:
        """Take up what the store has; in a run whose codec leaves nothing out there is never one.

        Raises:
            StorageError: the files are damaged.
        """
        self._store = context.store
        self._run = context.run
        self._training_spec = context.training_spec
        self._is_sparse, num_weights = codec_named(context.manifest.exchange.codec).is_sparse, context.num_weights
        kept = self._store.residuals(self._run).load(KeptResiduals) or KeptResiduals()
        self._round = kept.round  # whose table made it the one that holds
        self._held = self._loaded(kept.held, num_weights)
        self._saving, self._numbers, self._saved = threading.Lock(), itertools.count(1), 0
        self.left_by = b""  # the contribution that left the one that holds; empty: not known in this life
        self._left = {contribution: self._loaded(digest, num_weights) for contribution, digest in kept.left}  # of what is on its way

    def _loaded(self, digest: bytes, num_weights: int) -> Residual:
        data = self._store.residual(self._run, digest).read() if digest else None
        is_whole = data is not None and len(data) == _VALUE_BYTES * num_weights
        found = Residual.of(np.frombuffer(data, "<f4").astype(np.float32) if data is not None and is_whole else None)
        return found if found.digest == digest else ZEROS

    def held(self, newest: int) -> Residual:
        """Return what a contribution may use that is signed while ``newest`` is the newest commit known."""
        return self._held if is_added(self._round, newest, self._training_spec.sorts_after) else ZEROS

    async def signed(self, contribution: bytes, left: Vector | None) -> None:
        """Remember what a contribution leaves once it is listed; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        if not self._is_sparse:
            return
        self._left[contribution] = residual = Residual.of(left)
        if residual.digest or self._held.digest:
            await self._save(residual)

    async def take(self, known: KnownFates) -> None:
        """Take note of what became of contributions; durable when this returns.

        What the listed one leaves is the residual from now on, zeros if that is not known here. Those that come to nothing leave none.

        Raises:
            StorageError: the disk refuses.
        """
        for contribution in known.dropped:
            self._left.pop(contribution, None)
        if known.listed is None or not self._is_sparse:
            return
        before, (self.left_by, self._round) = self._held, known.listed
        self._held = self._left.get(self.left_by, ZEROS)
        self._left.clear()
        if before.digest or self._held.digest:
            await self._save()

    def is_on_its_way(self, contribution: bytes) -> bool:
        """Return whether a contribution may come to be listed, or be listed, as far as is known here, and leave another residual."""
        return contribution in self._left

    async def forget(self) -> None:
        """Use no residual from now on: nobody here knows which one holds.

        Raises:
            StorageError: the disk refuses.
        """
        if not self._is_sparse:
            return
        self._held = ZEROS
        self._left.clear()
        await self._save()

    async def _save(self, new: Residual = ZEROS) -> None:
        left = tuple((contribution, each.digest) for contribution, each in self._left.items())
        number, kept = next(self._numbers), KeptResiduals(self._held.digest, self._round, left)

        def save() -> None:  # it goes on where whoever waits for it is cancelled: the next one may come before it is over
            with self._saving:
                if new.values is not None:
                    self._store.residual(self._run, new.digest).write(np.ascontiguousarray(new.values, "<f4").tobytes())
                if number > self._saved:
                    self._store.save_residuals(self._run, kept)
                    self._saved = number

        await asyncio.to_thread(save)


@dataclass(frozen=True, slots=True)
class MadeContribution:
    """A signed contribution, its body, and what coding left out of it."""

    header: Header
    blob: Blob  # of the body, in its groups
    body: Body
    left: Vector | None  # (N,): the residual of each member once this is listed; None: zeros, as with codecs that are not sparse


@dataclass(frozen=True, slots=True)
class Own:
    """A peer's own contribution, and what its cohort needs of it to make the common one."""

    made: MadeContribution
    claim: Signed[Claim]  # the one that it lists
    given: Vector  # (N,): what was learnt and the part of the residual, before coding


def own_contribution(context: RunContext, learnt: Learnt, founder: PublicKey, residual: Residual, microbatch_ms: int) -> Own | None:
    """Return this peer's own contribution of what was learnt, whose claim may stand in one of ``founder``'s too.

    None: its values are not finite.
    """
    exchange, work = context.manifest.exchange, learnt.work
    whole = given(learnt.vector, residual.values, exchange.residual_percent, learnt.coverage)
    if not bool(np.isfinite(whole).all()):
        return None
    vector = vector_digest(learnt.vector) if work.accumulator.step_microbatches else b""  # of one local step it is what was learnt
    claim = claim_of(context.terms, work, vector, founder, microbatch_ms, given=vector_digest(whole), residual=residual.digest)
    return Own(made_of(context.terms, exchange.codec, learnt, [claim], whole), claim, whole)


def made_of(
    terms: ClaimTerms, codec: str, learnt: Learnt, claims: Sequence[Signed[Claim]], given: Vector, dropped: Sequence[Signed[Claim]] = ()
) -> MadeContribution:
    """Return the contribution that this peer founds of these claims, whose body is the coded ``given`` (N,).

    ``dropped`` are claims of those who counted in a local step and are not in the body.

    Raises:
        ValueError: ``given`` holds values that are not finite.
    """
    base = learnt.work.base
    every = [*((signed, 1) for signed in claims), *((signed, 0) for signed in dropped)]
    listed = sorted(((signed.unchecked(), signed, is_in) for signed, is_in in every), key=lambda one: one[0].key)
    means = learnt.work.accumulator.means or (vector_digest(given),)
    steps = tuple(
        StepMean(mean, sum(1 << place for place, (claim, _, _) in enumerate(listed) if len(claim.steps) > number))
        for number, mean in enumerate(means)
    )
    included = sum(is_in << place for place, (_, _, is_in) in enumerate(listed))
    body, blob, left = _coded(codec, learnt, given)
    residual = b"" if left is None else residual_digest(left)
    digests, founder = tuple(signed.digest for _, signed, _ in listed), terms.identity
    opened = Contribution(terms.run, base.round + 1, base.commit, founder.public_key, digests, included, steps, blob.root, residual)
    header = Header(Signed.sign(opened, founder), tuple(signed for _, signed, _ in listed))
    return MadeContribution(header, blob, body, left if residual else None)


def _coded(codec: str, learnt: Learnt, given: Vector) -> tuple[Body, Blob, Vector | None]:
    """Return the body that ``given`` (N,) is coded as, its blob, and what coding left out (N,); None: the codec leaves nothing out."""
    min_exponent = learnt.work.base.min_exponent
    data = encode(codec, covered(given, learnt.coverage), min_exponent)
    body = parse(codec, data, len(given))
    left = left_over(given, body, min_exponent) if codec_named(codec).is_sparse else None
    return body, Blob.of(body_groups(codec, data, len(given))), left


def cohort_body(context: RunContext, contribution: Contribution, mean: Vector, learnt: Learnt) -> tuple[Blob, Body, Vector] | None:
    """Return the body of a cohort's sparse ``contribution``, coded again from its ``mean`` (N,), and what that leaves out (N,).

    None: its founder coded something else.
    """
    body, blob, left = _coded(context.manifest.exchange.codec, learnt, mean)
    if left is not None and blob.root == contribution.body and residual_digest(left) == contribution.residual:
        return blob, body, left
    logger.warning("the founder coded something else than it says round=%d", contribution.round)
    return None


def weight_of(context: RunContext, learnt: Learnt) -> int:
    """Return what the samples of what was learnt weigh in a cohort's mean."""
    return min(learnt.work.accumulator.samples, context.manifest.exchange.weight_cap)


def is_common(header: Header) -> bool:
    """Return whether others had a part in one of several local steps of a contribution that lists one claim."""
    means, own = header.contribution.unchecked().steps, header.claims[0].unchecked().steps
    return len(own) > 1 and any(step.mean != each.vector for step, each in zip(means, own, strict=True))


def named_by_claim(claim: Claim, learnt: Vector, residual: Vector | None, given: Vector | None = None) -> dict[bytes, Vector]:
    """Return the vectors (N,) that a claim names and whoever checks it may ask for, by their digests.

    These are the ``residual`` that was used, None: zeros; and with one local step what was ``learnt``, and what was ``given`` where it is
    the mean of this peer's own contribution. Of several steps the own vectors are known as they are taken.
    """
    named = {claim.residual: residual} if claim.residual and residual is not None else {}
    if len(claim.steps) > 1:
        return named
    return {claim.steps[0].vector: learnt, **({} if given is None else {claim.given: given}), **named}


def named_mean(contribution: Contribution, mean: Vector) -> dict[bytes, Vector]:
    """Return the mean (N,) of what was given by its digest, where a contribution names it: with one local step."""
    return {contribution.steps[0].mean: mean} if len(contribution.steps) == 1 else {}
