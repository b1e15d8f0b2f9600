"""The process that measures for others, seen from the peer: started, given weights and architectures."""

from pathlib import Path

from peer.aside.aside import Aside
from peer.aside.messages import Kind
from peer.evaluation.messages import MAX_ANSWER_BYTES, Ask, Measured
from protocol.encoding import pack, unpack

NICENESS = 10  # beside busy cores about a tenth of one: of the lowest, 19, a process on such a machine had nothing in a minute
_PROGRAM = "peer.evaluation.process"
_ANSWER_S = 1800.0  # for one architecture


class Measurer:
    """A process that was started."""

    def __init__(self, aside: Aside) -> None:
        """Use ``start``."""
        self._aside = aside

    @classmethod
    async def start(cls, supernet: str, dataset: str, digest: bytes, root: Path | None) -> "Measurer":
        """Start a process; see ``Aside.start``.

        Raises:
            AsideLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        arguments = [supernet, dataset, digest.hex(), *([] if root is None else [str(root)])]
        return cls(await Aside.start(_PROGRAM, arguments, niceness=NICENESS))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._aside.pid

    def load(self, weights: bytes | memoryview) -> None:
        """Measure with these parameters, binary32, from now on."""
        self._aside.tell(Kind.WEIGHTS, bytes(weights))

    async def measure(self, architecture: str, part: str) -> Measured:
        """Return how good an architecture is.

        Raises:
            AsideLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        self._aside.tell(Kind.ASK, pack(Ask(architecture, part)))
        return unpack(Measured, await self._aside.said(Kind.ANSWER, _ANSWER_S, max_bytes=MAX_ANSWER_BYTES), max_bytes=MAX_ANSWER_BYTES)

    async def close(self) -> None:
        """Kill it; it is gone when this returns."""
        await self._aside.close()
