"""Microbatches of which two sites have a view each, against the same microbatches at one that has both."""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.data.dataset import Batch
from manta_swarm.automl.data.views import LEFT, RIGHT, StereoDataset
from manta_swarm.automl.models.linked import MemoryLink, linked_batch_norm, linked_in_memory, take_values
from manta_swarm.automl.models.stereo import Stereo
from manta_swarm.automl.spaces.shapes import match_shape
from manta_swarm.automl.spaces.space import STEREO_TINY
from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult, Worker
from manta_swarm.automl.training.vertical import SiteWorker
from manta_swarm.protocol.errors import EncodingError, MantaError, Unreachable
from tests.stereo_sites import at_site, few_pairs

MICROBATCH = Microbatch(7, b"b" * 32, 0, b"k" * 32, 3, STEREO_TINY.smallest(), 2)


class AsDefault(StereoDataset):
    """Batches of torch's default precision."""

    def training_batch(self, indices: Sequence[int], seed: int, resolution: int, strength: int = 100, device: str = "cpu") -> Batch:
        batch = super().training_batch(indices, seed, resolution, strength, device)
        precision = torch.get_default_dtype()
        return Batch(batch.inputs.to(precision), batch.targets.to(precision))


def pairs() -> StereoDataset:
    few = few_pairs()
    return AsDefault(few.name, few.train, few.held_out, scenes=few.scenes)


class Sites:
    """A worker for each view, and one that has both."""

    def __init__(self, weights_N: Tensor, teacher_N: Tensor | None = None) -> None:
        self.left, self.right = (SiteWorker("stereo-tiny", at_site(pairs(), view), view) for view in (LEFT, RIGHT))
        self.pooled = Worker("stereo-tiny", pairs())
        for worker in (self.left, self.right, self.pooled):
            worker.load(weights_N)
            worker.teach(teacher_N)

    def train(self, microbatch: Microbatch, is_left: bool) -> tuple[MicrobatchResult, list[int]]:
        """Return what a microbatch gave at the site whose microbatch it is, and the bytes that left the left site."""
        there, back = linked_in_memory()
        with ThreadPoolExecutor(2) as threads:
            left = threads.submit(self.left.train_site, microbatch, there, is_own=is_left)
            right = threads.submit(self.right.train_site, microbatch, back, is_own=not is_left)
            results = left.result(), right.result()
        assert results[is_left] is None
        whole = results[not is_left]
        assert whole is not None
        return whole, there.sent


def test_a_normalisation_over_a_link_is_that_of_both_halves() -> None:
    generator = torch.Generator().manual_seed(0)
    x_BCHW = (3.0 * torch.randn(6, 5, 4, 7, generator=generator) + 100.0).double().float()
    weight_C, bias_C = torch.randn(2, 5, generator=generator)
    slope_BCHW = torch.randn(6, 5, 4, 7, generator=generator)
    whole = [each.clone().double().requires_grad_() for each in (x_BCHW, weight_C, bias_C)]
    y_BCHW = F.batch_norm(whole[0], None, None, whole[1], whole[2], training=True, eps=1e-5)
    torch.autograd.backward(y_BCHW, slope_BCHW.double())

    def half(link: MemoryLink, place: int) -> tuple[Tensor, ...]:
        own = [each.clone().requires_grad_() for each in (x_BCHW.chunk(2)[place], weight_C, bias_C)]
        part_BCHW = linked_batch_norm(own[0], own[1], own[2], link, 1e-5)
        torch.autograd.backward(part_BCHW, slope_BCHW.chunk(2)[place])
        return part_BCHW.detach(), *(each.grad for each in own if each.grad is not None)

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(half, linked_in_memory(), range(2))
    expected = (y_BCHW.detach(), *(each.grad for each in whole))
    found = (torch.cat([one[0], two[0]]), torch.cat([one[1], two[1]]), one[2] + two[2], one[3] + two[3])
    for mine, theirs in zip(found, expected, strict=True):
        assert theirs is not None
        torch.testing.assert_close(mine, theirs.float(), rtol=1e-4, atol=1e-4)  # of values near 100, fp32 has 1e-5


@pytest.fixture
def doubled() -> Iterator[None]:
    """Compute in double precision: in single one a rounding that switches a ReLU moves a gradient by up to a few per cent."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("doubled")
@pytest.mark.parametrize("taught", [False, True])
def test_two_sites_give_the_loss_and_gradient_of_one_that_has_both_views(stereo: Stereo, taught: bool) -> None:
    teacher_N = stereo.flat_weights_N * 0.9 if taught else None
    sites = Sites(stereo.flat_weights_N, teacher_N)
    for index, is_left in enumerate((True, False)):
        microbatch = replace(MICROBATCH, index=index, architecture=STEREO_TINY.sample(random.Random(f"{index}:{taught}")))
        pooled, (whole, _) = sites.pooled.train(microbatch), sites.train(microbatch, is_left)
        assert whole.loss == pytest.approx(pooled.loss, rel=1e-6)
        assert float((whole.gradient - pooled.gradient).norm() / pooled.gradient.norm()) < 1e-6
        assert torch.equal(whole.gradient != 0, pooled.gradient != 0)
        assert whole.samples == pooled.samples


def test_in_single_precision_the_loss_is_the_same_within_rounding(stereo: Stereo) -> None:
    sites = Sites(stereo.flat_weights_N)
    for is_left in (True, False):
        pooled, (whole, _) = sites.pooled.train(MICROBATCH), sites.train(MICROBATCH, is_left)
        assert whole.loss == pytest.approx(pooled.loss, rel=1e-5)


def test_the_left_site_never_sends_a_view_or_disparities_but_statistics_and_a_gradient(stereo: Stereo) -> None:
    _, sent = Sites(stereo.flat_weights_N).train(MICROBATCH, is_left=True)
    match, height = match_shape(STEREO_TINY), MICROBATCH.architecture.resolution
    channels = {2: match.warp_channels, 4: match.channels, 8: STEREO_TINY.widths[2]}
    of_features = 4 * MICROBATCH.samples * sum(count * (height // scale) * (2 * height // scale) for scale, count in channels.items())
    norms = 2 * sum(len(unit) for unit in MICROBATCH.architecture.units[:3])
    assert len(sent) == 2 * norms + 3  # each norm forward and backward, the features, their gradient, the share
    assert [size for size in sent if size > 4 * 2 * 1024] == [of_features]
    assert sent[norms] == sent[-1] == 0  # while the other site gives its features, and its share


@pytest.mark.parametrize(
    ("given", "message"),
    [(b"", "have 0 bytes, not 16"), (b"\0" * 20, "have 20 bytes, not 16"), (np.full(4, np.nan, "<f4").tobytes(), "are not finite")],
)
def test_what_does_not_fit_is_refused(given: bytes, message: str) -> None:
    here, there = linked_in_memory()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(there.exchange, given, 0)
        with pytest.raises(EncodingError, match=f"the other site's statistics {message}"):
            take_values(here, (2, 2), torch.zeros(()), "statistics")


NOTHING = b"nothing"


class Cut:
    """An end of a link that fails at an exchange, of which the other end hears nothing."""

    def __init__(self, link: MemoryLink, after: int | None) -> None:
        self._link = link
        self._after = after
        self.is_first = link.is_first

    def exchange(self, data: bytes, size: int) -> bytes:
        if len(self._link.sent) == self._after:
            self._link._out.put(NOTHING)
            raise Unreachable("gone")
        if (heard := self._link.exchange(data, size)) == NOTHING:
            raise Unreachable("the other site said nothing")
        return heard


@pytest.mark.parametrize("after", [0, 6, 7, 8, 14])
def test_a_microbatch_that_breaks_off_anywhere_ends_at_both_sites_and_the_next_one_is_whole(stereo: Stereo, after: int) -> None:
    sites = Sites(stereo.flat_weights_N)

    def outcome(train: Callable[[], object]) -> str:
        try:
            train()
        except MantaError as error:
            return str(error)
        return "trained"

    there, back = linked_in_memory()
    with ThreadPoolExecutor(2) as threads:
        left = threads.submit(outcome, lambda: sites.left.train_site(MICROBATCH, Cut(there, after), is_own=True))
        right = threads.submit(outcome, lambda: sites.right.train_site(MICROBATCH, Cut(back, None), is_own=False))
        assert left.result() == "gone"
        assert right.result() == "the other site said nothing"
    whole, _ = sites.train(MICROBATCH, is_left=True)
    assert whole.loss == pytest.approx(sites.pooled.train(MICROBATCH).loss, rel=1e-5)


def test_a_site_that_says_nothing_is_waited_for_so_long() -> None:
    here, _ = linked_in_memory(wait_s=0.01)
    with pytest.raises(Unreachable, match=r"said nothing for 0\.01 s"):
        here.exchange(b"", 0)


def test_only_stereo_has_views() -> None:
    with pytest.raises(ValueError, match="classifier-tiny has no view 'left'"):
        SiteWorker("classifier-tiny", few_pairs(), LEFT)
    with pytest.raises(ValueError, match="stereo-tiny has no view 'middle'"):
        SiteWorker("stereo-tiny", few_pairs(), "middle")
