"""Runs a light contributor: it enters a run through a gateway, leases microbatches, computes them, and returns the results.

It holds no model, no data and no state of the run between two leases; its key and a status file are all that is on its disk. A gateway that
is away is waited for. Synchronous: there is one thing to do at a time, in a thread of its own, which the person's word reaches through a
work gate (``peer.features.light.session``).
"""

import logging
import random
import statistics
import time
from collections import deque
from dataclasses import dataclass, field

from manta_swarm.automl.spaces.space import space_named
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.run_locator import admission_by, admission_proof_of, not_invited, not_let_in, not_listed, only_a_guest
from manta_swarm.peer.features.light.client import GatewayClient, NotKnown, NotLetIn
from manta_swarm.peer.features.light.pay import Pay, last_look
from manta_swarm.peer.features.light.work import LeaseWork, LightWork, NoUse
from manta_swarm.peer.features.light.work_gate import LeaseOver, WorkGate
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.admission import GUEST, LIST, AdmissionProof, access_shown
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, OtherVersion, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.exchange import MAX_OPEN_MS
from manta_swarm.protocol.light import EnterRequest, Lease, LeaseRequest, LightWord, ReturnFate
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, peer_name

_AGAIN_S = (1.0, 30.0)  # first and longest pause before a gateway that does not answer is asked again
_PAUSE_S = (0.2, 4.0)  # shortest and longest before a gateway that has nothing is asked again
_QUIET_S = 15.0  # without a lease, until the reason is said
_REMEMBERED = 4  # leases, with how long their way took
_BRING_S = (0.5, 30.0)  # to bring something back: what is reckoned with before the first time; and for so long at least it is tried

logger = logging.getLogger("manta.light")


class LightAdmission:
    """Gets one light contributor let into the run by its gateway, and keeps the admission proof."""

    def __init__(self, identity: Identity, store: PeerStore, told: str | None) -> None:
        """Prepare; ``told`` is the invitation that the person gave, None: none."""
        self._identity = identity
        self._store = store
        self._told = told

    def enter(self, client: GatewayClient, manifest: Manifest, run: bytes) -> None:
        """Have the gateway know that this key is in.

        Raises:
            UserError: the run does not let it in; the message says what to ask for.
            Unreachable: the gateway is away, or reaches no log.
            RemoteFault: it says what makes no sense.
            StorageError: the admission proof cannot be kept.
        """
        key = self._identity.public_key
        if manifest.admission.is_open or key in Admitted(manifest, run):
            return
        if manifest.admission.how == LIST:
            raise not_listed(manifest, self._identity)
        shown = self._kept(manifest, run)
        if shown is None and self._told is None:
            raise not_invited(manifest, self._identity)
        if shown is not None and shown.unchecked().access == GUEST:
            raise only_a_guest(manifest)
        admission = () if shown is not None or self._told is None else (admission_by(self._told, self._identity, run),)
        request = EnterRequest(run, key, () if shown is None else (shown,), admission)
        try:
            found = client.enter(request)
        except NotLetIn as error:
            if shown is not None:
                raise UserError(f"{manifest.name} does not let your key in any more ({error}): ask its operator why") from error
            raise not_let_in(manifest, error) from error
        access_shown(found, run, key, manifest.operators)
        if shown is None:
            self._store.own_proof(run).write(pack(found))

    def _kept(self, manifest: Manifest, run: bytes) -> Signed[AdmissionProof] | None:
        kept = self._store.own_proof(run).read()
        if kept is None:
            return None
        try:
            return admission_proof_of(kept, run, self._identity.public_key, manifest.operators)
        except RemoteFault:
            return None  # another key's, or damaged: the invitation leads to it again


@dataclass
class _Pending:
    """A return whose fate is not known yet."""

    done: LeaseWork
    round: int
    ask_s: float  # when to ask again
    name: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.done.back.name


class Contributor:
    """Works for one light contributor: leases, computes, returns. Only the working thread calls it."""

    def __init__(
        self,
        identity: Identity,
        store: PeerStore,
        live_status: LiveStatus,
        client: GatewayClient,
        work_gate: WorkGate,
        config: PeerConfig,
    ) -> None:
        """Prepare.

        Args:
            identity: whose claims these are.
            store: keeps what it earned.
            live_status: shows it.
            client: asks the gateways.
            work_gate: says when there may be microbatches.
            config: names the only run that is taken part in, the invitation to it, and the account that the credit adds up to, if any.
        """
        self._identity = identity
        self._payout = config.payout_key
        self._live_status = live_status
        self._client = client
        self._work_gate = work_gate
        self._expected_run = config.run
        self._store = store
        self._entry = LightAdmission(identity, store, config.invitation)
        self._pay: Pay | None = None  # once the run is known
        self._gateway: bytes | None = None  # its key, once it is known
        self._manifest: Manifest | None = None
        self._work: LightWork | None = None
        self._pending: list[_Pending] = []
        self._ways_ms: deque[float] = deque(maxlen=_REMEMBERED)
        self._brought_s: deque[float] = deque(maxlen=_REMEMBERED)  # how long it took lately
        self._idle_since_s = time.monotonic()
        self._said_why = ""

    def write(self) -> None:
        """Write where this light contributor stands, for who looks on."""
        self._live_status.update(sent_bytes=self._client.bytes_up, received_bytes=self._client.bytes_down)
        self._live_status.write()

    # Its life.

    def run(self) -> None:
        """Do one lease after the other until the run is finished, or the person leaves."""
        pause_s = _AGAIN_S[0]
        self.write()
        while not (self._live_status.status.finished or self._work_gate.is_leaving):
            try:
                wait_s = self._once()
            except (Unreachable, RemoteFault) as error:
                self._lose_sight(error)
                self._work_gate.wait(pause_s * random.uniform(0.75, 1.25))
                pause_s = min(2 * pause_s, _AGAIN_S[1])
                continue
            pause_s = _AGAIN_S[0]
            self.write()
            if not self._live_status.status.finished and wait_s > 0:
                self._work_gate.wait(min(max(wait_s, _PAUSE_S[0]), _PAUSE_S[1]))
        if self._pay is not None:
            last_look(self._pay, self._client)
            self.write()

    def _once(self) -> float:
        """Meet the gateway where it is not known; ask what became of earlier returns; do a lease. Return how long there is nothing to do.

        Raises:
            Unreachable, RemoteFault: the gateway is away, or says what makes no sense.
        """
        if self._gateway is None:
            self._meet()
        waits_s = [self._look_after(pending) for pending in list(self._pending)]
        if self._pay is not None:
            self._pay.look(self._client)
        if self._work_gate.is_paused:
            self._live_status.update(stage="paused")
            return min([_PAUSE_S[1], *waits_s])
        assert self._gateway is not None
        assert self._work is not None
        way_ms = min(round(statistics.median_low(self._ways_ms) if self._ways_ms else 0.0), MAX_OPEN_MS)
        run = bytes.fromhex(self._live_status.status.run)
        request = LeaseRequest(run, self._gateway, self._identity.public_key, self._work.microbatch_ms, way_ms)
        began_s = time.monotonic()
        answer = self._client.lease(Signed.sign(request, self._identity))
        if answer.lease:
            lease = answer.lease[0].open()
            if (lease.run, lease.gateway, lease.key) != (run, self._gateway, self._identity.public_key):
                raise EncodingError("a lease of another run or gateway, or for another key")
            with self._work_gate.at_work():
                self._do(lease, began_s)
            return 0.0
        if answer.is_over and not self._pending:
            self._live_status.update(stage="finished", finished=True, waiting_for="")
            self._live_status.say(f"run finished taken={self._live_status.status.taken} samples={self._live_status.status.samples_counted}")
            return 0.0
        self._has_nothing(answer.reason)
        return min([answer.wait_ms / 1000, *waits_s])

    def _meet(self) -> None:
        """Get to know the gateway, and the run.

        Raises:
            Unreachable, RemoteFault: it is away, or not the one that was meant.
            UserError: at the first meeting: it is of another run, or of one that this version cannot train or speak; at any: the run does
                not let this key in, or does no more.
            StorageError: the log's admission proof cannot be kept.
        """
        welcome = self._client.welcome()
        try:
            manifest, run = welcome.manifest.open(), welcome.manifest.run
        except OtherVersion as error:
            raise UserError(f"the run of {self._client.gateway.url} is of another version; {error}") from error
        if self._expected_run is not None and run.hex() != self._expected_run:
            problem = f"{self._client.gateway.url} is a gateway of run {run.hex()}, not {self._expected_run}"
            if self._manifest is None:
                raise UserError(f"{problem}; check --run and --gateway")
            raise EncodingError(problem)
        self._entry.enter(self._client, manifest, run)
        if self._work is None:
            space_named(manifest.supernet)
            self._manifest, self._work = manifest, LightWork(manifest, run, self._identity, self._payout)
            self._pay = Pay(welcome.manifest, self._identity.public_key, self._store, self._live_status)
            self._expected_run = run.hex()
            self._live_status.update(run=run.hex(), name=manifest.name, num_rounds=manifest.num_rounds)
            self._live_status.say(f"run {manifest.name} ({run.hex()[:16]}) as light contributor {self._live_status.status.peer[-8:]}")
            threads = self._work_gate.threads
            self._live_status.say(f"computes on the CPU with {threads} thread{'s' if threads > 1 else ''}")
        self._gateway = welcome.gateway
        self._live_status.update(gateway=self._client.gateway.url, waiting_for="", stage="waiting")
        self._live_status.say(f"leases from {self._client.gateway.url} ({peer_name(welcome.gateway)[-8:]})")

    def _lose_sight(self, error: Exception) -> None:
        """The gateway is away, or makes no sense: it is met anew, or the next one is."""
        logger.info("no gateway url=%s reason=%s", self._client.gateway.url, error)
        if not self._live_status.status.waiting_for:
            self._live_status.say(f"waiting for a gateway: {error}; it is tried again until one answers (Ctrl-C ends that)")
        self._gateway = None
        self._live_status.update(waiting_for=f"a gateway: {error}", stage="waiting")
        if self._client.turn():
            for pending in self._pending:
                self._lost(pending, "its gateway went away")
            self._pending.clear()
        self.write()

    def _has_nothing(self, reason: str) -> None:
        self._live_status.update(stage="waiting")
        now_s = time.monotonic()
        if now_s - self._idle_since_s > _QUIET_S and reason != self._said_why:
            self._said_why = reason
            self._live_status.say(f"no lease: {reason}")

    # A lease.

    def _do(self, lease: Lease, began_s: float) -> None:
        """Get what a lease names, do its microbatches, and bring back what came of them.

        Raises:
            Unreachable, RemoteFault: the gateway is away, or says what makes no sense.
        """
        work = self._work
        assert work is not None
        work.architecture_of(lease)
        self._idle_since_s, self._said_why = time.monotonic(), ""
        self._live_status.add(leases=1)
        self._live_status.update(round=lease.round, stage="working")
        self.write()
        try:
            weights = self._client.blob(lease.weights, lease.weights_bytes)
            samples = self._client.blob(lease.samples, lease.samples_bytes)
        except NotKnown:
            self._live_status.add(lost=1)
            self._live_status.say(f"lost round={lease.round} samples=0 (the lease was over before all that it needs was here)")
            self._work_gate.wait(_PAUSE_S[1])
            return
        worked_s, until_s, trained = time.monotonic(), began_s + lease.good_ms / 1000, self._work_gate.num_samples
        done_by_s = until_s - (statistics.median_low(self._brought_s) if self._brought_s else _BRING_S[0])
        try:
            done = work.do(lease, weights, samples, self._work_gate, over_s=until_s, until_s=done_by_s)
        except LeaseOver as error:
            self._live_status.add(lost=1)
            self._live_status.say(f"lost round={lease.round} samples={self._work_gate.num_samples - trained} ({error})")
            return
        except NoUse as error:
            self._live_status.add(lost=1)
            self._live_status.say(f"microbatches dropped: {error} round={lease.round}")
            self._work_gate.wait(_PAUSE_S[1])
            return
        done_s = time.monotonic()
        pending = _Pending(done, lease.round, 0.0)
        word = self._give_back(pending, max(until_s, done_s + _BRING_S[1]))
        self._brought_s.append(time.monotonic() - done_s)
        microbatches_ms = work.microbatch_ms * sum(done.back.counts)
        self._ways_ms.append(max(1.0, 1000 * (time.monotonic() - began_s) - min(microbatches_ms, 1000 * (done_s - worked_s))))
        if not self._settled(pending, word):
            self._pending.append(pending)
        self._idle_since_s = time.monotonic()

    def _give_back(self, pending: _Pending, until_s: float) -> LightWord:
        """Bring back what came of a lease; a gateway that is away or busy for a moment is tried again, also when the lease is over: it may
        still take it.
        """
        pause_s = _PAUSE_S[0]
        while True:
            try:
                return self._client.give_back(pending.done.back)
            except Unreachable:
                if time.monotonic() > until_s:
                    self._lost(pending, "its gateway went away")
                    raise
            except RemoteFault as error:
                self._lost(pending, str(error))
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])

    def _look_after(self, pending: _Pending) -> float:
        """Ask what became of a return, if it is time to; return how long until it is again."""
        if time.monotonic() < pending.ask_s:
            return pending.ask_s - time.monotonic()
        try:
            is_settled = self._settled(pending, self._client.word(pending.name))
        except NotKnown:
            self._lost(pending, "its gateway was started again")
            is_settled = True
        if is_settled:
            self._pending.remove(pending)
            return 0.0
        return pending.ask_s - time.monotonic()

    def _settled(self, pending: _Pending, word: LightWord) -> bool:
        """Take note of what a gateway says of a return; False: it is to be asked again."""
        if word.fate == ReturnFate.HELD:
            pending.ask_s = time.monotonic() + min(word.wait_ms / 1000, _PAUSE_S[1])
            return False
        if word.fate == ReturnFate.LOST:
            self._lost(pending, word.reason)
            return True
        try:
            self._check(pending, word)
        except RemoteFault as error:
            self._lost(pending, f"its gateway shows an inclusion promise that does not hold: {error}")
            return True
        done = pending.done
        if self._pay is not None:
            self._pay.counts(word.contribution[0].digest, done.back.claim)
        self._live_status.add(taken=1, samples_counted=done.samples)
        self._live_status.update(loss=done.loss)
        microbatches = sum(done.back.counts)
        total = self._live_status.status.samples_counted
        self._live_status.say(
            f"the log has it round={pending.round} microbatches={microbatches} samples={done.samples} loss={done.loss:.3f} total={total}"
        )
        return True

    def _check(self, pending: _Pending, word: LightWord) -> None:
        """Check that the log promises what a word says.

        Raises:
            RemoteFault: it does not.
        """
        assert self._manifest is not None
        contribution, inclusion_promise = word.contribution[0].open(), word.inclusion_promise[0].open_by(self._manifest.operators)
        run = bytes.fromhex(self._live_status.status.run)
        if (inclusion_promise.run, inclusion_promise.contribution) != (run, word.contribution[0].digest) or contribution.run != run:
            raise EncodingError("an inclusion promise for something else")
        if pending.done.back.claim.digest not in contribution.claims:
            raise EncodingError("an inclusion promise for a contribution that does not list this claim")

    def _lost(self, pending: _Pending, reason: str) -> None:
        self._live_status.add(lost=1)
        self._live_status.say(f"lost round={pending.round} samples={pending.done.samples} ({reason})")
