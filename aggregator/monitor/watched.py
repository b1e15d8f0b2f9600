"""What passes through an endpoint, counted: calls and bytes by method, and which peers were heard of when. In bounded memory; changes no
answer.

Bytes are those of requests and answers; what the transport, the DHT and the daemon add to them is not seen here. A peer is heard of when it
hands in, or waits for the next commit. Whoever only looks at the run is not at work there: ``manta-peer about``, ``manta-peer doctor``,
witnesses, other operators, and who fetches a state or copies the log.
"""

from collections import Counter, OrderedDict

from manta_swarm.aggregator.commit.timeline import Timeline
from manta_swarm.aggregator.status import Calls
from manta_swarm.network.log_client import TRAINING, AfterRound
from manta_swarm.network.rpc import Endpoint, Handler, Through
from manta_swarm.protocol.auditing import BRING
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

MAX_HEARD = 4096  # keys
_HANDING_IN = ("header", "body", BRING)
_WAITING = "commit-after"
_MAX_WAITING_BYTES = 128


class Tally:
    """What was counted since the start of the program."""

    def __init__(self, timeline: Timeline, clock: Clock = SYSTEM_CLOCK) -> None:
        """Count from now on; ``timeline`` notes when the calls of a round were."""
        self._timeline = timeline
        self._clock = clock
        self.since = clock.unix_ms()
        self.by_method: dict[str, Calls] = {}
        self._heard: OrderedDict[PublicKey, int] = OrderedDict()  # the newest last
        self._waiting: Counter[PublicKey] = Counter()

    def heard(self) -> dict[PublicKey, int]:
        """Return when each key that takes part last called or was answered; who waits for an answer is heard of now."""
        now = self._clock.unix_ms()
        return {key: now if self._waiting[key] else at for key, at in self._heard.items()}

    def serves(self, method: str) -> None:
        """Count this method from zero."""
        self.by_method.setdefault(method, Calls())  # methods are those that are served: a few

    def begin(self, method: str, in_bytes: int, peer: PublicKey | None) -> None:
        """A call came; ``peer``: its caller, if it takes part."""
        self.serves(method)
        calls = self.by_method[method]
        calls.calls += 1
        calls.in_bytes += in_bytes
        if peer is not None:
            self._waiting[peer] += 1
            self._hear(peer)
        self._timeline.called(method)

    def end(self, method: str, out_bytes: int, peer: PublicKey | None) -> None:
        """It was answered; or refused, with nothing."""
        self.by_method[method].out_bytes += out_bytes
        if peer is not None:
            self._waiting[peer] -= 1
            if not self._waiting[peer]:
                del self._waiting[peer]
            self._hear(peer)
        if out_bytes:
            self._timeline.answered(method)

    def _hear(self, key: PublicKey) -> None:
        self._heard[key] = self._clock.unix_ms()
        self._heard.move_to_end(key)
        if len(self._heard) > MAX_HEARD:
            self._heard.popitem(last=False)


def takes_part(method: str, request: bytes) -> bool:
    """Return whether only a peer that takes part in the run calls this: it hands in, or waits for the next commit."""
    if method != _WAITING:
        return method in _HANDING_IN
    try:
        return unpack(AfterRound, request, max_bytes=_MAX_WAITING_BYTES).patient == TRAINING
    except EncodingError:
        return False


class Watched(Through):
    """An endpoint, each of whose calls is counted. Implements ``network.rpc.Endpoint``."""

    def __init__(self, endpoint: Endpoint, tally: Tally) -> None:
        """Count what comes through this object, whatever else uses ``endpoint``."""
        super().__init__(endpoint)
        self._tally = tally

    async def serve(self, method: str, handler: Handler) -> None:
        """See ``Endpoint.serve``."""

        async def counted(caller: PublicKey, request: bytes) -> bytes:
            peer = caller if takes_part(method, request) else None
            self._tally.begin(method, len(request), peer)
            out_bytes = 0
            try:
                answer = await handler(caller, request)
                out_bytes = len(answer)
                return answer
            finally:
                self._tally.end(method, out_bytes, peer)

        self._tally.serves(method)
        await self._endpoint.serve(method, counted)
