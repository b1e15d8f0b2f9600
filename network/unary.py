"""Small calls: hivemind's unary ones, which share one socket to the daemon, with a bound on how many are answered at a time.

hivemind starts a task for whatever arrives, of whatever size, and keeps every task whose caller hung up. Here each call has a place
(``runtime.in_flight``), its request a size, and its task is forgotten when it ends. That goes for the calls of hivemind's DHT as well.
"""

import asyncio
from uuid import UUID

from hivemind.p2p import P2P, PeerID
from hivemind.proto import p2pd_pb2

from manta_swarm.network.dialling import Dialling
from manta_swarm.network.rates import CallRates
from manta_swarm.network.streams import MIN_REQUEST_BYTES, Answer
from manta_swarm.network.traffic import Traffic
from manta_swarm.runtime.in_flight import InboundCalls, OutboundLimit

MAX_CALLS = 4096  # of others that wait for their answers: each is a task, and a long poll lasts a minute
MAX_CALLS_EACH = 64  # of one peer
MAX_OWN_CALLS = 32  # that we have open to one peer: half of what it lets us have, for it sees the end of a call later than we do
_MAX_BYTES = MAX_CALLS * MIN_REQUEST_BYTES
# A search asks for at most 16 keys. One record is stored at a time; each has a signature to check, which takes 0.1 ms.
_DHT_REQUEST_BYTES = {"DHTProtocol.rpc_ping": 1024, "DHTProtocol.rpc_find": 1024, "DHTProtocol.rpc_store": 8192}


class _PendingCalls(dict[UUID, "asyncio.Future[bytes | None]"]):
    """hivemind's unary calls that wait for an answer, without those that were cancelled a moment ago.

    hivemind would set their result; that raises, in the only task that reads from the daemon, and the node were deaf from then on.
    """

    def __contains__(self, call_id: object) -> bool:
        call = self.get(call_id) if isinstance(call_id, UUID) else None
        return call is not None and not call.done()


class _Answering(dict[UUID, "asyncio.Task[None]"]):
    """hivemind's tasks that answer unary calls, without those that ended: it forgets none that was cancelled."""

    def __setitem__(self, call_id: UUID, task: "asyncio.Task[None]") -> None:
        super().__setitem__(call_id, task)
        task.add_done_callback(lambda _: self.pop(call_id, None))


class UnaryCalls:
    """The small calls of one node, its own and those of others."""

    def __init__(self, p2p: P2P, busy: bytes, traffic: Traffic, rates: CallRates, dialling: Dialling) -> None:
        """Use the daemon ``p2p``, before anything is served there.

        Args:
            p2p: the daemon.
            busy: how the answer begins to a call that finds no place, or is one too many; why may follow.
            traffic: counts the bytes of all calls, and holds back what is sent where it has a limit.
            rates: of those who call.
            dialling: opens the connections that calls need.
        """
        self._p2p = p2p
        self.traffic = traffic
        self._busy = busy
        self.rates = rates
        self.dialling = dialling
        self._control = p2p._client.control
        self._answer = self._control._handle_persistent_request
        self._max_bytes = dict(_DHT_REQUEST_BYTES)
        self._own: set[str] = set()
        self.calls = InboundCalls(total=MAX_CALLS, each=MAX_CALLS_EACH, max_bytes=_MAX_BYTES)
        self._outbound = OutboundLimit(total=MAX_CALLS, each=MAX_OWN_CALLS)
        self._control._pending_calls = _PendingCalls()
        self._control._handler_tasks = _Answering()
        self._control._handle_persistent_request = self._answer_one
        self._control._read_task.add_done_callback(self._on_daemons_end)
        # Where all calls and answers pass, hivemind's own too: on the way out one queue, on the way in this and ``_answer_one``.
        self._put, self._control._pending_messages.put = self._control._pending_messages.put, self._send
        self._call_daemon, self._control.call_unary_handler = self._control.call_unary_handler, self._call_counted

    async def serve(self, name: str, answer: Answer) -> None:
        """Answer the calls of ``name``; ``answer`` gets the authenticated caller. Requests are below ``MIN_REQUEST_BYTES``."""

        async def on_call(request: bytes, caller: PeerID) -> bytes:
            return await answer(caller, request)

        self._own.add(name)
        self._max_bytes[name] = MIN_REQUEST_BYTES
        await self._p2p._client.add_unary_handler(name, on_call)

    async def call(self, peer: PeerID, name: str, request: bytes) -> bytes:
        """Return the answer of ``peer``; the caller bounds the wait.

        Raises:
            P2PDaemonError, P2PHandlerError: no way to the peer, or it failed.
            ConnectionError: the daemon has ended.
            Unreachable: there is no connection, and none may be opened.
        """
        async with self._outbound.turn(peer.to_bytes()):
            if self.daemon_ended:
                raise _daemon_ended()
            answer: bytes = await self._p2p._client.call_unary_handler(peer, name, request)
        return answer

    @property
    def daemon_ended(self) -> bool:
        """Whether nothing will ever be answered here again."""
        ended: bool = self._control._read_task.done()
        return ended

    def _on_daemons_end(self, _reading: "asyncio.Task[None]") -> None:
        """Let nobody wait for an answer that hivemind, which has stopped reading, would never see."""
        for call in list(self._control._pending_calls.values()):
            if not call.done():
                call.set_exception(_daemon_ended())

    async def _answer_one(self, call_id: UUID, request: p2pd_pb2.CallUnaryRequest) -> None:
        """Answer one call of another node by hivemind's own function, if there is a place for it."""
        if request.proto not in self._control.unary_handlers:
            return await self._reply(call_id, p2pd_pb2.CallUnaryResponse(error=b"not served"))
        if len(request.data) > self._max_bytes.get(request.proto, MIN_REQUEST_BYTES):
            return await self._reply(call_id, p2pd_pb2.CallUnaryResponse(error=b"too large"))
        place = self.calls.begin(request.peer, self.rates.address_of_peer(request.peer))
        if place is None:
            return await self._refuse(call_id, request.proto)
        with place:
            place.grow(len(request.data))
            self.traffic.received.count(len(request.data))
            try:
                refusal = await self.rates.refusal(request.peer, request.proto)
                self.calls.locate(request.peer, self.rates.address_of_peer(request.peer))
                if refusal is None:
                    await self._answer(call_id, request)
                else:
                    await self._refuse(call_id, request.proto, refusal)
            except asyncio.CancelledError:
                if not place.lost:
                    raise  # the caller hung up
                await self._refuse(call_id, request.proto)

    async def _call_counted(self, peer: PeerID, name: str, request: bytes) -> bytes:
        await self.dialling.open(peer.to_bytes())
        answer: bytes = await self._call_daemon(peer, name, request)
        self.traffic.received.count(len(answer))
        return answer

    async def _send(self, message: p2pd_pb2.PersistentConnectionRequest) -> None:
        if message.HasField("callUnary"):
            await self.traffic.sent.take(len(message.callUnary.data), is_own=True)
        elif message.HasField("unaryResponse"):
            await self.traffic.sent.take(len(message.unaryResponse.response), is_own=False)
        await self._put(message)

    async def _refuse(self, call_id: UUID, proto: str, why: str = "") -> None:
        if proto in self._own:
            await self._reply(call_id, p2pd_pb2.CallUnaryResponse(response=self._busy + why.encode()))
        else:
            await self._reply(call_id, p2pd_pb2.CallUnaryResponse(error=why.encode() or b"busy"))

    async def _reply(self, call_id: UUID, response: p2pd_pb2.CallUnaryResponse) -> None:
        await self._control._pending_messages.put(p2pd_pb2.PersistentConnectionRequest(callId=call_id.bytes, unaryResponse=response))


def _daemon_ended() -> ConnectionError:
    return ConnectionResetError("the p2p daemon has ended")
