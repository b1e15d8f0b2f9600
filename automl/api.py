"""What researchers use from Python: ``import manta_swarm`` gives all of it, and loads this module when a name is first used.

A snapshot is opened, a subnet of it chosen or searched for, measured, cut out, exported, and opened again. Nothing here trains, and nothing
needs a network. A mistake raises ``UserError`` with a line that says what to do.
"""

from collections.abc import Sequence
from pathlib import Path

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import ALL, TEST, Dataset, EvaluationSet
from manta_swarm.automl.data.names import UNKNOWN
from manta_swarm.automl.evaluation.held_out import Quality, check_fit, measure
from manta_swarm.automl.evaluation.held_out import evaluate as evaluate_subnets
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.export.description import presentation_of
from manta_swarm.automl.export.files import ExportedNetwork, Written, open_exported, write
from manta_swarm.automl.export.quantised import quantised
from manta_swarm.automl.export.subnet import Subnet, provenance_of
from manta_swarm.automl.export.subnet import cut as cut_out
from manta_swarm.automl.forms import FORMATS, INT8, default_name
from manta_swarm.automl.latency.table import LatencyTable
from manta_swarm.automl.precisions import FP32
from manta_swarm.automl.search.constraints import costs_of, region_within
from manta_swarm.automl.search.evaluators import Evaluator, LocalEvaluator
from manta_swarm.automl.search.evolution import Effort
from manta_swarm.automl.search.journal import Journal
from manta_swarm.automl.search.search import Found, Strategy, Unwatched, default_predictor
from manta_swarm.automl.search.search import search as search_region
from manta_swarm.automl.spaces.cost import macs, num_weights
from manta_swarm.automl.spaces.space import Architecture, SearchSpace, space_named
from manta_swarm.automl.training.snapshot import Snapshot, open_snapshot
from manta_swarm.protocol.errors import MantaError, UserError

__all__ = [
    "Architecture",
    "Dataset",
    "Effort",
    "Evaluator",
    "ExportedNetwork",
    "Found",
    "LatencyTable",
    "MantaError",
    "Measured",
    "Quality",
    "SearchSpace",
    "Snapshot",
    "Subnet",
    "UserError",
    "Written",
    "cut",
    "evaluate",
    "evaluate_exported",
    "export",
    "load_dataset",
    "macs",
    "num_weights",
    "open_exported",
    "open_snapshot",
    "search",
    "space_named",
]


def search(
    snapshot: Snapshot,
    dataset: Dataset | None,
    *,
    max_macs: float | None = None,
    max_weights: float | None = None,
    max_latency_ms: float | None = None,
    latency_table: LatencyTable | None = None,
    evaluator: Evaluator | None = None,
    effort: Effort | None = None,
    seed: int = 0,
) -> Found:
    """Return the best subnet of a snapshot within limits, and the Pareto front that it was chosen from; nothing is trained.

    It is what ``manta-search find`` finds with the same limits, effort and seed. ``found.best.architecture`` is the choice.

    Args:
        snapshot: whose subnets are searched.
        dataset: whose held-out samples they are measured on, in this process; None: the ``evaluator`` measures them.
        max_macs: multiply-accumulates of one sample that a subnet may have.
        max_weights: weights that it may have.
        max_latency_ms: milliseconds that one run may take, by the ``latency_table``.
        latency_table: of the device, made by ``manta-search profile``; without a limit it is an axis of the front.
        evaluator: who measures in place of this process, by the losses of samples that it alone knows.
        effort: how many architectures are measured; by default 15 generations of 40.
        seed: all that is random follows from it.

    Raises:
        UserError: no subnet keeps the limits, the data are for another network, or a subnet's quality is no number.
        ValueError: a limit is not above zero, or is on latencies without a table; not exactly one of data set and evaluator is given.
    """
    if max_latency_ms is not None and latency_table is None:
        raise ValueError("a limit on latencies needs a latency table")
    if latency_table is not None and latency_table.supernet != snapshot.space.name:
        raise UserError(f"the latency table is of {latency_table.supernet}, and the snapshot of {snapshot.space.name}; measure it anew")
    wanted = {"macs": max_macs, "weights": max_weights, "latency": max_latency_ms}
    limits = {name: limit for name, limit in wanted.items() if limit is not None}
    region, axes = region_within(snapshot.space, costs_of(snapshot.space, latency_table), limits)
    if (dataset is None) == (evaluator is None):
        raise ValueError("give a data set, or an evaluator in its place")
    if dataset is not None:
        check_fit(dataset, snapshot.space)
        evaluator = LocalEvaluator(snapshot.supernet, dataset)
    assert evaluator is not None
    strategy = Strategy(effort or Effort(), seed, default_predictor(snapshot.space))
    return search_region(region, axes, evaluator, strategy, Journal(), Unwatched())


def evaluate(
    snapshot: Snapshot,
    dataset: Dataset,
    architectures: Sequence[Architecture],
    *,
    part: str = ALL,
    precision: str = FP32,
    tested: EvaluationSet | None = None,
) -> list[Quality]:
    """Return how good subnets of a snapshot are on held-out samples, each with its statistics measured anew and nothing fine-tuned.

    Args:
        snapshot: whose subnets they are.
        dataset: whose training samples the statistics are of.
        architectures: of the snapshot's space.
        part: of the held-out samples: "all", "search" (that a search chooses by) or "test" (the others).
        precision: what a GPU computes in: "fp32", "tf32" or "bf16"; a CPU computes in "fp32".
        tested: what is measured on instead of the data set.

    Returns:
        For each architecture "accuracy", a share from 0 to 1; of stereo "epe" in pixels, "d1" and "bad3", shares from 0 to 1.

    Raises:
        UserError: the data are for another network, or the snapshot's weights are broken.
    """
    check_fit(dataset, snapshot.space)
    return evaluate_subnets(snapshot.supernet, tested or dataset, architectures, part=part, precision=precision)


def evaluate_exported(network: ExportedNetwork, dataset: Dataset, *, part: str = TEST) -> Quality:
    """Return how good an exported network is on held-out samples; figures and parts are those of ``evaluate``.

    Raises:
        UserError: the data are for another network, or the network computes no numbers.
    """
    check_fit(dataset, network.description.space)
    return measure(network, dataset, network.description.architecture.resolution, part=part)


def cut(
    snapshot: Snapshot,
    architecture: Architecture,
    dataset: Dataset,
    *,
    licence: str = UNKNOWN,
    data_licence: str | None = None,
    int8: bool = False,
) -> Subnet:
    """Return a subnet of a snapshot as a plain network, its statistics measured on training samples and its quality on held-out ones.

    ``subnet.network`` is a module in evaluation mode on the CPU. Images (B, C, H, W) from 0 to 1 give logits (B, classes). Both views of a
    stereo pair, stacked along C, give disparities (B, H, W) in pixels.

    Args:
        snapshot: whose subnet it is.
        architecture: of the snapshot's space.
        dataset: that it is for.
        licence: the network's, as model hubs call it, like "mit".
        data_licence: the data set's; None: what the set tells itself.
        int8: quantise it to 8 bits as well, for ``export`` in the format "int8".

    Raises:
        UserError: the data are for another network, the snapshot is damaged, or a package for ONNX is missing.
    """
    provenance = provenance_of(snapshot.path, snapshot.state, snapshot.metadata)
    subnet = cut_out(snapshot.supernet, architecture, dataset, provenance, presentation_of(dataset, licence, data_licence))
    return quantised(subnet, dataset) if int8 else subnet


def export(
    subnet: Subnet, folder: Path | str, name: str | None = None, formats: Sequence[str] = FORMATS, *, overwrite: bool = False
) -> list[Written]:
    """Write a subnet to a folder in some forms, and return what was written: all of them, or nothing.

    Args:
        subnet: what ``cut`` returned.
        folder: where to; it is made.
        name: of the files and the folder; None: of supernet and architecture.
        formats: of "pt2", "onnx", "folder" (for model hubs), "int8" (ONNX, of a subnet that was cut with ``int8``) and "pte" (ExecuTorch).
        overwrite: replace an earlier export of that name.

    Raises:
        UserError: something else has such a name, a package is missing, or the disk refuses.
        OwnFault: a file does not compute what the network computes.
        ValueError: a format is unknown, or "int8" is asked of a subnet that was cut without.
    """
    if INT8 in formats and not subnet.int8_model:
        raise ValueError("the subnet has no int8 model: cut it with int8=True")
    description = subnet.description
    return write(subnet, Path(folder), name or default_name(description.supernet, description.architecture.id), formats, overwrite)
