"""Steps of a network that are recorded, one for each architecture and size of a microbatch, and replayed for the microbatches that follow.

A microbatch's inputs are copied to where those of the recorded one lay. A recording is used if, the first time, it gives the bits that the
step itself gave; or, of a step that gives others each time (some kernels add in whatever order), what is as near as honest work is. Where
one cannot be made, or gives something else, none is ever used again.
"""

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from manta_swarm.automl.devices import Recorded, Recorder
from manta_swarm.automl.spaces.space import Architecture

MOST_KEPT = 16  # recordings: those of a round's architectures, and of some before
_MOST_SEEN = 256  # kinds of microbatches that are remembered, each of which came once
_MOST_SAID = 200  # characters of an error
_FAR = 0.01  # of a gradient's norm, where it is never the same: a twentieth of what audits allow of one (docs/training.md, section 14)
_LOSS_FAR = 0.0005  # of a loss, there

logger = logging.getLogger("manta.microbatches")


class Stepping(Protocol):
    """Takes training steps of a network."""

    def step(self, inputs: Tensor, targets: Tensor, architecture: Architecture) -> Tensor:
        """Return the loss of a microbatch, and leave its gradient where it always lies."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What all microbatches have in common that one recording is for."""

    architecture: Architecture
    inputs: torch.Size
    targets: torch.Size


@dataclass(frozen=True, slots=True)
class _Kept:
    inputs: Tensor
    targets: Tensor
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class _Step:
    """One step on the inputs and targets that lie here: the ``automl.devices.DeviceWork`` that is recorded."""

    stepping: Stepping
    inputs: Tensor
    targets: Tensor
    architecture: Architecture

    def run(self) -> Tensor:
        return self.stepping.step(self.inputs, self.targets, self.architecture)


@dataclass(frozen=True, slots=True)
class _Made:
    """What a step made."""

    gradient_N: Tensor
    loss: Tensor

    def is_same(self, other: "_Made") -> bool:
        return _same_bits(self.gradient_N, other.gradient_N) and _same_bits(self.loss, other.loss)

    def is_near(self, other: "_Made") -> bool:
        is_near = (self.gradient_N - other.gradient_N).norm() <= _FAR * other.gradient_N.norm()
        return bool(is_near & ((self.loss - other.loss).abs() <= _LOSS_FAR * other.loss.abs()))


class Replays:
    """The recordings of one worker."""

    def __init__(self, stepping: Stepping, recorder: Recorder, gradient_N: Tensor) -> None:
        """Record steps that leave their gradient in ``gradient_N``, always there."""
        self._stepping = stepping
        self._recorder: Recorder | None = recorder  # None: it is of no use
        self._gradient_N = gradient_N
        self._read: tuple[Tensor, ...] = ()
        self._seen: dict[_Kind, None] = {}
        self._kept: dict[_Kind, _Kept] = {}  # the one that was used last comes last

    @property
    def num_kept(self) -> int:
        """How many recordings there are."""
        return len(self._kept)

    def forget(self) -> None:
        """Have no recordings, as in the beginning; whether they are of use is remembered."""
        self._seen.clear()
        self._kept.clear()

    def loss(self, inputs: Tensor, targets: Tensor, architecture: Architecture, read: tuple[Tensor, ...]) -> Tensor:
        """Return the loss of a microbatch, and leave its gradient, as the step does; the loss is good until the next call.

        Args:
            inputs: on the device.
            targets: likewise.
            architecture: whose step it is.
            read: what else the step reads, as long as the networks lie where they are: where one of them is another tensor now, though
                it have the same values, nothing that was recorded holds any more.
        """
        if self._recorder is None:
            return self._stepping.step(inputs, targets, architecture)
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
        loss = self._stepping.step(inputs, targets, architecture)
        if kind in self._seen:
            self._record(self._recorder, kind, inputs, targets, loss)
        self._seen.pop(kind, None)
        self._seen[kind] = None
        _drop_first(self._seen, _MOST_SEEN)
        return loss

    def _record(self, recorder: Recorder, kind: _Kind, inputs: Tensor, targets: Tensor, loss: Tensor) -> None:
        """Record the step that was just made, try it, and keep it if it gives the same; the gradient is afterwards what it was."""
        expected = _Made(self._gradient_N.clone(), loss.clone())
        step = _Step(self._stepping, inputs.clone(), targets.clone(), kind.architecture)
        try:
            again = _Made(self._gradient_N, step.run())
            is_repeated = again.is_same(expected)
            recorded = recorder.record(step)
            recorded.replay()
            replayed = _Made(self._gradient_N, recorded.made)
            is_good = replayed.is_same(expected) or (not is_repeated and replayed.is_near(expected))
        except RuntimeError as error:  # of torch: something in the step cannot be recorded, or there is no memory for it
            self._give_up(f"a microbatch cannot be recorded ({' '.join(str(error).split())[:_MOST_SAID]})")
            is_good = False
        else:
            if not is_good:
                self._give_up("a recorded microbatch gave another gradient than the microbatch itself")
        self._gradient_N.copy_(expected.gradient_N)
        if is_good:
            self._kept[kind] = _Kept(step.inputs, step.targets, recorded)
            _drop_first(self._kept, MOST_KEPT)

    def _give_up(self, why: str) -> None:
        logger.warning("microbatches are not recorded from now on: %s", why)
        self._recorder = None  # with its memory
        self._kept.clear()


def _drop_first(each: dict[_Kind, Any], most: int) -> None:
    if len(each) > most:
        del each[next(iter(each))]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether fp32 values are the same, those that are no numbers among them."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
