"""Starts an attack of a stranger as a program of its own, beside the nodes of a test."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.faults.strangers import Target

DEADLINE_S = 240.0
_END_S = 20.0


@asynccontextmanager
async def attacking(name: str, target: Target) -> AsyncIterator[None]:
    """Have a stranger attack a run, from when it is fully under way."""
    gateway = [] if target.gateway is None else [f"{target.gateway[0]}:{target.gateway[1]}"]
    command = [sys.executable, "-m", "tests.faults.strangers", name, target.address, target.run.hex(), *gateway]
    program = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S / 2):
            line = await program.stdout.readline()
        assert line == b"attacks\n", line
        yield
        assert program.returncode is None, "the attack has ended by itself"
    finally:
        if program.returncode is None:
            program.send_signal(signal.SIGINT)
            try:
                async with asyncio.timeout(_END_S):
                    await program.wait()
            except TimeoutError:
                program.kill()
                await program.wait()
