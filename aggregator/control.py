"""What an operator tells a running aggregator from another terminal, over the socket in its folder (``runtime.control``)."""

import asyncio
import json
from pathlib import Path
from typing import Protocol

from manta_swarm.network.shutdown_notices import ShutdownNotice
from manta_swarm.protocol.errors import RemoteFault, Unreachable, UserError
from manta_swarm.runtime import control
from manta_swarm.runtime.disk import DirectoryLock

WHO = "aggregator"
REVOKED = "taken back"
_LOOK_S = 0.2


class Revoker(Protocol):
    """Takes back keys and invitations (``aggregator.session``)."""

    async def revoke(self, what: str, target: bytes) -> None:
        """Take a key or an invitation back; it is in the log when this returns.

        Raises:
            RemoteFault, Unreachable: it is not.
        """


class Stopping:
    """Answers the operator; knows whether the program was told to stop, and with which words to its peers."""

    def __init__(self, run: bytes, revoker: Revoker) -> None:
        """Prepare; ``told`` is done at the first word to stop, ``revoker`` takes back a key or an invitation."""
        self._run = run
        self._revoker = revoker
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.shutdown_notice: ShutdownNotice | None = None

    async def answer(self, words: str) -> str:
        """Return the answer to a line of words."""
        try:
            asked = json.loads(words)
            if "revoke" in asked:
                return await self._revoked(str(asked["revoke"]), bytes.fromhex(asked["target"]))
            shutdown_notice = ShutdownNotice(self._run, int(asked["is_over"]), str(asked["reason"]))
        except (ValueError, KeyError, TypeError):
            return "unknown words"
        if self.shutdown_notice is not None:
            return "it is stopping already"
        self.shutdown_notice = shutdown_notice
        self.told.set_result(None)
        return "stopping"

    async def _revoked(self, what: str, target: bytes) -> str:
        try:
            await self._revoker.revoke(what, target)
        except (RemoteFault, Unreachable, ValueError) as error:  # the last: words of another program
            return str(error)
        return REVOKED


def tell_to_revoke(directory: Path, what: str, target: bytes) -> str:
    """Tell the aggregator of ``directory`` to take back a key or an invitation; return its answer: ``REVOKED``, or why not.

    Raises:
        UserError: none runs there.
        Unreachable: it does not answer.
    """
    return control.tell(directory, json.dumps({"revoke": what, "target": target.hex()}), who=WHO)


def tell_to_stop(directory: Path, *, is_over: bool, reason: str) -> str:
    """Tell the aggregator of ``directory`` to stop; return its answer. ``wait_for_end`` says when it has.

    Raises:
        UserError: none runs there, or the reason is too long.
        Unreachable: it does not answer.
    """
    try:
        ShutdownNotice(bytes(32), int(is_over), reason)
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
