"""A stereo microbatch at two sites, one of which has the left views and the disparities, the other the right views of the same scenes.

Each runs the units that both views share on its own views. Their BatchNorms take the statistics of both (``automl.models.linked``), so the
two compute what one would that has both views, but for the last bits. The right site gives the left one what views are compared by, at
three scales, and gets its gradient; the left site computes all the rest, and the loss. Views and disparities go nowhere.

Each site ends with a share of the microbatch's gradient: of the weights that both views share both have one, of all others the left site
alone. The sum is the microbatch's, and it is made at the site in whose name the microbatch is, which so has what any microbatch gives. What
an architecture does not use has no gradient and is not sent.

Shapes: B samples of the microbatch, C channels, H and W height and width of a view or of features, N all weights.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.views import LEFT, VIEWS
from manta_swarm.automl.models.layers import ElasticBatchNorm
from manta_swarm.automl.models.linked import SiteLink, give_values, take_values
from manta_swarm.automl.models.stereo import Stereo, SubnetUnits
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.spaces.shapes import NUM_SHARED_UNITS
from manta_swarm.automl.spaces.space import Architecture
from manta_swarm.automl.training.coverage import coverage
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker


class SiteWorker(Worker):
    """A worker that has one view of the data set's pairs; what ``dataset`` returns of the other one is not looked at."""

    def __init__(self, supernet_name: str, dataset: Dataset, view: str, device: str = "cpu") -> None:
        """Build the supernet.

        Args:
            supernet_name: of a stereo supernet.
            dataset: with the views of this site, at the left one with the disparities too.
            view: ``left`` or ``right``.
            device: where this site's part is computed, in fp32.

        Raises:
            ValueError: the supernet has no views, or none of that name.
        """
        super().__init__(supernet_name, dataset, device)
        if not isinstance(self._supernet, Stereo) or view not in VIEWS:
            raise ValueError(f"{supernet_name} has no view {view!r}")
        self.is_left = view == LEFT
        self._place = VIEWS.index(view)
        shared = (*(f"units.{unit}." for unit in range(NUM_SHARED_UNITS)), "fixed.describe_")
        self._is_shared_N = np.zeros(self.num_weights, np.bool_)
        for name, (start, stop) in self._supernet.slices().items():
            self._is_shared_N[start:stop] = name.startswith(shared)

    def train_site(self, microbatch: Microbatch, link: SiteLink, *, is_own: bool) -> MicrobatchResult | None:
        """Do this site's part of a microbatch, at the loaded parameters; return what the microbatch gave if it is this site's, else None.

        Raises:
            RemoteFault: the other site sent what it should not; the microbatch came to nothing.
            Weather: it does not answer.
        """
        batch, supernet = self._batch_of(microbatch), self._supernet
        supernet.train()
        supernet.flat_gradient_N.zero_()
        view_BCHW = batch.inputs.chunk(len(VIEWS), 1)[self._place]
        view_BCHW = view_BCHW.to(self._device).contiguous(memory_format=torch.channels_last)
        loss = view_BCHW.new_zeros(())
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            if self.is_left:
                loss = self._lead(view_BCHW, batch.targets.to(self._device), microbatch.architecture, link)
            else:
                self._follow(view_BCHW, microbatch.architecture, link)
        return self._add_shares(microbatch, loss.detach().cpu(), link, is_own=is_own)

    def _lead(self, left_BCHW: Tensor, targets: Tensor, architecture: Architecture, link: SiteLink) -> Tensor:
        """Leave the left site's share of the gradient in the supernet; return the loss."""
        teaching = None
        for teacher, largest in self._teachers(architecture):
            with torch.no_grad():
                links, right = self._meet(teacher, left_BCHW, largest, link)
                teaching = teacher.fixed.disparities([left_BCHW, *links], right, SubnetUnits(teacher, largest))
        supernet = _stereo(self._supernet)
        links, right = self._meet(supernet, left_BCHW, architecture, link)
        # The graph is cut at the features: their gradient goes out before the backward pass through the units, which has exchanges too.
        mine, theirs = ([each.detach().requires_grad_() for each in side] for side in (links, right))
        outputs = supernet.fixed.disparities([left_BCHW, *mine], theirs, SubnetUnits(supernet, architecture))
        loss = self._loss(outputs, targets, teaching)
        torch.autograd.backward(loss)
        give_values(link, _joined([_gradient(each) for each in theirs]))
        torch.autograd.backward(links, [_gradient(each) for each in mine])
        return loss

    def _follow(self, right_BCHW: Tensor, architecture: Architecture, link: SiteLink) -> None:
        """Leave the right site's share of the gradient in the supernet."""
        for teacher, largest in self._teachers(architecture):
            with torch.no_grad():
                give_values(link, _joined(teacher.fixed.compared(_features(teacher, right_BCHW, largest, link))))
        supernet = _stereo(self._supernet)
        compared = supernet.fixed.compared(_features(supernet, right_BCHW, architecture, link))
        given_N = _joined(compared)
        give_values(link, given_N)
        gradient_N = take_values(link, given_N.shape, given_N, "gradient of features")
        torch.autograd.backward(compared, _parted(gradient_N, compared))

    def _meet(self, supernet: Stereo, left_BCHW: Tensor, architecture: Architecture, link: SiteLink) -> tuple[list[Tensor], list[Tensor]]:
        """Return this site's features of each shared unit, and what views are compared by of the other's."""
        features = _features(supernet, left_BCHW, architecture, link)
        with torch.no_grad():
            like = supernet.fixed.compared(features)
        joined_N = _joined(like)
        return features, _parted(take_values(link, joined_N.shape, joined_N, "features"), like)

    def _teachers(self, architecture: Architecture) -> Iterator[tuple[Stereo, Architecture]]:
        """Yield the teacher and what it computes, if there is one."""
        if self._teacher is not None:
            yield _stereo(self._teacher).train(), replace(self._space.largest(), resolution=architecture.resolution)

    def _add_shares(self, microbatch: Microbatch, loss: Tensor, link: SiteLink, *, is_own: bool) -> MicrobatchResult | None:
        """Give this site's share of gradient and loss, or take the other's and return the whole."""
        share_N = self._supernet.flat_gradient_N.cpu().clone()
        used_N = coverage(self._space, microbatch.architecture)
        shared_N = used_N & self._is_shared_N  # of these alone the right site has a share
        given_N, taken_N = (torch.tensor(mask) for mask in ((used_N, shared_N) if self.is_left else (shared_N, used_N)))
        if not is_own:
            give_values(link, torch.cat([share_N[given_N], loss.reshape(1)]))
            return None
        values = take_values(link, (int(taken_N.sum()) + 1,), share_N, "share of a gradient")
        share_N[taken_N] += values[:-1]
        return MicrobatchResult(share_N, (loss + values[-1]).item(), microbatch.samples)


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the values of all tensors in one row, so that they are one exchange."""
    return torch.cat([part.flatten() for part in parts])


def _parted(values_N: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Return what ``_joined`` made one row of: tensors of these shapes."""
    parts = values_N.split([each.numel() for each in like])
    return [part.view(each.shape).contiguous(memory_format=torch.channels_last) for part, each in zip(parts, like, strict=True)]


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def _stereo(supernet: Supernet) -> Stereo:
    assert isinstance(supernet, Stereo)
    return supernet


def _features(supernet: Stereo, view_BCHW: Tensor, architecture: Architecture, link: SiteLink) -> list[Tensor]:
    """Return the features of one view, normalised together with those of the other."""
    norms = [each for unit in supernet.units[:NUM_SHARED_UNITS] for each in unit.modules() if isinstance(each, ElasticBatchNorm)]
    for norm in norms:
        norm.link = link
    try:
        return supernet.fixed.features(view_BCHW, SubnetUnits(supernet, architecture))
    finally:
        for norm in norms:
            norm.link = None  # the backward pass knows it anyway
