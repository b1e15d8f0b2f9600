"""manta-peer, but that it says of every architecture that it is nearly perfect: ``python tests/swarm/lying_member.py join ...``."""

from array import array

import peer.evaluation.opening
from peer.evaluation.measurer import Measurer
from peer.evaluation.messages import Measured
from protocol.evaluations import Result


class Liar(Measurer):
    """Measures nothing."""

    async def measure(self, architecture: str, part: str) -> Measured:
        count = (await super().measure(architecture, part)).result.num_samples
        return Measured(Result.of(array("i", [3] * count), array("i"), ()), 1)


if __name__ == "__main__":
    peer.evaluation.opening.Measurer = Liar  # type: ignore[misc]
    from peer.cli import main

    main()
