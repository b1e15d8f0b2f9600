"""Which layer a shape is of, elastic and plain."""

from manta_swarm.automl.models.bottleneck import ElasticBottleneck, PlainBottleneck
from manta_swarm.automl.models.layers import ElasticLayer, PlainLayer
from manta_swarm.automl.spaces.shapes import BottleneckShape, LayerShape
from manta_swarm.automl.spaces.units import Layer, UnitSpace

Elastic = ElasticLayer | ElasticBottleneck
Plain = PlainLayer | PlainBottleneck


def elastic_layer(shape: LayerShape, unit: UnitSpace) -> Elastic:
    """Return the elastic layer with the choices of its unit."""
    if isinstance(shape, BottleneckShape):
        return ElasticBottleneck(shape, unit.kernels, unit.expansions)
    return ElasticLayer(shape, unit.kernels, unit.expansions)


def plain_layer(shape: LayerShape, layer: Layer) -> Plain:
    """Return one choice as a plain layer, with memory for its weights and nothing in it yet."""
    return PlainBottleneck(shape, layer) if isinstance(shape, BottleneckShape) else PlainLayer(shape, layer)
