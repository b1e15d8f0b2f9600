"""A line between two programs: a TCP proxy in this process that can be slow, or dead without a word."""

import asyncio
import contextlib
import threading
from types import TracebackType

_PIECE_BYTES = 4096
_POLL_S = 0.05


class Line:
    """Forwards what connects to its port to another port of this computer, in a thread of its own. Use with ``with``."""

    def __init__(self, port: int, *, bytes_per_s: float | None = None) -> None:
        """Lead to ``port``, with so many bytes a second in each direction; None: as fast as it goes."""
        self._to = port
        self._bytes_per_s = bytes_per_s
        self._is_dead = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="line")
        self._stop = asyncio.Event()
        self._listens = threading.Event()
        self.port = 0
        self.num_bytes = 0  # that went through, in both directions

    def __enter__(self) -> "Line":
        self._thread.start()
        assert self._listens.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @contextlib.contextmanager
    def dead(self):  # type: ignore[no-untyped-def]
        """Let nothing through for a while; connections stay open, as with a cable that is pulled."""
        self._is_dead = True
        try:
            yield
        finally:
            self._is_dead = False

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._stop.wait()
        server.close()
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            to_reader, to_leader = await asyncio.open_connection("127.0.0.1", self._to)
            ways = [asyncio.create_task(self._forward(reader, to_leader)), asyncio.create_task(self._forward(to_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                for each in (writer, to_leader):
                    each.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                while self._is_dead:  # noqa: ASYNC110 - another thread says so
                    await asyncio.sleep(_POLL_S)
                if self._bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self._bytes_per_s)
                writer.write(data)
                await writer.drain()
                self.num_bytes += len(data)
