import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.evaluation.metrics import DisparityErrors, disparity_errors, disparity_metrics, median_disparity

# Errors by hand: 1, 3 (not more than 3), 4 (more than 3 and than 5 % of 40), 4 (more than 3, but not than 5 % of 100), unknown.
TRUTH = torch.tensor([[[10.0, 20.0, 40.0, 100.0, -1.0]]])
PREDICTION = torch.tensor([[[11.0, 17.0, 44.0, 96.0, 500.0]]])


def test_epe_d1_and_bad3_are_those_computed_by_hand() -> None:
    assert disparity_errors(PREDICTION, TRUTH) == DisparityErrors(pixels=4, absolute_px=12.0, bad3_pixels=2, d1_pixels=1)
    assert disparity_metrics([(PREDICTION, TRUTH)]) == {"epe": 3.0, "d1": 0.25, "bad3": 0.5}


def test_batches_of_unequal_sizes_give_what_all_pixels_at_once_give() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(7, 4, 6, generator=generator) * 60 - 10
    prediction = truth + torch.randn(truth.shape, generator=generator) * 4
    at_once = disparity_metrics([(prediction, truth)])
    in_parts = disparity_metrics(zip(prediction.split(3), truth.split(3), strict=True))
    assert in_parts == pytest.approx(at_once, rel=1e-12)


def test_a_batch_without_valid_pixels_adds_nothing_and_a_set_without_any_is_refused() -> None:
    unknown = (PREDICTION, torch.full_like(TRUTH, -1.0))
    assert disparity_errors(*unknown) == DisparityErrors()
    assert disparity_metrics([unknown, (PREDICTION, TRUTH), unknown]) == disparity_metrics([(PREDICTION, TRUTH)])
    with pytest.raises(ValueError, match="known disparity"):
        disparity_metrics([unknown])
    with pytest.raises(ValueError, match="known disparity"):
        disparity_metrics([])


def test_zero_is_a_known_disparity() -> None:
    assert disparity_metrics([(torch.ones(1, 2, 2), torch.zeros(1, 2, 2))]) == {"epe": 1.0, "d1": 0.0, "bad3": 0.0}


def test_the_median_is_that_of_all_valid_pixels() -> None:
    parts = [torch.tensor([[[5.0, -1.0, 1.0]]]), torch.full((1, 1, 3), -1.0), torch.tensor([[[2.0, 9.0, 7.0]]])]
    assert median_disparity(lambda: parts) == 5.0
    assert median_disparity(lambda: [torch.tensor([[[4.0, 3.0]]])]) == 3.0
    assert median_disparity(lambda: [torch.tensor([[[0.0, -0.0, 3.0]]])]) == 0.0
    with pytest.raises(ValueError, match="median"):
        median_disparity(lambda: [torch.full((1, 2, 2), -1.0)])


@settings(max_examples=100)
@given(st.lists(st.floats(-1.0, 2.0**100, width=32), min_size=1, max_size=60), st.integers(1, 20))
def test_the_median_of_parts_that_are_read_one_by_one_is_that_of_all_at_once(values: list[float], size: int) -> None:
    disparities = torch.tensor(values)
    valid = disparities[disparities >= 0]
    if len(valid):
        assert median_disparity(lambda: iter(disparities.split(size))) == valid.median().item()
