"""Lets a person tell a running program something from another terminal: a Unix socket in its directory that only its user can open.

A caller sends one line of words, and gets one line back once it is done.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from manta_swarm.protocol.errors import Unreachable, UserError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_TURNS_TO_TURN_AWAY = 8  # of the event loop, until who came in last has been met and sent away

NAME = "control"
MAX_WORDS_BYTES = 1024
_MAX_ANSWER_BYTES = 262_144
_WORDS_S = 5.0  # for the caller to say what it wants
_ANSWER_S = 30.0  # for the program to do it
_LAST_ANSWERS_S = 1.0  # as it ends
_MAX_CALLERS = 64  # at a time

logger = logging.getLogger("manta.control")


class LocalServer:
    """Serves who connects to a Unix socket, each in a task of its own."""

    def __init__(self, serve: Serve, *, max_line_bytes: int, max_callers: int) -> None:
        """Prepare.

        Args:
            serve: serves one caller; the connection is closed once it returns. It may be cancelled.
            max_line_bytes: how much of what is said may wait to be read.
            max_callers: served at a time; who comes when there are so many is turned away.
        """
        self._serve = serve
        self._max_line_bytes = max_line_bytes
        self._max_callers = max_callers
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether it has been started."""
        return self._server is not None

    async def start(self, *, path: str | None = None, listening: socket.socket | None = None) -> None:
        """Listen on a path, or on a socket that is bound.

        Raises:
            OSError: the path or socket cannot be listened on.
        """
        self._server = await asyncio.start_unix_server(self._on_connection, path=path, sock=listening, limit=self._max_line_bytes)

    async def close(self, *, grace_s: float = 0.0) -> None:
        """Let nobody in any more, and return once nobody is served; who is may take so many seconds to its end, and is cancelled then."""
        self._is_closed = True  # also for who is just coming in
        if self._server is None:
            return
        # CPython 3.11 leaves a socket open that it has accepted and not met yet when its server is closed. So nobody is let in any
        # more, and the server is closed once those who were have been met.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(_TURNS_TO_TURN_AWAY):
            await asyncio.sleep(0)
        self._server.close()
        serving = dict(self._serving)
        if serving and grace_s:
            await asyncio.wait(serving, timeout=grace_s)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for writer in serving.values():
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in serving.values()), return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed or len(self._serving) >= self._max_callers:
            writer.transport.abort()
            return
        # A task of its own: asyncio's server, which runs this function, complains when what it runs is cancelled.
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving[task] = writer
        try:
            await asyncio.wait({task})
        finally:
            del self._serving[task]
            writer.close()
        if not task.cancelled():
            task.result()


class CommandHandler(Protocol):
    """Carries out what a person tells a running program."""

    async def answer(self, words: str) -> str:
        """Return the line that whoever said a line of words gets, once it is done."""


class ControlSocket:
    """The socket of a running program; a context manager. Who has the directory's lock may have it."""

    def __init__(self, directory: Path, program: CommandHandler) -> None:
        """Prepare; ``program`` answers."""
        self._path = directory / NAME
        self._program = program
        self._server = LocalServer(self._serve, max_line_bytes=MAX_WORDS_BYTES, max_callers=_MAX_CALLERS)

    async def __aenter__(self) -> "ControlSocket":
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()  # of a program that was killed
        listening = socket.socket(socket.AF_UNIX)
        try:
            with _short(self._path.parent) as folder:
                listening.bind(f"{folder}/{NAME}")
            os.chmod(self._path, 0o600)
            await self._server.start(listening=listening)
        except OSError as error:  # some file systems have no sockets: the program works without
            listening.close()
            logger.warning("this program cannot be told anything: no socket in %s: %s", self._path.parent, error)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server.is_open:
            self._path.unlink(missing_ok=True)
            await self._server.close(grace_s=_LAST_ANSWERS_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_WORDS_S):
                words = (await reader.readuntil(b"\n"))[:-1].decode("utf-8", "replace")
            writer.write((await self._program.answer(words)).encode() + b"\n")
            async with asyncio.timeout(_WORDS_S):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a caller that does not go on


class NobodyRuns(UserError):
    """No such program runs on that directory."""


def tell(directory: Path, words: str, *, who: str, answer_s: float = _ANSWER_S) -> str:
    """Tell the program that runs on ``directory`` a line of words; return what it answers, within so many seconds, once it is done.

    Raises:
        NobodyRuns: no such program, a ``who``, runs there.
        UserError: it cannot be told.
        Unreachable: it does not answer.
    """
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(answer_s)
        try:
            with _short(directory) as folder:
                caller.connect(f"{folder}/{NAME}")
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise NobodyRuns(f"no {who} runs on {directory}: name the directory of one with --dir") from error
        except OSError as error:
            raise UserError(f"the {who} on {directory} cannot be told: {error.strerror or error}") from error
        try:
            caller.sendall(words.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and len(answer) <= _MAX_ANSWER_BYTES:
                part = caller.recv(_MAX_ANSWER_BYTES)
                if not part:
                    raise Unreachable(f"the {who} on {directory} ended before it answered")
                answer += part
        except OSError as error:
            raise Unreachable(f"the {who} on {directory} does not answer ({error}): is it stopped?") from error
    return answer.decode("utf-8", "replace").strip()


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
