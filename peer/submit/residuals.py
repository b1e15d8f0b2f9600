"""What coding left out of a peer's contributions and comes with a later one: error feedback, durable at the peer.

A residual is used and left by digest (``protocol.records``): a claim names the one of which a part was added to what was learnt, and once
its contribution is in a table, what coding left out of the cohort's vector takes its place. Until then, and if it comes to nothing, the one
before stays. A peer that does not know which holds uses none: zeros are always allowed, and only what was left out is lost. So does one
that sat out so many rounds that an audit would not find who left it (``protocol.residuals``).
"""

import asyncio
import itertools
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.residuals import residual_digest
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.store import KeptResiduals
from manta_swarm.peer.submit.promises import Known
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.residuals import is_added

Vector = NDArray[np.float32]
_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Residual:
    """A residual by its digest."""

    digest: bytes  # empty: zeros
    values: Vector | None  # (N,); None: zeros

    @classmethod
    def of(cls, values: Vector | None) -> "Residual":
        """Return these values as a residual."""
        digest = b"" if values is None else residual_digest(values)
        return cls(digest, values if digest else None)


ZEROS = Residual(b"", None)


class Residuals:
    """The residual of one peer in one run, and what may take its place."""

    def __init__(self, context: RunContext) -> None:
        """Take up what the store has; in a run whose codec leaves nothing out there is never one.

        Raises:
            StorageError: the files are damaged.
        """
        self._store = context.store
        self._run = context.run
        self._training_spec = context.training_spec
        self._is_sparse, num_weights = codec_named(context.manifest.exchange.codec).is_sparse, context.num_weights
        kept = self._store.residuals(self._run).load(KeptResiduals) or KeptResiduals()
        self._round = kept.round  # whose table made it the one that holds
        self._held = self._loaded(kept.held, num_weights)
        self._saving, self._numbers, self._saved = threading.Lock(), itertools.count(1), 0
        self.left_by = b""  # the contribution that left the one that holds; empty: not known in this life
        self._left = {contribution: self._loaded(digest, num_weights) for contribution, digest in kept.left}  # of what is on its way

    def _loaded(self, digest: bytes, num_weights: int) -> Residual:
        data = self._store.residual(self._run, digest).read() if digest else None
        is_whole = data is not None and len(data) == _VALUE_BYTES * num_weights
        found = Residual.of(np.frombuffer(data, "<f4").astype(np.float32) if data is not None and is_whole else None)
        return found if found.digest == digest else ZEROS

    def held(self, newest: int) -> Residual:
        """Return what a contribution may use that is signed while ``newest`` is the newest commit known."""
        return self._held if is_added(self._round, newest, self._training_spec.sorts_after) else ZEROS

    async def signed(self, contribution: bytes, left: Vector | None) -> None:
        """Remember what a contribution leaves once it is listed; durable when this returns.

        Raises:
            StorageError: the disk refuses.
        """
        if not self._is_sparse:
            return
        self._left[contribution] = residual = Residual.of(left)
        if residual.digest or self._held.digest:
            await self._save(residual)

    async def take(self, known: Known) -> None:
        """Take note of what became of contributions; durable when this returns.

        What the listed one leaves is the residual from now on, zeros if that is not known here. Those that come to nothing leave none.

        Raises:
            StorageError: the disk refuses.
        """
        for contribution in known.dropped:
            self._left.pop(contribution, None)
        if known.listed is None or not self._is_sparse:
            return
        before, (self.left_by, self._round) = self._held, known.listed
        self._held = self._left.get(self.left_by, ZEROS)
        self._left.clear()
        if before.digest or self._held.digest:
            await self._save()

    def is_on_its_way(self, contribution: bytes) -> bool:
        """Return whether a contribution may come to be listed, or be listed, as far as is known here, and leave another residual."""
        return contribution in self._left

    async def forget(self) -> None:
        """Nobody here knows which one holds: use none.

        Raises:
            StorageError: the disk refuses.
        """
        if not self._is_sparse:
            return
        self._held = ZEROS
        self._left.clear()
        await self._save()

    async def _save(self, new: Residual = ZEROS) -> None:
        left = tuple((contribution, each.digest) for contribution, each in self._left.items())
        number, kept = next(self._numbers), KeptResiduals(self._held.digest, self._round, left)

        def save() -> None:  # it goes on where whoever waits for it is cancelled: the next one may come before it is over
            with self._saving:
                if new.values is not None:
                    self._store.residual(self._run, new.digest).write(np.ascontiguousarray(new.values, "<f4").tobytes())
                if number > self._saved:
                    self._store.save_residuals(self._run, kept)
                    self._saved = number

        await asyncio.to_thread(save)
