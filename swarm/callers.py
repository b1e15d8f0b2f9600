"""Who called on a connection of their own, and hangs up: nobody works for them any more, for they have nothing more to say before."""

import asyncio
import contextlib
from collections.abc import Iterator


async def end_of(reader: asyncio.StreamReader) -> None:
    """Return once the other side has hung up, or is gone."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.read(1)


@contextlib.contextmanager
def cancelled_by(leaving: "asyncio.Task[None]") -> Iterator[None]:
    """Cancel the current task if ``leaving`` is done before what is inside."""
    this = asyncio.current_task()
    assert this is not None

    def on_leave(_: object) -> None:
        this.cancel()

    leaving.add_done_callback(on_leave)
    try:
        yield
    finally:
        leaving.remove_done_callback(on_leave)
