"""The correlation of two views along their rows: how well each pixel of the left one matches the right one at every disparity.

Shapes: B batch, C channels, D disparities, H and W height and width.
"""

import torch
from torch import Tensor


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
