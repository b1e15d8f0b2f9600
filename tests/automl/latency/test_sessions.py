import random

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from manta_swarm.automl.latency.onnx_graphs import layer_model, rest_of
from manta_swarm.automl.latency.profiler import LayerPart, draw, table_parts
from manta_swarm.automl.models.networks import deployed, plain_network
from manta_swarm.automl.models.supernet import plain_layer
from manta_swarm.automl.spaces.space import STEREO_TINY, SearchSpace
from manta_swarm.protocol.errors import OwnFault
from tests.automl.kernels import KERNELS
from tests.automl.narrow import NARROW, WIDENED


def run(model: object, *inputs: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])  # type: ignore[attr-defined]
    named = {each.name: values.numpy() for each, values in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(session.run(None, named)[0])


@torch.no_grad()
@pytest.mark.parametrize("space", [KERNELS, NARROW, STEREO_TINY], ids=lambda space: space.name)
def test_every_layer_computes_in_onnxruntime_what_it_computes_in_torch(space: SearchSpace) -> None:
    parts = [part for part in table_parts(space).values() if isinstance(part, LayerPart)]
    generator = torch.Generator().manual_seed(0)
    for shape in dict.fromkeys(part.shape for part in parts):
        part = random.Random(str(shape)).choice([each for each in parts if each.shape == shape])
        layer = plain_layer(part.shape, part.layer).eval()
        draw(layer, generator)
        x_BCHW = torch.rand(3, shape.channels_in, part.height, part.width, generator=generator)
        assert torch.allclose(run(layer_model(layer, tuple(x_BCHW.shape[1:])), x_BCHW), layer(x_BCHW), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("space", [KERNELS, WIDENED, STEREO_TINY], ids=lambda space: space.name)
def test_a_network_put_together_computes_what_the_exported_one_does(space: SearchSpace) -> None:
    architecture, generator = space.sample(random.Random(5)), torch.Generator().manual_seed(1)
    network, other = plain_network(space, architecture), plain_network(space, architecture)
    draw(network, generator)
    other.load_state_dict(network.state_dict())
    rest = rest_of(space, other, architecture.resolution, batch=3)
    images = [torch.rand(shape, generator=generator) for shape in rest.image_shapes]
    expected = deployed(network, space.task)(*images)
    assert torch.allclose(run(rest.with_units(list(network.units)), *images), expected, atol=1e-4 * max(1.0, float(expected.abs().max())))  # type: ignore[arg-type]
    # What it has besides its units is the same graph, told what they make.
    made: list[Tensor] = []
    for unit in network.units:  # type: ignore[union-attr]
        unit.register_forward_hook(lambda _module, _inputs, output: made.append(output.contiguous()))
    deployed(network, space.task)(*images)
    alone = run(rest.alone(), *images, *made)
    assert torch.allclose(alone, expected, atol=1e-4 * max(1.0, float(expected.abs().max())))
    assert [tuple(each.shape) for each in made] == rest.unit_shapes


def test_a_layer_that_nobody_translated_is_named() -> None:
    with pytest.raises(OwnFault, match=r"Dropout.*--runtime torch"):
        layer_model(nn.Sequential(nn.Dropout()), (1, 8, 8))
