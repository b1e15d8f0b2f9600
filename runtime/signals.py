"""What the system tells this process by signals, for everybody in it who listens: several sessions may share one event loop."""

import asyncio
import contextlib
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import FrameType
from weakref import WeakKeyDictionary


@dataclass(frozen=True, slots=True)
class Told:
    """The signals that asked a program to end so far."""

    numbers: list[int] = field(default_factory=list)

    def is_set(self) -> bool:
        """Return whether it was told more than once, and there is a hurry."""
        return len(self.numbers) > 1


@contextlib.contextmanager
def collecting(*numbers: signal.Signals) -> Iterator[Told]:
    """Collect these signals in a program without an event loop, instead of what they would do."""
    told = Told()

    def remember(number: int, _frame: FrameType | None) -> None:
        told.numbers.append(number)

    before = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Signals:
    """The signals that came since this began to listen."""

    def __init__(self) -> None:
        """Use ``hearing``."""
        self._waiting: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def is_set(self) -> bool:
        """Return whether one came that nobody has taken."""
        return not self._waiting.empty()

    def put(self, number: signal.Signals) -> None:
        """Add one that came."""
        self._waiting.put_nowait(number)

    async def next(self) -> signal.Signals:
        """Return the next one once it comes."""
        return await self._waiting.get()


_LISTENING: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[signal.Signals, list[Signals]]] = WeakKeyDictionary()


@contextlib.contextmanager
def hearing(*numbers: signal.Signals) -> Iterator[Signals]:
    """Yield these signals as they come, instead of what they would do; all who listen get each of them."""
    loop = asyncio.get_running_loop()
    listening = _LISTENING.setdefault(loop, defaultdict(list))
    signals = Signals()
    for number in numbers:
        if not listening[number]:
            loop.add_signal_handler(number, _tell, listening[number], number)
        listening[number].append(signals)
    try:
        yield signals
    finally:
        for number in numbers:
            listening[number].remove(signals)
            if not listening[number]:
                loop.remove_signal_handler(number)


def _tell(listening: list[Signals], number: signal.Signals) -> None:
    for each in listening:
        each.put(number)


@contextlib.asynccontextmanager
async def told_to_stop() -> AsyncIterator["asyncio.Future[None]"]:
    """Yield what is done at the first SIGINT or SIGTERM from now on; those that come later do nothing."""
    with hearing(signal.SIGINT, signal.SIGTERM) as signals:
        told = asyncio.create_task(_first(signals))
        try:
            yield told
        finally:
            told.cancel()
            await asyncio.gather(told, return_exceptions=True)


async def _first(signals: Signals) -> None:
    await signals.next()
