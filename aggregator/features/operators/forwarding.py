"""What a run's peers bring to any of its operators: the leader takes it, a follower passes it on to the leader, naming who brought it.
The leader believes that name as far as ``aggregator.intake.refusals`` says.

Where the leader dies or falls silent meanwhile the caller is held until another one writes, who gets the call anew: peers need not look for
an operator while there is none, and what they bring is there when the next round of the new one is open. An operator that is cut off from
the others says so.

``Switch`` is an endpoint for the services of a leader: their handlers are asked while this operator writes, whoever was called.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from manta_swarm.aggregator.features.operators.contact import Contact
from manta_swarm.aggregator.intake.refusals import passed_on_by
from manta_swarm.network import timeouts
from manta_swarm.network.operator_line import AskAnother
from manta_swarm.network.rpc import MAX_MESSAGE_BYTES, Busy, Endpoint, Handler, Through
from manta_swarm.protocol.auditing import VERDICT
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import wait_within

FORWARD = "operators-forward"
MAX_FORWARDED_BYTES = 2 * 1024 * 1024

FORWARDED = ("header", "body", VERDICT, "measure", "admission", "revoked")
_CALLER_HELD_S = 10.0  # while nobody writes; the caller's own timeout is longer
_LOOK_S = 0.5  # whether it can hear of one at all
_HEAD_BYTES = 1024  # of a call that is passed on: whose and of which method


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A peer's call, passed on to the leader."""

    caller: bytes
    method: str
    request: bytes

    def __post_init__(self) -> None:
        if len(self.caller) != 32 or not 0 < len(self.method) <= 64:
            raise ValueError("nobody's call, or of no method")


class Leaders(Protocol):
    """Knows the run's operators (``aggregator.features.operators.service``)."""

    @property
    def leader_key(self) -> PublicKey | None:
        """The key of the operator that writes; None: nobody that is known."""

    def among_operators(self, handler: Handler) -> Handler:
        """Return a handler that answers the run's operators only."""


class Switch(Through):
    """Answers the calls that are for the leader, or passes them on to it. Implements ``network.rpc.Endpoint``."""

    def __init__(self, endpoint: Endpoint, operators: Leaders, contact: Contact) -> None:
        """Prepare; ``start`` answers from then on.

        Args:
            endpoint: where peers and the other operators call.
            operators: those of the run.
            contact: says whether this operator hears enough of them for one to write that it would know.
        """
        super().__init__(endpoint)
        self._operators = operators
        self._contact = contact
        self._handlers: dict[str, Handler] = {}
        self._another = asyncio.Event()  # writes: set once, and then another event

    async def start(self) -> None:
        """Answer, or pass on, from now on; what is passed on here is taken from operators only."""
        for method in FORWARDED:
            await self._endpoint.serve(method, self._answer(method))
        await self._endpoint.serve(FORWARD, self._operators.among_operators(self._on_forward))

    async def serve(self, method: str, handler: Handler) -> None:
        """Have what comes for the leader answered by ``handler`` from now on, until ``forget``.

        Raises:
            ValueError: calls of this method are not for the leader.
        """
        if method not in FORWARDED:
            raise ValueError(f"{method} is not passed on to a leader")
        self._handlers[method] = handler
        self.another_writes()

    def another_writes(self) -> None:
        """Wait no longer for the answers of who wrote before: it may stand still."""
        self._another.set()
        self._another = asyncio.Event()

    def forget(self) -> None:
        """This operator does not write any more."""
        self._handlers.clear()

    def _answer(self, method: str) -> Handler:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            now_s = asyncio.get_running_loop().time
            until_s = now_s() + _CALLER_HELD_S
            while True:
                another = self._another
                try:
                    answered = await self._answered(method, caller, request, another)
                except Busy as error:  # all calls may be made again: whoever writes next is asked
                    while not another.is_set() and now_s() < until_s and self._contact.is_quorum():
                        await wait_within(another, _LOOK_S)
                    if not another.is_set():
                        raise AskAnother(str(error)) if not self._contact.is_quorum() else Busy(f"{error}: try again") from error
                else:
                    if answered is not None:
                        return answered

        return answer

    async def _answered(self, method: str, caller: PublicKey, request: bytes, another: asyncio.Event) -> bytes | None:
        """Return the answer of who writes; None: another does by now.

        Raises:
            Busy: nobody writes, or not any more.
            RemoteFault: it refuses.
        """
        if method in self._handlers:
            return await self._handlers[method](caller, request)
        leader = self._operators.leader_key
        if leader is None or leader == self.key:
            raise Busy("no operator writes just now")
        forwarded = pack(Forwarded(caller, method, request))
        if len(forwarded) > MAX_MESSAGE_BYTES:
            raise EncodingError("too long a request to be passed on")
        timeout_s = timeouts.BODY_S if method == "body" else timeouts.CALL_S
        calling = asyncio.create_task(self._endpoint.call(leader, FORWARD, forwarded, timeout_s=timeout_s))
        over = asyncio.create_task(another.wait())
        try:
            while not calling.done() and not over.done():
                if leader != self._operators.leader_key or not self._contact.is_quorum():
                    raise Busy("the operator that writes is not heard any more")
                await asyncio.wait((calling, over), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            return await calling if calling.done() else None
        except Unreachable as error:
            raise Busy("the operator that writes does not answer") from error
        finally:
            for task in (calling, over):
                task.cancel()
            await asyncio.gather(calling, over, return_exceptions=True)

    async def _on_forward(self, operator: PublicKey, request: bytes) -> bytes:
        forwarded = unpack(Forwarded, request, max_bytes=MAX_FORWARDED_BYTES + _HEAD_BYTES)
        handler = self._handlers.get(forwarded.method)
        if handler is None:
            raise Busy("this operator does not write")
        with passed_on_by(operator):
            return await handler(PublicKey(forwarded.caller), forwarded.request)
