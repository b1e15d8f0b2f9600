"""What computes audits, seen from the peer: a process of low priority that is started, asked, and ended in the middle of its work."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from peer.auditing.messages import MESSAGES, Ask, Found, GoOn, Said, Setup, Weights
from protocol.encoding import pack
from protocol.manifest import SignedManifest
from runtime.child import Child, Program, python, with_threads

NICENESS = 5
_ANSWER_S = 1800.0  # for one microbatch

Rest = Callable[[float], Awaitable[None]]  # after so many seconds of the CPU


class Computing(Protocol):
    """What computes."""

    async def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """Compute on these parameters, and those of the teacher where the round has one, from now on."""

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        """Return what comes of a contribution; ``rest`` is awaited after each microbatch."""

    async def close(self) -> None:
        """End it."""


class Process:
    """A process that computes; implements ``Computing``."""

    def __init__(self, child: Child) -> None:
        """Use ``start``."""
        self._child = child

    @classmethod
    async def start(cls, signed: SignedManifest, fetched: Path, root: Path | None) -> "Process":
        """Start a process for a run, which finds what was brought in the folder ``fetched``. Call it on the main thread.

        Raises:
            ChildLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        command = python("-m", "peer.auditing.process", str(fetched), *([] if root is None else [str(root)]))
        program = Program("audits", command, environment=with_threads(1), messages=MESSAGES, niceness=NICENESS)
        return cls(await Child.ready(program, Setup(pack(signed))))

    async def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """See ``Computing``."""
        await self._child.say(Weights(weights.numpy().tobytes(), b"" if teacher is None else teacher.numpy().tobytes()))

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        """See ``Computing``.

        Raises:
            ChildLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        await self._child.say(ask)
        while True:
            found = await self._child.hear(Found, _ANSWER_S)
            if found.said != Said.WORKING:
                return found
            await rest(found.cpu_ms / 1000)
            await self._child.say(GoOn())

    async def close(self) -> None:
        """See ``Computing``."""
        await self._child.kill()
