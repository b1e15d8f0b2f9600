"""Small exported networks whose weights follow from their places, and what they make of inputs that do: the same wherever they are made.

Of the classifier every form is kept; of a stereo network, whose graph has operations of its own, the ``.pt2`` alone, and packed: what is
most of it, the weights, repeats.
"""

import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from manta_swarm.automl.data.dataset import CENTRE_SQUARE, Preparation
from manta_swarm.automl.data.names import UNKNOWN
from manta_swarm.automl.export.description import Description, Presentation, Provenance
from manta_swarm.automl.export.files import ExportedNetwork, exported_files, open_exported
from manta_swarm.automl.export.pt2 import read_pt2
from manta_swarm.automl.export.subnet import Subnet
from manta_swarm.automl.forms import FOLDER, ONNX, PT2
from manta_swarm.automl.models.networks import deployed, plain_network
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY, SearchSpace

PRESENTED = "presented.json"
PACKED = "stereo.pt2.gz"
GRAPHS = {"network.pt2": TINY, "network.onnx": TINY, PACKED: STEREO_TINY}
_METRICS = {"classification": {"accuracy": 0.9375}, "stereo": {"epe": 2.5, "d1": 0.25, "bad3": 0.375}}
_SHOWN = {"classification": 10, "stereo": 8}  # values of the output
_DIGITS = 3


def write_networks(folder: Path, made_with: str, *, with_graphs: bool) -> dict[str, object]:
    """Write the networks as ``manta-search export`` does, from which a later program has to read them; return what each makes of its input.

    These tell nothing of pictures, classes and licences, as the first ones did; a description that does stands by itself.
    """
    classifier, stereo = subnet_of(TINY, made_with), subnet_of(STEREO_TINY, made_with)
    (folder / PRESENTED).write_text(_presented(made_with).to_json(indent=1) + "\n")
    files, _ = exported_files(classifier, {FOLDER: "network", **{graph: f"network.{graph}" for graph in (PT2, ONNX) if with_graphs}})
    if with_graphs:
        packed, _ = exported_files(stereo, {PT2: "stereo.pt2"})
        files[PACKED] = gzip.compress(packed["stereo.pt2"], mtime=0)
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    made = {"classifier": classifier, "stereo": stereo}
    return {
        name: shown(ExportedNetwork(each.description, deployed(each.network, each.description.space.task))) for name, each in made.items()
    }


@cache
def opened(path: Path) -> ExportedNetwork:
    """Return the network of a file or folder, which may be a packed ``.pt2``: a file is read once."""
    if path.name != PACKED:
        return open_exported(path)
    run, description = read_pt2(gzip.decompress(path.read_bytes()))
    return ExportedNetwork(description, run)


def shown(network: ExportedNetwork) -> list[float]:
    """Return what the network makes of one input, probabilities or some disparities; rounded, so that it is no processor's affair."""
    description = network.description
    channels, height, width = description.input_shape
    output = network(_placed((1, channels * len(description.input_names), height, width), 13))
    count = _SHOWN[description.space.task]
    return [round(value, _DIGITS) for value in output.flatten()[:: output.numel() // count][:count].tolist()]


def subnet_of(space: SearchSpace, made_with: str) -> Subnet:
    """Return the network of a search space that is kept, and what it says of itself."""
    architecture = space.smallest()
    description = Description(
        supernet=space.name,
        architecture=architecture,
        provenance=Provenance(run="ab" * 32, round=7, state="cd" * 32, ledger_root=UNKNOWN, ledger_size=0),
        dataset="layers" if space.task == "stereo" else "digits",
        dataset_digest="ef" * 32,
        calibration_samples=256,
        test_samples=177,
        metrics=_METRICS[space.task],
        made_with=made_with,
    )
    return Subnet(_with_placed_weights(plain_network(space, architecture)), description)


def _presented(made_with: str) -> Description:
    preparation = Preparation(CENTRE_SQUARE, 255, 28)
    titles = ("T-shirt/top", *"123456789")
    return replace(subnet_of(TINY, made_with).description, presentation=Presentation(preparation, titles, "mit", "unknown"))


def _with_placed_weights(network: nn.Module) -> nn.Module:
    values = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for name, tensor in values.items():
        if tensor.ndim > 1:
            tensor.copy_((_placed(tuple(tensor.shape), 31) - 0.5) * (17 / tensor[0].numel()) ** 0.5)
        else:  # of a normalisation: it scales by one, and what it adds is small
            tensor.copy_(torch.ones_like(tensor) if name.endswith(("weight", "running_var")) else torch.zeros_like(tensor))
    network.load_state_dict(values)
    return network


def _placed(shape: tuple[int, ...], period: int) -> Tensor:
    """Return values from 0 to 1 that go through ``period`` steps again and again, in an order that is not a ramp."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 % period).to(torch.float32) / (period - 1)).reshape(shape)
