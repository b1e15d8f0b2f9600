"""Licences of data sets, where the set itself or who makes it tells one: as hubs write them. Of all others nobody here knows it."""

from manta_swarm.automl.data.names import without_size

UNKNOWN = "unknown"
# The pages of the sets: UCI's Optical Recognition of Handwritten Digits; zalandoresearch/fashion-mnist; made by this project's own code.
_TOLD = {"digits": "cc-by-4.0", "fashionmnist": "mit", "layers": "mit"}


def licence_of(dataset: str) -> str:
    """Return the licence of the data set of this name, ``unknown`` where nobody told."""
    return _TOLD.get(without_size(dataset)[0], UNKNOWN)
