import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from manta_swarm.automl.training.microbatches import (
    CLASSIFICATION_TEACHER_WEIGHT,
    LABEL_SMOOTHING,
    STEREO_TEACHER_WEIGHT,
    classification_loss,
    shrink_disparity,
    stereo_loss,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pyramid(value: float = 0.0, batch: int = 2) -> tuple[Tensor, ...]:
    """What a match at half the resolution says, and predictions from 1/4 to the full 8 x 16 pixels."""
    return tuple(torch.full((batch, 1, 8 // scale, 16 // scale), value, requires_grad=True) for scale in (2, 4, 2, 1))


def test_the_classification_loss_is_the_cross_entropy_to_smoothed_labels() -> None:
    logits, labels = drawn(5, 4), torch.tensor([0, 3, 1, 1, 2])
    smoothed = F.one_hot(labels, 4) * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / 4
    expected = -(smoothed * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(classification_loss(logits, labels), expected)


def test_a_teacher_adds_the_cross_entropy_to_its_probabilities_and_gets_no_gradient() -> None:
    logits, labels = drawn(5, 4).requires_grad_(), torch.tensor([0, 3, 1, 1, 2])
    teacher = drawn(5, 4, seed=1).requires_grad_()
    loss = classification_loss(logits, labels, teacher)
    soft = -(teacher.softmax(1) * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, classification_loss(logits, labels) + CLASSIFICATION_TEACHER_WEIGHT * soft)
    torch.autograd.backward(loss)
    assert teacher.grad is None
    alone = drawn(5, 4).requires_grad_()
    torch.autograd.backward(
        CLASSIFICATION_TEACHER_WEIGHT * F.kl_div(alone.log_softmax(1), teacher.softmax(1).detach(), reduction="batchmean")
    )
    torch.autograd.backward(classification_loss(alone, labels))
    torch.testing.assert_close(logits.grad, alone.grad)  # so it is the Kullback-Leibler divergence up to a constant


def test_the_stereo_loss_is_smooth_l1_in_pixels_with_the_match_and_the_finest_scale_weighted_most() -> None:
    disparity = torch.full((2, 8, 16), 5.0)
    assert stereo_loss(pyramid(5.0), disparity).item() == 0.0
    assert stereo_loss(pyramid(5.5), disparity).item() == pytest.approx(0.125)  # 0.5^2 / 2, and the scales' weights add up to 1
    assert stereo_loss(pyramid(9.0), disparity).item() == pytest.approx(3.5)  # 4 - 1/2
    losses = []
    for wrong in range(4):
        predictions = list(pyramid(5.0))
        predictions[wrong] = predictions[wrong] + 4.0
        losses.append(stereo_loss(predictions, disparity).item())
    assert losses[0] == losses[3] == pytest.approx(3.5 / 2.75)
    assert losses[1] < losses[2] < losses[3]
    assert sum(losses) == pytest.approx(3.5)


def test_predictions_may_have_a_channel_or_none() -> None:
    disparity = drawn(2, 8, 16).abs()
    flat = [prediction.squeeze(1) for prediction in pyramid(1.0)]
    assert torch.equal(stereo_loss(flat, disparity), stereo_loss(pyramid(1.0), disparity))


def test_a_coarse_target_is_the_mean_of_the_valid_pixels_alone() -> None:
    disparity = torch.tensor([[[4.0, 8.0, -1.0, -1.0], [-1.0, 6.0, -1.0, -7.0]]])
    target, is_valid = shrink_disparity(disparity, 1, 2)
    assert target.tolist() == [[[6.0, 0.0]]]
    assert is_valid.tolist() == [[[True, False]]]
    target, is_valid = shrink_disparity(disparity, 2, 4)
    assert target.tolist() == [[[4.0, 8.0, 0.0, 0.0], [0.0, 6.0, 0.0, 0.0]]]
    assert torch.equal(is_valid, disparity >= 0)


def test_unknown_pixels_have_no_loss_and_no_gradient_whatever_stands_there() -> None:
    disparity = torch.full((2, 8, 16), 5.0)
    disparity[:, :, 8:] = -1.0
    losses = []
    for unknown in (-1.0, -1e30, float("nan"), float("-inf")):
        disparity[:, :, 8:] = unknown
        predictions = pyramid(9.0)
        loss = stereo_loss(predictions, disparity)
        torch.autograd.backward(loss)
        losses.append(loss.item())
        for prediction in predictions:
            assert prediction.grad is not None
            known, not_known = prediction.grad.chunk(2, 3)
            assert known.all()
            assert not not_known.any()
    assert losses == [pytest.approx(3.5)] * 4


def test_a_batch_without_a_valid_pixel_gives_zero_with_zero_gradients() -> None:
    predictions = pyramid(9.0)
    loss = stereo_loss(predictions, torch.full((2, 8, 16), -1.0))
    assert loss.item() == 0.0
    torch.autograd.backward(loss)
    for prediction in predictions:
        assert prediction.grad is not None
        assert not prediction.grad.any()


def test_a_stereo_teacher_pulls_the_last_prediction_everywhere_and_gets_no_gradient() -> None:
    predictions, teacher = pyramid(9.0), torch.full((2, 1, 8, 16), 6.0, requires_grad=True)
    unknown = torch.full((2, 8, 16), -1.0)
    loss = stereo_loss(predictions, unknown, teacher)
    assert loss.item() == pytest.approx(STEREO_TEACHER_WEIGHT * 2.5)
    torch.autograd.backward(loss)
    assert teacher.grad is None
    assert [bool(prediction.grad.any()) for prediction in predictions if prediction.grad is not None] == [False, False, False, True]
