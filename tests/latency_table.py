"""A latency table that nobody measured."""

from manta_swarm.automl.latency.table import Accuracy, Conditions, LatencyTable
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import TINY


def table_of(name: str = "A Processor (R) v2", supernet: str = TINY.name) -> LatencyTable:
    """Return a valid table for the tiny classifier, whatever supernet it says it is of."""
    return LatencyTable(
        supernet=supernet,
        conditions=Conditions(device="cpu", name=name, threads=2, dtype="fp32", batch=1, version="2.0"),
        entries={key: 0.5 for key, _ in cost_table(TINY)},
        offset=0.25,
        factor=1.0,
        accuracy=Accuracy(num_fitted=8, num_checked=8, mean_error=0.01, worst_error=0.02, rank_correlation=0.9),
    )
