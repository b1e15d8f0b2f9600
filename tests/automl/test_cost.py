import random
from collections import Counter

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from automl.classifier import Supernet
from automl.cost import cost_table, macs
from automl.space import TINY, Architecture
from protocol.rewards import architecture_cost

ARCHITECTURES = [TINY.largest(), TINY.smallest(), *(TINY.sample(random.Random(index)) for index in range(5))]


def counted_flops(supernet: Supernet, architecture: Architecture, images: int) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        supernet(torch.rand(images, 1, 32, 32), architecture)
    return counter.get_total_flops()


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.id[:6])
def test_the_genes_costs_add_up_to_what_torch_counts(supernet: Supernet, architecture: Architecture) -> None:
    # The kernels' transforms cost the same for any number of images, so the difference is one image's.
    one_image = counted_flops(supernet, architecture, 3) - counted_flops(supernet, architecture, 2)
    assert 2 * macs(architecture, TINY) == one_image


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.id[:6])
def test_a_ledger_with_this_table_prices_an_architecture_at_its_macs(architecture: Architecture) -> None:
    assert architecture_cost(architecture.text, dict(cost_table(TINY))) == macs(architecture, TINY)


def test_the_table_prices_every_gene_once() -> None:
    counts = Counter(gene for gene, _ in cost_table(TINY))
    assert set(counts) == set(TINY.genes())
    assert set(counts.values()) == {1}
    assert all(cost > 0 for _, cost in cost_table(TINY))
