"""What an operator tells a running aggregator from another terminal, over the socket in its folder (``swarm.control``)."""

import asyncio
import json
from pathlib import Path

from protocol.errors import UserError
from swarm import control
from swarm.disk import DirectoryLock
from swarm.farewells import Farewell

WHO = "aggregator"
_LOOK_S = 0.2


class Stopping:
    """Answers the operator; knows whether the program was told to stop, and with which words to its peers."""

    def __init__(self, run: bytes) -> None:
        """Prepare; ``told`` is done at the first word to stop."""
        self._run = run
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.farewell: Farewell | None = None

    async def answer(self, words: str) -> str:
        """Return the answer to a line of words."""
        try:
            asked = json.loads(words)
            farewell = Farewell(self._run, int(asked["is_over"]), str(asked["reason"]))
        except (ValueError, KeyError, TypeError):
            return "unknown words"
        if self.farewell is not None:
            return "it is stopping already"
        self.farewell = farewell
        self.told.set_result(None)
        return "stopping"


def tell_to_stop(directory: Path, *, is_over: bool, reason: str) -> str:
    """Tell the aggregator of ``directory`` to stop; return its answer. ``wait_for_end`` says when it has.

    Raises:
        UserError: none runs there, or the reason is too long.
        Unreachable: it does not answer.
    """
    try:
        Farewell(bytes(32), int(is_over), reason)
    except ValueError as error:
        raise UserError(f"--reason: {error}") from error
    return control.tell(directory, json.dumps({"is_over": is_over, "reason": reason}), who=WHO)


async def wait_for_end(directory: Path) -> None:
    """Return once no aggregator uses ``directory`` any more."""
    while is_running(directory):  # noqa: ASYNC110 - another process ends, and tells nobody
        await asyncio.sleep(_LOOK_S)


def is_running(directory: Path) -> bool:
    """Return whether a program uses ``directory``.

    Raises:
        StorageError: that cannot be found out.
    """
    if not (directory / "lock").exists():
        return False
    try:
        DirectoryLock(directory, WHO).release()
    except UserError:
        return True
    return False
