"""What light contributors are told of their pay: they have no line to the log, so their gateway asks it for them, once for each claim."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from manta_swarm.network import timeouts
from manta_swarm.network.light_pay import MAX_LIGHT_CLAIMS_BYTES, LightPay
from manta_swarm.network.log_client import LogClient, ProvenContribution
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault, Weather
from manta_swarm.protocol.records import Listing
from manta_swarm.protocol.rewards import RoundContributions

_ROUNDS = 8  # newest ones that counted this gateway
_ANSWERS = 4096
_CONTRIBUTIONS = 128  # of a round whose claims are asked for

logger = logging.getLogger("manta.gateway")


@dataclass(frozen=True, slots=True)
class _Payable:
    round: int
    proof: Listing
    claims: "asyncio.Task[tuple[RoundContributions, ...]]"


class Payouts:
    """Asks the log, once for each claim, what it paid the light contributors of this gateway. All methods run in one event loop."""

    def __init__(self, log: LogClient, *, is_audited: bool) -> None:
        """Know of no round yet that counted the gateway."""
        self._log = log
        self._is_audited = is_audited
        self._counted: OrderedDict[bytes, _Payable] = OrderedDict()  # by contribution
        self._answers: OrderedDict[tuple[bytes, bytes], bytes] = OrderedDict()

    def counted(self, round_: int, found: ProvenContribution | None) -> None:
        """A round's table has a contribution of this gateway; ``found`` None: the log shows it no more."""
        if found is None or found.proof is None:
            return
        claims = asyncio.create_task(self._claims(round_, found.proof))
        self._counted[found.digest] = _Payable(round_, found.proof, claims)
        if len(self._counted) > _ROUNDS:
            self._counted.popitem(last=False)[1].claims.cancel()

    async def close(self) -> None:
        """Ask for no more claims; what is asked for already is waited for, but not for long."""
        tasks = [each.claims for each in self._counted.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeouts.LAST_ROUND_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def pay(self, contribution: bytes, key: bytes, keys: Collection[bytes]) -> bytes | None:
        """Return a packed LightPay of a key's claim in a contribution; None: no round is known here that counted it.

        ``keys`` are those whose claims the contribution has.

        Raises:
            Unreachable: the log does not answer.
            RemoteFault: it does not say it.
        """
        found, name = self._counted.get(contribution), (contribution, key)
        if found is None or key not in keys:
            return None
        if name not in self._answers:
            claims = () if found.claims.cancelled() else await asyncio.shield(found.claims)
            word = await self._log.credit(found.round, key)
            self._answers[name] = pack(LightPay(found.proof, claims, word))
            if len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)
        return self._answers[name]

    async def _claims(self, round_: int, proof: Listing) -> tuple[RoundContributions, ...]:
        """Return a round's contributions, unless they are too many to be handed on, cannot be had, or do not say what was paid."""
        if self._is_audited:
            return ()
        try:
            proven = self._log.proven(proof.receipt)
            if proven.round.contributions > _CONTRIBUTIONS:
                return ()
            found = await self._log.contributions_page(proven)
        except (Weather, RemoteFault) as error:
            logger.info("no claims to hand on round=%d reason=%s", round_, error)
            return ()
        is_whole = len(found.entries) == proven.round.contributions
        return (found,) if is_whole and len(pack(found)) <= MAX_LIGHT_CLAIMS_BYTES else ()
