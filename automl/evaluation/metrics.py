"""How good disparities are: EPE, D1 and bad-3, over the valid pixels of any number of batches, and the baseline that knows no image.

Sums and counts are kept and divided once at the end, so batches of any sizes give the same figures as all pixels at once.

Shapes: B batch, H and W height and width, in pixels of the predictions; V valid pixels.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

BAD_PX = 3.0  # what bad-3 and D1 call an error (the KITTI 2015 benchmark's figures)
BAD_SHARE = 0.05  # of the truth: D1 forgives this much to large disparities


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


def median_disparity(disparities: Iterable[Tensor]) -> float:
    """Return the median of all valid pixels (>= 0) of some disparities: the constant with the least EPE, which any
    network has to beat. Of an even number of pixels the lower one of the two in the middle.

    Raises:
        ValueError: there is no valid pixel.
    """
    valid_V = torch.cat([torch.zeros(0), *(disparity[disparity >= 0].float().cpu() for disparity in disparities)])
    if valid_V.numel() == 0:
        raise ValueError("no pixel has a known disparity: there is no median")
    return valid_V.median().item()
