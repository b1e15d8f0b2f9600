"""Who of the run is a cohort peer: who proves to hold the cohort's token; cohort peers tell each other how to be linked.

Each calls those who announce its cohort and shows its proof, the answer shows the other's; the caller is known by the connection, so a
proof is of no use to anybody else. With the proof comes the greeting that a direct link is made by (``network.links``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from manta_swarm.network import timeouts
from manta_swarm.network.links import MAX_GREETING_BYTES, Greeting, Links
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.cohorts import cohort_peer_proof, is_cohort_peer_proof
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import MantaError, RemoteFault
from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock
from manta_swarm.runtime.tasks import together

METHOD, GOODBYE = "near.hello", "near.goodbye"
MAX_COHORT_PEERS = 4 * MAX_COHORT  # that are known at a time; a roster has MAX_COHORT members at most
_PROOF_BYTES = 32
_MAX_MESSAGE_BYTES = 256 + MAX_GREETING_BYTES

logger = logging.getLogger("manta.near")


@dataclass(frozen=True, slots=True)
class Hello:
    """A proof for whom it is sent to, and how to make a link to the sender; the answer is one, too."""

    proof: bytes
    greeting: Greeting

    def __post_init__(self) -> None:
        if len(self.proof) != _PROOF_BYTES:
            raise ValueError("a hello without a proof")


class NotACohortPeer(RemoteFault):
    """A caller that has not shown that it holds the cohort's token."""


class CohortPeers:
    """Finds one peer's cohort peers: those that prove to hold the cohort's token."""

    def __init__(
        self,
        endpoint: Endpoint,
        links: Links,
        run: bytes,
        cohort: str,
        token: bytes,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Know nobody; ``links`` are made to whoever is a cohort peer."""
        self._endpoint = endpoint
        self._links = links
        self._run = run
        self._cohort = cohort
        self._token = token
        self._clock = clock
        self._proven: dict[PublicKey, float] = {}  # with the time
        self._fresh_s = timeouts.ANNOUNCED_S  # for so long a proof counts
        self._meeting: dict[PublicKey, asyncio.Task[None]] = {}
        self.refused = 0

    async def start(self) -> None:
        """Answer those who say hello."""
        await self._endpoint.serve(METHOD, self._answer)
        await self._endpoint.serve(GOODBYE, self._on_goodbye)

    async def leave(self) -> None:
        """Tell the cohort peers that this peer leaves: none waits for it any more. Who does not hear of it finds out."""

        async def tell(key: PublicKey) -> None:
            with contextlib.suppress(MantaError):
                await self._endpoint.call(key, GOODBYE, b"", timeout_s=timeouts.LEAVE_S)

        await together(*(tell(key) for key in self.fresh()))

    async def _on_goodbye(self, caller: PublicKey, _request: bytes) -> bytes:
        self._proven.pop(caller, None)
        self._links.keep_only(self._proven)
        return b""

    async def close(self) -> None:
        """End what is under way."""
        meeting = list(self._meeting.values())
        for task in meeting:
            task.cancel()
        await asyncio.gather(*meeting, return_exceptions=True)

    async def meet(self, keys: Iterable[PublicKey], period_s: float) -> None:
        """Say hello to these, and again to those who are known; what the network or a stranger does wrong is no error here.

        ``period_s``: until the next time. A proof counts for three of them.
        """
        self._fresh_s = max(timeouts.ANNOUNCED_S, 3 * period_s)
        others = [key for key in {*self._proven, *keys} if key != self._endpoint.key]
        if others:
            await asyncio.wait([self._say_hello(key) for key in others[:MAX_COHORT_PEERS]])

    def fresh(self) -> tuple[PublicKey, ...]:
        """Return those who proved the token lately, in the order of their keys."""
        since = self._clock.now_s() - self._fresh_s
        self._proven = {key: proven for key, proven in self._proven.items() if proven > since}
        return tuple(sorted(self._proven))

    def knows(self, key: PublicKey) -> bool:
        """Return whether ``key`` proved the token lately."""
        return key in self._proven and key in self.fresh()

    def _say_hello(self, key: PublicKey) -> "asyncio.Task[None]":
        """Begin to say hello, unless that is under way."""
        running = self._meeting.get(key)
        if running is None:
            running = self._meeting[key] = asyncio.create_task(self._hello(key))
            running.add_done_callback(lambda _: self._meeting.pop(key, None))
        return running

    async def _hello(self, key: PublicKey) -> None:
        request = pack(self._own_hello(key))
        try:
            answer = await self._endpoint.call(key, METHOD, request, timeout_s=timeouts.HELLO_S)
            opened = unpack(Hello, answer, max_bytes=_MAX_MESSAGE_BYTES)
            self._check(opened.proof, key)
        except MantaError as error:
            logger.debug("no cohort peer peer=%s reason=%s", key.hex()[:8], error)
            return
        self._prove(key, opened.greeting)

    async def _answer(self, caller: PublicKey, request: bytes) -> bytes:
        hello = unpack(Hello, request, max_bytes=_MAX_MESSAGE_BYTES)
        self._check(hello.proof, caller)
        is_new = not self.knows(caller)
        self._prove(caller, hello.greeting)
        if is_new and self.knows(caller):
            self._say_hello(caller)  # so that both know at once
        return pack(self._own_hello(caller))

    def _own_hello(self, to: PublicKey) -> Hello:
        return Hello(cohort_peer_proof(self._token, self._run, self._cohort, self._endpoint.key, to), self._links.greeting(to))

    def _check(self, proof: bytes, key: PublicKey) -> None:
        """Check the proof that ``key`` showed to this node.

        Raises:
            NotACohortPeer: it does not hold the token.
        """
        if not is_cohort_peer_proof(proof, self._token, self._run, self._cohort, key, self._endpoint.key):
            self.refused += 1
            raise NotACohortPeer("no proof of this cohort's token")

    def _prove(self, key: PublicKey, greeting: Greeting) -> None:
        if key in self._proven or len(self.fresh()) < MAX_COHORT_PEERS:
            self._proven[key] = self._clock.now_s()
            self._links.keep_only(self._proven)
            self._links.learn(key, greeting)
