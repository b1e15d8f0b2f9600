"""Two small subnets with random weights, and their exported files: made once, for all tests that look at them."""

from functools import cache
from pathlib import Path

import onnx
import torch

from manta_swarm.automl.data.dataset import CROPS, Preparation
from manta_swarm.automl.data.names import UNKNOWN
from manta_swarm.automl.evaluation.held_out import recalibrate
from manta_swarm.automl.export.description import Description, Presentation, Provenance
from manta_swarm.automl.export.files import exported_files
from manta_swarm.automl.export.subnet import Subnet
from manta_swarm.automl.forms import FOLDER, FORMATS
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY

_SPACES = {"classification": TINY, "stereo": STEREO_TINY}
_METRICS = {"classification": {"accuracy": 0.125}, "stereo": {"epe": 4.5, "d1": 0.5, "bad3": 0.625}}


@cache
def random_subnet(task: str) -> Subnet:
    """Return the smallest subnet of the task's tiny supernet, its statistics of a few random inputs."""
    space = _SPACES[task]
    network, generator = build(space), torch.Generator().manual_seed(3)
    network.initialise(generator)
    architecture = space.smallest()
    description = Description(
        supernet=space.name,
        architecture=architecture,
        provenance=Provenance(run="ab" * 32, round=7, state="cd" * 32, ledger_root=UNKNOWN, ledger_size=0),
        dataset="layers" if task == "stereo" else "digits",
        dataset_digest="ef" * 32,
        calibration_samples=8,
        test_samples=177,
        metrics=_METRICS[task],
        made_with="a test",
        presentation=Presentation(
            preparation=Preparation(CROPS[task], 255, None if task == "stereo" else 28),
            class_titles=tuple(f"T-shirt/top {label}" for label in range(space.num_classes)),
            licence="apache-2.0",
            dataset_licence="unknown",
        ),
    )
    channels, height, width = description.input_shape
    shape = (4, channels * len(description.input_names), height, width)
    recalibrate(network, architecture, [torch.rand(shape, generator=generator) for _ in range(2)])
    return Subnet(network.extract(architecture), description)


@cache
def random_onnx_model(task: str) -> bytes:
    """Return that subnet's graph in ONNX, without what it is: as it is kept where it was needed already."""
    model = onnx.load_model_from_string(random_files(task)["net.onnx"])
    del model.metadata_props[:]
    data: bytes = model.SerializeToString()
    return data


@cache
def random_folder(task: str) -> dict[str, bytes]:
    """Return the files of that subnet's folder, net/...: made without a graph of it."""
    return exported_files(random_subnet(task), {FOLDER: "net"})[0]


@cache
def random_files(task: str) -> dict[str, bytes]:
    """Return that subnet's files: net.pt2, net.onnx, and net/... of the folder."""
    graphs, _ = exported_files(random_subnet(task), {form: f"net.{form}" for form in FORMATS if form != FOLDER})
    return {**random_folder(task), **graphs}


def put(task: str, folder: Path, name: str = "net") -> Path:
    """Write the file, or the folder, that is called so, and return its path."""
    files = random_folder(task) if name == "net" else {name: random_files(task)[name]}
    for path, data in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
    return folder / name
