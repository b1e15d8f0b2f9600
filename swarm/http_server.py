"""An HTTP server that is a part of a program: it answers for as long as a context lasts, and leaves signals to the program."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from protocol.errors import OwnFault


class _Server(uvicorn.Server):  # type: ignore[misc,unused-ignore]
    """A server that leaves signals to the program that it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def answering(config: uvicorn.Config, listening: socket.socket, whose: str) -> AsyncIterator[None]:
    """Answer on a socket until the end of the context, which begins once somebody would be answered.

    Args:
        config: of the server; its socket comes beside it.
        listening: already bound.
        whose: server it is, for the fault that nobody expects.
    """
    server = _Server(config)
    task = asyncio.create_task(server.serve([listening]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise OwnFault(f"the {whose}'s HTTP server ended before it began")
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task
