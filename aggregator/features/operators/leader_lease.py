"""An operator's turn to write: it holds a key in etcd, under a lease that it renews, for as long as its own clock says at most.

A lease says only who writes, so that two do not get in each other's way. That nothing is lost or forked when it is wrong, because a
computer slept or a clock ran slow, is for ``protocol.ballots`` and the signatures.
"""

import asyncio
import contextlib
import logging

from manta_swarm.aggregator.features.operators.contact import Contact
from manta_swarm.aggregator.features.operators.etcd import Etcd
from manta_swarm.protocol.errors import Unreachable, UserError
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

TTL_S = 4
_RENEWALS = 3  # within a TTL
_MARGIN_S = 0.5  # so much before its end by this clock nothing is written any more
_LOOK_S = 0.25  # between two looks at a key that another operator has
_SPARE_S = 0.2

logger = logging.getLogger("manta.operators")


class LeaderLease:
    """Takes, renews and gives up one operator's turn to write."""

    def __init__(self, etcd: Etcd, run: bytes, operator: bytes, *, ttl_s: int = TTL_S, clock: Clock = SYSTEM_CLOCK) -> None:
        """Have no turn yet. Where ``clock`` stands still, as while a computer sleeps, a leader sees its turn end late."""
        self._etcd = etcd
        self._key = f"manta/{run.hex()}/leader"
        self._operator = operator
        self._ttl_s = ttl_s
        self._clock = clock
        self._lease: str | None = None
        self._until_s = 0.0
        self._is_away = False  # etcd

    @property
    def is_held(self) -> bool:
        """Whether this operator may write, by its own clock."""
        return self._lease is not None and self._clock.now_s() < self._until_s

    async def check(self) -> None:
        """See that etcd is there.

        Raises:
            UserError: it is not.
        """
        try:
            await self._etcd.holder(self._key)
        except Unreachable as error:
            raise UserError(
                f"{error}: start etcd, or correct etcd in [operators]; without it nobody knows which operator may write"
            ) from error

    async def holder(self) -> bytes | None:
        """Return the key of the operator that has its turn now; None: nobody has.

        Raises:
            Unreachable: etcd does not answer.
        """
        found = await self._etcd.holder(self._key)
        return None if found is None else found.value

    async def may_be_of(self, operator: bytes) -> bool:
        """Say whether it is an operator's turn; where etcd does not answer, its word is taken: nothing is lost or forked by it."""
        try:
            return await self.holder() == operator
        except Unreachable:
            return True

    async def won(self, others: Contact | None = None) -> int:
        """Wait until it is this operator's turn; return the term. Without a quorum with ``others`` it takes none; None: it needs none."""
        while True:
            try:
                term = await self._campaign() if others is None or others.is_quorum() else None
            except Unreachable as error:
                self._say_away(error)
                term = None
            else:
                self._is_away = False
            if term is not None:
                return term
            await asyncio.sleep(_LOOK_S)

    async def kept(self) -> None:
        """Renew the turn; return once it is over."""
        pause_s = self._ttl_s / _RENEWALS
        while self._lease is not None and self.is_held:
            await asyncio.sleep(min(pause_s, max(self._until_s - self._clock.now_s(), 0)))
            asked_s = self._clock.now_s()
            left_s = self._until_s - asked_s
            if left_s <= 0:
                break
            try:
                async with asyncio.timeout(left_s):
                    is_ours = await self._etcd.renew(self._lease)
            except (Unreachable, TimeoutError) as error:
                self._say_away(error)
                pause_s = _SPARE_S
                continue
            self._is_away = False
            if not is_ours:
                break
            pause_s = self._ttl_s / _RENEWALS
            self._until_s = asked_s + self._ttl_s - _MARGIN_S
        self._lease = None

    async def give_up(self) -> None:
        """Let others have their turn at once."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(Unreachable):
                await self._etcd.revoke(lease)

    async def _campaign(self) -> int | None:
        if await self._etcd.holder(self._key) is not None:
            return None
        asked_s = self._clock.now_s()
        lease = await self._etcd.grant(self._ttl_s)
        try:
            held = await self._etcd.take(self._key, self._operator, lease)
        except BaseException:
            with contextlib.suppress(Unreachable):
                await self._etcd.revoke(lease)
            raise
        if held is None:
            await self._etcd.revoke(lease)
            return None
        self._lease, self._until_s = lease, asked_s + self._ttl_s - _MARGIN_S
        return held.revision

    def _say_away(self, error: BaseException) -> None:
        if not self._is_away:
            logger.warning("etcd is away reason=%s", error)
        self._is_away = True
