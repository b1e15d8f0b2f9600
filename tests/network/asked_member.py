"""manta-peer whose measuring for others has the usual priority, so that a busy machine's test is no long one; and which may lie.

    python -m tests.network.asked_member honest|lying join ...

One that lies says of every architecture that it is nearly perfect.
"""

import sys
from array import array

import manta_swarm.peer.features.evaluation.measurer
import manta_swarm.peer.features.evaluation.plugin
from manta_swarm.peer.features.evaluation.measurer import Measured, Measurer
from manta_swarm.protocol.evaluations import Result


class Liar(Measurer):
    """Says what it has not measured."""

    async def measure(self, architecture: str, part: str) -> Measured:
        count = (await super().measure(architecture, part)).result.num_samples
        return Measured(Result.of(array("i", [3] * count), array("i"), ()), 1)


def main() -> None:
    """Be such a peer: what it is, then what ``manta-peer`` is told."""
    manta_swarm.peer.features.evaluation.measurer.NICENESS = 0
    if sys.argv.pop(1) == "lying":
        manta_swarm.peer.features.evaluation.plugin.Measurer = Liar  # type: ignore[misc]
    from manta_swarm.peer.cli import main as be_peer

    be_peer()


if __name__ == "__main__":
    main()
