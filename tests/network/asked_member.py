"""manta-peer whose measuring for others has the usual priority, so that a busy machine's test is no long one; and which may lie.

    python -m tests.network.asked_member honest|here|lying join ...

Only an honest one has a process for it, as any peer; the others measure in their own. One that lies says of every architecture that it
is nearly perfect.
"""

import sys
from array import array
from pathlib import Path
from typing import Any

import manta_swarm.peer.features.evaluation.measurer
import manta_swarm.peer.features.evaluation.plugin
from manta_swarm.peer.features.evaluation.measurer import Ask, Measured, Weights
from manta_swarm.protocol.evaluations import Result


class Here:
    """Measures in this process, for a test that has no use for another process that loads torch."""

    def __init__(self, bench: Any) -> None:
        self._bench = bench

    @classmethod
    async def start(cls, supernet: str, dataset: str, digest: bytes, root: Path | None) -> "Here":
        from manta_swarm.peer.features.evaluation.process import SubnetMeasurer

        return cls(SubnetMeasurer(supernet, dataset, digest.hex(), root))

    async def load(self, weights: bytes) -> None:
        self._bench.load(Weights(weights))

    async def measure(self, architecture: str, part: str) -> Measured:
        measured: Measured = self._bench.measure(Ask(architecture, part))
        return measured

    async def close(self) -> None:
        del self._bench


class Liar(Here):
    """Says what it has not measured."""

    async def measure(self, architecture: str, part: str) -> Measured:
        count = (await super().measure(architecture, part)).result.num_samples
        return Measured(Result.of(array("i", [3] * count), array("i"), ()), 1)


def main() -> None:
    """Be such a peer: what it is, then what ``manta-peer`` is told."""
    manta_swarm.peer.features.evaluation.measurer.NICENESS = 0
    if other := {"here": Here, "lying": Liar}.get(sys.argv.pop(1)):
        manta_swarm.peer.features.evaluation.plugin.Measurer = other  # type: ignore[misc, assignment]
    from manta_swarm.peer.cli import main as be_peer

    be_peer()


if __name__ == "__main__":
    main()
