"""The process that measures for others, seen from the peer: started, given weights and architectures."""

from pathlib import Path

from peer.evaluation.messages import MESSAGES, Ask, Measured, Weights
from runtime.child import Child, Program, python, with_threads

NICENESS = 10  # beside busy cores about a tenth of one: of the lowest, 19, a process on such a machine had nothing in a minute
_ANSWER_S = 1800.0  # for one architecture


class Measurer:
    """A process that was started."""

    def __init__(self, child: Child) -> None:
        """Use ``start``."""
        self._child = child
        self.pid = child.pid

    @classmethod
    async def start(cls, supernet: str, dataset: str, digest: bytes, root: Path | None) -> "Measurer":
        """Start a process. Call it on the main thread.

        Raises:
            ChildLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        arguments = [supernet, dataset, digest.hex(), *([] if root is None else [str(root)])]
        command = python("-m", "peer.evaluation.process", *arguments)
        program = Program("measurer", command, environment=with_threads(1), messages=MESSAGES, niceness=NICENESS)
        return cls(await Child.ready(program))

    async def load(self, weights: bytes) -> None:
        """Measure with these parameters, binary32, from now on."""
        await self._child.say(Weights(weights))

    async def measure(self, architecture: str, part: str) -> Measured:
        """Return how good an architecture is.

        Raises:
            ChildLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        await self._child.say(Ask(architecture, part))
        return await self._child.hear(Measured, _ANSWER_S)

    async def close(self) -> None:
        """Kill it; it is gone when this returns."""
        await self._child.kill()
