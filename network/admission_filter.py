"""Filters who is served in a run that not everybody may take part in: methods answer members only, and the DHT keeps their records alone.

A peer has no copy of the log. So who was let in by an invitation shows an operator's word for it, its *admission proof*: beside each of its
records in the DHT, and to a node that does not know it yet, once, after a refusal that asks for it. Where the manifest lists the keys
nobody has to show anything. A guest's calls are answered too, but the DHT keeps none of its records, so nobody finds it to train with.
Whoever was not admitted may still fetch the manifest, measure a round trip, see commits, entries and tree heads, cosign these, see whose
admission was taken back, and ask to be admitted.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Protocol

from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Handler, OwnNode, RecordRule, Refused
from manta_swarm.protocol.admission import GUEST, LIST, MAX_ADMISSION_PROOF_BYTES, TAKEN_BACK, AdmissionProof, access_shown
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import together

NOT_ADMITTED = "not admitted"  # how a refusal begins that an admission proof may change
_LOGS = ("commit-after", "commit-at", "tree-head", "consistency", "cosigned", "histories", "entries")  # and what proves two histories
PUBLIC = frozenset(("manifest", "ping", "admission", "admission-proof", "revoked", *_LOGS))  # methods that answer everybody
MAX_KNOWN = 65_536  # keys that showed an admission proof
_MAX_SIGNED_PROOF_BYTES = MAX_ADMISSION_PROOF_BYTES + 80
_MAX_CARRIED_BYTES = 4096


def stranger_told(manifest: Manifest) -> str:
    """Return what a caller is told whom the run has not let in."""
    if manifest.admission.how == LIST:
        return "this run takes the peers that its manifest lists; ask its operator"
    return "this run takes invited peers only; ask its operator for an invitation"


class NotAdmitted(RemoteFault):
    """A caller that the run has not let in, as far as is known here."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A record of the DHT in a run that not everybody may take part in, with its owner's admission proof."""

    shown: tuple[Signed[AdmissionProof], ...]  # its owner's; none where the manifest names the key
    value: bytes

    def __post_init__(self) -> None:
        if len(self.shown) > 1:
            raise ValueError("a record carries one admission proof at most")


class Roll(Protocol):
    """Knows who is in without any admission proof, as a copy of the log or the manifest says it. ``protocol.admitted.Admitted`` is one."""

    @property
    def out(self) -> Container[bytes]:
        """The keys whose admission was taken back, whatever proof they show."""
        ...

    def trains(self, key: bytes) -> bool:
        """Return whether a key is in, and no guest."""
        ...


class Keeper(Protocol):
    """Learns which keys were revoked."""

    async def keep(self) -> None:
        """Learn of revocations until this is cancelled."""
        ...


class AdmittedKeys:
    """Knows who may take part, as far as this node can."""

    def __init__(self, manifest: Manifest, run: bytes, roll: Roll) -> None:
        """Know nobody's admission proof yet."""
        self._run = run
        self._operators = manifest.operators
        self._roll = roll
        self._passed: OrderedDict[PublicKey, str] = OrderedDict()  # with what they may do

    def __contains__(self, key: PublicKey) -> bool:
        return key not in self._roll.out and (self._roll.trains(key) or key in self._passed)

    def trains(self, key: PublicKey) -> bool:
        """Return whether a key is in, and no guest."""
        return key in self and (self._roll.trains(key) or self._passed[key] != GUEST)

    def learn(self, key: PublicKey, shown: Signed[AdmissionProof]) -> None:
        """Take an admission proof that ``key`` shows.

        Raises:
            EncodingError, SignatureError: it is none of this key's.
            NotAdmitted: its admission was taken back.
        """
        if key in self._roll.out:
            raise NotAdmitted(f"{NOT_ADMITTED}: {TAKEN_BACK}")
        if key in self._passed:
            return
        self._passed[key] = access_shown(shown, self._run, key, self._operators)
        if len(self._passed) > MAX_KNOWN:
            self._passed.popitem(last=False)

    def value_of(self, owner: PublicKey, data: bytes) -> bytes:
        """Return what an owner's record in the DHT says.

        Raises:
            RemoteFault: it is no record of such a run, or the owner is not in, or a guest.
        """
        carried = unpack(Carried, data, max_bytes=_MAX_CARRIED_BYTES)
        if owner not in self:
            if not carried.shown:
                raise NotAdmitted("a record of a key that was not admitted")
            self.learn(owner, carried.shown[0])
        if not self.trains(owner):
            raise NotAdmitted("a record of a guest")
        return carried.value

    def admits_record(self, owner: PublicKey, data: bytes) -> bool:
        """Return whether the DHT is to keep a record."""
        try:
            self.value_of(owner, data)
        except RemoteFault:
            return False
        return True


class AdmissionFilter:
    """A node, held to a run's admission. Implements ``network.rpc.OwnNode``."""

    def __init__(
        self, node: OwnNode, known: AdmittedKeys, own: Signed[AdmissionProof] | None, why: str, keeper: Keeper | None = None
    ) -> None:
        """Prepare; ``open`` holds the DHT to it.

        Args:
            node: this program's.
            known: who may take part.
            own: this node's admission proof; None: the manifest names its key.
            why: what a stranger is told.
            keeper: keeps beside ``watch_daemon``, and what it raises ends that.
        """
        self._node = node
        self._known = known
        self._own = own
        self._why = why
        self._keeper = keeper
        self.traffic = node.traffic
        self.link_ways = node.link_ways

    async def open(self) -> None:
        """Keep records of those alone who are in, and take admission proofs, from now on."""
        self._node.hold_records_to(self._known)
        await self._node.serve("admission-proof", self._on_proof)

    async def _on_proof(self, caller: PublicKey, request: bytes) -> bytes:
        self._known.learn(caller, unpack(Signed[AdmissionProof], request, max_bytes=_MAX_SIGNED_PROOF_BYTES))
        return b""

    @property
    def key(self) -> PublicKey:
        """See ``Endpoint.key``."""
        return self._node.key

    @property
    def known(self) -> AdmittedKeys:
        """Who may take part, as far as this node knows."""
        return self._known

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""

        async def held(caller: PublicKey, request: bytes) -> bytes:
            if caller not in self._known:
                raise NotAdmitted(f"{NOT_ADMITTED}: {self._why}")
            return await handler(caller, request)

        await self._node.serve(method, handler if method in PUBLIC else held)

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        """See ``Endpoint.call``; a node that does not know this one yet is shown the admission proof, and called once more."""
        try:
            return await self._node.call(key, method, request, timeout_s=timeout_s, large_answer=large_answer)
        except Refused as error:
            if self._own is None or not str(error).startswith(NOT_ADMITTED):
                raise
        await self._node.call(key, "admission-proof", pack(self._own), timeout_s=timeouts.CALL_S)
        return await self._node.call(key, method, request, timeout_s=timeout_s, large_answer=large_answer)

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """See ``Endpoint.publish``."""
        carried = Carried(() if self._own is None else (self._own,), value)
        await self._node.publish(name, pack(carried), ttl_s=ttl_s)

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        """See ``Endpoint.lookup``; what those wrote who are not in is left out."""
        found: dict[PublicKey, bytes] = {}
        for owner, data in (await self._node.lookup(name)).items():
            with contextlib.suppress(RemoteFault):
                found[owner] = self._known.value_of(owner, data)
        return found

    def hold_records_to(self, rule: RecordRule) -> None:
        """See ``OwnNode.hold_records_to``."""
        self._node.hold_records_to(rule)

    async def meet_again(self, key: PublicKey, maddrs: Sequence[str] = ()) -> None:
        """See ``OwnNode.meet_again``."""
        await self._node.meet_again(key, maddrs)

    async def addresses(self) -> list[str]:
        """See ``OwnNode.addresses``."""
        return await self._node.addresses()

    async def introduce(self, key: PublicKey, maddrs: Sequence[str]) -> None:
        """See ``OwnNode.introduce``."""
        await self._node.introduce(key, maddrs)

    async def addresses_of(self, key: PublicKey) -> list[str]:
        """See ``OwnNode.addresses_of``."""
        return await self._node.addresses_of(key)

    async def remote_hosts(self, key: PublicKey) -> list[str]:
        """See ``OwnNode.remote_hosts``."""
        return await self._node.remote_hosts(key)

    async def connected(self) -> dict[PublicKey, list[str]]:
        """See ``OwnNode.connected``."""
        return await self._node.connected()

    async def serve_dht(self, is_served: bool) -> None:
        """See ``OwnNode.serve_dht``."""
        await self._node.serve_dht(is_served)

    async def watch_daemon(self) -> None:
        """See ``OwnNode.watch_daemon``."""
        await (self._node.watch_daemon() if self._keeper is None else together(self._node.watch_daemon(), self._keeper.keep()))
