"""A real peer in which one function is another: ``python strange_peer.py WHAT join ...``.

It ends without a word, as by ``kill -9``, in its third round:
    dies-working     in the middle of a microbatch
    dies-handing-in  when the log has its header, before it sends the body
    dies-promised    when the log has given it an inclusion promise
    dies-fetching    when it has asked for what leads to the next state
Or, in a cohort, at its first chance, as its founder or as a member (``WHAT:founder``, ``WHAT:member``):
    dies-joining     when it takes its place in a roster
    dies-in-step     when a local step is to be averaged
    dies-gathering   when what was learnt is gathered, or handed over
    dies-with-header when the log has the cohort's header (a founder), or when its own vector is given (a member)
    dies-untold      when the log has given an inclusion promise that the members do not know yet (a founder), or when it is told of it (a
                     member)
Or it lives on:
    alone            it neither sees nor hears anybody but the log
    late             it begins only once it knows three others, whom it may ask for the state
    tomorrow         its clock is a day ahead
    means            it takes means where it can, and checks each of them
    half             while a file ``cut`` lies beside its directory, it is cut off from those whose keys end in another bit than its own,
                     but for the log
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

WHAT, _, ROLE = sys.argv.pop(1).partition(":")
DAY_S = 86_400
MOMENT_S = 0.2  # for a message to arrive

if WHAT == "tomorrow":  # before anything else reads the clock
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + DAY_S
    time.time_ns = lambda: true_time_ns() + DAY_S * 1_000_000_000

import manta_swarm.peer.sync.states  # noqa: E402
from manta_swarm.network.links import Links  # noqa: E402
from manta_swarm.network.log_client import BodyPart  # noqa: E402
from manta_swarm.network.node import Node  # noqa: E402
from manta_swarm.network.rpc import Handler  # noqa: E402
from manta_swarm.peer.cli import main  # noqa: E402
from manta_swarm.peer.cohort.cohort import Accepted, Cohort, CohortSession, Gathered  # noqa: E402
from manta_swarm.peer.cohort.cohort_session import MemberSession  # noqa: E402
from manta_swarm.peer.cohort.founder import FounderSession  # noqa: E402
from manta_swarm.peer.cohort.messages import HAND_OVER  # noqa: E402
from manta_swarm.peer.session import Session  # noqa: E402
from manta_swarm.peer.sync.spot_checker import SpotChecker  # noqa: E402
from manta_swarm.peer.sync.states import States  # noqa: E402
from manta_swarm.peer.train.loop import TrainingLoop  # noqa: E402
from manta_swarm.protocol.errors import Unreachable  # noqa: E402
from manta_swarm.protocol.records import InclusionPromise  # noqa: E402
from manta_swarm.protocol.rounds import RoundMachine  # noqa: E402
from manta_swarm.protocol.signing import PublicKey  # noqa: E402

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
    """Die in the first microbatch of the third round."""
    true_work = TrainingLoop.work
    in_third = False

    async def work(self: TrainingLoop) -> None:
        nonlocal in_third
        in_third = is_third()
        await true_work(self)

    TrainingLoop.work = work  # type: ignore[method-assign]

    from manta_swarm.automl.training.microbatches import Worker

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


def dies_promised() -> None:
    """Die at the third inclusion promise."""
    true_promised = RoundMachine.promised

    def promised(self: RoundMachine, inclusion_promise: InclusionPromise) -> None:
        if is_third():
            print(f"dies with an inclusion promise for round {inclusion_promise.round}", flush=True)
            die()
        true_promised(self, inclusion_promise)

    RoundMachine.promised = promised  # type: ignore[method-assign]


def dies_fetching() -> None:
    """Die when bytes are asked for that lead to the third state."""
    true_reach, true_by = States.reach, States._by
    in_third = False

    async def reach(self: States, *args: Any) -> Any:
        nonlocal in_third
        in_third = is_third()
        return await true_reach(self, *args)

    async def by(self: States, *args: Any) -> Any:
        fetching = asyncio.create_task(true_by(self, *args))
        if in_third:
            await asyncio.sleep(0)  # the first request is on its way
            die()
        return await fetching

    States.reach = reach  # type: ignore[method-assign]
    States._by = by  # type: ignore[method-assign]


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
    true_rounds: Callable[[Session], Coroutine[Any, Any, None]] = Session._rounds

    async def rounds(self: Session) -> None:
        while len(self._others.neighbours.members()) < 3:  # noqa: ASYNC110 - they tell nobody
            await asyncio.sleep(0.05)
        await true_rounds(self)

    Session._rounds = rounds  # type: ignore[method-assign]


def dies_joining() -> None:
    """Die when there is a place in a roster with others."""
    true_convene = Cohort.convene

    async def convene(self: Cohort, *args: Any) -> CohortSession:
        cohort_session = await true_convene(self, *args)
        die_in_cohort(cohort_session)
        return cohort_session

    Cohort.convene = convene  # type: ignore[method-assign]


def die_in_cohort(cohort_session: CohortSession) -> None:
    """Die, and say as what, if that is its part in a cohort of several."""
    if not cohort_session.is_alone and cohort_session.is_founder == (ROLE == "founder"):
        print(f"dies as {ROLE}", flush=True)
        die()


def dies_in_step() -> None:
    """Die when a vector is to be averaged with others."""
    for kind in (FounderSession, MemberSession):
        true_average = kind.average

        async def average(self: CohortSession, *args: Any, true_average: Any = true_average) -> Any:
            die_in_cohort(self)
            return await true_average(self, *args)

        kind.average = average  # type: ignore[method-assign]


def dies_gathering() -> None:
    """Die where what was learnt is gathered, or to be handed over."""

    true_gather, true_hand_over = FounderSession.gather, MemberSession.hand_over

    async def gather(self: FounderSession, *args: Any) -> Gathered | None:
        die_in_cohort(self)
        return await true_gather(self, *args)

    async def hand_over(self: MemberSession, *args: Any) -> Accepted | None:
        die_in_cohort(self)
        return await true_hand_over(self, *args)

    FounderSession.gather = gather  # type: ignore[method-assign]
    MemberSession.hand_over = hand_over  # type: ignore[method-assign]


def dies_with_header() -> None:
    """Die as a founder when the answer to the cohort's header is here, as a member a moment after its claim was handed over."""
    true_gather, true_pack, true_call = FounderSession.gather, BodyPart.pack, Links.call
    founders: list[CohortSession] = []

    async def gather(self: FounderSession, *args: Any) -> Gathered | None:
        gathered = await true_gather(self, *args)
        if gathered is not None:
            founders.append(self)
        return gathered

    def pack(self: BodyPart) -> bytes:
        if founders:
            die_in_cohort(founders[0])
        return true_pack(self)

    async def call(self: Links, key: PublicKey, method: str, *args: Any, **options: Any) -> bytes:
        if method != HAND_OVER or ROLE != "member":
            return await true_call(self, key, method, *args, **options)
        calling = asyncio.create_task(true_call(self, key, method, *args, **options))
        await asyncio.wait([calling], timeout=MOMENT_S)
        print("dies as member", flush=True)
        die()

    FounderSession.gather = gather  # type: ignore[method-assign]
    BodyPart.pack = pack  # type: ignore[method-assign]
    Links.call = call  # type: ignore[method-assign]


def dies_untold() -> None:
    """Die with an inclusion promise of the cohort's that the members, or this member's machine, do not know of."""
    true_tell, true_hand_over = FounderSession.tell, MemberSession.hand_over

    async def tell(self: FounderSession, accepted: Accepted | None) -> None:
        if accepted is not None:
            die_in_cohort(self)
        await true_tell(self, accepted)

    async def hand_over(self: MemberSession, *args: Any) -> Accepted | None:
        accepted = await true_hand_over(self, *args)
        if accepted is not None:
            die_in_cohort(self)
        return accepted

    FounderSession.tell = tell  # type: ignore[method-assign]
    MemberSession.hand_over = hand_over  # type: ignore[method-assign]


def means() -> None:
    """Take the mean first, and check it each time."""
    true_ways = manta_swarm.peer.sync.states.ways
    manta_swarm.peer.sync.states.ways = lambda *args: sorted(true_ways(*args), key=lambda way: way.name != "mean")
    SpotChecker.wants = lambda _self, _entry: True  # type: ignore[method-assign]


def half() -> None:
    """Neither call nor answer those of the other half while there is a cut; the log is of both."""
    true_call, true_serve, true_near_call, true_send = Node.call, Node.serve, Links.call, Links.send
    cut = Path(sys.argv[sys.argv.index("--dir") + 1]).parent / "cut"
    operator: list[PublicKey] = []

    def is_cut_off(own: PublicKey, other: PublicKey) -> bool:
        return cut.exists() and other not in operator and (own[-1] ^ other[-1]) & 1 == 1

    async def call(self: Node, key: PublicKey, method: str, request: bytes, *, timeout_s: float, large_answer: bool = False) -> bytes:
        if method == "header" and not operator:
            operator.append(key)
        if is_cut_off(self.key, key):
            raise Unreachable("there is a cut")
        return await true_call(self, key, method, request, timeout_s=timeout_s, large_answer=large_answer)

    async def serve(self: Node, method: str, handler: Handler) -> None:
        async def answer(caller: PublicKey, request: bytes) -> bytes:
            if is_cut_off(self.key, caller):
                await asyncio.sleep(DAY_S)
            return await handler(caller, request)

        await true_serve(self, method, answer)

    async def near_call(self: Links, key: PublicKey, *args: Any, **options: Any) -> bytes:
        if is_cut_off(self.key, key):
            raise Unreachable("there is a cut")
        return await true_near_call(self, key, *args, **options)

    async def send(self: Links, key: PublicKey, *args: Any, **options: Any) -> None:
        if is_cut_off(self.key, key):
            raise Unreachable("there is a cut")
        await true_send(self, key, *args, **options)

    Links.call = near_call  # type: ignore[method-assign]
    Links.send = send  # type: ignore[method-assign]
    Node.call = call  # type: ignore[method-assign]
    Node.serve = serve  # type: ignore[method-assign]


if WHAT != "tomorrow":
    {
        "dies-joining": dies_joining,
        "dies-in-step": dies_in_step,
        "dies-gathering": dies_gathering,
        "dies-with-header": dies_with_header,
        "dies-untold": dies_untold,
        "half": half,
        "means": means,
        "dies-working": dies_working,
        "dies-handing-in": dies_handing_in,
        "dies-promised": dies_promised,
        "dies-fetching": dies_fetching,
        "alone": alone,
        "late": late,
    }[WHAT]()
if __name__ == "__main__":
    main()
