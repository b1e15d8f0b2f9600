"""The process that audits, seen from the peer: started, given weights and lots of others."""

from pathlib import Path

from torch import Tensor

from peer.aside.aside import Aside
from peer.aside.messages import Kind
from peer.audits.messages import MAX_ANSWER_BYTES, Ask, Found
from protocol.encoding import pack, unpack
from protocol.manifest import SignedManifest

NICENESS = 5  # findings are due within some rounds
_PROGRAM = "peer.audits.process"
_ANSWER_S = 1800.0  # for one lot, and four more where it is in doubt


class Auditor:
    """A process that was started."""

    def __init__(self, aside: Aside) -> None:
        """Use ``start``."""
        self._aside = aside

    @classmethod
    async def start(cls, signed: SignedManifest, root: Path | None) -> "Auditor":
        """Start a process for a run; see ``Aside.start``.

        Raises:
            AsideLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        arguments = [] if root is None else [str(root)]
        return cls(await Aside.start(_PROGRAM, arguments, niceness=NICENESS, setup=pack(signed)))

    def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """Compute on these parameters, and those of the teacher where the round has one, from now on."""
        self._aside.tell(Kind.TEACHER, b"" if teacher is None else teacher.numpy().tobytes())
        self._aside.tell(Kind.WEIGHTS, weights.numpy().tobytes())

    async def answer(self, ask: Ask) -> Found:
        """Return what comes of a lot.

        Raises:
            AsideLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        self._aside.tell(Kind.ASK, pack(ask))
        return unpack(Found, await self._aside.said(Kind.ANSWER, _ANSWER_S, max_bytes=MAX_ANSWER_BYTES), max_bytes=MAX_ANSWER_BYTES)

    async def close(self) -> None:
        """Kill it; it is gone when this returns."""
        await self._aside.close()
