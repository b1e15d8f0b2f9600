"""Takes witnesses' cosignatures of the log's heads, and keeps the newest of each witness.

Nothing in a run depends on a witness: the log waits for no witness, and takes from it nothing but a signature that holds.
"""

import asyncio
from collections.abc import Collection
from pathlib import Path

from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.witnessed import Witnessed, keep_witnessed, read_witnessed
from manta_swarm.network.log_proofs import MAX_COSIGNED_BYTES, Cosigned
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.cosignatures import MAX_COSIGNATURES
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import ProofError, SignatureError, Unreachable
from manta_swarm.protocol.notes import head_text, origin
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock

MAX_CLOCK_S = 600  # that a witness's clock may be off the log's
SILENT_S = 900.0  # who brought none for so long loses its place where there is no other


class Cosigning(Feature):
    """Answers the call "cosigned", by which witnesses bring cosignatures."""

    def __init__(
        self, endpoint: Endpoint, log: Log, directory: Path, named: Collection[PublicKey] = (), *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Know what was kept at the last time.

        Args:
            endpoint: this node's.
            log: the log.
            directory: the run's.
            named: the witnesses that always have a place.
            clock: by which they are heard, and whose time of day theirs is held to.
        """
        self._endpoint = endpoint
        self._log = log
        self._directory = directory
        self._named = frozenset(named)
        self._clock = clock
        name = origin(log.ledger.run)
        kept = read_witnessed(directory, name, endpoint.key)
        self._of: dict[PublicKey, Witnessed] = {each.cosignature.key: each for each in kept if self._has(each)}
        self._heard_s = dict.fromkeys(self._of, clock.now_s())
        self._writing = asyncio.Lock()

    def _has(self, each: Witnessed) -> bool:
        return each.head.size <= self._log.head.size and self._log.head_of(each.head.size) == each.head

    @property
    def witnessed(self) -> list[Witnessed]:
        """The newest head that each witness has cosigned."""
        return list(self._of.values())

    async def serve(self) -> None:
        """See ``Feature``."""
        await self._endpoint.serve("cosigned", self._on_cosigned)

    async def _on_cosigned(self, caller: PublicKey, request: bytes) -> bytes:
        brought = unpack(Cosigned, request, max_bytes=MAX_COSIGNED_BYTES)
        cosignature = brought.cosignature
        if cosignature.key != caller:
            raise SignatureError("a cosignature of another key than the caller's")
        try:
            head = self._log.head_of(brought.size)
        except ValueError as error:
            raise ProofError(str(error)) from error
        cosignature.check(head_text(head))
        off_s = cosignature.time_s - self._clock.unix_ms() / 1000
        if abs(off_s) > MAX_CLOCK_S:
            raise ProofError(f"the cosignature's time is {abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} the log's clock")
        known = self._of.get(caller)
        if known is not None and (known.head.size, known.cosignature.time_s) > (head.size, cosignature.time_s):
            return b""
        self._make_room(caller)
        self._of[caller] = Witnessed(head, self._log.note_of(head.size), cosignature)
        self._heard_s[caller] = self._clock.now_s()
        async with self._writing:
            await asyncio.to_thread(keep_witnessed, self._directory, self.witnessed)
        return b""

    def _make_room(self, key: PublicKey) -> None:
        """Have a place for a witness.

        Raises:
            Unreachable: there is none.
        """
        if key in self._of or len(self._of) < MAX_COSIGNATURES:
            return
        others = [other for other in self._of if other not in self._named]
        oldest = min(others, key=self._heard_s.__getitem__, default=None)
        if oldest is None or (key not in self._named and self._clock.now_s() - self._heard_s[oldest] < SILENT_S):
            raise Unreachable(f"this log hands out the cosignatures of {MAX_COSIGNATURES} witnesses, and has so many")
        del self._of[oldest], self._heard_s[oldest]
