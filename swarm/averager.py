"""One attempt at a round, from matchmaking to a proposal: find the group, settle the table, reduce, agree, vote.

The averager moves bytes; what they mean is decided by ``protocol.rounds.RoundMachine``. An attempt ends with a proposal, or it is
dropped whole and says why; the vector that was given is never touched.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from protocol.encoding import pack, unpack
from protocol.errors import AttemptFailed, EncodingError, MantaError, RemoteFault, Unreachable
from protocol.records import Claim, Manifest, Proposal, SignedClaim, Vote, sign_vote
from protocol.rounds import RoundMachine
from protocol.signing import Identity, PublicKey
from protocol.table import Table
from swarm.allreduce import Branch, Leaf, Part, Reduction
from swarm.matchmaking import Group
from swarm.mean import Mean
from swarm.rpc import Endpoint

logger = logging.getLogger("manta.averager")

_EARLY_MESSAGES = 256  # kept waiting for a table that this peer has not seen yet
_EARLY_MESSAGES_OF_ONE = 32  # of them from one sender, who may be a stranger
_EARLY_WAIT_S = 15.0
_VOTE_TIMEOUT_S = 15.0
_REMEMBERED_ATTEMPTS = 64


class GroupFinder(Protocol):
    """What ``swarm.matchmaking.Matchmaker`` does for an attempt."""

    async def find_group(
        self, claim: SignedClaim, round_: int, last_commit: bytes, *, group_size: int, min_group_size: int, timeout_s: float
    ) -> Group:
        """See ``Matchmaker.find_group``."""
        ...


@dataclass(frozen=True, slots=True)
class _VoteMessage:
    attempt: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class _AbortMessage:
    attempt: bytes
    reason: str


@dataclass
class _Active:
    """The attempt under way."""

    table: Table
    reduction: Reduction
    aborted: asyncio.Future[str]
    proposal: asyncio.Future[Proposal] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a peer expects of the next group."""

    group_size: int  # members that work on the round: with all of them the group starts at once
    min_group_size: int
    opened_ms: int  # when the round opened, by this peer's clock
    matchmaking_timeout_s: float


def tree_of(table: Table) -> Branch:
    """Return the reduce's tree for a table: cohorts of peers, each with the table's weight for its claim."""
    cohorts: dict[str, list[Leaf]] = {}
    for claim, weight in zip(table.opened, table.weights, strict=True):
        cohorts.setdefault(claim.cohort, []).append(Leaf(PublicKey(claim.key), weight))
    return Branch(tuple(Branch(tuple(members)) for members in cohorts.values()))


class Averager:
    """Makes attempts for one ``RoundMachine``, one at a time."""

    def __init__(
        self,
        endpoint: Endpoint,
        identity: Identity,
        manifest: Manifest,
        machine: RoundMachine,
        groups: GroupFinder,
        check_claim: Callable[[Claim], None],
    ) -> None:
        """Prepare; ``start`` answers group mates from then on. ``check_claim`` raises a RemoteFault for a claim not to be averaged."""
        self._check_claim = check_claim
        self._endpoint = endpoint
        self._identity = identity
        self._manifest = manifest
        self._machine = machine
        self._groups = groups
        self._active: _Active | None = None
        self._changed = asyncio.Condition()
        self._early: Counter[PublicKey] = Counter()
        self._telling: set[asyncio.Task[None]] = set()
        self._over: deque[bytes] = deque(maxlen=_REMEMBERED_ATTEMPTS)
        self.sent_bytes = 0

    async def start(self) -> None:
        """Answer the calls of group mates."""
        await self._endpoint.serve("part", self._on_part)
        await self._endpoint.serve("vote", self._on_vote)
        await self._endpoint.serve("abort", self._on_abort)

    async def attempt(self, vector: Tensor, update: Callable[[Mean], Awaitable[bytes]], expectation: Expectation) -> tuple[Proposal, Mean]:
        """Make one attempt with the machine's frozen claim.

        Args:
            vector: the mean gradient of the claim's lots (float32, one dimension); it is only read.
            update: computes the next state from the mean, on a copy, and returns its digest.

        Raises:
            AttemptFailed: the attempt was dropped whole.
        """
        machine = self._machine
        claim = machine.claim
        assert claim is not None
        try:
            table = await self._find_table(claim, expectation)
        except AttemptFailed:
            machine.attempts_dropped["no table"] += 1
            raise
        active = await self._begin(table, vector)
        try:
            async with asyncio.timeout(self._manifest.attempt_timeout_ms / 1000):
                return await self._race(self._run(active, update), active)
        except TimeoutError:
            late = active.reduction.waiting_for()
            reason = f"timed out waiting for {len(late)} of {len(table.keys)} members" if late else "no quorum in time"
            await self._drop(active, "timed out" if late else "no quorum", reason, tell=True)
            raise AttemptFailed(reason, frozenset(late)) from None
        except AttemptFailed as error:
            await self._drop(active, "member unreachable" if error.suspects else "given up", str(error), tell=True)
            raise
        except asyncio.CancelledError:  # the round is over, or the program ends
            await self._drop(active, "stopped", "stopped", tell=False)
            raise

    async def finish(self) -> None:
        """Forget the attempt under way: its round is over."""
        await self._set_active(None)

    async def drop(self, reason: str) -> None:
        """Drop the attempt whose proposal cannot be committed any more."""
        if self._active is not None:
            await self._drop(self._active, reason, reason, tell=False)

    def members(self) -> tuple[PublicKey, ...]:
        """Return the keys of the attempt under way, in the table's order."""
        return tuple(PublicKey(claim.key) for claim in self._active.table.opened) if self._active else ()

    async def _find_table(self, claim: SignedClaim, expectation: Expectation) -> Table:
        """Return the settled table of the next group.

        Raises:
            AttemptFailed: there is no group, or none that may start.
        """
        machine = self._machine
        group = await self._groups.find_group(
            claim,
            machine.round,
            machine.last_commit,
            group_size=expectation.group_size,
            min_group_size=expectation.min_group_size,
            timeout_s=expectation.matchmaking_timeout_s,
        )
        try:
            table = machine.settled_table(group.attempt, [claim for _, claim in group.members])
            if set(table.keys) != {key for key, _ in group.members}:
                raise EncodingError("a claim of somebody who is not in the group")
            for opened in table.opened:
                self._check_claim(opened)
        except RemoteFault as error:
            raise AttemptFailed(f"the leader's table is refused: {error}") from error
        now_ms = time.time_ns() // 1_000_000
        if not machine.may_start(table, now_ms, expectation.opened_ms):
            raise AttemptFailed(f"{len(table.keys)} peers with {table.samples} samples are too few to start")
        machine.settle(table)
        return table

    async def _begin(self, table: Table, vector: Tensor) -> _Active:
        root = tree_of(table)
        codecs = (self._manifest.cohort_codec, self._manifest.swarm_codec)
        reduction = Reduction(self._endpoint, table.attempt, root, codecs, vector)
        active = _Active(table, reduction, asyncio.get_running_loop().create_future())
        await self._set_active(active)
        return active

    async def _set_active(self, active: _Active | None) -> None:
        async with self._changed:
            if self._active is not None:
                self._over.append(self._active.table.attempt)
            self._active = active
            self._changed.notify_all()

    async def _race(self, running: Awaitable[tuple[Proposal, Mean]], active: _Active) -> tuple[Proposal, Mean]:
        """Return what ``running`` returns, unless a group mate gives the attempt up first."""
        task = asyncio.ensure_future(running)
        waits: set[asyncio.Future[Any]] = {task, active.aborted}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise AttemptFailed(f"a group mate gave up: {active.aborted.result()}")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self, active: _Active, update: Callable[[Mean], Awaitable[bytes]]) -> tuple[Proposal, Mean]:
        attempt = active.table.attempt
        mean = await active.reduction.run()
        self.sent_bytes += active.reduction.sent_bytes
        statement = self._machine.agree(attempt, mean.digest, await update(mean))
        vote = sign_vote(statement, self._identity)
        self._count(active, vote)
        message = pack(_VoteMessage(attempt, vote.signature))
        others = [PublicKey(key) for key in active.table.keys if key != self._endpoint.key]
        # Nobody waits for the telling: a mate that cannot be told is not needed while there is a quorum of those that can.
        for key in others:
            telling = asyncio.create_task(self._tell(key, "vote", message))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
        return await active.proposal, mean

    def _count(self, active: _Active, vote: Vote) -> None:
        proposal = self._machine.receive_vote(active.table.attempt, vote)
        # With the own statement made last, a quorum may already have been there.
        proposal = proposal or self._machine.proposal
        if proposal is not None and not active.proposal.done():
            active.proposal.set_result(proposal)

    async def _drop(self, active: _Active, kind: str, reason: str, *, tell: bool) -> None:
        """Drop an attempt: counted under ``kind``, one of a few; ``reason`` is for the group mates' logs."""
        attempt = active.table.attempt
        self._machine.fail(attempt, kind)
        if self._active is active:
            await self._set_active(None)
        if tell and not active.aborted.done():
            message = pack(_AbortMessage(attempt, reason[:200]))
            keys = [PublicKey(key) for key in active.table.keys if key != self._endpoint.key]
            await asyncio.gather(*(self._tell(key, "abort", message, timeout_s=3.0) for key in keys))

    async def _tell(self, key: PublicKey, method: str, message: bytes, *, timeout_s: float = _VOTE_TIMEOUT_S) -> None:
        try:
            await self._endpoint.call(key, method, message, timeout_s=timeout_s)
        except MantaError as error:
            logger.info("%s not delivered member=%s reason=%s", method, key.hex()[:8], error)

    async def _attempt_of(self, attempt: bytes, sender: PublicKey) -> _Active:
        """Return the attempt under way if it is ``attempt``; wait for it a little, as a mate's table may be a moment older."""
        if not self._is_active(attempt):
            if attempt in self._over:
                raise Unreachable("that attempt is over here")
            if self._early.total() >= _EARLY_MESSAGES or self._early[sender] >= _EARLY_MESSAGES_OF_ONE:
                raise Unreachable("too many messages for attempts that are unknown here")
            self._early[sender] += 1
            try:
                async with asyncio.timeout(_EARLY_WAIT_S), self._changed:
                    await self._changed.wait_for(lambda: attempt in self._over or self._is_active(attempt))
            except TimeoutError:
                raise Unreachable("that attempt is unknown here") from None
            finally:
                self._early[sender] -= 1
                self._early += Counter()  # forget the senders at zero
        active = self._active
        if active is None or active.table.attempt != attempt:
            raise Unreachable("that attempt is over here")
        if sender not in active.table.keys:
            raise EncodingError("not a member of this attempt")
        return active

    def _is_active(self, attempt: bytes) -> bool:
        return self._active is not None and self._active.table.attempt == attempt

    async def _on_part(self, sender: PublicKey, data: bytes) -> bytes:
        part = Part.open(data)
        (await self._attempt_of(part.attempt, sender)).reduction.receive(sender, part)
        return b""

    async def _on_vote(self, sender: PublicKey, data: bytes) -> bytes:
        message = unpack(_VoteMessage, data, max_bytes=256)
        active = await self._attempt_of(message.attempt, sender)
        self._count(active, Vote(sender, message.signature))
        return b""

    async def _on_abort(self, sender: PublicKey, data: bytes) -> bytes:
        message = unpack(_AbortMessage, data, max_bytes=1024)
        active = await self._attempt_of(message.attempt, sender)
        if not active.aborted.done():
            active.aborted.set_result(message.reason)
        return b""
