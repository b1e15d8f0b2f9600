"""Whose admission was taken back, as the log says: asked again and again, for a peer has no copy of the log."""

import asyncio
import contextlib

from manta_swarm.network import timeouts
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.admission import MAX_PAGE, MAX_PAGE_BYTES, PEER, TAKEN_BACK, AskRevoked, Revoked
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.operators import Operators

METHOD = "revoked"


class RevokedKeys:
    """The keys that are out, beside those that the manifest lets in. Implements ``network.admission_filter.Roll`` and ``Keeper``."""

    def __init__(self, node: OwnNode, operators: Operators, named: Admitted) -> None:
        """Know of none yet; ``node`` asks, and its own key must not be among them. ``named``: whom the manifest lets in."""
        self._own = node.key
        self._line = OperatorLine(node, operators)
        self._operators = operators
        self._known = 0  # revocations that were taken
        self._named = named
        self.out: set[bytes] = set()

    def trains(self, key: bytes) -> bool:
        """See ``Roll``; whoever has an admission proof shows it."""
        return self._named.trains(key)

    async def look(self) -> None:
        """Ask for what was taken back since the last look.

        Raises:
            Unreachable: the log does not answer.
            RemoteFault: what it answers is nothing that its operators signed.
            UserError: it is this peer's own admission.
        """
        while True:
            answer = await self._line.call(METHOD, pack(AskRevoked(self._known)), timeout_s=timeouts.CALL_S)
            page = unpack(Revoked, answer, max_bytes=MAX_PAGE_BYTES).signed
            for signed in page:
                revocation = signed.open()
                if revocation.run != self._operators.run or revocation.operator not in self._operators:
                    raise EncodingError("a revocation of another run, or of somebody who is no operator of it")
                if revocation.what == PEER:
                    self.out.add(revocation.target)
                self._known += 1
            if self._own in self.out:
                raise UserError(f"{TAKEN_BACK}, which is this peer's: ask the operator why; what it earned before stays in the log")
            if len(page) < MAX_PAGE:
                return

    async def keep(self) -> None:
        """Look again and again, until this is cancelled.

        Raises:
            UserError: this peer's own admission was taken back.
        """
        while True:
            with contextlib.suppress(Unreachable, RemoteFault):  # of the log; its other answers say what is wrong with it
                await self.look()
            await asyncio.sleep(timeouts.REVOKED_S)
