"""Limits what callers may do: token buckets bound how many calls of a key or an address are answered, and faults get a key ignored.

Keys cost nothing, addresses do: a hundred keys behind one address have together what is the address's. Of IPv6 a whole /64 is one address.
What comes by way of a relay is of one address too, for nobody sees where it is from, and so is what comes from keys that are not Ed25519,
which no honest program has; calls from this computer are counted by key alone.
A node learns addresses from its daemon, which is asked only when a key calls that was not there before, and not too often.
"""

import asyncio
import contextlib
import ipaddress
import math
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from manta_swarm.protocol.auditing import FINDING, VERDICT
from manta_swarm.protocol.errors import SignatureError, Unreachable
from manta_swarm.protocol.signing import PublicKey, public_key_of
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

MAX_KEYS = 1024
FAULTS_FORGIVEN = 8  # of one key within ``FORGET_S``
FORGET_S = 60.0

Name = TypeVar("Name", bound=Hashable)

MAX_NAMES = 16_384
_NOTHING = 1e-6  # of a request: what is lost in a float

# An honest peer makes about ten calls a round at the log, and one for each megabyte; in a cohort a few for each local step.
CALLS_OF_KEY, CALLS_OF_ADDRESS = 250, 1000
AT_ONCE_S = 10  # so many seconds' calls may come at once
# What costs the one who answers signatures to check, or a place on the disk, is worth more calls than one.
COSTS = {
    "header": 20,
    "admission": 20,
    "measure": 20,
    "cosigned": 20,
    FINDING: 20,
    VERDICT: 20,
    "entries": 5,
    "contributions": 5,
    "DHTProtocol.rpc_store": 10,
    "DHTProtocol.rpc_find": 10,
}
RELAYED = "relayed"
OTHER_KEYS = "keys of other kinds"

_LISTED_S = (0.2, 60.0)  # shortest and longest time between two looks at who is connected
_LOOK_SHARE = 0.05  # of the time, that these looks take at most


class CallerFaults:
    """Counts what callers did wrong, by key and by reason."""

    def __init__(self, clock: Clock) -> None:
        """Know of none yet."""
        self._clock = clock
        self._by_key: OrderedDict[bytes, tuple[Counter[str], float, int]] = OrderedDict()  # reasons, since when, how many since then
        self.by_reason: Counter[str] = Counter()

    def note(self, key: bytes, reason: str) -> None:
        """Count one; ``reason`` is one of a few."""
        now = self._clock.now_s()
        reasons, since, recent = self._by_key.pop(key, (Counter(), now, 0))
        if now - since > FORGET_S:
            since, recent = now, 0
        reasons[reason] += 1
        self.by_reason[reason] += 1
        self._by_key[key] = (reasons, since, recent + 1)
        if len(self._by_key) > MAX_KEYS:
            self._by_key.popitem(last=False)

    def is_too_much(self, key: bytes) -> bool:
        """Return whether a key did so much wrong lately that its calls are not worth looking at."""
        found = self._by_key.get(key)
        return found is not None and found[2] > FAULTS_FORGIVEN and self._clock.now_s() - found[1] <= FORGET_S

    def by_key(self) -> dict[bytes, dict[str, int]]:
        """Return what each of the keys that were refused last was refused for."""
        return {key: dict(reasons) for key, (reasons, _, _) in self._by_key.items()}


@dataclass
class TokenBuckets(Generic[Name]):
    """A token bucket for each name: a burst at once, then a rate per second. Of too many names the oldest is forgotten."""

    a_second: float
    at_once: float
    max_names: int = MAX_NAMES
    _left: OrderedDict[Name, tuple[float, float]] = field(default_factory=OrderedDict)  # how many it may make, and when that was so

    def wait_ms(self, name: Name, now_ms: float, cost: float = 1.0) -> int:
        """Count a request that is worth ``cost`` and return 0; or return after how long it may be made, and count nothing."""
        left, since_ms = self._left.pop(name, (self.at_once, now_ms))
        left = min(left + (now_ms - since_ms) / 1000 * self.a_second, self.at_once)
        missing = min(cost, self.at_once) - left
        self._left[name] = (left - cost if missing <= _NOTHING else left, now_ms)
        if len(self._left) > self.max_names:
            self._left.popitem(last=False)
        return 0 if missing <= _NOTHING else max(1, math.ceil(missing / self.a_second * 1000))

    def owe(self, name: Name, now_ms: float, cost: float) -> None:
        """Count what was done already: later requests wait for it."""
        left, since_ms = self._left.pop(name, (self.at_once, now_ms))
        self._left[name] = (min(left + (now_ms - since_ms) / 1000 * self.a_second, self.at_once) - cost, now_ms)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How many calls a second a node answers."""

    of_key: int = CALLS_OF_KEY
    of_address: int = CALLS_OF_ADDRESS


class Connections(Protocol):
    """What ``CallRates`` asks of a node's connections."""

    async def connected(self) -> dict[PublicKey, list[str]]:
        """See ``network.rpc.OwnNode.connected``."""
        ...


class CallRates:
    """Limits how many calls the callers of one node may make."""

    def __init__(self, limits: CallLimits, connections: Connections, clock: Clock = SYSTEM_CLOCK) -> None:
        """Prepare.

        Args:
            limits: of each key, and of each address.
            connections: of this node.
        """
        self._of_key: TokenBuckets[bytes] = TokenBuckets(limits.of_key, limits.of_key * AT_ONCE_S)
        self._of_address: TokenBuckets[str] = TokenBuckets(limits.of_address, limits.of_address * AT_ONCE_S)
        self._connections = connections
        self._clock = clock
        self._addresses: dict[PublicKey, str] = {}
        self._looking: asyncio.Task[None] | None = None
        self._next_look = -math.inf
        self._stale = math.inf  # from then on what is known of addresses may be old
        self.refused: Counter[str] = Counter()  # calls, by what had too many: "key", "address"

    async def refusal(self, caller: bytes, name: str) -> str | None:
        """Count a call of a method by a libp2p peer; return why it is not answered, and when it would be; None: it is."""
        cost = COSTS.get(name.removeprefix("manta.").removesuffix(".stream"), 1)
        wait_ms = self._of_key.wait_ms(caller, self._clock.now_s() * 1000, cost)
        if wait_ms:
            return self._refused("key", wait_ms)
        address = await self._look_up(caller)
        wait_ms = self._of_address.wait_ms(address, self._clock.now_s() * 1000, cost) if address else 0
        return self._refused("address", wait_ms) if wait_ms else None

    def address_of(self, key: PublicKey) -> str:
        """Return what the calls of a key are counted by beside the key, as it was known at its last call; empty: nothing."""
        return self._addresses.get(key, "")

    def address_of_peer(self, caller: bytes) -> str:
        """Return what ``address_of`` does, for a libp2p peer, whatever kind of key it has."""
        try:
            return self.address_of(public_key_of(caller))
        except SignatureError:
            return OTHER_KEYS

    def _refused(self, what: str, wait_ms: int) -> str:
        self.refused[what] += 1
        return f"too many calls from this {what}: come back in {math.ceil(wait_ms / 1000)} s"

    async def _look_up(self, caller: bytes) -> str:
        try:
            key = public_key_of(caller)
        except SignatureError:
            return OTHER_KEYS  # nothing but hivemind's own calls answers them
        if key not in self._addresses or self._clock.now_s() >= self._stale:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
                self._looking.add_done_callback(self._looked)
            if key not in self._addresses:
                await asyncio.shield(self._looking)  # others wait for it too
        return self._addresses.get(key, "")

    async def _look(self) -> None:
        await asyncio.sleep(max(self._next_look - self._clock.now_s(), 0))
        begun = self._clock.now_s()
        with contextlib.suppress(Unreachable):  # the daemon has ended, which its program hears of elsewhere
            self._addresses = {key: _counted_as(hosts) for key, hosts in (await self._connections.connected()).items()}
        took = self._clock.now_s() - begun
        self._next_look = self._clock.now_s() + max(_LISTED_S[0], took / _LOOK_SHARE)
        self._stale = self._clock.now_s() + _LISTED_S[1]

    def _looked(self, _: object) -> None:
        self._looking = None

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))


def _counted_as(hosts: list[str]) -> str:
    """Return what the calls of a key with connections from these hosts are counted by; empty: nothing, they are this computer's."""
    if not hosts:
        return RELAYED
    return next((network for network in map(network_of, hosts) if network), "")


def network_of(host: str) -> str:
    """Return what an IP address is counted as; empty: nothing, it is this computer's or none.

    Of IPv6 it is the /64: whoever has one address in it has 2^64.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if address.is_loopback:
        return ""
    if address.version == 4:
        return host
    mapped = address.ipv4_mapped
    return str(ipaddress.ip_network((address, 64), strict=False)) if mapped is None else network_of(str(mapped))
