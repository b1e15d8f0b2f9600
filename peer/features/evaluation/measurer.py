"""Starts and asks the process that measures architectures for others.

It says by a ``runtime.line.Heartbeat`` that it has its data.
"""

from dataclasses import dataclass
from pathlib import Path

from manta_swarm.protocol.evaluations import MAX_RESULT_BYTES, Result
from manta_swarm.runtime.child import Child, Program, python, with_threads
from manta_swarm.runtime.line import Messages

MAX_WEIGHTS_BYTES = 1 << 31

NICENESS = 10  # beside busy cores about a tenth of one: of the lowest, 19, a process on such a machine had nothing in a minute
_ANSWER_S = 1800.0  # for one architecture


@dataclass(frozen=True, slots=True)
class Weights:
    """Tells the process the parameters of a state, to measure with from now on; there is no answer."""

    parameters: bytes  # binary32, little-endian


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks how good one architecture is on a part of the held-out data."""

    architecture: str
    part: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer to ``Ask``."""

    result: Result
    cpu_ms: int  # that it took


MESSAGES = Messages((Weights, Ask), (Measured,), max_to_child=MAX_WEIGHTS_BYTES, max_to_parent=MAX_RESULT_BYTES + 64)


class Measurer:
    """A process that measures architectures, seen from the peer that started it."""

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
        command = python("-m", "manta_swarm.peer.features.evaluation.process", *arguments)
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
