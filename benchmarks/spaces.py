"""What the base classifier costs, map by map, beside OFA-MobileNetV3 and AttentiveNAS: multiply-accumulates and weights.

    .venv/bin/python benchmarks/spaces.py

Arithmetic, nothing is measured. The two other spaces are counted from their published configurations: OFA's width 1.0 (arXiv:1908.09791,
the network ``ofa_mbv3_d234_e346_k357_w1.0``), and AttentiveNAS (arXiv:2011.09011, its training configuration). Their convolutions, gates
and linear layers count, normalisations and activations do not, as here. To show that the counting is right, it prices the seven networks
whose MFLOPs AttentiveNAS publishes.

Columns are the sides of the maps, in parts of the image's: a unit here, one or more stages there. All spaces at 224 px; theirs have
resolutions of their own, OFA's 128 to 224 and AttentiveNAS's 192 to 288.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import results

from manta_swarm.automl.spaces.cost import fixed_num_weights, macs, unit_macs, unit_num_weights
from manta_swarm.automl.spaces.space import BASE

_SIDE = 224
_STRIDES = (2, 4, 8, 16, 32)
_CLASSES = 1000
_DIVISOR = 8
_SQUEEZE = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """Inverted bottlenecks of one kind, the first of which may have a stride."""

    width: int
    depth: int
    kernel: int
    expansion: int
    stride: int
    squeezes: bool


@dataclass(frozen=True, slots=True)
class Network:
    """A network of the family of MobileNetV3."""

    stem: int
    stages: tuple[Stage, ...]
    features: int
    mixed: int
    has_shortcuts: bool  # whether a layer that changes its channels has a 1 x 1 convolution beside it, after a mean where it has a stride


Costs = dict[int, tuple[int, int]]  # MACs and weights by stride; 0: after the mean


def rounded(channels: float) -> int:
    """Return the multiple of 8 that both families take for a number of channels."""
    whole = max(_DIVISOR, int(channels + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return whole if whole >= 0.9 * channels else whole + _DIVISOR


def costs(network: Network, side: int) -> Costs:
    """Return what a network costs, map by map."""
    counts: Costs = {}

    def add(stride: int, pixels: int, weights: int, beside: int) -> None:
        before = counts.get(stride, (0, 0))
        counts[stride] = (before[0] + pixels * weights, before[1] + weights + beside)

    stride, channels = 2, network.stem
    add(2, _pixels(side, 2), 27 * channels, 2 * channels)
    for stage in network.stages:
        for index in range(stage.depth):
            step = stage.stride if index == 0 else 1
            hidden = rounded(channels * stage.expansion)
            if stage.expansion > 1:  # on the finer map, where the layer has a stride
                add(stride * step, _pixels(side, stride), channels * hidden, 2 * hidden)
            stride *= step
            pixels = _pixels(side, stride)
            add(stride, pixels, (stage.kernel**2 + stage.width) * hidden, 2 * hidden + 2 * stage.width)
            if stage.squeezes:
                squeezed = rounded(hidden // _SQUEEZE)
                add(stride, 1, 2 * squeezed * hidden, squeezed + hidden)
            if network.has_shortcuts and channels != stage.width:
                add(stride, pixels, channels * stage.width, 0)
            channels = stage.width
    add(stride, _pixels(side, stride), channels * network.features, 2 * network.features)
    add(0, 1, network.features * network.mixed + network.mixed * _CLASSES, _CLASSES)
    return counts


def _pixels(side: int, stride: int) -> int:
    return (-(-side // stride)) ** 2


def ofa(depth: int, kernel: int, expansion: int) -> Network:
    """Return a network of OFA-MobileNetV3 with the same choice everywhere."""
    stages = [Stage(16, 1, 3, 1, 1, squeezes=False)]
    for width, stride, squeezes in ((24, 2, False), (40, 2, True), (80, 2, False), (112, 1, True), (160, 2, True)):
        stages.append(Stage(width, depth, kernel, expansion, stride, squeezes))
    return Network(16, tuple(stages), 960, 1280, has_shortcuts=False)


def attentive(widths: Iterable[int], depths: Iterable[int], kernels: Iterable[int], expansions: Iterable[int]) -> Network:
    """Return a network of AttentiveNAS: stem, seven stages and head."""
    stem, *inner, mixed = widths
    strides, squeezing = (1, 2, 2, 2, 1, 2, 1), (False, False, True, False, True, True, True)
    stages = zip(inner, depths, kernels, expansions, strides, squeezing, strict=True)
    return Network(stem, tuple(Stage(*stage) for stage in stages), 6 * inner[-1], mixed, has_shortcuts=True)


PUBLISHED = {  # name: side, widths, depths, kernels, expansions, MFLOPs
    "A0": (192, (16, 16, 24, 32, 64, 112, 192, 216, 1792), (1, 3, 3, 3, 3, 3, 1), (3, 3, 3, 3, 3, 3, 3), (1, 4, 4, 4, 4, 6, 6), 203),
    "A1": (224, (16, 16, 24, 32, 64, 112, 192, 216, 1984), (1, 3, 3, 3, 3, 3, 1), (3, 3, 3, 5, 3, 5, 3), (1, 4, 4, 4, 4, 6, 6), 279),
    "A2": (224, (16, 16, 24, 32, 64, 112, 200, 224, 1984), (1, 3, 3, 3, 3, 4, 1), (3, 3, 3, 3, 3, 5, 3), (1, 4, 5, 4, 4, 6, 6), 317),
    "A3": (224, (16, 16, 24, 32, 64, 112, 208, 224, 1984), (2, 3, 3, 4, 3, 5, 1), (3, 3, 3, 5, 3, 3, 3), (1, 4, 4, 4, 4, 6, 6), 357),
    "A4": (256, (16, 16, 24, 32, 64, 112, 192, 216, 1984), (1, 3, 3, 4, 3, 5, 1), (3, 3, 3, 5, 3, 5, 3), (1, 4, 4, 5, 4, 6, 6), 444),
    "A5": (256, (16, 16, 24, 32, 72, 112, 192, 216, 1792), (1, 3, 3, 3, 4, 6, 1), (3, 3, 3, 5, 3, 3, 3), (1, 4, 5, 4, 4, 6, 6), 491),
    "A6": (288, (16, 16, 24, 32, 64, 112, 216, 224, 1984), (1, 3, 3, 4, 4, 6, 1), (3, 3, 3, 3, 3, 5, 3), (1, 4, 6, 5, 4, 6, 6), 709),
}


def ours(*, largest: bool) -> Costs:
    """Return what an end of the base classifier's space costs, map by map."""
    end = replace(BASE.largest() if largest else BASE.smallest(), resolution=_SIDE)
    of_units = unit_macs(end, BASE)
    counts = dict(zip(_STRIDES, zip(of_units, unit_num_weights(end, BASE), strict=True), strict=True))
    linear = (BASE.head_width * BASE.num_classes, (BASE.head_width + 1) * BASE.num_classes)
    fixed = (macs(end, BASE) - sum(of_units) - linear[0], fixed_num_weights(end, BASE) - linear[1])
    counts[_STRIDES[-1]] = (counts[_STRIDES[-1]][0] + fixed[0], counts[_STRIDES[-1]][1] + fixed[1])
    return {**counts, 0: linear}


def main() -> None:
    """Print both tables."""
    arguments = results.parser(__doc__).parse_args()
    ends = {
        "classifier-base, smallest": ours(largest=False),
        "OFA-MobileNetV3, smallest": costs(ofa(2, 3, 3), _SIDE),
        "AttentiveNAS, smallest": costs(
            attentive((16, 16, 24, 32, 64, 112, 192, 216, 1792), (1, 3, 3, 3, 3, 3, 1), (3,) * 7, (1, 4, 4, 4, 4, 6, 6)), _SIDE
        ),
        "classifier-base, largest": ours(largest=True),
        "OFA-MobileNetV3, largest": costs(ofa(4, 7, 6), _SIDE),
        "AttentiveNAS, largest": costs(
            attentive((24, 24, 32, 40, 72, 128, 216, 224, 1984), (2, 5, 6, 6, 8, 8, 2), (5,) * 7, (1, 6, 6, 6, 6, 6, 6)), _SIDE
        ),
    }
    print("| at 224 px | 1/2 | 1/4 | 1/8 | 1/16 | 1/32 | after the mean | all: M MACs | weights |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, counts in ends.items():
        cells = [f"{counts[stride][0] / 1e6:.1f}, {counts[stride][1] / 1e3:,.0f} k" for stride in (*_STRIDES, 0)]
        total = (f"{sum(each[0] for each in counts.values()) / 1e6:.1f}", f"{sum(each[1] for each in counts.values()):,}")
        results.say(f"| {' | '.join((name, *cells, *total))} |", network=name, macs_and_weights_by_stride=counts)
    for name, (side, *choices, published) in PUBLISHED.items():
        counted = sum(each[0] for each in costs(attentive(*choices), side).values()) / 1e6
        results.say(
            f"AttentiveNAS-{name}: {published} published, {counted:.1f} counted", network=name, published=published, counted=counted
        )
    results.write(arguments)


if __name__ == "__main__":
    main()
