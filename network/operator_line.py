"""A program's line to a run's operators: it talks to one of them, and to the next where that one does not answer.

Any operator answers what is asked of the log, and hands on what is handed in (docs/protocol.md, section 29). A program stays with the one
that answered last. A killed operator's connections break at once. An operator from which nothing comes any more, as behind a cut cable, is
found out by empty calls, beside the one that waits. What this program itself sends may hold these up, on their way to all operators alike:
so while it sends, a silent operator is given up only once another one has answered. The next one is whoever answers first. A lone operator
is waited for as long as a call may take: there is nobody else.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from manta_swarm.network import timeouts
from manta_swarm.network.rpc import Endpoint, OwnNode, Refused
from manta_swarm.protocol.errors import MantaError, RemoteFault, Unreachable
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import PublicKey, peer_name, sha256

PING = "ping"  # what everybody in a run answers with nothing
_CHANGES_KEPT = 8
_ASK_ANOTHER = "ask another operator: "

Result = TypeVar("Result")


def short(key: bytes) -> str:
    """Return the last eight characters of an operator's peer id, as people compare them: its addresses end so."""
    return peer_name(key)[-8:]


class AskAnother(RemoteFault):
    """An operator's refusal of what another operator may be able to do: it hears too few of the others, say."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{_ASK_ANOTHER}{reason}")


def lacking(ledger: Ledger, reason: str) -> MantaError:
    """Return the error to raise: of several operators one may be behind, or have begun anew, and callers go to the next one."""
    return Unreachable(reason) if len(ledger.manifest.operators) == 1 else AskAnother(reason)


@dataclass(frozen=True, slots=True)
class Change:
    """The news that another operator is talked to from now on."""

    key: PublicKey
    why: str


class OperatorLine:
    """One program's line to the operators of one run."""

    def __init__(self, endpoint: Endpoint, operators: Operators) -> None:
        """Begin with an operator that follows from this node's key, so that a run's peers spread over them."""
        self._endpoint = endpoint
        self.operators = operators
        self._turn = sorted(operators.keys, key=lambda key: sha256(endpoint.key + key))  # the first one is talked to
        self._uploads = 0
        self._changes: asyncio.Queue[Change] = asyncio.Queue(_CHANGES_KEPT)

    @property
    def operator(self) -> PublicKey:
        """The operator that is talked to."""
        return self._turn[0]

    @property
    def in_turn(self) -> tuple[PublicKey, ...]:
        """All operators, in the order in which they are asked."""
        return tuple(self._turn)

    async def next_change(self) -> Change:
        """Return whom is talked to, once it is another one; of changes that nobody took the newest few are kept."""
        return await self._changes.get()

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
        waiting = list(self.in_turn)
        while waiting:
            key = waiting.pop(0)
            try:
                result = await self._while_there(key, work)
            except Refused as error:
                if not str(error).startswith(_ASK_ANOTHER):
                    self._stay_with(key, faults)
                    raise
                faults.append(error)
            except RemoteFault as error:
                faults.append(error)
            except Unreachable as error:
                faults.append(error)
                if len(waiting) > 1 and (there := await self._first_to_answer(waiting)) is not None:
                    waiting.sort(key=lambda key: key != there)  # the others stay in turn: some may be as silent as this one
            else:
                self._stay_with(key, faults)
                return result
        theirs = next((fault for fault in faults if isinstance(fault, RemoteFault) and not isinstance(fault, Refused)), None)
        raise theirs or Unreachable("; ".join(map(str, faults)))

    def turn_away(self, why: str) -> None:
        """Talk to the next operator from now on: the one talked to is of no use."""
        if not self.operators.is_alone:
            self._begin_with(self._turn[1], why)

    def prefer(self, key: PublicKey) -> None:
        """Talk to this operator, as long as it is there."""
        place = self._turn.index(key)
        self._turn = self._turn[place:] + self._turn[:place]

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
                    waiting, timeout=timeouts.OTHERS_S if has_met else None, return_when=asyncio.FIRST_COMPLETED
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
        self.prefer(key)
        if self._changes.full():
            self._changes.get_nowait()
        self._changes.put_nowait(Change(key, why))

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
        look_s = timeouts.OPERATOR_LOOK_S
        await asyncio.sleep(look_s / 2)  # most calls are answered by then; those that wait for a commit are not asked about more often
        while True:
            if self._uploads:
                await self._see_while_uploading(key)
            else:
                await self._ping(key, timeouts.OPERATOR_AWAY_S)
            await asyncio.sleep(look_s)

    async def _see_while_uploading(self, key: PublicKey) -> None:
        """Return once an operator is seen to be there, though what is sent now may fill the line.

        Raises:
            Unreachable: another one, called later, answered before it; or none did for long.
        """
        calling = asyncio.create_task(self._ping(key, timeouts.OPERATOR_BUSY_S))
        asking: asyncio.Task[PublicKey | None] | None = None
        try:
            await asyncio.wait((calling,), timeout=timeouts.OPERATOR_AWAY_S)
            if not calling.done():
                asking = asyncio.create_task(self._first_to_answer([other for other in self.in_turn if other != key]))
                await asyncio.wait((calling, asking), return_when=asyncio.FIRST_COMPLETED)
                if not calling.done() and asking.result() is not None:
                    raise Unreachable(f"{short(key)} is silent, and {short(asking.result() or b'')} is not")
            await calling
        finally:
            for task in (calling, asking):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(task for task in (calling, asking) if task is not None), return_exceptions=True)

    async def _ping(self, key: PublicKey, timeout_s: float) -> None:
        with contextlib.suppress(RemoteFault):  # it is there, at least
            await self._endpoint.call(key, PING, b"", timeout_s=timeout_s)

    async def _first_to_answer(self, keys: Sequence[PublicKey]) -> PublicKey | None:
        """Return which of these operators answers first; None: none does."""
        timeout_s = timeouts.OPERATOR_BUSY_S if self._uploads else timeouts.OPERATOR_AWAY_S
        calling = {asyncio.create_task(self._ping(key, timeout_s)): key for key in keys}
        waiting = set(calling)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in calling:  # in turn, where several answered
                    if task in done and task.exception() is None:
                        return calling[task]
            return None
        finally:
            for task in calling:
                task.cancel()
            await asyncio.gather(*calling, return_exceptions=True)
