"""Steps of a network that are recorded, one for each architecture and size of a lot, and replayed for the lots that follow.

A lot's inputs are copied to where those of the recorded one lay. A recording is used if, the first time, it gives the bits that the step
itself gave; where one cannot be made, or gives others, none is ever used again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from automl.graphs import Recorded, Recorder
from automl.spaces.space import Architecture

MOST_KEPT = 16  # recordings: those of a round's architectures, and of some before
_MOST_SEEN = 256  # kinds of lots that are remembered, each of which came once
_MOST_SAID = 200  # characters of an error

logger = logging.getLogger("manta.lots")

Step = Callable[[Tensor, Tensor, Architecture], Tensor]  # of inputs, targets and architecture; leaves the gradient, returns the loss


@dataclass(frozen=True, slots=True)
class _Kind:
    """What all lots have in common that one recording is for."""

    architecture: Architecture
    inputs: torch.Size
    targets: torch.Size


@dataclass(frozen=True, slots=True)
class _Kept:
    inputs: Tensor
    targets: Tensor
    recorded: Recorded


class Replays:
    """The recordings of one worker."""

    def __init__(self, step: Step, recorder: Recorder, gradient_N: Tensor) -> None:
        """Record ``step``, which leaves its gradient in ``gradient_N``, always there."""
        self._step = step
        self._recorder = recorder
        self._gradient_N = gradient_N
        self._read: tuple[Tensor, ...] = ()
        self._seen: dict[_Kind, None] = {}
        self._kept: dict[_Kind, _Kept] = {}  # the one that was used last comes last
        self._is_of_use = True

    @property
    def num_kept(self) -> int:
        """How many recordings there are."""
        return len(self._kept)

    def forget(self) -> None:
        """Have no recordings, as in the beginning; whether they are of use is remembered."""
        self._seen.clear()
        self._kept.clear()

    def loss(self, inputs: Tensor, targets: Tensor, architecture: Architecture, read: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of a lot, and leave its gradient, as the step does; the loss is good until the next call.

        Args:
            inputs: on the device.
            targets: likewise.
            architecture: whose step it is.
            read: what else the step reads, as long as the networks lie where they are: where one of them is another tensor now, though
                it have the same values, nothing that was recorded holds any more.
        """
        if not self._is_of_use:
            return self._step(inputs, targets, architecture)
        if len(read) != len(self._read) or any(one is not other for one, other in zip(read, self._read, strict=True)):
            self._kept.clear()
            self._read = read  # held, so that nothing else can come to lie there
        kind = _Kind(architecture, inputs.shape, targets.shape)
        kept = self._kept.pop(kind, None)
        if kept is not None:
            self._kept[kind] = kept
            kept.inputs.copy_(inputs)
            kept.targets.copy_(targets)
            kept.recorded.replay()
            return kept.recorded.made
        loss = self._step(inputs, targets, architecture)
        if kind in self._seen:
            self._record(kind, inputs, targets, loss)
        self._seen.pop(kind, None)
        self._seen[kind] = None
        _drop_first(self._seen, _MOST_SEEN)
        return loss

    def _record(self, kind: _Kind, inputs: Tensor, targets: Tensor, loss: Tensor) -> None:
        """Record the step that was just made, try it, and keep it if it gives the same; the gradient is afterwards what it was."""
        gradient_N = self._gradient_N.clone()
        inputs, targets = inputs.clone(), targets.clone()
        try:
            recorded = self._recorder.record(lambda: self._step(inputs, targets, kind.architecture))
            recorded.replay()
            is_same = _same_bits(self._gradient_N, gradient_N) and _same_bits(recorded.made, loss)
        except RuntimeError as error:  # of torch: something in the step cannot be recorded, or there is no memory for it
            self._give_up(f"a lot cannot be recorded ({' '.join(str(error).split())[:_MOST_SAID]})")
            is_same = False
        else:
            if not is_same:
                self._give_up("a recorded lot gave other bits")
        self._gradient_N.copy_(gradient_N)
        if is_same:
            self._kept[kind] = _Kept(inputs, targets, recorded)
            _drop_first(self._kept, MOST_KEPT)

    def _give_up(self, why: str) -> None:
        logger.warning("lots are not recorded from now on: %s", why)
        self._is_of_use = False
        self._kept.clear()


def _drop_first(each: dict[_Kind, Any], most: int) -> None:
    if len(each) > most:
        del each[next(iter(each))]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether fp32 values are the same, those that are no numbers among them."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
