"""What computes audits, seen from the peer: a process of low priority that is started, asked, and ended in the middle of its work."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from peer.aside.aside import Aside
from peer.aside.messages import Kind
from peer.auditing.messages import MAX_ANSWER_BYTES, Ask, Found, Said
from protocol.encoding import pack, unpack
from protocol.manifest import SignedManifest

NICENESS = 5
_PROGRAM = "peer.auditing.process"
_ANSWER_S = 1800.0  # for one microbatch

Rest = Callable[[float], Awaitable[None]]  # after so many seconds of the CPU


class Computing(Protocol):
    """What computes."""

    def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """Compute on these parameters, and those of the teacher where the round has one, from now on."""

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        """Return what comes of a contribution; ``rest`` is awaited after each microbatch."""

    async def close(self) -> None:
        """End it."""


class Process:
    """A process that computes; implements ``Computing``."""

    def __init__(self, aside: Aside) -> None:
        """Use ``start``."""
        self._aside = aside

    @classmethod
    async def start(cls, signed: SignedManifest, fetched: Path, root: Path | None) -> "Process":
        """Start a process for a run, which finds what was brought in the folder ``fetched``; see ``Aside.start``.

        Raises:
            AsideLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        arguments = [str(fetched), *([] if root is None else [str(root)])]
        return cls(await Aside.start(_PROGRAM, arguments, niceness=NICENESS, setup=pack(signed)))

    def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """See ``Computing``."""
        self._aside.tell(Kind.TEACHER, b"" if teacher is None else teacher.numpy().tobytes())
        self._aside.tell(Kind.WEIGHTS, weights.numpy().tobytes())

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        """See ``Computing``.

        Raises:
            AsideLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        self._aside.tell(Kind.ASK, pack(ask))
        while True:
            said = await self._aside.said(Kind.ANSWER, _ANSWER_S, max_bytes=MAX_ANSWER_BYTES)
            found = unpack(Found, said, max_bytes=MAX_ANSWER_BYTES)
            if found.said != Said.WORKING:
                return found
            await rest(found.cpu_ms / 1000)
            self._aside.tell(Kind.GO_ON, b"")

    async def close(self) -> None:
        """See ``Computing``."""
        await self._aside.close()
