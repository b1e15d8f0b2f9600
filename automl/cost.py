"""What an architecture costs, in multiply-accumulates (MACs) of one image: a sum over its genes, so that a table prices them all."""

from automl.space import Architecture, SearchSpace


def cost_table(space: SearchSpace) -> tuple[tuple[str, int], ...]:
    """Return (gene, MACs) for every gene of the space; an architecture's MACs are the sum over its genes.

    Convolutions and the head count; normalisations and activations do not, as usual in the field.
    """
    costs = {f"r{space.resolution}": space.widths[-1] * space.num_classes}
    side, channels_in, spatial = space.resolution, space.image_channels, space.stem_width
    for unit, width in enumerate(space.widths):
        side = (side + 1) // 2
        for index in range(space.depths[-1]):
            groups = channels_in if channels_in == spatial else 1
            for kernel in space.kernels:
                for expansion in space.expansions:
                    hidden = spatial * expansion
                    per_pixel = kernel**2 * spatial * channels_in // groups + spatial * hidden + hidden * width
                    costs[f"u{unit + 1}.{index}:k{kernel}e{expansion}"] = side**2 * per_pixel
            channels_in = spatial = width
    return tuple((gene, costs[gene]) for gene in space.genes())


def macs(architecture: Architecture, space: SearchSpace) -> int:
    """Return the MACs of one image through the architecture's network."""
    costs = dict(cost_table(space))
    return sum(costs[gene] for gene in architecture.genes)
