"""A real peer in which one function is another: ``python strange_peer.py WHAT join ...``.

It ends without a word, as by ``kill -9``, in its third round:
    dies-working     in the middle of a lot
    dies-handing-in  when the log has its header, before it sends the body
    dies-ticketed    when the log has given it a ticket
    dies-fetching    when it has asked for what leads to the next state
Or it lives on:
    alone            it neither sees nor hears anybody but the log
    late             it begins only once it knows three others, whom it may ask for the state
    tomorrow         its clock is a day ahead
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

WHAT = sys.argv.pop(1)
DAY_S = 86_400

if WHAT == "tomorrow":  # before anything else reads the clock
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + DAY_S
    time.time_ns = lambda: true_time_ns() + DAY_S * 1_000_000_000

from peer.cli import main  # noqa: E402
from peer.loop import PeerLoop  # noqa: E402
from peer.states import States  # noqa: E402
from protocol.errors import Unreachable  # noqa: E402
from protocol.records import Ticket  # noqa: E402
from protocol.rounds import RoundMachine  # noqa: E402
from protocol.signing import PublicKey  # noqa: E402
from swarm.messages import BodyPart  # noqa: E402
from swarm.node import Node  # noqa: E402
from swarm.rpc import Handler  # noqa: E402

calls = 0


def die() -> NoReturn:
    """End as by ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL ends a process")


def is_third() -> bool:
    """Return True from the third call on."""
    global calls
    calls += 1
    return calls >= 3


def dies_working() -> None:
    """Die in the first lot of the third round."""
    true_work = PeerLoop._work
    in_third = False

    async def work(self: PeerLoop) -> None:
        nonlocal in_third
        in_third = is_third()
        await true_work(self)

    PeerLoop._work = work  # type: ignore[method-assign]

    from automl.training import Worker

    true_train = Worker.train

    def train(self: Worker, *args: Any) -> Any:
        if in_third:
            die()
        return true_train(self, *args)

    Worker.train = train  # type: ignore[method-assign]


def dies_handing_in() -> None:
    """Die when the third body is to be sent: the answer to its header is here."""
    true_pack = BodyPart.pack

    def pack(self: BodyPart) -> bytes:
        if is_third():
            die()
        return true_pack(self)

    BodyPart.pack = pack  # type: ignore[method-assign]


def dies_ticketed() -> None:
    """Die at the third ticket."""
    true_ticketed = RoundMachine.ticketed

    def ticketed(self: RoundMachine, ticket: Ticket) -> None:
        if is_third():
            print(f"dies with a ticket for round {ticket.round}", flush=True)
            die()
        true_ticketed(self, ticket)

    RoundMachine.ticketed = ticketed  # type: ignore[method-assign]


def dies_fetching() -> None:
    """Die when bytes are asked for that lead to the third state."""
    true_reach, true_fetch = States.reach, States._fetch
    in_third = False

    async def reach(self: States, *args: Any) -> None:
        nonlocal in_third
        in_third = is_third()
        await true_reach(self, *args)

    async def fetch(self: States, *args: Any) -> Any:
        fetching = asyncio.create_task(true_fetch(self, *args))
        if in_third:
            await asyncio.sleep(0)  # the request is on its way
            die()
        return await fetching

    States.reach = reach  # type: ignore[method-assign]
    States._fetch = fetch  # type: ignore[method-assign]


def alone() -> None:
    """Call nobody but the log, and answer nobody."""
    true_call = Node.call
    true_serve = Node.serve
    operator: list[PublicKey] = []

    async def call(self: Node, key: PublicKey, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        if method == "header" and not operator:
            operator.append(key)
        if operator and key not in operator:
            await asyncio.sleep(min(timeout_s, 5.0))
            raise Unreachable("nobody is there")
        return await true_call(self, key, method, request, timeout_s=timeout_s, large_answer=large_answer)

    async def serve(self: Node, method: str, handler: Handler) -> None:
        async def say_nothing(caller: PublicKey, request: bytes) -> bytes:
            await asyncio.sleep(DAY_S)
            return b""

        del handler
        await true_serve(self, method, say_nothing)

    Node.call = call  # type: ignore[method-assign]
    Node.serve = serve  # type: ignore[method-assign]


def late() -> None:
    """Begin only once three others are known."""
    true_rounds: Callable[[PeerLoop], Coroutine[Any, Any, None]] = PeerLoop._rounds

    async def rounds(self: PeerLoop) -> None:
        while len(self._neighbours.members()) < 3:  # noqa: ASYNC110 - they tell nobody
            await asyncio.sleep(0.05)
        await true_rounds(self)

    PeerLoop._rounds = rounds  # type: ignore[method-assign]


if WHAT != "tomorrow":
    {
        "dies-working": dies_working,
        "dies-handing-in": dies_handing_in,
        "dies-ticketed": dies_ticketed,
        "dies-fetching": dies_fetching,
        "alone": alone,
        "late": late,
    }[WHAT]()
main()
