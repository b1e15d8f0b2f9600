"""Architectures measured by several processes of this computer, one thread each (``automl.search.process``)."""

import asyncio
import signal
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from struct import pack, unpack
from types import FrameType, TracebackType
from typing import TypeVar

from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.protocol.errors import MantaError, OwnFault
from manta_swarm.runtime.child import Child, ChildLost, Program, with_threads
from manta_swarm.runtime.line import Messages

_T = TypeVar("_T")
_ANSWER_S = 7 * 86_400.0  # for one network: nobody knows how long it takes, and a death is noticed


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """Asks a process to measure an architecture on a part of the held-out data."""

    architecture: str
    part: str


@dataclass(frozen=True, slots=True)
class MeasureAnswer:
    """A process's answer: how good the architecture is, as ``Measured`` has it."""

    quality: tuple[tuple[str, bytes], ...]  # names, and binary64
    losses: bytes
    wrong: bytes

    @classmethod
    def of(cls, measured: Measured) -> "MeasureAnswer":
        """Return what was measured as it travels."""
        quality = tuple((name, pack(">d", value)) for name, value in measured.quality.items())
        return cls(quality, measured.losses.tobytes(), measured.wrong.tobytes())

    @property
    def measured(self) -> Measured:
        """What was measured."""
        quality = {name: float(unpack(">d", value)[0]) for name, value in self.quality}
        return Measured(quality, array("i", self.losses), array("i", self.wrong))


MESSAGES = Messages((MeasureRequest,), (MeasureAnswer,), max_to_parent=1 << 28)


class ProcessEvaluator:
    """An Evaluator that shares the work out; a context manager that leaves no process behind. Not for who has an event loop already."""

    def __init__(self, command: Sequence[str], workers: int) -> None:
        """Start so many processes of a program that speaks by ``MESSAGES``; what it cannot comes out of ``measure``."""
        if workers < 1:
            raise ValueError("at least one process")
        self._loop = asyncio.Runner()
        self._children: list[Child] = []
        try:
            self._run(self._start(Program("measures", command, environment=with_threads(1), messages=MESSAGES), workers))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ProcessEvaluator":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def measure(self, architectures: Sequence[Architecture], part: str) -> Iterator[Measured]:
        """Yield how good each architecture is in the order asked for, whoever was faster; see Evaluator.

        Raises:
            OwnFault: a process has died; all others are stopped.
            UserError: they cannot measure here.
            ValueError: they were stopped before.
        """
        if not self._children:
            raise ValueError("the processes are stopped")
        waiting = list(enumerate(architectures))[::-1]
        found: asyncio.Queue[tuple[int, Measured | MantaError]] = asyncio.Queue()
        ready: dict[int, Measured] = {}
        is_over = not architectures
        try:
            self._run(self._begin(waiting, part, found))
            for following in range(len(architectures)):
                while following not in ready:
                    index, measured = self._run(found.get())
                    if isinstance(measured, MantaError):
                        raise measured
                    ready[index] = measured
                is_over = following + 1 == len(architectures)  # who has the last one may not ask for more
                yield ready.pop(following)
        finally:
            if not is_over:  # an error, a Ctrl-C, or nobody wants the rest: the answers would be taken for those to the next question
                self.close()

    def close(self) -> None:
        """Stop the processes, in the middle of their work."""
        children, self._children = self._children, []
        try:
            if children:
                self._run(self._end(children))
        finally:  # also if a second Ctrl-C breaks that off: the children end with this process
            self._loop.close()

    def _run(self, coroutine: Coroutine[None, None, _T]) -> _T:
        """Return what a coroutine returns; Ctrl-C cancels it.

        A KeyboardInterrupt that Python raised in the middle of the loop, as ``asyncio.Runner.run`` lets it while the loop stops, would
        leave a loop that cannot run again, and end nothing. Here it is raised where the loop stands.

        Raises:
            KeyboardInterrupt: there was a Ctrl-C meanwhile.
        """
        loop = self._loop.get_loop()
        task = loop.create_task(coroutine)
        is_told = False

        def tell(_number: int, _frame: FrameType | None) -> None:
            nonlocal is_told
            is_told = True
            loop.call_soon_threadsafe(task.cancel)

        is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is for somebody else to say what it does
        if is_raised:
            signal.signal(signal.SIGINT, tell)
        try:
            result = loop.run_until_complete(task)
        except asyncio.CancelledError:
            if not is_told:
                raise
        finally:
            if is_raised:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if is_told:
            raise KeyboardInterrupt
        return result

    async def _start(self, program: Program, workers: int) -> None:
        for _ in range(workers):
            self._children.append(Child.start(program))

    async def _begin(
        self, waiting: list[tuple[int, Architecture]], part: str, found: "asyncio.Queue[tuple[int, Measured | MantaError]]"
    ) -> None:
        self._working = [asyncio.create_task(_work(child, waiting, part, found)) for child in self._children]

    async def _end(self, children: Sequence[Child]) -> None:
        await asyncio.gather(*(child.kill() for child in children))


async def _work(
    child: Child, waiting: list[tuple[int, Architecture]], part: str, found: "asyncio.Queue[tuple[int, Measured | MantaError]]"
) -> None:
    """Have a process measure one architecture after the other, as long as some wait."""
    try:
        while waiting:
            index, architecture = waiting.pop()
            await child.say(MeasureRequest(architecture.text, part))
            found.put_nowait((index, (await child.hear(MeasureAnswer, _ANSWER_S)).measured))
    except ChildLost as error:
        words = "what is measured is kept: start the same command again, with fewer --workers if memory was short"
        found.put_nowait((-1, OwnFault(f"a process that measured architectures died ({error}); {words}")))
    except MantaError as error:
        found.put_nowait((-1, error))
