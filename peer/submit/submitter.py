"""Takes what a peer learnt to the log's tables: it is signed, handed in with the cohort or alone, and kept until the log has it.

This peer's own contribution is signed first: to hand it in takes nobody else. The cohort's contribution has the same claim, so the work
counts once, whichever of the two comes to a table of the log, or both. Methods return what happened; the session tells whoever else needs
to know.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

from manta_swarm.codec.coding import body_groups, parse
from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob
from manta_swarm.network.log_client import HandedIn, HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.cohort.cohort import Accepted, CohortSession, Gathered
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.features.feature import Features
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import KeptContribution
from manta_swarm.peer.submit.making import (
    MadeContribution,
    Own,
    Residual,
    Residuals,
    cohort_body,
    is_common,
    made_of,
    named_by_claim,
    named_mean,
    own_contribution,
    weight_of,
)
from manta_swarm.peer.submit.promises import ContributionFate, FateKnown, NewCommit
from manta_swarm.peer.sync.states import States
from manta_swarm.peer.train.work import Learnt
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.records import Contribution, Header, InclusionPromise
from manta_swarm.protocol.rounds import PeerStage, SignedWork
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import soon_after, wait_within

LAST_PART = 16  # of a round's time is kept by a member of a cohort for handing in alone

_REFUSED_BEFORE_DROPPED = 2  # times that the log says no to a contribution
_REMEMBERED = 8  # contributions of a founder, with how long they took

logger = logging.getLogger("manta.peer")


class HandInResult(Enum):
    """What came of an attempt to hand in."""

    DONE = "done"  # the log has it: on its disk, or in a table already
    AGAIN = "again"  # the log has no place for it now, or refused it for the first time
    AWAY = "away"  # the log cannot be reached, or says what no log says
    REFUSED = "refused"  # it will never be in the log: that refuses it
    LEFT = "left"  # nor will this: it takes the cohort that it was learnt with, which did not hand it in


@dataclass(frozen=True, slots=True)
class PromisedBody:
    """A body that is here, of a contribution that was promised: others may have it once the headers of its round are closed."""

    contribution: Signed[Contribution]
    inclusion_promise: Signed[InclusionPromise]
    blob: Blob


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to hand in."""

    result: HandInResult
    brought: PromisedBody | None = None
    samples_lost: int = 0  # with REFUSED and LEFT
    why: str = ""  # in words, with these
    is_answered: bool = False  # the log itself answered this peer, which sent it what is brought


@dataclass(frozen=True, slots=True)
class Shared:
    """What it takes to hand in with the cohort."""

    cohort_session: CohortSession
    own: Own
    learnt: Learnt


@dataclass(slots=True)
class InHand:
    """The signed work that is being handed in, and how far it came."""

    header: Header  # of this peer alone
    blob: Blob
    is_common: bool  # audits compute its steps again, and in some of them others had a part
    shared: Shared | None = None  # until the cohort was tried
    refused: int = 0  # times that the log did
    pause_s: float = timeouts.HAND_IN_AGAIN_S[0]  # until the next attempt


class Submitter:
    """Signs one peer's contributions and hands them in, one after the other. All methods run in one event loop."""

    def __init__(self, context: RunContext, progress: Progress, states: States, features: Features) -> None:
        """Take up the residuals that the store has; nothing is signed yet.

        Args:
            context: of the run.
            progress: is told of what becomes of contributions.
            states: remember bodies that may be in a table soon.
            features: are told what was handed in, and keep vectors that claims name.

        Raises:
            StorageError: the files of the residuals are damaged.
        """
        self._context = context
        self._progress = progress
        self._promises = progress.promises
        self._states = states
        self._features = features
        self._is_audited = context.manifest.is_audited
        self._machine = progress.machine
        self._is_sparse = codec_named(context.manifest.exchange.codec).is_sparse
        self._residuals = Residuals(context)
        self._in_hand: InHand | None = None
        self._signing_ms: float | None = None  # when signing what is in hand began, until it has an inclusion promise
        self._took_ms: deque[float] = deque(maxlen=_REMEMBERED)  # from what members gave to the word that they get

    # Signing.

    async def take_up(self) -> None:
        """Take up the contribution of an earlier life, if it is this run's and this key's, and may still count.

        Of one that may not nobody can say any more whether it did, and so which residual holds.

        Raises:
            StorageError: its file is damaged, or the disk refuses.
        """
        context, codec = self._context, self._context.manifest.exchange.codec
        kept = context.store.signed(context.run).load(KeptContribution)
        if kept is None or context.key not in [signed.open().key for signed in kept.header.claims]:
            return  # the person may have a new identity
        blob = Blob.of(body_groups(codec, kept.body, context.num_weights))
        if blob.root != kept.header.contribution.open().body:
            return
        self._machine.restore(kept.header)
        if self._machine.signed is None and self._residuals.is_on_its_way(kept.header.contribution.digest):
            await self._residuals.forget()
        self._in_hand = InHand(kept.header, blob, self._is_audited and is_common(kept.header))
        self._states.keep_body(blob, parse(codec, kept.body, context.num_weights))

    async def sign(self, learnt: Learnt, cohort_session: CohortSession) -> bool:
        """Make this peer's own contribution of all that was trained and is not signed; durable when this returns, for nobody may see its
        header before that.

        False: it is too old by now, or its values are not finite.

        Args:
            learnt: of all these microbatches.
            cohort_session: this peer's place in its cohort.

        Raises:
            StorageError: the disk refuses.
        """
        context, machine = self._context, self._machine
        self._signing_ms = context.clock.now_ms()
        if self._is_sparse:
            await self._settle_residual()
        cohort_session.work_over()
        if is_alone := cohort_session.hands_in_alone:
            cohort_session.close("it hands in alone")  # a cohort peer that comes late would wait for nothing
        residual, microbatch_ms = self._residuals.held(self._progress.newest_round), self._progress.pace.microbatch_ms
        own = await context.compute.run(own_contribution, context, learnt, cohort_session.founder, residual, microbatch_ms)
        if own is None or not machine.sign(own.made.header):
            return False
        made, claim, contribution = own.made, own.claim.unchecked(), own.made.header.contribution
        may_not_go_alone = self._is_audited and (cohort_session.may_be_listed or is_common(made.header))
        self._in_hand = InHand(made.header, made.blob, may_not_go_alone, None if is_alone else Shared(cohort_session, own, learnt))
        self._states.keep_body(made.blob, made.body)
        await self._residuals.signed(contribution.digest, made.left)
        await self._features.keep(claim.round, claim.base, named_by_claim(claim, learnt.vector, residual.values, own.given))
        kept = context.store.signed(context.run)
        await asyncio.to_thread(lambda: kept.save(KeptContribution(made.header, made.blob.join())))
        return True

    async def _settle_residual(self) -> None:
        """Find out which residual holds: that depends on whether the contribution before is in its table."""
        await self._promises.settle()
        known = self._promises.take_known()
        await self._residuals.take(known)
        if known.listed is None and not known.is_all:
            await self._residuals.forget()

    async def lendable(self) -> tuple[Residual, bytes] | None:
        """Return the residual that holds, and the contribution that left it, empty where that is not known; None: nobody knows by now."""
        known = self._promises.take_known()
        await self._residuals.take(known)
        if not self._is_sparse or not known.is_all:
            return None
        return self._residuals.held(self._progress.newest_round), self._residuals.left_by

    # Handing in.

    @property
    def took_ms(self) -> float | None:
        """How long it takes a founder from what its members gave to the word for them: the longest lately; None: never done yet."""
        return max(self._took_ms, default=None)

    @property
    def may_go_alone(self) -> bool:
        """Whether what is signed may be handed in alone.

        Where audits compute local steps again nobody can show what others gave in a step: it takes the cohort to hand that in.
        """
        return self._in_hand is None or not self._in_hand.is_common

    async def hand_in(self) -> Attempt:
        """Try to hand in what is signed: with the cohort, once, if there is one, else alone. Call it again until the result is final."""
        signed, in_hand = self._machine.signed, self._in_hand
        assert signed is not None
        assert in_hand is not None
        shared, in_hand.shared = in_hand.shared, None
        if shared is not None:
            attempt = await (self._as_founder(shared, signed) if shared.cohort_session.is_founder else self._as_member(shared, signed))
            if attempt is not None:
                return attempt
        if not self.may_go_alone:
            why = "the cohort that they were learnt with did not hand them in"
            return await self._lose(HandInResult.LEFT, "its cohort fell apart", why)
        if self._machine.stage is not PeerStage.SIGNED:
            return Attempt(HandInResult.DONE)  # a commit has it meanwhile, or made it too old
        self._progress.changed.clear()
        return await self._alone(in_hand, signed)

    async def pause(self) -> None:
        """Wait until it is time for another attempt, or a commit came; longer each time."""
        in_hand = self._in_hand
        assert in_hand is not None
        await wait_within(self._progress.changed, in_hand.pause_s)
        in_hand.pause_s = min(2 * in_hand.pause_s, timeouts.HAND_IN_AGAIN_S[1])

    async def _alone(self, in_hand: InHand, signed: SignedWork) -> Attempt:
        round_ = signed.opened.round
        try:
            answer = await self._offer(in_hand.header, in_hand.blob)
            if answer.status is HandIn.WITHOUT:
                raise Refused("the log names a member who is not to be handed in, where there is one")
        except Refused as error:
            logger.info("header refused round=%d reason=%s", round_, error)
            in_hand.refused += 1
            if in_hand.refused < _REFUSED_BEFORE_DROPPED:
                return Attempt(HandInResult.AGAIN)
            return await self._lose(HandInResult.REFUSED, "refused by the log", f"the log refuses them ({error})")
        except MantaError as error:  # it is away, or says what no log says
            logger.info("not handed in round=%d reason=%s", round_, error)
            return Attempt(HandInResult.AWAY)
        if answer.status is HandIn.LATER:
            return Attempt(HandInResult.AGAIN, is_answered=True)
        return await self._done(signed, answer, in_hand.header.contribution, in_hand.blob)

    async def _offer(self, header: Header, blob: Blob) -> HandedIn:
        """Hand a contribution in with this peer's claim.

        Raises:
            Unreachable, Refused, RemoteFault: as ``LogClient.hand_in``.
        """
        begun_ms = self._context.clock.now_ms()
        answer = await self._context.log.hand_in(header, blob.pieces)
        is_in_its_round = answer.round == header.contribution.unchecked().round
        if answer.header_ms is not None and self._signing_ms is not None and is_in_its_round:
            self._progress.pace.header_took(begun_ms + answer.header_ms - self._signing_ms)
        return answer

    async def _done(self, signed: SignedWork, answer: HandedIn, contribution: Signed[Contribution], blob: Blob | None) -> Attempt:
        """The log has a contribution of this peer or its cohort: on its disk, or in a table already. ``blob``: its body, if it is here."""
        if answer.status is HandIn.LISTED:
            self._machine.listed()
            self._promises.expect(answer.round, signed, is_promised=False)
            self._promises.look()
            return Attempt(HandInResult.DONE, is_answered=True)
        shown, inclusion_promise = answer.signed, answer.inclusion_promise
        assert shown is not None
        assert inclusion_promise is not None
        await self._features.on_handed_in(inclusion_promise.round, contribution.digest, contribution.unchecked().base)
        if self._signing_ms is not None and inclusion_promise.round == signed.opened.round:  # else it waited for a round, or for the log
            self._progress.pace.inclusion_promise_took(self._context.clock.now_ms() - self._signing_ms)
        self._signing_ms = None
        if contribution.digest == signed.header.contribution.digest:
            self._machine.promised(inclusion_promise)
        else:
            self._machine.accepted(contribution, inclusion_promise)
        self._progress.lap.mark("hand_in")
        return Attempt(HandInResult.DONE, None if blob is None else PromisedBody(contribution, shown, blob), is_answered=True)

    async def _lose(self, result: HandInResult, kind: str, why: str) -> Attempt:
        # The log may have this peer's claim in the cohort's contribution, and then another residual holds than the one known here.
        await self._residuals.forget()
        signed = self._machine.signed
        if signed is not None:
            self._promises.give_up(signed, self._progress.newest_round)
        return Attempt(result, samples_lost=self._machine.refused(kind), why=why)

    # With the cohort.

    async def _as_founder(self, shared: Shared, signed: SignedWork) -> Attempt | None:
        """Gather what the members learnt, and hand the cohort's contribution in, without those whom the log blames; tell the members what
        became of it. None: it is to be handed in alone.
        """
        cohort_session, own = shared.cohort_session, shared.own
        gathered = await cohort_session.gather(own.claim, own.given, weight_of(self._context, shared.learnt))
        if gathered is None:
            cohort_session.close("it hands in alone")
            return None
        begun_ms = self._context.clock.now_ms()
        found = await self._gathered_in(gathered, shared.learnt)
        if found is None:
            await cohort_session.tell(None)
            return None
        made, gathered, answer = found
        assert answer.signed is not None
        contribution = made.header.contribution
        opened = contribution.unchecked()
        await self._residuals.signed(contribution.digest, made.left)
        await self._features.keep(opened.round, opened.base, named_mean(opened, gathered.mean))
        self._states.keep_body(made.blob, made.body)
        attempt = await self._done(signed, answer, contribution, made.blob)
        await cohort_session.tell(Accepted(contribution, answer.signed, gathered.mean))
        self._took_ms.append(self._context.clock.now_ms() - begun_ms)
        return attempt

    async def _gathered_in(self, gathered: Gathered, learnt: Learnt) -> tuple[MadeContribution, Gathered, HandedIn] | None:
        """Hand in what was gathered, without those whom the log blames; return what has an inclusion promise then, None: nothing has."""
        context, codec = self._context, self._context.manifest.exchange.codec
        made: MadeContribution | None = None
        answer: HandedIn | None = None
        try:
            while len(gathered.claims) + len(gathered.dropped) > 1:
                made = await context.compute.run(made_of, context.terms, codec, learnt, gathered.claims, gathered.mean, gathered.dropped)
                answer = await self._offer(made.header, made.blob)
                if answer.status is not HandIn.WITHOUT or self._context.key in answer.blamed:
                    break
                logger.warning("members left out count=%d", len(answer.blamed))
                gathered = await gathered.without(frozenset(PublicKey(key) for key in answer.blamed))
        except (MantaError, ValueError) as error:
            logger.info("the cohort's contribution is not taken reason=%s", error)
            return None
        return None if made is None or answer is None or answer.signed is None else (made, gathered, answer)

    async def _as_member(self, shared: Shared, signed: SignedWork) -> Attempt | None:
        """Give what was learnt to the founder, whose contribution then lists this peer's claim. None: it is to be handed in alone."""
        context, pace, own = self._context, self._progress.pace, shared.own
        now_ms = context.clock.now_ms()
        # When a member has to know, to be able to hand in alone; after a commit it does not wait much longer for one who may be dead.
        until_ms = now_ms + pace.left_ms(now_ms) - self._progress.open_ms(context.manifest) / LAST_PART
        handing_over = shared.cohort_session.hand_over(own.claim, own.given, weight_of(self._context, shared.learnt), until_ms)
        accepted = await soon_after(self._progress.changed, timeouts.WORD_S, handing_over)
        if accepted is None:
            return None
        contribution, inclusion_promise = accepted.contribution, accepted.inclusion_promise.open_by(context.log.operators.keys)
        if self._signing_ms is not None and inclusion_promise.round == signed.opened.round:
            pace.header_took(context.clock.now_ms() - self._signing_ms)
        await self._keep_shown(accepted)
        coded = None
        if self._is_sparse:
            mean = own.given if accepted.mean is None else accepted.mean
            coded = await context.compute.run(cohort_body, context, contribution.open(), mean, shared.learnt)
        await self._residuals.signed(contribution.digest, None if coded is None else coded[2])
        if coded is not None:
            self._states.keep_body(coded[0], coded[1])
        answer = HandedIn(HandIn.HAVE_PROMISE, inclusion_promise.round, accepted.inclusion_promise)
        done = await self._done(signed, answer, contribution, None if coded is None else coded[0])
        return replace(done, is_answered=False)  # its founder was

    async def _keep_shown(self, accepted: Accepted) -> None:
        """Have features keep the mean that the founder shows, where it is the one that its contribution names."""
        opened, mean = accepted.contribution.open(), accepted.mean
        if mean is None or not self._is_audited or len(opened.steps) != 1:
            return
        if await self._context.compute.run(vector_digest, mean) == opened.steps[0].mean:
            await self._features.keep(opened.round, opened.base, named_mean(opened, mean))
        else:
            logger.warning("the founder shows another mean than it names round=%d", opened.round)


def show_fate(live_status: LiveStatus, event: FateKnown) -> None:
    """Show what became of a contribution."""
    samples = event.signed.samples
    if event.fate is ContributionFate.BROKEN:
        live_status.add(promises_broken=1)
        live_status.say(
            f"the log gave an inclusion promise for round {event.round} and did not keep it: {samples} samples are not in its table"
        )
    elif event.fate is ContributionFate.REPLACED:
        live_status.add(samples_lost=samples)
        live_status.say(f"{samples} samples do not count: other work of this peer on the same state does, which its cohort handed in")
    elif event.fate is ContributionFate.COUNTED_AFTER_ALL:
        live_status.add(samples_lost=-samples)
        live_status.say(f"{samples} samples do count after all: the cohort handed them in, for round {event.round}")
    if event.is_counted:
        live_status.counted(event.round, samples)


def show_commit(live_status: LiveStatus, commit: NewCommit, dropped: dict[str, int]) -> None:
    """Show a commit; ``dropped`` are this peer's contributions that came to nothing so far, by reason."""
    entry = commit.entry
    live_status.add(samples_lost=commit.samples_lost)
    live_status.committed(
        round_=entry.round,
        state=entry.state,
        contributions=entry.contributions,
        counted=commit.is_counted,
        lost=commit.samples_lost,
    )
    live_status.update(dropped=dropped, waiting_for="")


def show_lost(live_status: LiveStatus, attempt: Attempt, dropped: dict[str, int]) -> None:
    """Show that what was handed in comes to nothing, and why; ``dropped`` as for ``show_commit``."""
    live_status.add(samples_lost=attempt.samples_lost)
    live_status.update(dropped=dropped)
    live_status.say(f"{attempt.samples_lost} samples do not count: {attempt.why}")
