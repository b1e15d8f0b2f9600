"""A home whose commands start in a moment: forks (``tests.forked``), watched as those that are started for real."""

import os
from pathlib import Path
from typing import Any

from tests import forked
from tests.command import Home
from tests.runtime.forked_child import ForkedProcess


class _Process(ForkedProcess):
    """Has what ``tests.command`` asks of a ``Popen`` with pipes."""

    def __init__(self, server: forked.ForkServer, words: list[str], environment: dict[str, str]) -> None:
        ends = [os.pipe() for _ in range(2)]
        output, errors = (Path(f"/proc/self/fd/{writing}") for _, writing in ends)
        super().__init__(server, server.start(words, output, environment, errors).pid, words)
        for _, writing in ends:
            os.close(writing)
        self.stdout, self.stderr = (os.fdopen(reading) for reading, _ in ends)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what it printed, once it has ended; that is less than a pipe takes."""
        self.wait(timeout)
        with self.stdout, self.stderr:
            return self.stdout.read(), self.stderr.read()


class ForkedHome(Home):
    """A home where ``python -m ARGUMENTS`` is a fork, where that can be."""

    def __init__(self, directory: Path, temporary: Path, server: forked.ForkServer | None = None) -> None:
        """Fork from ``server``; None: from that of this process.

        Called on the main thread: a server ends with the thread that started it, and a test's ``asyncio.to_thread`` ends with the test.
        """
        super().__init__(directory, temporary)
        self._server = server or forked.server()

    def start(self, *arguments: str | Path) -> Any:
        """See ``Home``."""
        if self._server is None:
            return super().start(*arguments)
        return _Process(self._server, [str(argument) for argument in arguments], self.environment)
