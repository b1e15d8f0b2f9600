"""What a classifier has besides its units, and what it costs: a 1 x 1 convolution to the head's width, if it has one, and a linear layer.

No torch.
"""

from manta_swarm.automl.spaces.shapes import unit_sides
from manta_swarm.automl.spaces.space import SearchSpace


def num_features(space: SearchSpace, channels: int) -> int:
    """Return how many channels the linear layer reads, where the last unit hands on ``channels``."""
    return space.head_width or channels


def head_macs(space: SearchSpace, resolution: int, channels: int) -> int:
    """Return the multiply-accumulates of one image in all but the searchable layers, of which the last one hands on ``channels``."""
    height, width = unit_sides(space, resolution)[-1]
    return height * width * channels * space.head_width + num_features(space, channels) * space.num_classes


def head_num_weights(space: SearchSpace, channels: int) -> int:
    """Return how many weights all but the searchable layers has, those of the normalisation among them."""
    return (channels + 2) * space.head_width + (num_features(space, channels) + 1) * space.num_classes
