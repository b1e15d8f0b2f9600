"""The in-memory twin of ``network.node.Node``: endpoints that call each other inside one event loop, with faults on demand."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from manta_swarm.network.rpc import MAX_MESSAGE_BYTES, Busy, Handler, RecordRule, Refused, refusal
from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.errors import MantaError, OwnFault, Unreachable
from manta_swarm.protocol.signing import PublicKey


class MemoryNetwork:
    """Endpoints by key. Of a call, ``lost(sender, receiver, method)`` says whether it never arrives, ``delay_s`` how long its answer is
    under way. An endpoint that is taken out of ``endpoints`` is gone, and so are its answers that are under way.
    """

    def __init__(
        self,
        lost: Callable[[PublicKey, PublicKey, str], bool] = lambda *_: False,
        delay_s: Callable[[PublicKey, PublicKey, str], float] = lambda *_: 0.0,
    ) -> None:
        self.endpoints: dict[PublicKey, MemoryEndpoint] = {}
        self.records: dict[str, dict[PublicKey, bytes]] = {}
        self.lost = lost
        self.delay_s = delay_s

    def endpoint(self, key: PublicKey) -> "MemoryEndpoint":
        """Return a new endpoint of this network."""
        self.endpoints[key] = MemoryEndpoint(self, key)
        return self.endpoints[key]


class MemoryEndpoint:
    """A node in memory, as ``network.rpc.OwnNode``. ``met`` counts whom it was told to meet again; ``broken`` is what ends its program."""

    def __init__(self, network: MemoryNetwork, key: PublicKey) -> None:
        """Use ``MemoryNetwork.endpoint``."""
        self._network = network
        self.key = key
        self.handlers: dict[str, Handler] = {}
        self.met: Counter[PublicKey] = Counter()
        self.broken = asyncio.Event()
        self.listens_at: list[str] = []
        self.hosts: list[str] = []  # from which all others see it
        self.ways: dict[PublicKey, list[str]] = {}  # its connections
        self.serves_dht = False
        self.traffic = Traffic()
        self.link_ways: tuple[str, ...] = ()
        self._rule: RecordRule | None = None  # of records of the DHT

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""
        self.handlers[method] = handler

    async def call(self, key: PublicKey, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        """See ``Endpoint.call``."""
        del large_answer  # all answers go one way here
        assert len(request) <= MAX_MESSAGE_BYTES
        other = self._network.endpoints.get(key)
        if other is None or method not in other.handlers or self._network.lost(self.key, key, method):
            raise Unreachable(f"{key.hex()[:8]} ({method}) could not be reached")
        try:
            async with asyncio.timeout(timeout_s):
                answer = await asyncio.create_task(other._answer(self.key, method, request))
        except TimeoutError as error:
            raise Unreachable(f"{key.hex()[:8]} ({method}) did not answer within {timeout_s:g} s") from error
        except Busy as error:
            raise Unreachable(f"{key.hex()[:8]} ({method}) is busy") from error
        except MantaError as error:
            raise Refused(refusal(error)) from error
        if self._network.endpoints.get(key) is not other:
            raise Unreachable(f"{key.hex()[:8]} ({method}) has gone")
        return answer

    async def _answer(self, caller: PublicKey, method: str, request: bytes) -> bytes:
        """Run the handler, then send: in a task of its own, as the real endpoint does, that is over when the answer is there."""
        delay_s = self._network.delay_s(caller, self.key, method)
        try:
            answer = await self.handlers[method](caller, request)
        except MantaError:
            await asyncio.sleep(delay_s)
            raise
        await asyncio.sleep(delay_s)
        return answer

    async def publish(self, name: str, value: bytes, *, ttl_s: float) -> None:
        """See ``Endpoint.publish``; records here live for ever."""
        del ttl_s
        self._network.records.setdefault(name, {})[self.key] = value

    async def lookup(self, name: str) -> dict[PublicKey, bytes]:
        """See ``Endpoint.lookup``."""
        rule, records = self._rule, self._network.records.get(name, {})
        return {owner: value for owner, value in records.items() if rule is None or rule.admits_record(owner, value)}

    async def meet_again(self, key: PublicKey, maddrs: Sequence[str] = ()) -> None:
        """See ``OwnNode.meet_again``; here everybody is connected already, or is not there."""
        del maddrs
        if key not in self._network.endpoints:
            raise Unreachable(f"{key.hex()[:8]} is away")
        self.met[key] += 1

    async def addresses(self) -> list[str]:
        """See ``OwnNode.addresses``."""
        return list(self.listens_at)

    async def introduce(self, key: PublicKey, maddrs: Sequence[str]) -> None:
        """See ``OwnNode.introduce``; here everybody is connected already, or is not there."""
        del maddrs
        await self.meet_again(key)

    async def addresses_of(self, key: PublicKey) -> list[str]:
        """See ``OwnNode.addresses_of``."""
        if key not in self._network.endpoints:
            raise Unreachable(f"nobody knows {key.hex()[:8]}")
        return await self._network.endpoints[key].addresses()

    async def remote_hosts(self, key: PublicKey) -> list[str]:
        """See ``OwnNode.remote_hosts``."""
        return list(self._network.endpoints[key].hosts) if key in self._network.endpoints else []

    async def connected(self) -> dict[PublicKey, list[str]]:
        """See ``OwnNode.connected``; a test says it."""
        return dict(self.ways)

    async def serve_dht(self, is_served: bool) -> None:
        """See ``OwnNode.serve_dht``."""
        self.serves_dht = is_served

    def hold_records_to(self, rule: RecordRule) -> None:
        """See ``OwnNode.hold_records_to``; here all records are in one place, and each endpoint believes what it may."""
        self._rule = rule

    async def watch_daemon(self) -> None:
        """See ``OwnNode.watch_daemon``."""
        await self.broken.wait()
        raise OwnFault("the network in memory has ended")
