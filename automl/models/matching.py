"""Where the right view shows what the left one does: disparities regressed from a correlation, and how well a disparity holds when the
right view is moved by it.

Both compare *descriptors*: channels that a 1 x 1 convolution makes of a unit's features, of either view with the same weights. Each
comparison is a cosine, so what scale the features have plays no part. The row is searched in products and gathers alone, which every
form of export has.

Shapes: B batch, C channels, G groups of channels, D disparities, K offsets, H and W height and width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from manta_swarm.automl.models import gradients
from manta_swarm.automl.models.gradients import of_length_one
from manta_swarm.automl.models.layers import batch_norm
from manta_swarm.automl.spaces.shapes import MatchShape

_SHARPNESS = 10.0  # of the first weights: a disparity whose cosine is higher by a tenth has e times the weight


class FineMatch(nn.Module):
    """The disparity at each pixel of the left view, as the mean of all disparities, weighted by the softmax of how well each matches
    (soft argmin, arXiv:1703.04309, section 3.4).

    How well is the mean of the groups' correlations (arXiv:1903.04025, section 3.2) at first, and with it whatever is learnt from those at
    the pixel and around it, at each disparity alike: so its weights are few, whatever the number of disparities.
    """

    def __init__(self, shape: MatchShape, *, is_elastic: bool) -> None:
        super().__init__()
        self.shape = shape
        # Without torch's own first weights, which would come from the global generator.
        self.weigh = skip_init(nn.Conv2d, shape.groups, shape.hidden, 3, padding=1, bias=False)
        self.weigh_norm = batch_norm(shape.hidden, is_elastic=is_elastic)
        self.score = skip_init(nn.Conv2d, shape.hidden, 1, 3, padding=1)
        self.likeness = skip_init(nn.Conv2d, shape.groups, 1, 1, bias=False)

    @torch.no_grad()
    def initialise(self) -> None:
        """Let the drawn weights begin as the likeness alone: so the match is one from the first step on."""
        self.likeness.weight.fill_(_SHARPNESS / self.shape.groups)
        self.score.weight.mul_(0.1)
        assert self.score.bias is not None
        self.score.bias.zero_()

    def forward(self, left_BCHW: Tensor, right_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Return the disparities (B, 1, H, W) in pixels of this scale, and how certain they are: 1 where one alone has all the weight."""
        volume_NGHW = correlate_groups(left_BCHW, right_BCHW, self.shape.groups, self.shape.num_disparities)
        hidden_NEHW = F.relu(self.weigh_norm(self.weigh(volume_NGHW)))
        scores_N1HW = self.likeness(volume_NGHW) + gradients.convolved(hidden_NEHW, self.score)
        scores_BDHW = scores_N1HW.view(-1, self.shape.num_disparities, *left_BCHW.shape[2:])
        weights_BDHW = scores_BDHW.softmax(1)
        disparities_D11 = torch.arange(self.shape.num_disparities, dtype=weights_BDHW.dtype, device=weights_BDHW.device)[:, None, None]
        return (weights_BDHW * disparities_D11).sum(1, keepdim=True), (weights_BDHW * weights_BDHW).sum(1, keepdim=True)


def correlate_groups(left_BCHW: Tensor, right_BCHW: Tensor, num_groups: int, num_disparities: int) -> Tensor:
    """Return (B * D, G, H, W), in the memory layout channels_last: the cosine of each group's channels of the two views at each disparity,
    0 where the right view has ended.
    """
    channels, height, width = left_BCHW.shape[1:]
    group = channels // num_groups
    grouped = (view_BCHW.reshape(-1, num_groups, group, height, width) for view_BCHW in (left_BCHW, right_BCHW))
    # The rows of the groups are rows of one picture, each as good as any other: the batch stays what it was, which the exports follow.
    left, right = ((of_length_one(each, 2) * group**0.5).transpose(1, 2).flatten(2, 3) for each in grouped)
    volume = correlate(left, right, num_disparities).reshape(-1, num_disparities, num_groups, height, width)
    volume_NHWG = volume.permute(0, 1, 3, 4, 2).reshape(-1, height, width, num_groups)
    return volume_NHWG.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def warped_likeness(left_BCHW: Tensor, right_BCHW: Tensor, disparity_B1HW: Tensor, offsets: tuple[int, ...]) -> Tensor:
    """Return (B, K, H, W): the cosine of each pixel of the left view with the one that the right view has at that disparity, and at that
    many pixels more or less, where each pixel of the views has the length 1.

    Between two pixels of a row it is linear, and beyond the ends of one it is what is at the end. No gradient flows to the disparity: what
    it makes of the likeness is learnt where it is read, and a gradient through a row of noise leads nowhere.
    """
    last, reach = left_BCHW.shape[3] - 1, max(map(abs, offsets)) + 1
    columns_W = torch.arange(last + 1, dtype=left_BCHW.dtype, device=left_BCHW.device)
    column_B1HW = (columns_W - disparity_B1HW.detach()).clamp(-reach, last + reach)
    low_B1HW = column_B1HW.floor()
    share_B1HW = column_B1HW - low_B1HW
    # Bounded as an integer too: what is not a number becomes any integer at all, and stays what it is in the share alone.
    index_B1HW = low_B1HW.to(torch.int64).clamp(-reach, last + reach)
    # The offsets are whole pixels, so that those in between which they are linear are next to each other: each is compared once.
    alike: dict[int, Tensor] = {}
    for step in sorted({step for offset in offsets for step in (-offset, 1 - offset)}):
        seen_BCHW = right_BCHW.gather(3, (index_B1HW + step).clamp(0, last).expand_as(right_BCHW))
        alike[step] = (left_BCHW * seen_BCHW).sum(1, keepdim=True)
    return torch.cat([alike[-offset] + (alike[1 - offset] - alike[-offset]) * share_B1HW for offset in offsets], 1)


def correlate(left_BCHW: Tensor, right_BCHW: Tensor, num_disparities: int) -> Tensor:
    """Return (B, D, H, W), in the memory layout channels_last: at [b, d, y, x] the mean over the channels of
    ``left[b, :, y, x] * right[b, :, y, x - d]``, and 0 where ``x - d`` lies outside of the view.

    One matrix product a row matches every pair of its pixels, and a gather keeps the D diagonals that are disparities
    (arXiv:1512.02134, section 4.2, in one dimension). That is more products than needed, and still many times faster than a loop.
    """
    batch, channels, height, width = left_BCHW.shape
    left_BHWC = left_BCHW.permute(0, 2, 3, 1)
    right_BHCW = right_BCHW.permute(0, 2, 1, 3)
    matches_BHWW = torch.matmul(left_BHWC, right_BHCW)
    column_WD = torch.arange(width, device=left_BCHW.device)[:, None] - torch.arange(num_disparities, device=left_BCHW.device)
    matches_BHWD = matches_BHWW.gather(3, column_WD.clamp(min=0).expand(batch, height, -1, -1))
    scale_WD = (column_WD >= 0).to(matches_BHWD.dtype) / channels
    return (matches_BHWD * scale_WD).permute(0, 3, 1, 2)
