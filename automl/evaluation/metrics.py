"""How good disparities are: EPE, D1 and bad-3, over the valid pixels of any number of batches, and the baseline that knows no image.

Sums and counts are kept and divided once at the end, so batches of any sizes give the same figures as all pixels at once.

Shapes: B batch, H and W height and width, in pixels of the predictions; V valid pixels.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

BAD_PX = 3.0  # what bad-3 and D1 call an error (the KITTI 2015 benchmark's figures)
BAD_SHARE = 0.05  # of the truth: D1 forgives this much to large disparities
_HALF = 16  # of the 32 bits of a disparity


@dataclass(frozen=True, slots=True)
class DisparityErrors:
    """Sums over valid pixels; those of several batches are added."""

    pixels: int = 0
    absolute_px: float = 0.0
    bad3_pixels: int = 0
    d1_pixels: int = 0

    def __add__(self, other: "DisparityErrors") -> "DisparityErrors":
        return DisparityErrors(
            self.pixels + other.pixels,
            self.absolute_px + other.absolute_px,
            self.bad3_pixels + other.bad3_pixels,
            self.d1_pixels + other.d1_pixels,
        )

    def metrics(self) -> dict[str, float]:
        """Return "epe", the mean absolute error in pixels; "d1", the share (0 to 1) of pixels that are wrong by more than 3 px and by
        more than 5 % of the truth; and "bad3", the share that is wrong by more than 3 px.

        Raises:
            ValueError: there was no valid pixel at all, so there is nothing to say.
        """
        if self.pixels == 0:
            raise ValueError("no pixel has a known disparity: nothing to measure")
        return {"epe": self.absolute_px / self.pixels, "d1": self.d1_pixels / self.pixels, "bad3": self.bad3_pixels / self.pixels}


def disparity_errors(prediction_BHW: Tensor, disparity_BHW: Tensor) -> DisparityErrors:
    """Return one batch's sums over the pixels whose true disparity is known (>= 0); a batch without any adds nothing."""
    is_valid_BHW = disparity_BHW >= 0
    truth_V = disparity_BHW[is_valid_BHW].double()
    error_V = (prediction_BHW[is_valid_BHW].double() - truth_V).abs()
    is_bad_V = error_V > BAD_PX
    is_d1_V = is_bad_V & (error_V > BAD_SHARE * truth_V)
    return DisparityErrors(truth_V.numel(), error_V.sum().item(), int(is_bad_V.sum().item()), int(is_d1_V.sum().item()))


def disparity_metrics(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return ``DisparityErrors.metrics`` over all batches of ``pairs``: (prediction, true disparity), each (B, H, W).

    Raises:
        ValueError: no batch has a valid pixel.
    """
    return sum((disparity_errors(prediction, disparity) for prediction, disparity in pairs), DisparityErrors()).metrics()


def median_disparity(read: Callable[[], Iterable[Tensor]]) -> float:
    """Return the median of all valid pixels (>= 0) of some disparities: the constant with the least EPE, which any network has to beat.

    Of an even number of pixels the lower one of the two in the middle. The disparities are read twice and never held together: floats
    that are not negative have the order of their bits, so the first pass counts by the upper half of these, the second by the lower one.

    Args:
        read: returns the same disparities at each call.

    Raises:
        ValueError: there is no valid pixel.
    """
    counts = _counted(_bits(each) >> _HALF for each in read())
    total = int(counts.sum())
    if total == 0:
        raise ValueError("no pixel has a known disparity: there is no median")
    upper, left = _place(counts, (total - 1) // 2)
    lower, _ = _place(_counted(bits_V[bits_V >> _HALF == upper] & (1 << _HALF) - 1 for bits_V in map(_bits, read())), left)
    return torch.tensor(upper << _HALF | lower, dtype=torch.int32).view(torch.float32).item()


def _bits(disparity: Tensor) -> Tensor:
    """Return the bits of the valid pixels, as whole numbers that are not negative."""
    return (disparity[disparity >= 0].float().cpu() + 0.0).view(torch.int32)  # of zero there are two, and + 0.0 makes one of them


def _counted(halves: Iterable[Tensor]) -> Tensor:
    """Return how often each half of the bits is there."""
    return sum((torch.bincount(half_V, minlength=1 << _HALF) for half_V in halves), torch.zeros(1 << _HALF, dtype=torch.int64))


def _place(counts: Tensor, index: int) -> tuple[int, int]:
    """Return which value stands at an index among the sorted ones, and its index among those that are equal."""
    sums = counts.cumsum(0)
    value = int(torch.searchsorted(sums, index, right=True))
    return value, index - (int(sums[value - 1]) if value else 0)
