"""What training makes small: the losses of the two tasks, each with or without a teacher (the full network, for distillation).

Every loss is a mean over the batch, so that the mean of the gradients of equal microbatches is the gradient of them all.

Shapes: B batch, K classes, H and W the full resolution, h and w that of one prediction.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

LABEL_SMOOTHING = 0.1  # as in arXiv:1512.00567, section 7: small subnets of a supernet are overconfident otherwise
CLASSIFICATION_TEACHER_WEIGHT = 1.0  # once-for-all's (arXiv:1908.09791, section 4.1): the teacher counts as much as the labels
STEREO_TEACHER_WEIGHT = 0.5  # the truth, where it is known, is better than any teacher
SCALE_DECAY = 0.5  # a prediction's weight relative to that of the next finer one: the coarse ones guide, the last one is what is used
MATCH_WEIGHT = 1.0  # as much as the last one: what the others start from has to be learnt first; with a quarter it took much longer
HUBER_PX = 1.0  # below this the loss is quadratic, above it linear: outliers at the edges of things don't drown the rest


def classification_loss(logits_BK: Tensor, labels_B: Tensor, teacher_logits_BK: Tensor | None = None) -> Tensor:
    """Return the cross entropy with smoothed labels; with a teacher, plus that to its probabilities (arXiv:1503.02531, section 2).

    No gradient flows to the teacher.
    """
    loss = F.cross_entropy(logits_BK, labels_B, label_smoothing=LABEL_SMOOTHING)
    if teacher_logits_BK is None:
        return loss
    soft_loss = F.cross_entropy(logits_BK, teacher_logits_BK.detach().softmax(1))
    return loss + CLASSIFICATION_TEACHER_WEIGHT * soft_loss


def stereo_loss(predictions: Sequence[Tensor], disparity_BHW: Tensor, teacher_prediction: Tensor | None = None) -> Tensor:
    """Return the smooth L1 loss in pixels over the valid pixels (``disparity_BHW`` >= 0), a weighted mean over the predictions.

    ``predictions`` are what the match says, and then those of the steps up from coarse to fine, each (B, h, w) or (B, 1, h, w) in pixels
    of the full resolution, which is a multiple of h and w; the last one is at the full resolution. One without any valid pixel adds
    zero. With a teacher, whose last prediction is
    ``teacher_prediction`` (of the last one's shape), plus the distance to that, everywhere; no gradient flows to it.
    """
    weights = [MATCH_WEIGHT, *(SCALE_DECAY**step for step in reversed(range(len(predictions) - 1)))]
    loss = torch.zeros((), dtype=disparity_BHW.dtype, device=disparity_BHW.device)
    shrunk: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # two predictions have the size of the match
    for weight, prediction in zip(weights, predictions, strict=True):
        height, width = prediction.shape[-2:]
        if (height, width) not in shrunk:
            shrunk[height, width] = shrink_disparity(disparity_BHW, height, width)
        target_Bhw, is_valid_Bhw = shrunk[height, width]
        distance_Bhw = F.smooth_l1_loss(prediction.reshape(target_Bhw.shape), target_Bhw, reduction="none", beta=HUBER_PX)
        valid_loss = (distance_Bhw * is_valid_Bhw).sum() / is_valid_Bhw.sum().clamp(min=1)
        loss = loss + weight / sum(weights) * valid_loss
    if teacher_prediction is not None:
        distance = F.smooth_l1_loss(predictions[-1], teacher_prediction.detach(), beta=HUBER_PX)
        loss = loss + STEREO_TEACHER_WEIGHT * distance
    return loss


def shrink_disparity(disparity_BHW: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the mean disparity of each cell's valid pixels (B, h, w), 0 where it has none, and a mask of the cells that have some.

    Invalid pixels are never mixed in. The values stay in pixels of the full resolution.
    """
    is_valid_BHW = disparity_BHW >= 0
    known_BHW = torch.where(is_valid_BHW, disparity_BHW, 0.0)
    full_height, full_width = disparity_BHW.shape[1:]
    if (full_height, full_width) == (height, width):
        return known_BHW, is_valid_BHW
    cell = (full_height // height, full_width // width)
    share_Bhw = F.avg_pool2d(is_valid_BHW.to(disparity_BHW.dtype), cell)
    return F.avg_pool2d(known_BHW, cell) / share_Bhw.clamp(min=1.0 / (cell[0] * cell[1])), share_Bhw > 0
