"""A program's line to a run's operators: it talks to one of them, and to the next where that one does not answer.

Any operator answers what is asked of the log, and hands on what is handed in (docs/protocol.md, section 29). A program stays with the one
that answered last. A killed operator's connections break at once; one that nothing comes from any more, as behind a cut cable, is found out
by calls that say nothing, beside the one that waits. A lone operator is waited for as long as a call may take: there is nobody else.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from protocol.errors import MantaError, RemoteFault, Unreachable
from protocol.operators import Operators
from protocol.signing import PublicKey, peer_name, sha256
from swarm import waits
from swarm.rpc import Endpoint, OwnNode, Refused

PING = "ping"  # what everybody in a run answers with nothing
_ASK_ANOTHER = "ask another operator: "

Result = TypeVar("Result")


def short(key: bytes) -> str:
    """Return the last eight characters of an operator's peer id, as people compare them: its addresses end so."""
    return peer_name(key)[-8:]


class AskAnother(RemoteFault):
    """What an operator says that cannot do what is asked now, though another one may: it hears too few of the others, say."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{_ASK_ANOTHER}{reason}")


class OperatorLine:
    """One program's line to the operators of one run."""

    def __init__(self, endpoint: Endpoint, operators: Operators) -> None:
        """Begin with an operator that follows from this node's key, so that a run's peers spread over them."""
        self._endpoint = endpoint
        self.operators = operators
        self._turn = sorted(operators.keys, key=lambda key: sha256(endpoint.key + key))  # the first one is talked to
        self._uploads = 0
        self.on_change: Callable[[PublicKey, str], None] = lambda _key, _why: None  # is told whom is talked to from now on, and why

    @property
    def operator(self) -> PublicKey:
        """The operator that is talked to."""
        return self._turn[0]

    @property
    def in_turn(self) -> tuple[PublicKey, ...]:
        """All operators, in the order in which they are asked."""
        return tuple(self._turn)

    async def call(self, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        """Return the answer of an operator; the call may be made again at another one.

        Raises:
            Unreachable: none answers.
            Refused: the first that answered refuses it.
        """
        return await self.ask(lambda key: self._endpoint.call(key, method, request, timeout_s=timeout_s, large_answer=large_answer))

    async def ask(self, work: Callable[[PublicKey], Awaitable[Result]]) -> Result:
        """Return what ``work`` with an operator returns: with the one talked to, or with the first of the others that it can be done with.

        ``work`` may be done again, from its beginning, with another one.

        Raises:
            Unreachable: none answers.
            Refused: the first that answered refuses it.
            RemoteFault: what it answered is nothing that it may, and no other one did better.
        """
        if self.operators.is_alone:
            return await work(self.operator)
        faults: list[MantaError] = []
        for key in self.in_turn:
            try:
                result = await self._while_there(key, work)
            except Refused as error:
                if not str(error).startswith(_ASK_ANOTHER):
                    self._stay_with(key, faults)
                    raise
                faults.append(error)
            except (RemoteFault, Unreachable) as error:
                faults.append(error)
            else:
                self._stay_with(key, faults)
                return result
        theirs = next((fault for fault in faults if isinstance(fault, RemoteFault) and not isinstance(fault, Refused)), None)
        raise theirs or Unreachable("; ".join(map(str, faults)))

    def turn_away(self, why: str) -> None:
        """Talk to the next operator from now on: the one talked to is of no use."""
        if not self.operators.is_alone:
            self._begin_with(self._turn[1], why)

    async def meet(self, node: OwnNode) -> None:
        """Connect ``node`` to the operators again, at least to one; the others have a moment more from then on.

        Raises:
            Unreachable: all are away.
        """
        meeting = [asyncio.create_task(node.meet_again(key)) for key in self._turn]
        waiting, has_met = set(meeting), False
        try:
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=waits.OTHERS_S if has_met else None, return_when=asyncio.FIRST_COMPLETED
                )
                has_met |= any([task.exception() is None for task in done])  # noqa: C419 - of each: nobody else asks for them
                if has_met and not done:
                    break
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if not has_met:
            await meeting[0]

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        """While this lasts an operator has longer to say that it is there: what is sent to it fills the line."""
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    def _stay_with(self, key: PublicKey, faults: list[MantaError]) -> None:
        if faults and key != self.operator:
            self._begin_with(key, str(faults[0]))

    def _begin_with(self, key: PublicKey, why: str) -> None:
        place = self._turn.index(key)
        self._turn = self._turn[place:] + self._turn[:place]
        self.on_change(key, why)

    async def _while_there(self, key: PublicKey, work: Callable[[PublicKey], Awaitable[Result]]) -> Result:
        """Return what ``work`` returns, as long as the operator is there.

        Raises:
            Unreachable: it is not, or as ``work``.
        """
        working, watching = asyncio.ensure_future(work(key)), asyncio.create_task(self._watch(key))
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                watching.result()
            return await working
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _watch(self, key: PublicKey) -> None:
        """Call an operator again and again, with nothing.

        Raises:
            Unreachable: it does not answer.
        """
        look_s = waits.OPERATOR_LOOK_S
        await asyncio.sleep(look_s / 2)  # most calls are answered by then; those that wait for a commit are not asked about more often
        while True:
            with contextlib.suppress(RemoteFault):  # it is there, at least
                away_s = waits.OPERATOR_BUSY_S if self._uploads else waits.OPERATOR_AWAY_S
                await self._endpoint.call(key, PING, b"", timeout_s=away_s)
            await asyncio.sleep(look_s)
