"""Who of the run is a mate: peers that prove to each other that they hold their cohort's token, and find out if they share a host.

Each calls those who announce its cohort and shows its proof, the answer shows the other's; the caller is known by the connection, so a
proof is of no use to anybody else. With it comes a challenge: who can tell what stands in the other's memory, on the same host, reads
vectors there as well.
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from protocol.cohorts import is_mate_proof, mate_proof
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, RemoteFault, Unreachable
from protocol.exchange import MAX_COHORT
from protocol.signing import PublicKey
from swarm import waits
from swarm.handles import ID_BYTES, Handle, Memory, read
from swarm.near_calls import Door, NearCalls
from swarm.rpc import Endpoint
from swarm.tasks import together

METHOD, GOODBYE = "near.hello", "near.goodbye"
MAX_MATES = 4 * MAX_COHORT  # that are known at a time; a roster has MAX_COHORT members at most
_PROOF_BYTES = _NONCE_BYTES = 32
_MAX_MESSAGE_BYTES = 256

logger = logging.getLogger("manta.near")


@dataclass(frozen=True, slots=True)
class Hello:
    """A proof for whom it is sent to, and a memory to be read there."""

    proof: bytes
    challenge: tuple[tuple[bytes, Handle], ...]  # at most one: its identity and where it is

    def __post_init__(self) -> None:
        if len(self.proof) != _PROOF_BYTES or len(self.challenge) > 1 or any(len(identity) != ID_BYTES for identity, _ in self.challenge):
            raise ValueError("a hello without a proof")


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """The other's proof, what it read in the challenge, nothing where it cannot, and then its door for the caller, where it has one."""

    proof: bytes
    nonce: bytes
    door: tuple[Door, ...]

    def __post_init__(self) -> None:
        if len(self.proof) != _PROOF_BYTES or len(self.nonce) not in (0, _NONCE_BYTES) or len(self.door) > 1:
            raise ValueError("an answer to a hello without a proof")


class NotAMate(RemoteFault):
    """A caller that has not shown that it holds the cohort's token."""


class Mates:
    """The mates of one peer in its cohort."""

    def __init__(
        self,
        endpoint: Endpoint,
        calls: NearCalls,
        run: bytes,
        cohort: str,
        token: bytes,
        period_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nobody; ``calls`` learns of the doors on this host, ``period_s`` says how often ``meet`` is called."""
        self._endpoint = endpoint
        self._calls = calls
        self._run = run
        self._cohort = cohort
        self._token = token
        self._period_s = period_s
        self._clock = clock
        self._proven: dict[PublicKey, float] = {}  # with the time
        self._sharing: set[PublicKey] = set()  # those who read this process's memory
        self._meeting: dict[PublicKey, asyncio.Task[None]] = {}
        self._identity, self._nonce = secrets.token_bytes(ID_BYTES), secrets.token_bytes(_NONCE_BYTES)
        self._challenge = Memory.of(self._identity, [memoryview(self._nonce)])
        self.refused = 0

    async def start(self) -> None:
        """Answer those who say hello."""
        await self._endpoint.serve(METHOD, self._answer)
        await self._endpoint.serve(GOODBYE, self._on_goodbye)

    async def leave(self) -> None:
        """Tell the mates that this peer leaves: none waits for it any more. Who does not hear of it finds out."""

        async def tell(key: PublicKey) -> None:
            with contextlib.suppress(MantaError):
                await self._endpoint.call(key, GOODBYE, b"", timeout_s=waits.LEAVE_S)

        await together(*(tell(key) for key in self.fresh()))

    async def _on_goodbye(self, caller: PublicKey, _request: bytes) -> bytes:
        self._proven.pop(caller, None)
        self._sharing.discard(caller)
        return b""

    async def close(self) -> None:
        """End what is under way."""
        meeting = list(self._meeting.values())
        for task in meeting:
            task.cancel()
        await asyncio.gather(*meeting, return_exceptions=True)
        if self._challenge is not None:
            self._challenge.close()
            self._challenge = None

    async def meet(self, keys: Iterable[PublicKey]) -> None:
        """Say hello to these, and again to those who are known; what the network or a stranger does wrong is no error here."""
        others = [key for key in {*self._proven, *keys} if key != self._endpoint.key]
        if others:
            await asyncio.wait([self._say_hello(key) for key in others[:MAX_MATES]])

    def fresh(self) -> tuple[PublicKey, ...]:
        """Return those who proved the token lately, in the order of their keys."""
        since = self._clock() - self._fresh_s
        self._proven = {key: proven for key, proven in self._proven.items() if proven > since}
        self._sharing &= self._proven.keys()
        return tuple(sorted(self._proven))

    def knows(self, key: PublicKey) -> bool:
        """Return whether ``key`` proved the token lately."""
        return key in self._proven and key in self.fresh()

    def share_host(self, key: PublicKey) -> bool:
        """Return whether ``key`` has shown that it reads this process's memory."""
        return key in self._sharing

    @property
    def _fresh_s(self) -> float:
        return max(waits.ANNOUNCED_S, 3 * self._period_s())

    def _say_hello(self, key: PublicKey) -> "asyncio.Task[None]":
        """Begin to say hello, unless that is under way."""
        running = self._meeting.get(key)
        if running is None:
            running = self._meeting[key] = asyncio.create_task(self._hello(key))
            running.add_done_callback(lambda _: self._meeting.pop(key, None))
        return running

    async def _hello(self, key: PublicKey) -> None:
        challenge = () if self._challenge is None else ((self._identity, self._challenge.handle),)
        request = pack(Hello(mate_proof(self._token, self._run, self._cohort, self._endpoint.key, key), challenge))
        try:
            answer = await self._endpoint.call(key, METHOD, request, timeout_s=waits.HELLO_S)
            opened = unpack(HelloAnswer, answer, max_bytes=_MAX_MESSAGE_BYTES)
            self._check(opened.proof, key)
        except MantaError as error:
            logger.debug("no mate peer=%s reason=%s", key.hex()[:8], error)
            return
        self._prove(key)
        if hmac.compare_digest(opened.nonce, self._nonce):
            self._sharing.add(key)
            for door in opened.door:
                self._calls.learn(key, door)

    async def _answer(self, caller: PublicKey, request: bytes) -> bytes:
        hello = unpack(Hello, request, max_bytes=_MAX_MESSAGE_BYTES)
        self._check(hello.proof, caller)
        is_new = not self.knows(caller)
        self._prove(caller)
        if is_new and self.knows(caller):
            self._say_hello(caller)  # so that both know at once, also if they share a host
        nonce = b""
        for identity, handle in hello.challenge:
            with contextlib.suppress(EncodingError, Unreachable):
                nonce = bytes(read(handle, identity, _NONCE_BYTES))
        door = self._calls.door_for(caller) if nonce else ()
        return pack(HelloAnswer(mate_proof(self._token, self._run, self._cohort, self._endpoint.key, caller), nonce, door))

    def _check(self, proof: bytes, key: PublicKey) -> None:
        """Check the proof that ``key`` showed to this node.

        Raises:
            NotAMate: it does not hold the token.
        """
        if not is_mate_proof(proof, self._token, self._run, self._cohort, key, self._endpoint.key):
            self.refused += 1
            raise NotAMate("no proof of this cohort's token")

    def _prove(self, key: PublicKey) -> None:
        if key in self._proven or len(self.fresh()) < MAX_MATES:
            self._proven[key] = self._clock()
