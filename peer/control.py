"""How a person tells a running peer to pause and to resume: a Unix socket in the peer's directory, for nobody but its user.

A caller sends one word and a line's end, and gets one line back once it is done.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from protocol.errors import Unreachable, UserError

PAUSE, RESUME = "pause", "resume"

_NAME = "control"
_MAX_BYTES = 256
_WORD_S = 5.0  # for the caller to say what it wants
_ANSWER_S = 30.0  # for the peer to do it

logger = logging.getLogger("manta.peer")


class Pausable(Protocol):
    """What can be paused (``peer.loop.PeerLoop``)."""

    async def pause(self) -> None:
        """Compute nothing from now on."""

    async def resume(self) -> None:
        """Go on."""


class Control:
    """The socket of a running peer; a context manager. Who has the directory's lock may have it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: asyncio.Server | None = None
        self._peer: Pausable | None = None
        self._is_paused = False
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> "Control":
        path = self._directory / _NAME
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of a peer that was killed
        listening = socket.socket(socket.AF_UNIX)
        try:
            with _short(self._directory) as folder:
                listening.bind(f"{folder}/{_NAME}")
            os.chmod(path, 0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=_MAX_BYTES)
        except OSError as error:  # some file systems have no sockets: the peer works without
            listening.close()
            logger.warning("this peer cannot be paused: no socket in %s: %s", self._directory, error)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server is not None:
            self._server.close()
            (self._directory / _NAME).unlink(missing_ok=True)

    async def attach(self, peer: Pausable) -> None:
        """Let ``peer`` be what is paused; if that was asked for before, it is now."""
        async with self._turn:
            self._peer = peer
            if self._is_paused:
                await peer.pause()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_WORD_S):
                word = (await reader.readuntil(b"\n"))[:-1].decode("ascii", "replace")
            writer.write((await self._answer(word)).encode() + b"\n")
            async with asyncio.timeout(_WORD_S):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a caller that does not go on
        finally:
            writer.close()

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
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_ANSWER_S)
        try:
            with _short(directory) as folder:
                caller.connect(f"{folder}/{_NAME}")
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise UserError(f"no peer runs on {directory}: name the directory of one with --dir") from error
        except OSError as error:
            raise UserError(f"the peer on {directory} cannot be told: {error.strerror or error}") from error
        try:
            caller.sendall(word.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and len(answer) <= _MAX_BYTES:
                part = caller.recv(_MAX_BYTES)
                if not part:
                    raise Unreachable(f"the peer on {directory} ended before it answered")
                answer += part
        except OSError as error:
            raise Unreachable(f"the peer on {directory} does not answer ({error}): is it stopped?") from error
    return answer.decode("ascii", "replace").strip()


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Yield a name of a directory that fits into a socket's address, which has a hundred bytes."""
    if sys.platform != "linux":
        yield str(directory)
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
