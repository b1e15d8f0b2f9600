"""Answers light contributors: a gateway admits them, leases them microbatches of the base that it works on, and takes what they return.

Knows no HTTP.

What is here is in memory: a gateway that is started again knows of no lease from before, and its contributors ask for new ones.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import replace

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.snippet import cut, is_for_any_thread, sample_bytes
from manta_swarm.automl.training.light import cheapest, covered_weights
from manta_swarm.automl.training.update import State
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.network import timeouts
from manta_swarm.network.admission_filter import NOT_ADMITTED, AdmittedKeys, NotAdmitted
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.cohort.cohort_session import CohortSession
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.gateway.cohort_session import Gift, LeaseSession, Returns, lost
from manta_swarm.peer.features.gateway.work import LeasedBase, LentResidual, Terms
from manta_swarm.peer.submit.making import named_by_claim
from manta_swarm.protocol.admission import GUEST, Admission, AdmissionProof, access_shown
from manta_swarm.protocol.admitted import LOOKS_ON
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, RemoteFault
from manta_swarm.protocol.leases import MAX_PLACES, Leased, LeaseRefusal, Leases
from manta_swarm.protocol.light import (
    CODEC,
    MAX_ENTER_BYTES,
    MAX_LEASE_MICROBATCHES,
    MAX_REQUEST_BYTES,
    MAX_SIGNED_PROOF_BYTES,
    EnterRequest,
    Lease,
    LeaseAnswer,
    LeaseRequest,
    LightReturn,
    LightWord,
    ReturnFate,
    Welcome,
    max_return_bytes,
)
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.rosters import Durations, Timetable
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey, sha256

METHOD = "admission"
_REFUSED_MS = 60_000.0  # an invitation that the log refused is not brought again for so long
_MAX_REFUSED = 1024

_SAMPLES_BYTES = 3_000_000  # of a lease, before they are compressed; a microbatch of a step is leased in any case
_VECTORS_BYTES = 2**28  # of all that may come back for a base
_AGAIN_MS = 250  # to ask what became of a return, at least
_GONE_MS = 60_000  # who has not asked for so long is not here any more; who has nothing to do asks every 4 s

logger = logging.getLogger("manta.gateway")


class Entrance:
    """Decides who may lease from this gateway, by what the log says of keys and of admissions."""

    def __init__(self, context: RunContext, known: AdmittedKeys) -> None:
        """Let in whom ``known`` knows; the context's node asks the log about others."""
        self._known = known
        self._manifest = context.manifest
        self._run = context.run
        self._clock = context.clock
        self._line = OperatorLine(context.node, Operators.of(context.manifest, context.run))
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # invitation -> when the log refused it, and why

    def check(self, key: bytes) -> None:
        """Refuse a key that is not in, or a guest, as far as is known here: it has to ``enter`` first.

        Raises:
            NotAdmitted: so it is.
        """
        if not self._known.trains(PublicKey(key)):
            raise NotAdmitted(f"{NOT_ADMITTED}: this run is not open to everybody")

    async def enter(self, request: bytes) -> Signed[AdmissionProof]:
        """Return the admission proof of the key of a packed EnterRequest, which may lease from now on.

        Raises:
            NotAdmitted: the run does not let it in, or as a guest.
            RemoteFault: what it shows is malformed, not signed, or for something else.
            Unreachable: the log does not answer.
        """
        asked = unpack(EnterRequest, request, max_bytes=MAX_ENTER_BYTES)
        if asked.run != self._run:
            raise EncodingError("a request for another run")
        shown = asked.shown[0] if asked.shown else await self._given(asked.admission[0], asked.key)
        self._known.learn(PublicKey(asked.key), shown)
        if not self._known.trains(PublicKey(asked.key)):
            raise NotAdmitted(LOOKS_ON)
        return shown

    async def _given(self, signed: Signed[Admission], key: bytes) -> Signed[AdmissionProof]:
        """Return what the log gives for an admission; what can be seen to be none is not brought to it."""
        admission = signed.open()
        invitation = admission.invitation.unchecked()
        if admission.key != key or invitation.run != self._run or invitation.operator not in self._manifest.operators:
            raise NotAdmitted("an admission of another key, to another run, or by somebody who is no operator of it")
        if invitation.access == GUEST:
            raise NotAdmitted(LOOKS_ON)
        digest = admission.invitation.digest
        if digest in self._refused and self._clock.now_ms() < self._refused[digest][0] + _REFUSED_MS:
            raise NotAdmitted(self._refused[digest][1])
        try:
            answer = await self._line.call(METHOD, pack(signed), timeout_s=timeouts.CALL_S)
        except Refused as error:
            self._refused.pop(digest, None)
            self._refused[digest] = self._clock.now_ms(), str(error)
            if len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
            raise NotAdmitted(str(error)) from error
        shown = unpack(Signed[AdmissionProof], answer, max_bytes=MAX_SIGNED_PROOF_BYTES)
        access_shown(shown, self._run, key, self._manifest.operators)
        return shown


class GatewayService:
    """Leases microbatches to light contributors and takes what they return. All methods run in one event loop."""

    def __init__(self, context: RunContext, dataset: Dataset, entrance: Entrance | None = None, *, is_lease_only: bool = False) -> None:
        """Lease nothing yet, in a run that has something for light contributors (``peer.features.gateway.plugin``).

        Args:
            context: of the run.
            dataset: whose samples are handed out.
            entrance: says who may lease, in a run that not everybody may take part in.
            is_lease_only: this peer does only the microbatches that a contribution's founder must have done.
        """
        self.manifest: Manifest = context.manifest
        self.welcome = pack(Welcome(context.key, context.signed))
        self.is_lease_only = is_lease_only
        self.entrance = entrance
        self._context = context
        self._training_spec = context.training_spec
        self._dataset = dataset
        self._terms = Terms(self.manifest, context.training_spec, context.run, context.key, dataset.num_train)
        self._clock = context.clock
        self._steps = self.manifest.exchange.local_steps
        places = max(1, min(MAX_PLACES, _VECTORS_BYTES // (4 * context.num_weights)))
        self._leases = Leases(self._steps, places)
        self._durations = Durations()
        self._work: LeasedBase | None = None
        self._why_none = "the gateway gets the run's newest state"
        self._is_over = self._is_leaving = False
        self._asked_ms: float | None = None
        self._returns = Returns()
        self.max_return_bytes = max_return_bytes(body_num_bytes(CODEC, context.num_weights))
        self.leased = 0  # leases handed out, over the whole life

    @property
    def taken(self) -> int:
        """Claims of light contributors that the log has, over the whole life."""
        return self._returns.num_taken

    # The gateway's own side.

    async def convene(
        self, base: CommitRef, state: State, cohort: str, lent: LentResidual, keeper: Feature, *, left_ms: float, next_ms: float
    ) -> LeaseSession:
        """Return the place of this peer's work on ``base``, for which light contributors get leases from now on.

        Args:
            base: the commit.
            state: its state.
            cohort: that this peer's claim names.
            lent: the residual that its last contribution left.
            keeper: keeps the vectors that light contributors' claims name.
            left_ms: until what was learnt has to be gathered.
            next_ms: until the next base is expected.
        """
        now_ms, round_ = self._clock.now_ms(), base.round + 1
        table = Timetable(now_ms + max(left_ms, 0.0), self._steps, 0.0, self._durations.gathering_ms, now_ms)
        due_ms = now_ms + self._steps * table.step_ms
        reason = self._why_not(round_, cohort)
        lingers = self.is_lease_only and not reason and not self._is_leaving
        timeout_ms = table.last_timeout_ms
        if self._work is not None and self._work.is_on(base, cohort, lent):  # nothing was handed in on it: what is leased may come back
            self._leases.go_on(now_ms=now_ms, due_ms=due_ms, next_ms=now_ms + next_ms)
            self._work.cohort_session.go_on(timeout_ms, lingers=lingers)
            if self._is_leaving:
                self._work.cohort_session.shut()
            return self._work.cohort_session
        self._forget()
        cohort_session = LeaseSession(self._context, base, self._leases, self._durations, self._returns, timeout_ms, lingers=lingers)
        architectures = self._training_spec.plan.architectures(round_, cohort)
        if reason:
            self._why_none = reason
            return cohort_session
        architecture = cheapest(architectures, self._training_spec.costs(round_, cohort))
        weights = await asyncio.to_thread(covered_weights, state.parameters.numpy(), self._training_spec.plan.space, architecture)
        # Audits hold a claim to the digest of what it gives, which a light contributor cannot know where a residual is a part of it.
        has_lent = lent.residual.digest and not self.manifest.is_audited
        of_lent = self._returns.roster(lent.contribution) if has_lent else frozenset()
        self._work = LeasedBase(base, cohort, architectures, architecture, weights, sha256(weights), lent, of_lent, keeper, cohort_session)
        samples = max(1, _SAMPLES_BYTES // (sample_bytes(self._dataset) * self.manifest.microbatch_samples))
        most = min(MAX_LEASE_MICROBATCHES, samples, self.manifest.exchange.max_claim_samples // self.manifest.microbatch_samples)
        self._leases.open(base.commit, now_ms=now_ms, due_ms=due_ms, next_ms=now_ms + next_ms, max_microbatches=max(most, self._steps))
        if self._is_leaving:  # it was told so while the weights were cut out
            cohort_session.shut()
        return cohort_session

    def _why_not(self, round_: int, cohort: str) -> str:
        """Return why a round has nothing for light contributors; empty: it has."""
        if self._training_spec.plan.phase(round_).distils:
            return "the microbatches of this phase learn from the largest network too, which light contributors do not hold"
        if self._training_spec.plan.algorithm == "model-parallel" and self._training_spec.role(round_, cohort) == 0:
            return "this round's architecture is the largest, which is not for light contributors"
        return ""

    def _forget(self) -> None:
        """The work on the base before is over."""
        work, self._work = self._work, None
        if work is not None:
            work.cohort_session.close("the gateway went on to another base")
            for task in work.ready.values():
                task.cancel()
        self._why_none = "the gateway is between two rounds"

    async def has_something_back(self, cohort_session: "asyncio.Future[CohortSession]") -> bool:
        """Return whether a lease came back to the place that ``convene`` gives, once one did, or none is waited for any more.

        A gateway that only leases does microbatches of its own only then: alone it would use up the run's rounds, with hardly a microbatch
        in each.
        """
        place = await cohort_session
        return isinstance(place, LeaseSession) and await place.first_back()

    @property
    def has_contributors(self) -> bool:
        """Whether somebody asked for a lease lately, or has one."""
        now_ms = self._clock.now_ms()
        return self._asked_ms is not None and (now_ms < self._asked_ms + _GONE_MS or self._leases.is_awaited(now_ms))

    def finish(self) -> None:
        """The run is over: there are no leases any more."""
        self._forget()
        self._is_over = True

    def leave(self) -> None:
        """This peer is about to leave: there are no more leases, and what is out may come back."""
        self._is_leaving = True
        if self._work is not None:
            self._work.cohort_session.shut()

    def close(self) -> None:
        """This peer leaves now."""
        self._forget()

    def roster(self, contribution: bytes) -> frozenset[bytes]:
        """Return the keys whose claims one of the newest contributions of this gateway has; none of another one."""
        return self._returns.roster(contribution)

    # What contributors ask.

    async def lease(self, request: bytes, address: str) -> LeaseAnswer:
        """Return a lease for the key of a packed Signed[LeaseRequest], or why there is none.

        Raises:
            RemoteFault: it is malformed, not signed, or for another run or gateway; or its key is not in the run.
        """
        asked = unpack(Signed[LeaseRequest], request, max_bytes=MAX_REQUEST_BYTES).open()
        if (asked.run, asked.gateway) != (self._context.run, self._context.key):
            raise EncodingError("a request for another run, or to another gateway")
        if asked.key == self._context.key:
            raise EncodingError("this is the gateway's own key: a light contributor needs one of its own")
        if self.entrance is not None:
            self.entrance.check(asked.key)
        self._asked_ms = self._clock.now_ms()
        work = self._work
        if work is None or self._is_over:
            return LeaseAnswer((), "the run is finished" if self._is_over else self._why_none, 4 * _AGAIN_MS, int(self._is_over))
        work.keep(self._leases.out(self._clock.now_ms()))
        leased = self._leases.ask(asked.key, address, microbatch_ms=asked.microbatch_ms, way_ms=asked.way_ms, now_ms=self._clock.now_ms())
        if isinstance(leased, LeaseRefusal):
            return LeaseAnswer((), leased.reason, leased.wait_ms, 0)
        lease = await self._made(work, leased)
        good_ms = round(leased.until_ms - self._clock.now_ms())
        if lease is None or good_ms <= 0 or self._work is not work:
            return LeaseAnswer((), "the gateway could not make the lease ready in time", 4 * _AGAIN_MS, 0)
        return LeaseAnswer((Signed.sign(replace(lease, good_ms=good_ms), self._context.identity),), "", 0, 0)

    async def _made(self, work: LeasedBase, leased: Leased) -> Lease | None:
        task = work.ready.get(leased.key)
        if task is None:
            task = work.ready[leased.key] = asyncio.create_task(self._make(work, leased))
            self.leased += 1
        try:
            return await asyncio.shield(task)  # who hangs up finds it ready at the next asking
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return None  # the base is over, or the lease is
        except (MantaError, OSError) as error:
            logger.warning("lease not made ready reason=%s", error)
            work.ready.pop(leased.key, None)
            self._leases.drop(leased)
            return None

    async def _make(self, work: LeasedBase, leased: Leased) -> Lease:
        """Read the samples of a lease's microbatches, and write the lease."""
        indices = self._terms.samples_of(work, leased)
        if is_for_any_thread(self._dataset):
            samples = await asyncio.to_thread(cut, self._dataset, indices)
        else:
            samples = await self._context.compute.run(cut, self._dataset, indices)
        digest = sha256(samples)
        work.samples[leased.key] = digest, samples
        return self._terms.lease(work, leased, digest, len(samples))

    def blob(self, digest: bytes) -> bytes | None:
        """Return weights or samples that a lease names; None: no lease of the base that is worked on does."""
        if self._work is None:
            return None
        held = ((self._work.weights_digest, self._work.weights), *self._work.samples.values())
        return next((data for name, data in held if name == digest), None)

    # What comes back.

    async def take(self, data: bytes) -> LightWord:
        """Take a packed LightReturn, or say why not. The same bytes have the same answer, or one that came of it meanwhile.

        Raises:
            RemoteFault: it is malformed, or not signed.
        """
        back = unpack(LightReturn, data, max_bytes=self.max_return_bytes)
        name, claim = sha256(data), back.claim.open()
        known = self.word(name)
        if known is not None:
            return known
        leased, work = self._leases.back(claim.key, claim.base, name, self._clock.now_ms()), self._work
        if isinstance(leased, LeaseRefusal) or work is None:
            return lost(leased.reason if isinstance(leased, LeaseRefusal) else "the gateway works on another base")
        with work.cohort_session.checking():
            try:
                vector, learnt = await asyncio.to_thread(self._terms.checked, work, leased, claim, back)
                named = named_by_claim(claim, learnt, self._terms.residual(work, leased).values)
                await work.keeper.keep(claim.round, claim.base, named)
            except RemoteFault as error:
                return lost(f"refused: {error}")
            if self._work is not work or work.cohort_session.is_closed or not self._leases.take(leased, name, self._clock.now_ms()):
                return self.word(name) or lost("too late: the gateway hands in already")
            samples = claim.microbatches * self.manifest.microbatch_samples
            work.cohort_session.take(PublicKey(claim.key), Gift(vector, samples, back.claim, name))
            self._returns.held(name)
            return self._held()

    def word(self, name: bytes) -> LightWord | None:
        """Return what became of a return; None: it is not known here."""
        word = self._returns.word(name)
        return self._held() if word is not None and word.fate == ReturnFate.HELD else word

    def _held(self) -> LightWord:
        return LightWord(int(ReturnFate.HELD), "", (), (), self._wait_ms())

    def _wait_ms(self) -> int:
        return max(_AGAIN_MS, round(self._leases.due_ms - self._clock.now_ms()) + _AGAIN_MS)
