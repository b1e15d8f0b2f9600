"""A thread that does an operator's blocking work, one piece after the other, in the order in which it is given."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from manta_swarm.protocol.errors import StorageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Broken:
    """Says whether a program cannot go on any more, since a disk, or a part of it, failed for good."""

    def __init__(self) -> None:
        self.told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def __bool__(self) -> bool:
        return self.told.done()

    def stop(self, error: BaseException | None) -> None:
        """End the program with an error after which it cannot go on; None says nothing."""
        if error is not None and not self.told.done():
            self.told.set_result(error)


class WorkerThread:
    """Runs blocking work in a thread of its own, one piece after the other."""

    def __init__(self, name: str, broken: Broken | None = None) -> None:
        """Start with the first work; ``broken`` is told of a disk that fails, which ends the program."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._broken = broken

    async def do(self, work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        """Return what ``work`` returns; who hangs up does not end it.

        Raises:
            StorageError: the disk failed.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *arguments, **named))
        except StorageError as error:
            if self._broken is not None:
                self._broken.stop(error)
            raise

    def close(self) -> None:
        """Finish the work that was given."""
        self._executor.shutdown(wait=True)
