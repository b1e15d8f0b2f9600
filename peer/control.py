"""How a person tells a running peer to pause and to resume: words over its socket (``swarm.control``)."""

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Protocol

from swarm import control

PAUSE, RESUME = "pause", "resume"


class Pausable(Protocol):
    """What can be paused (``peer.loop.PeerLoop``)."""

    async def pause(self) -> None:
        """Compute nothing from now on."""

    async def resume(self) -> None:
        """Go on."""


class Control:
    """The socket of a running peer; a context manager. Who has the directory's lock may have it."""

    def __init__(self, directory: Path) -> None:
        self._socket = control.ControlSocket(directory, self._answer)
        self._peer: Pausable | None = None
        self._is_paused = False
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> "Control":
        await self._socket.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._socket.__aexit__(kind, error, trace)

    async def attach(self, peer: Pausable) -> None:
        """Let ``peer`` be what is paused; if that was asked for before, it is now."""
        async with self._turn:
            self._peer = peer
            if self._is_paused:
                await peer.pause()

    async def _answer(self, word: str) -> str:
        if word not in (PAUSE, RESUME):
            return "unknown word"
        async with self._turn:
            was_paused, self._is_paused = self._is_paused, word == PAUSE
            if self._peer is not None:
                await (self._peer.pause() if self._is_paused else self._peer.resume())
        if self._is_paused:
            return "it was paused already" if was_paused else "paused: nothing is computed until manta-peer resume"
        return "resumed" if was_paused else "it was not paused"


def tell(directory: Path, word: str) -> str:
    """Tell the peer that runs on ``directory`` a word; return what it answers once it is done.

    Raises:
        UserError: no peer runs there.
        Unreachable: it does not answer.
    """
    return control.tell(directory, word, who="peer")
