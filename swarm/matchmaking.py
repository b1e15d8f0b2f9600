"""hivemind's matchmaking under our rules: who is in the next attempt's group, and with which claims.

hivemind's ``Matchmaking`` finds the peers that look for a group under one key of the DHT; one of them leads, the others join it
with their claims. Our key names the run, the round and the commit that it builds on, so peers that stand elsewhere never meet.
A join request is let in only with a claim that its sender signed. What the leader hands out is judged by every member
(``protocol.rounds.Table``): here it is bytes.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, AsyncIterator  # noqa: UP035 - hivemind knows a streaming RPC by typing.AsyncIterator

from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2PContext, P2PDaemonError, P2PHandlerError, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from protocol.encoding import pack, unpack
from protocol.errors import AttemptFailed, EncodingError, RemoteFault
from protocol.records import MAX_ENTRY_BYTES, MAX_GROUP, Claim, SignedClaim
from protocol.signing import PublicKey, public_key_of, sha256
from swarm.node import Node

logger = logging.getLogger("manta.matchmaking")

# What hivemind's matchmaking raises when a leader, who may be anybody, sends nonsense: it asserts on remote data.
_LEADERS_FAULTS = (AssertionError, ValueError, TypeError, LookupError, asyncio.InvalidStateError, P2PDaemonError, P2PHandlerError)


@dataclass(frozen=True, slots=True)
class Group:
    """The peers matched for one attempt, as the leader listed them."""

    attempt: bytes  # hivemind's group id: random, the same at every member
    members: tuple[tuple[PublicKey, SignedClaim], ...]


@dataclass
class _Step:
    """What hivemind's matchmaking reads of a step; its own ``StepControl`` is built for several processes."""

    data_for_gather: bytes
    deadline: float
    scheduled_time: float

    def get_timeout(self) -> float:
        return max(0.0, self.deadline - float(get_dht_time()))


class _Dht:
    """The part of ``hivemind.DHT`` that matchmaking uses, on a ``DHTNode`` in this loop."""

    def __init__(self, node: DHTNode) -> None:
        self._node = node
        self.peer_id: PeerID = node.peer_id

    async def store(self, key: str, subkey: bytes, value: object, expiration_time: float, return_future: bool) -> bool:
        assert return_future
        stored: bool = await self._node.store(key, value, expiration_time, subkey=subkey)
        return stored

    async def get(self, key: str, latest: bool, return_future: bool) -> Any:
        assert return_future
        return await self._node.get(key, latest=latest)


class Matchmaker(ServicerBase):  # type: ignore[misc]
    """Finds this node's group for an attempt. One ``find_group`` at a time."""

    def __init__(
        self,
        node: Node,
        run: bytes,
        check_claim: Callable[[Claim], None],
        *,
        min_matchmaking_time_s: float = 2.0,
        request_timeout_s: float = 1.5,
    ) -> None:
        """Prepare for the run ``run``; ``start`` answers others from then on.

        Args:
            check_claim: raises a ``RemoteFault`` for a claim that nobody should be let in with.
            min_matchmaking_time_s: how long a leader waits for a group that does not fill.
            request_timeout_s: how long a follower waits for a leader's first answer; shorter, or deadlocks last.
        """
        self._node = node
        self._check_claim = check_claim
        self._prefix = f"manta-{run.hex()[:16]}"
        self._matchmaking = Matchmaking(
            node.p2p,
            schema_hash=run,
            dht=_Dht(node.dht),
            servicer_type=type(self),
            prefix=self._prefix,
            target_group_size=None,
            min_group_size=2,
            min_matchmaking_time=min_matchmaking_time_s,
            request_timeout=request_timeout_s,
            client_mode=False,
        )

    async def start(self) -> None:
        """Answer join requests of others."""
        asyncio.get_running_loop().set_exception_handler(_forget_abandoned_waits)
        await self.add_p2p_handlers(self._node.p2p, namespace=self._prefix)

    async def find_group(
        self, claim: SignedClaim, round_: int, last_commit: bytes, *, group_size: int, min_group_size: int, timeout_s: float
    ) -> Group:
        """Return the group for one attempt at ``round_``.

        Args:
            group_size: peers that are expected; a group that has them starts at once. 1: this peer alone, nobody is asked.
            min_group_size: what a leader is content with when its time is up.

        Raises:
            AttemptFailed: no group in time, or its leader's list is malformed.
        """
        if group_size == 1:
            attempt = sha256(b"alone" + claim.digest + secrets.token_bytes(16))
            return Group(attempt, ((self._node.key, claim),))
        matchmaking = self._matchmaking
        matchmaking.group_key_manager.prefix = f"{self._prefix}-{round_}-{last_commit.hex()[:16]}"
        matchmaking.target_group_size = min(group_size, MAX_GROUP)
        matchmaking.min_group_size = min(max(min_group_size, 2), MAX_GROUP)
        now = get_dht_time()
        step = _Step(pack(claim), deadline=now + timeout_s, scheduled_time=now + matchmaking.min_matchmaking_time)
        try:
            found = await matchmaking.look_for_group(step)
        except _LEADERS_FAULTS as error:
            raise AttemptFailed(f"the leader's list of the group is malformed: {error!r}") from error
        if found is None:
            raise AttemptFailed(f"no group was found within {timeout_s:g} s")
        try:
            return _read_group(found)
        except RemoteFault as error:
            raise AttemptFailed(f"the leader's list of the group is refused: {error}") from error

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """Let a peer into the group that this node leads, if its claim is its own (hivemind's RPC)."""
        try:
            claim = unpack(SignedClaim, request.gather, max_bytes=MAX_ENTRY_BYTES).open()
            if claim.key != public_key_of(context.remote_id.to_bytes()):
                raise EncodingError("the claim is another peer's")
            self._check_claim(claim)
        except RemoteFault:
            logger.info("join refused peer=%s", context.remote_id)
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        async for message in self._matchmaking.rpc_join_group(request, context):
            yield message


def _read_group(found: GroupInfo) -> Group:
    if len(found.peer_ids) > MAX_GROUP or len(found.gathered) != len(found.peer_ids):
        raise EncodingError(f"a list of {len(found.peer_ids)} peers with {len(found.gathered)} claims")
    members = []
    for member, gathered in zip(found.peer_ids, found.gathered, strict=True):
        claim = unpack(SignedClaim, gathered, max_bytes=MAX_ENTRY_BYTES)
        members.append((public_key_of(member.to_bytes()), claim))
    return Group(bytes(found.group_id), tuple(members))


def _forget_abandoned_waits(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing of the ``Event.wait`` tasks that hivemind's matchmaking starts and leaves; everything else as ever."""
    task = context.get("task")
    if task is not None and "destroyed but it is pending" in context.get("message", ""):
        coroutine = task.get_coro()
        if getattr(coroutine, "__qualname__", "") == "Event.wait":
            return
    loop.default_exception_handler(context)
