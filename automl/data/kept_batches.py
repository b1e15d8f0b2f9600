"""Batches for evaluation, read and resized once: a search measures hundreds of architectures on the same samples at a few resolutions.

Not for training, whose samples are augmented anew each time. Not for several threads at once.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import ALL, Batch, EvaluationSet

KEPT_BYTES = 1 << 30

_NOTHING = torch.empty(0)  # the targets of calibration

Key = tuple[str | int, ...]


class KeptBatches:
    """What a data set yields for evaluation, the very tensors, those asked for last kept in memory. An EvaluationSet.

    An answer is kept whole or not at all: one that is larger than ``kept_bytes`` is made again each time, batch by batch.
    """

    def __init__(self, dataset: EvaluationSet, kept_bytes: int = KEPT_BYTES) -> None:
        """Keep no more than so many bytes of what ``dataset`` yields."""
        self._dataset = dataset
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Key, list[Batch]] = OrderedDict()
        self._too_large: set[Key] = set()
        self.size_bytes = 0  # of what is kept, or being gathered

    @property
    def task(self) -> str:
        """``classification`` or ``stereo``."""
        return self._dataset.task

    def calibration_batches(self, resolution: int, batch: int, limit: int) -> Iterator[Tensor]:
        """Yield as the data set does; nobody may change the tensors."""
        made = (Batch(inputs, _NOTHING) for inputs in self._dataset.calibration_batches(resolution, batch, limit))
        for each in self._batches(("calibration", resolution, batch, limit), made):
            yield each.inputs

    def held_out_batches(self, resolution: int, batch: int, part: str = ALL, every: int = 1) -> Iterator[Batch]:
        """Yield as the data set does; nobody may change the tensors."""
        made = self._dataset.held_out_batches(resolution, batch, part, every)
        return self._batches(("held out", resolution, batch, part, every), made)

    def _batches(self, key: Key, made: Iterable[Batch]) -> Iterator[Batch]:
        """Yield what is kept, or else what is ``made``, which does nothing before it is asked."""
        if key in self._kept:
            self._kept.move_to_end(key)
            yield from self._kept[key]
            return
        if key in self._too_large:
            yield from made
            return
        gathered: list[Batch] = []
        is_whole = False
        try:
            for each in made:
                if key not in self._too_large:
                    self._gather(key, gathered, each)
                yield each
            is_whole = key not in self._too_large
        finally:
            if is_whole and key not in self._kept:
                self._kept[key] = gathered
            else:
                self.size_bytes -= sum(map(_size_bytes, gathered))

    def _gather(self, key: Key, gathered: list[Batch], each: Batch) -> None:
        """Add a batch, in the place of what was asked for longest ago; or give all of them up where there is no place."""
        gathered.append(each)
        self.size_bytes += _size_bytes(each)
        while self.size_bytes > self._kept_bytes and self._kept:
            self.size_bytes -= sum(map(_size_bytes, self._kept.popitem(last=False)[1]))
        if self.size_bytes > self._kept_bytes:
            self._too_large.add(key)
            self.size_bytes -= sum(map(_size_bytes, gathered))
            gathered.clear()


def _size_bytes(batch: Batch) -> int:
    return batch.inputs.nbytes + batch.targets.nbytes
