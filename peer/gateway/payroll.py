"""What light contributors are told of their pay: they have no line to the log, so their gateway asks it for them, once for each claim."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from protocol.earnings import TableClaims
from protocol.encoding import pack
from protocol.errors import RemoteFault, Weather
from protocol.records import Round, open_entry
from swarm import waits
from swarm.light_pay import MAX_LIGHT_CLAIMS_BYTES, LightPay
from swarm.log_client import LogClient, OwnRow
from swarm.messages import ProvenRow

_ROUNDS = 8  # newest ones that counted this gateway
_ANSWERS = 4096
_ROWS = 128  # of a table whose claims are asked for

logger = logging.getLogger("manta.gateway")


@dataclass(frozen=True, slots=True)
class _Counted:
    round: int
    proof: ProvenRow
    claims: "asyncio.Task[tuple[TableClaims, ...]]"


class Payroll:
    """A gateway's, in one run. All methods run in one event loop."""

    def __init__(self, log: LogClient, is_of: Callable[[bytes, bytes], bool]) -> None:
        """Prepare; ``is_of`` says whether a contribution of this gateway, by its digest, has a claim of a key."""
        self._log = log
        self._is_of = is_of
        self._counted: OrderedDict[bytes, _Counted] = OrderedDict()  # by contribution
        self._answers: OrderedDict[tuple[bytes, bytes], bytes] = OrderedDict()

    def counted(self, round_: int, row: OwnRow | None) -> None:
        """A round's table has a contribution of this gateway; ``row`` None: the log shows it no more."""
        if row is None or row.proof is None:
            return
        claims = asyncio.create_task(self._claims(round_, row.proof))
        self._counted[row.row.contribution] = _Counted(round_, row.proof, claims)
        if len(self._counted) > _ROUNDS:
            self._counted.popitem(last=False)[1].claims.cancel()

    async def close(self) -> None:
        """Ask for no more claims; what is asked for already is waited for, but not for long."""
        tasks = [each.claims for each in self._counted.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=waits.LAST_ROWS_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def pay(self, contribution: bytes, key: bytes) -> bytes | None:
        """Return a packed LightPay; None: no round is known here that counted this claim.

        Raises:
            Unreachable: the log does not answer.
            RemoteFault: it does not say it.
        """
        found, name = self._counted.get(contribution), (contribution, key)
        if found is None or not self._is_of(contribution, key):
            return None
        if name not in self._answers:
            shown = found.proof.row
            claims = () if found.claims.cancelled() else await asyncio.shield(found.claims)
            word = await self._log.credit(found.round, key)
            self._answers[name] = pack(LightPay(found.proof.receipt, shown.proof, shown.contribution, claims, word))
            if len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)
        return self._answers[name]

    async def _claims(self, round_: int, proof: ProvenRow) -> tuple[TableClaims, ...]:
        """Return the claims of a round's table, unless they are too many to be handed on, or cannot be had."""
        entry = open_entry(proof.receipt.entry)
        if not isinstance(entry, Round) or entry.rows > _ROWS:
            return ()
        try:
            claims = await self._log.claims_page(entry.round)
        except (Weather, RemoteFault) as error:
            logger.info("no claims to hand on round=%d reason=%s", round_, error)
            return ()
        return (claims,) if len(claims.headers) == entry.rows and len(pack(claims)) <= MAX_LIGHT_CLAIMS_BYTES else ()
