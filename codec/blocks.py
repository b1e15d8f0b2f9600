"""Some chunks of a body, decoded: what the dense and the sparse form have in common."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.protocol.exchange import CHUNK

Bytes = NDArray[np.uint8]  # (chunks, bytes of a chunk)
Integers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """At most a group of a body's chunks, all of one length."""

    start: int  # index of the first chunk's first value
    exponents: NDArray[np.uint8]  # (chunks,), relative to the min exponent
    integers: Integers  # (chunks, kept): in the order of their values
    positions: NDArray[np.uint16] | None  # (chunks, kept): where they are in their chunk; None: all values are there

    @property
    def places(self) -> slice | NDArray[np.int64]:
        """Where the integers, flattened, are in the vector."""
        if self.positions is None:
            return slice(self.start, self.start + self.integers.size)
        firsts = self.start + CHUNK * np.arange(len(self.exponents))
        return (firsts[:, None] + self.positions).reshape(-1)
