"""Evaluates a few subnets of the newest snapshot, again and again.

Run as ``python -m manta_swarm.aggregator.monitor.evaluator DIR SHARE [DATA_ROOT]``: a process of its own at the lowest priority, with one
thread, that works at most SHARE of the time. It reads snapshots, which are whole or not there, and writes what it finds to DIR/monitor;
nobody waits for it.
"""

import logging
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from manta_swarm.aggregator.log.contents import SNAPSHOTS
from manta_swarm.aggregator.log.storage import read_manifest
from manta_swarm.aggregator.monitor.quality import INDEX, PICTURES, QUALITY, EvaluationSeen, QualityPoint, evaluation_of
from manta_swarm.aggregator.monitor.scenes import Drawn, draw
from manta_swarm.aggregator.monitor.settings import DIRECTORY
from manta_swarm.aggregator.status import unix_ms
from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.data.dataset import STEREO, Dataset
from manta_swarm.automl.evaluation.held_out import baseline, quick_evaluation
from manta_swarm.automl.latency.profiler import core_ms
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.rewards import architecture_cost
from manta_swarm.runtime.disk import disk_errors, replace_file
from manta_swarm.runtime.line import BEATS, Parent, be_child
from manta_swarm.runtime.round_folder import RoundFolder

_RANDOM = 6  # subnets, the same ones in every evaluation
_LOOK_S = 1.0

logger = logging.getLogger("manta.evaluator")


@dataclass(frozen=True, slots=True)
class EvaluatedSubnet:
    """A subnet that is evaluated."""

    kind: str
    architecture: Architecture
    macs: int


class StateEvaluator:
    """Evaluates one run's states."""

    def __init__(self, manifest: Manifest, dataset: Dataset, directory: Path) -> None:
        """Evaluate on ``dataset``, and write into the run's ``directory``."""
        self._space = space = space_named(manifest.supernet)
        prices = manifest.cost_table()
        random_ones = [space.sample(random.Random(f"{manifest.seed}:report:{index}")) for index in range(_RANDOM)]
        chosen = [("largest", space.largest()), ("smallest", space.smallest()), *(("random", one) for one in random_ones)]
        self._subjects = [EvaluatedSubnet(kind, one, architecture_cost(one.text, prices)) for kind, one in chosen]
        self._dataset = dataset
        self._supernet = build(space)
        self._latencies = [float("inf")] * len(self._subjects)  # the least that was measured of each so far
        self._directory = directory / DIRECTORY
        self._baseline = baseline(dataset, space.resolutions[-1]) if dataset.task == STEREO else None

    def evaluate(self, state: State) -> None:
        """Evaluate a state, and write down how good it is and what it answers.

        Raises:
            StorageError: the disk refuses.
        """
        started_s = time.process_time()
        self._supernet.load(state.parameters)
        points, drawn, samples = [], {}, 0
        for subject, latency_ms in zip(self._subjects, self._measured(), strict=True):
            found = quick_evaluation(self._supernet, self._dataset, subject.architecture)
            samples = found.samples
            costs = {"macs": subject.macs, "latency_ms": latency_ms}
            points.append(QualityPoint(kind=subject.kind, quality=found.quality, loss=found.loss, **costs))  # type: ignore[arg-type]
            if subject.kind != "random":
                drawn[subject.kind] = draw(self._supernet, self._dataset, subject.architecture)
        seen = EvaluationSeen(
            round=state.round,
            state=state_digest(state).hex(),
            at=unix_ms(),
            seconds=round(time.process_time() - started_s, 3),
            held_out=samples,
            baseline=self._baseline,
            points=tuple(points),
        )
        self._write_pictures(drawn["largest"], drawn["smallest"], state.round)
        path = self._directory / QUALITY
        with disk_errors(path), path.open("ab") as file:
            file.write(seen.model_dump_json().encode() + b"\n")

    def _measured(self) -> list[float]:
        """Return the subjects' latencies. Other programs can only make them longer: so each evaluation measures a little, and the
        least counts.
        """
        found = core_ms(self._space, [subject.architecture for subject in self._subjects])
        self._latencies = [min(pair) for pair in zip(found, self._latencies, strict=True)]
        return [float(f"{each:.4g}") for each in self._latencies]

    def _write_pictures(self, largest: Drawn, smallest: Drawn, round_: int) -> None:
        """Write the pictures, then the index that names them; then remove those of before."""
        folder = self._directory / PICTURES
        index, pictures = largest.beside(smallest, round_)
        with disk_errors(folder):
            for name, data in pictures.items():
                if not (folder / f"{name}.png").exists():
                    replace_file(folder / f"{name}.png", data)
            replace_file(folder / INDEX, index.model_dump_json().encode())
            for path in folder.glob("*.png"):
                if path.stem not in pictures:
                    path.unlink(missing_ok=True)


def newest_snapshot(directory: Path) -> tuple[int, Path] | None:
    """Return the newest round that has a snapshot, and that; None: there is none."""
    folder = RoundFolder(directory / SNAPSHOTS, prefix="round-")
    rounds = folder.rounds(".safetensors")
    return (rounds[-1], folder.path(rounds[-1], ".safetensors")) if rounds else None


def last_evaluated(path: Path) -> int:
    """Return the round that was evaluated last, -1 if none was. What a kill or a full disk left of a line is cut off; a line that is
    whole and damaged is passed over, as readers do.

    Raises:
        StorageError: the disk refuses.
    """
    with disk_errors(path):
        if not path.exists():
            return -1
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
    found = (evaluation_of(line) for line in reversed(whole.splitlines()))
    return next((one.round for one in found if one is not None), -1)


def evaluate(evaluator: StateEvaluator, directory: Path, share: float) -> None:
    """Evaluate the newest snapshot, rest, and so on for ever.

    Raises:
        StorageError: the disk refuses.
    """
    done = last_evaluated(directory / DIRECTORY / QUALITY)
    while True:
        newest = newest_snapshot(directory)
        if newest is None or newest[0] <= done:
            time.sleep(_LOOK_S)
            continue
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        try:
            state, _ = load_snapshot(newest[1])
        except UserError as error:
            if newest[1].exists():
                logger.warning("not read path=%s reason=%s", newest[1], error)
            time.sleep(_LOOK_S)  # else a newer one took its place
            continue
        evaluator.evaluate(state)
        done = state.round
        worked_s = time.process_time() - began_cpu_s
        time.sleep(max(0.0, worked_s / share - (time.monotonic() - began_s)))


def work(parent: Parent) -> None:
    """Evaluate until the parent ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    parent.keep_beating()
    torch.set_num_threads(1)
    directory, share = Path(sys.argv[1]), float(sys.argv[2])
    manifest = read_manifest(directory).open()
    dataset = load_dataset(manifest.dataset, Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    evaluate(StateEvaluator(manifest, dataset, directory), directory, share)


if __name__ == "__main__":
    be_child(BEATS, work)
