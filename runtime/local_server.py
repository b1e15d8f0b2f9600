"""A server on a Unix socket that leaves nothing behind when it is closed: no task, no connection, not even one that has just come in."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_TURNS_TO_TURN_AWAY = 8  # of the event loop, until who came in last has been met and sent away


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
            OSError: that can't be listened on.
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
