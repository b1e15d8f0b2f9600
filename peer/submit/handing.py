"""From what a peer learnt to the log's ticket: seal it, keep it, hand it in with the cohort, or alone.

What is sealed first is this peer's own contribution: with it nobody else is needed. Its claim is the same in the cohort's, so whichever
comes to the log's table, or both, the work counts once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from manta_swarm.codec.coding import Body, body_groups, encode, parse
from manta_swarm.codec.residuals import covered, given, left_over, residual_digest, vector_digest
from manta_swarm.network import waits
from manta_swarm.network.blobs import Blob
from manta_swarm.network.log_client import HandedIn, HandIn, LogClient
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.cohort.cohort import Accepted, Gathered, Seat
from manta_swarm.peer.features.audit.evidence import Evidence
from manta_swarm.peer.store import Kept, PeerStore
from manta_swarm.peer.submit.residuals import Residual, Residuals
from manta_swarm.peer.sync.spread import Spread
from manta_swarm.peer.train.work import ComputeThread, Learnt, Made, Vector, claim_of, made_of, nobody, now_ms
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim, Contribution, Header, Ticket
from manta_swarm.protocol.rounds import RoundMachine
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.tasks import soon_after

_REMEMBERED = 8  # contributions of a founder, with how long they took

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class InHand:
    """What is sealed, and what else is known of it in the life that sealed it."""

    header: Header  # of this peer alone
    blob: Blob
    body: Body
    learnt: Learnt | None = None  # None: sealed in an earlier life
    claim: Signed[Claim] | None = None
    given: Vector | None = None  # (N,): what was learnt and the part of the residual, before coding
    seat: Seat | None = None  # while the cohort may hand it in
    is_common: bool = False  # audits compute its steps again, and in some of them others had a part


class Handing:
    """One peer's contributions on their way to the log."""

    def __init__(
        self,
        manifest: Manifest,
        run: bytes,
        identity: Identity,
        machine: RoundMachine,
        log: LogClient,
        store: PeerStore,
        residuals: Residuals,
        compute: ComputeThread,
        payout: PublicKey,
        spread: Spread,
        keep_body: Callable[[Blob, Body], None],
        evidence: Evidence | None = None,
    ) -> None:
        """Prepare; nothing is sealed yet. ``payout`` is the account that claims name. ``keep_body`` is told of bodies that may be in a
        table soon, ``evidence`` of what audits may ask for.
        """
        self._evidence = evidence
        self._manifest = manifest
        self._codec = codec_named(manifest.exchange.codec)
        self._run = run
        self._identity = identity
        self._machine = machine
        self._log = log
        self._store = store
        self._residuals = residuals
        self._compute = compute
        self._payout = payout
        self._spread = spread
        self._keep_body = keep_body
        self.shards = 0  # what claims say of those that lots are drawn from, where these are not all
        self.partner: Callable[[], bytes] = nobody  # returns who has the other view of this peer's samples
        self._in_hand: InHand | None = None
        self._took_ms: deque[float] = deque(maxlen=_REMEMBERED)  # from what members gave to the word that they get
        self.bytes_handed_in = 0  # of bodies that this peer brought and that have tickets

    async def take_up(self, num_weights: int) -> None:
        """Take up the contribution of an earlier life, if it is this run's and this key's, and may still count.

        Of one that may not nobody can say any more whether it did, and so which residual holds.

        Raises:
            StorageError: its file is damaged, or the disk refuses.
        """
        kept = self._store.sealed(self._run).load(Kept)
        if kept is None or self._identity.public_key not in [signed.open().key for signed in kept.header.claims]:
            return  # the person may have a new identity
        blob = Blob.of(body_groups(self._codec.name, kept.body, num_weights))
        if blob.root != kept.header.contribution.open().body:
            return
        self._machine.restore(kept.header)
        if self._machine.sealed is None and self._residuals.is_on_its_way(kept.header.contribution.digest):
            await self._residuals.forget()
        is_common = self._evidence is not None and _is_common(kept.header)
        self._hold(InHand(kept.header, blob, parse(self._codec.name, kept.body, num_weights), is_common=is_common))

    def _hold(self, in_hand: InHand) -> None:
        self._in_hand = in_hand
        self._keep_body(in_hand.blob, in_hand.body)

    async def seal(self, learnt: Learnt, seat: Seat, *, lot_ms: int, newest: int) -> bool:
        """Make this peer's own contribution; durable when this returns, for nobody may see its header before that.

        False: it is too old by now, or its values are not finite.

        Args:
            learnt: of all that was trained and is not sealed.
            seat: this peer's place in its cohort.
            lot_ms: median duration of a lot.
            newest: the newest commit known.
        """
        seat.work_over()
        if is_alone := seat.hands_in_alone:
            seat.close("it hands in alone")  # a mate that comes late would wait for nothing
        residual = self._residuals.held(newest)
        made, whole, claim = await self._compute.run(self._made, learnt, seat, residual, lot_ms)
        if made is None or not self._machine.seal(made.header):
            return False
        is_common = self._evidence is not None and (seat.may_be_listed or _is_common(made.header))
        self._hold(InHand(made.header, made.blob, made.body, learnt, claim, whole, None if is_alone else seat, is_common))
        if self._codec.is_sparse:
            await self._residuals.sealed(made.header.contribution.digest, made.left)
        if self._evidence is not None:
            await self._evidence.keep_claim(claim.unchecked(), learnt.vector, residual.values)
            await self._evidence.keep_mean(made.header.contribution.unchecked(), whole)
        await asyncio.to_thread(lambda: self._store.sealed(self._run).save(Kept(made.header, made.blob.join())))
        return True

    def _made(self, learnt: Learnt, seat: Seat, residual: Residual, lot_ms: int) -> tuple[Made | None, Vector, Signed[Claim]]:
        whole = given(learnt.vector, residual.values, self._manifest.exchange.residual_percent, learnt.coverage)
        claim = claim_of(
            learnt,
            self._identity,
            self._run,
            payout=self._payout,
            founder=seat.founder,
            given=vector_digest(whole),
            residual=residual.digest,
            lot_ms=lot_ms,
            shards=self.shards,
            partner=self.partner(),
        )
        if not bool(np.isfinite(whole).all()):
            return None, whole, claim
        return made_of([claim], whole, learnt, self._identity, self._run, self._codec.name), whole, claim

    def weight(self, samples: int) -> int:
        """Return what so many samples weigh in a cohort's mean."""
        return min(samples, self._manifest.exchange.weight_cap)

    # With the cohort.

    @property
    def took_ms(self) -> float | None:
        """How long it takes a founder from what its members gave to the word for them: the longest lately; None: never done yet."""
        return max(self._took_ms, default=None)

    async def with_cohort(self, until_ms: float, changed: asyncio.Event, header_in: Callable[[], None]) -> HandedIn | None:
        """Hand in what is sealed together with the cohort; None: it is to be handed in alone. The cohort is tried once.

        Args:
            until_ms: when a member has to know, to be able to hand in alone.
            changed: a commit came, or this peer leaves: a member does not wait much longer for a founder who may be dead.
            header_in: is called once the log has a header with this peer's claim.
        """
        in_hand = self._in_hand
        if in_hand is None or in_hand.seat is None:
            return None
        seat = in_hand.seat
        self._in_hand = replace(in_hand, seat=None)
        assert in_hand.claim is not None
        assert in_hand.given is not None
        assert in_hand.learnt is not None
        weight = self.weight(in_hand.learnt.pile.samples)
        if seat.is_founder:
            gathered = await seat.gather(in_hand.claim, in_hand.given, weight)
            if gathered is not None:
                return await self._as_founder(seat, gathered, in_hand.learnt, header_in)
            seat.close("it hands in alone")
            return None
        accepted = await soon_after(changed, waits.WORD_S, seat.hand_over(in_hand.claim, in_hand.given, weight, until_ms))
        if accepted is None:
            return None
        header_in()
        return await self._as_member(accepted, in_hand.learnt, in_hand.given)

    async def _as_founder(self, seat: Seat, gathered: Gathered, learnt: Learnt, header_in: Callable[[], None]) -> HandedIn | None:
        """Hand the cohort's contribution in, without those whom the log blames; tell the members what became of it."""
        own, begun_ms = PublicKey(self._identity.public_key), now_ms()
        answer: HandedIn | None = None
        made: Made | None = None
        try:
            while len(gathered.claims) + len(gathered.dropped) > 1:
                made = await self._compute.run(self._made_of, gathered, learnt)
                answer = await self._log.hand_in(made.header, made.blob.pieces, header_in)
                if answer.status is not HandIn.WITHOUT or own in answer.blamed:
                    break
                logger.warning("members left out count=%d", len(answer.blamed))
                gathered = await gathered.without(frozenset(PublicKey(key) for key in answer.blamed))
        except (MantaError, ValueError) as error:
            logger.info("the cohort's contribution is not taken reason=%s", error)
            answer = None
        if made is None or answer is None or answer.signed is None:
            await seat.tell(None)
            return None
        contribution = made.header.contribution
        await self._taken(contribution, answer.signed, made.left)
        if self._evidence is not None:
            await self._evidence.keep_mean(contribution.unchecked(), gathered.mean)
        await seat.tell(Accepted(contribution, answer.signed, gathered.mean))
        self._took_ms.append(now_ms() - begun_ms)
        self._machine.accepted(contribution, answer.signed.open_by(self._log.operators.keys))
        self._keep_body(made.blob, made.body)
        self._brought(contribution, answer, made.blob)
        return answer

    def _made_of(self, gathered: Gathered, learnt: Learnt) -> Made:
        return made_of(gathered.claims, gathered.mean, learnt, self._identity, self._run, self._codec.name, gathered.dropped)

    def _brought(self, contribution: Signed[Contribution], answer: HandedIn, blob: Blob) -> None:
        """The log has a ticket for what this peer brought."""
        assert answer.signed is not None
        self.bytes_handed_in += sum(map(len, blob.pieces))
        self._spread.own(contribution, answer.signed, blob)

    async def _as_member(self, accepted: Accepted, learnt: Learnt, whole: Vector) -> HandedIn:
        """The cohort's contribution, which lists this peer's claim, has its ticket."""
        opened = accepted.contribution.open()
        if (mean := accepted.mean) is not None and self._evidence is not None and len(opened.steps) == 1:
            if await self._compute.run(vector_digest, mean) == opened.steps[0].mean:
                await self._evidence.keep_mean(opened, mean)
            else:
                logger.warning("the founder shows another mean than it names round=%d", opened.round)
        left: Vector | None = None
        if self._codec.is_sparse:
            blob, body, left = await self._compute.run(self._coded, learnt, whole if accepted.mean is None else accepted.mean)
            if blob.root == opened.body and residual_digest(left) == opened.residual:
                self._keep_body(blob, body)
                self._spread.own(accepted.contribution, accepted.ticket, blob)
            else:
                logger.warning("the founder coded something else than it says round=%d", opened.round)
                left = None
        await self._taken(accepted.contribution, accepted.ticket, left)
        ticket = accepted.ticket.open_by(self._log.operators.keys)
        self._machine.accepted(accepted.contribution, ticket)
        return HandedIn(HandIn.HAVE_TICKET, ticket.round, accepted.ticket)

    def _coded(self, learnt: Learnt, mean: Vector) -> tuple[Blob, Body, Vector]:
        """Return the body of a cohort's mean, as its founder coded it, and what that leaves out."""
        codec, floor = self._codec.name, learnt.base.floor
        data = encode(codec, covered(mean, learnt.coverage), floor)
        body = parse(codec, data, len(mean))
        return Blob.of(body_groups(codec, data, len(mean))), body, left_over(mean, body, floor)

    async def _taken(self, contribution: Signed[Contribution], ticket: Signed[Ticket], left: Vector | None) -> None:
        if self._codec.is_sparse:
            await self._residuals.sealed(contribution.digest, left)
        await self._promised(contribution, ticket)

    async def _promised(self, contribution: Signed[Contribution], ticket: Signed[Ticket]) -> None:
        """The log has a contribution with this peer's claim: audits may ask for what it rests on."""
        if self._evidence is not None:
            round_ = ticket.open_by(self._log.operators.keys).round
            await self._evidence.handed_in(round_, contribution.digest, contribution.unchecked().base)

    # Alone.

    @property
    def may_go_alone(self) -> bool:
        """Whether what is sealed may be handed in alone.

        Where audits compute local steps again nobody can show what others gave in a step: it takes the cohort to hand that in.
        """
        return self._in_hand is None or not self._in_hand.is_common

    async def alone(self, header_in: Callable[[], None]) -> HandedIn:
        """Hand in what is sealed, alone.

        Raises:
            Unreachable, Refused, RemoteFault: as ``LogClient.hand_in``.
        """
        in_hand, sealed = self._in_hand, self._machine.sealed
        assert in_hand is not None
        assert sealed is not None
        answer = await self._log.hand_in(in_hand.header, in_hand.blob.pieces, header_in)
        if answer.status is HandIn.WITHOUT:
            raise Refused("the log names a member who is not to be handed in, where there is one")
        if answer.signed is not None:
            self._brought(in_hand.header.contribution, answer, in_hand.blob)
            await self._promised(in_hand.header.contribution, answer.signed)
        return answer


def _is_common(header: Header) -> bool:
    """Return whether others had a part in one of several local steps of a contribution that lists one claim."""
    means, own = header.contribution.unchecked().steps, header.claims[0].unchecked().steps
    return len(own) > 1 and any(step.mean != each.vector for step, each in zip(means, own, strict=True))
