"""What a classifier has besides its units, and what it costs: a 1 x 1 convolution to the head's width, if it has one, and a linear layer.

No torch.
"""

from automl.spaces.shapes import unit_sides
from automl.spaces.space import SearchSpace


def num_features(space: SearchSpace) -> int:
    """Return how many channels the linear layer reads."""
    return space.head_width or space.widths[-1]


def head_macs(space: SearchSpace, resolution: int) -> int:
    """Return the multiply-accumulates of one image in all but the searchable layers."""
    height, width = unit_sides(space, resolution)[-1]
    return height * width * space.widths[-1] * space.head_width + num_features(space) * space.num_classes


def head_num_weights(space: SearchSpace) -> int:
    """Return how many weights all but the searchable layers has, those of the normalisation among them."""
    return (space.widths[-1] + 2) * space.head_width + (num_features(space) + 1) * space.num_classes
