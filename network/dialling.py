"""Which nodes this one's daemon connects to, and at which addresses: all calls of others pass here, hivemind's own too.

For half an hour libp2p remembers every address that a node announced while it was connected, and dials all of them as soon as that node is
called. Anybody may announce anybody's: the ports of this computer's network, or a stranger's. So the daemon connects to nobody but those
whom a person or the run's manifest names, and such as are there. Where a node is, this one asks others, which ask the node while it is
connected to them. What they say is dialled as far as ``is_dialable`` lets it, a few places at most, by a connection of this module's own,
in which the node has to show its key (``network.dial_back``); then the daemon connects. A place where the node is not is left alone, for
longer each time.
"""

import asyncio
import contextlib
import ipaddress
import math
import random
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID

from manta_swarm.network import timeouts
from manta_swarm.network.addresses import is_dialable
from manta_swarm.network.connections import answer_of, connect, connected_peers, host_of, hosts_of, tcp_port_of
from manta_swarm.network.dial_back import is_there
from manta_swarm.network.rpc import ANSWER, REFUSAL, refusal
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, SignatureError, Unreachable
from manta_swarm.protocol.signing import PublicKey, peer_id, peer_name, public_key_of
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

METHOD = "where"
MAX_PLACES = 8  # that a node is said to be at
MAX_MESSAGE_BYTES = 512
_KEY_BYTES = 32
_DIALLED = 4  # places of one node, by what one other says
_ASKED = 3  # nodes where another one is
_DIALLING = 16  # places at a time
_LISTED_S = 0.25  # a trusted node that was connected so long ago is called without another look
_TOLD_S = 60.0  # and what a node says of itself
_REMEMBERED = 4096  # nodes, or places

Place: TypeAlias = tuple[str, int]  # an IP address and a TCP port
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ListenPlaces:
    """Where a node listens: IP addresses and TCP ports."""

    places: tuple[Place, ...]

    def __post_init__(self) -> None:
        if len(self.places) > MAX_PLACES or not all(0 < port < 65536 for _, port in self.places):
            raise ValueError("too many places, or no TCP port")
        for host, _ in self.places:
            if "%" in host:  # an interface of another computer says nothing here, and no multiaddr can name one
                raise ValueError("an address with a scope")
            ipaddress.ip_address(host)


def places_of(maddrs: Iterable[str]) -> list[Place]:
    """Return the places that multiaddresses name; those of another kind, by a name, a relay or another protocol, are left out."""
    found = ((host_of(maddr), tcp_port_of(maddr), maddr.split("/")[5:]) for maddr in maddrs)
    return [(host, port) for host, port, rest in found if host is not None and port is not None and rest[:1] in ([], ["p2p"])]


def maddr_of(place: Place, key: PublicKey) -> str:
    """Return the full multiaddress of a node at a place."""
    host, port = place
    return f"/ip{ipaddress.ip_address(host).version}/{host}/tcp/{port}/p2p/{peer_name(key)}"


class FailedDials:
    """Places where a node was not: each is left alone, then for twice as long; only so many in a minute are tried. Pure."""

    PAUSE_S = (30.0, 3600.0)  # first and longest
    OF_HOST, IN_ALL = 24, 64  # in a minute

    def __init__(self) -> None:
        self._until_s: OrderedDict[Place, tuple[float, float]] = OrderedDict()  # with the pause
        self._lately: Counter[str] = Counter()  # by host, in this minute
        self._minute = 0

    def may_dial(self, place: Place, now_s: float) -> bool:
        """Return whether a place may be dialled now."""
        self._turn_to(now_s)
        until_s, _ = self._until_s.get(place, (-math.inf, 0.0))
        return now_s >= until_s and self._lately[place[0]] < self.OF_HOST and self._lately.total() < self.IN_ALL

    def begin(self, place: Place, now_s: float) -> None:
        """Dial a place: the node is not there, until it answers."""
        self._turn_to(now_s)
        self._lately[place[0]] += 1
        shortest_s, longest_s = self.PAUSE_S
        _, pause_s = self._until_s.pop(place, (0.0, shortest_s / 2))
        pause_s = min(2 * pause_s, longest_s)
        self._until_s[place] = (now_s + pause_s, pause_s)
        if len(self._until_s) > _REMEMBERED:
            self._until_s.popitem(last=False)

    def answered(self, place: Place) -> None:
        """The node is there."""
        self._until_s.pop(place, None)
        self._lately[place[0]] = max(0, self._lately[place[0]] - 1)

    def _turn_to(self, now_s: float) -> None:
        if self._minute != int(now_s // 60):
            self._minute = int(now_s // 60)
            self._lately.clear()


class Dialling:
    """Decides which others one node connects to, and makes these connections."""

    def __init__(self, p2p: P2P, key: PublicKey, clock: Clock = SYSTEM_CLOCK) -> None:
        """Use the daemon ``p2p`` of the node ``key``, before ``network.unary`` does: only those who are connected are asked here."""
        self._p2p = p2p
        self._key = key
        self._clock = clock
        self._call = p2p._client.control.call_unary_handler
        self._trusted: dict[bytes, list[str]] = {}  # by peer id, as all below
        self._connected: dict[bytes, list[bytes]] = {}  # with the addresses at the other end
        self._listed_s = -math.inf
        self._lock = asyncio.Lock()  # of these two
        self._opening: dict[bytes, asyncio.Task[None]] = {}
        self._dialling = asyncio.Semaphore(_DIALLING)
        self._failed = FailedDials()
        self._reached: _Newest[Place] = _Newest()  # where a node was
        self._told_by: _Newest[bytes] = _Newest()  # who named a node last
        self._told: _Newest[tuple[float, list[Place]]] = _Newest()  # what a node says of itself, and when it did

    def trust(self, key: PublicKey, maddrs: Sequence[str] = ()) -> None:
        """Connect to this node, which a person or the manifest names, as often as it is called, by these addresses as well."""
        known = self._trusted.setdefault(peer_id(key), [])
        known += [maddr for maddr in maddrs if maddr not in known]

    @property
    def trusted(self) -> list[PeerID]:
        """The nodes that a person or the manifest names."""
        return [PeerID(peer) for peer in self._trusted]

    def follow(self, dht: DHTNode) -> None:
        """Remember of all whom a search of the DHT finds who named them: it may know where they are."""
        call_find = dht.protocol.call_find

        async def call_and_remember(peer: PeerID, keys: Collection[DHTID]) -> Any:
            found = await call_find(peer, keys)
            for _, nearest in (found or {}).values():
                for other in nearest.values():
                    self._told_by.put(other.to_bytes(), peer.to_bytes())
            return found

        dht.protocol.call_find = call_and_remember

    async def open(self, peer: bytes) -> None:
        """Return once there is a connection to a libp2p peer; all who wait for the same one have one try.

        Raises:
            Unreachable: there is no way to it that may be gone.
        """
        if peer in self._trusted and peer in self._connected and self._clock.now_s() < self._listed_s + _LISTED_S:
            return
        if peer in await self._list():
            return
        opening = self._opening.get(peer)
        if opening is None:
            opening = self._opening[peer] = asyncio.create_task(self._open(peer))
            opening.add_done_callback(lambda task: self._opened(peer, task))
        await asyncio.shield(opening)

    async def introduce(self, key: PublicKey, maddrs: Sequence[str]) -> None:
        """Connect to a node that is said to be at these addresses, all of which may be dialled, if it is at one of them.

        Raises:
            Unreachable: it is not, or it was not there lately.
        """
        if peer_id(key) not in await self._list():
            await self._connect_at(key, places_of(maddrs))

    async def places(self, key: PublicKey) -> list[Place]:
        """Return where a node is, as it says itself, or was reached; none where that is not known here."""
        if key == self._key:
            _, maddrs = await answer_of(self._p2p._client.identify(), "the p2p daemon", timeouts.CONNECT_S)
            return sorted(places_of(map(str, maddrs)), key=lambda place: not ipaddress.ip_address(place[0]).is_global)[:MAX_PLACES]
        peer = peer_id(key)
        addresses = (await self._list()).get(peer)
        if addresses is None:
            reached = self._reached.get(peer)
            return [] if reached is None else [reached]
        hosts, told = hosts_of(addresses), await self._told_of_itself(key)
        ports = list(dict.fromkeys(port for _, port in told))
        seen = [(host, port) for host in hosts for port in ports]
        return list(dict.fromkeys([*seen, *(place for place in told if is_dialable(place[0], hosts))]))[:MAX_PLACES]

    async def addresses_of(self, key: PublicKey) -> list[str]:
        """Return addresses under which others call a node; none where nobody says.

        Raises:
            Unreachable: nobody knows the node.
        """
        places = await self.places(key)
        for informant in [] if places else self._informants(peer_id(key)):
            places += await self._ask(informant, key)
        if not places and peer_id(key) not in self._connected:
            raise Unreachable(f"nobody says where {peer_name(key)[-8:]} is")
        return [maddr_of(place, key) for place in dict.fromkeys(places)]

    async def answer(self, _caller: PeerID, request: bytes) -> bytes:
        """Answer whoever asks where a node is."""
        try:
            if len(request) != _KEY_BYTES:
                raise EncodingError("no key")
            return ANSWER + pack(ListenPlaces(tuple(await self.places(PublicKey(request)))))
        except MantaError as error:
            return REFUSAL + refusal(error).encode()

    async def close(self) -> None:
        """End what is under way."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    async def _list(self) -> dict[bytes, list[bytes]]:
        """Return who is connected now.

        Raises:
            Unreachable: the daemon has ended.
        """
        asked_s = self._clock.now_s()
        async with self._lock:
            if self._listed_s < asked_s:  # another one's look that began before may not have seen who has just come
                begun_s = self._clock.now_s()
                self._connected = await connected_peers(self._p2p)
                self._listed_s = begun_s
        return self._connected

    async def _open(self, peer: bytes) -> None:
        try:
            key = public_key_of(peer)
        except SignatureError as error:
            raise Unreachable("a node of another kind is called by nobody") from error
        failure: Unreachable | None = None
        if peer in self._trusted:
            try:
                return await connect(self._p2p, key, self._trusted[peer], peer_name(key)[-8:])
            except Unreachable as error:
                failure = error  # it may be elsewhere by now
        reached = self._reached.get(peer)
        with contextlib.suppress(Unreachable):
            return await self._connect_at(key, [] if reached is None else [reached])
        asking = [asyncio.create_task(self._ask(informant, key)) for informant in self._informants(peer)]
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    return await self._connect_at(key, await answer)
                except Unreachable as error:
                    failure = failure or error
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise failure or Unreachable(f"{peer_name(key)[-8:]} is not connected, and nobody says where it is")

    def _opened(self, peer: bytes, task: "asyncio.Task[None]") -> None:
        self._opening.pop(peer, None)
        if not task.cancelled():
            task.exception()  # is told to those who wait for it; there may be none left

    async def _connect_at(self, key: PublicKey, places: Sequence[Place]) -> None:
        """Connect to a node at the first of a few of these places that it answers at.

        Raises:
            Unreachable: it is at none of them.
        """
        dials = {asyncio.create_task(self._is_at(key, place)): place for place in places[:_DIALLED]}
        try:
            waiting = set(dials)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for place in (dials[task] for task in done if task.result()):
                    await connect(self._p2p, key, [maddr_of(place, key)], peer_name(key)[-8:])
                    self._reached.put(peer_id(key), place)
                    return
        finally:
            for task in dials:
                task.cancel()
            await asyncio.gather(*dials, return_exceptions=True)
        raise Unreachable(f"{peer_name(key)[-8:]} is nowhere where it may be called")

    async def _is_at(self, key: PublicKey, place: Place) -> bool:
        """Return whether a node answers at a place; one that is not trusted is not asked where nobody was lately."""
        async with self._dialling:
            if peer_id(key) not in self._trusted and not self._failed.may_dial(place, self._clock.now_s()):
                return False
            self._failed.begin(place, self._clock.now_s())
            is_at = await is_there(key, *place)
        if is_at:
            self._failed.answered(place)
        return is_at

    def _informants(self, peer: bytes) -> list[bytes]:
        """Return a few who are connected to be asked for a node: who named it last, those who are trusted, and others."""
        others = list(self._connected)
        random.shuffle(others)
        named = self._told_by.get(peer)
        first = [*([] if named is None else [named]), *self._trusted]
        return [each for each in dict.fromkeys([*first, *others]) if each in self._connected and each != peer][:_ASKED]

    async def _ask(self, informant: bytes, key: PublicKey) -> list[Place]:
        """Return the places of a node that another one names and that may be dialled; none where it names none."""
        hosts = hosts_of(self._connected.get(informant, []))
        try:
            places = await self._places_told(informant, key, timeouts.WHERE_S)
        except MantaError:
            return []
        return [place for place in places if is_dialable(place[0], hosts)]

    async def _told_of_itself(self, key: PublicKey) -> list[Place]:
        peer, now_s = peer_id(key), self._clock.now_s()
        told = self._told.get(peer)
        if told is None or told[0] + _TOLD_S < now_s:
            try:
                told = now_s, await self._places_told(peer, key, timeouts.WHERE_ITSELF_S)
            except MantaError:
                return []
            self._told.put(peer, told)
        return told[1]

    async def _places_told(self, informant: bytes, key: PublicKey, timeout_s: float) -> list[Place]:
        """Return where a node that is connected says that another one is, or itself.

        Raises:
            Unreachable, EncodingError: it says nothing, or something else.
        """
        answer = await answer_of(self._call(PeerID(informant), f"manta.{METHOD}", key), "who may know where a node is", timeout_s)
        if answer[:1] != ANSWER:
            raise EncodingError("no places")
        return list(unpack(ListenPlaces, answer[1:], max_bytes=MAX_MESSAGE_BYTES).places)


class _Newest(Generic[Value]):
    """Something of each of the peers that it was put for last."""

    def __init__(self) -> None:
        self._values: OrderedDict[bytes, Value] = OrderedDict()

    def get(self, peer: bytes) -> Value | None:
        return self._values.get(peer)

    def put(self, peer: bytes, value: Value) -> None:
        self._values[peer] = value
        self._values.move_to_end(peer)
        if len(self._values) > _REMEMBERED:
            self._values.popitem(last=False)
