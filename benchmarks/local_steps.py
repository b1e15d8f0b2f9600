"""What local steps and sparse contributions cost in quality, and save in bytes: several cohorts in one process, at equal samples.

    .venv/bin/python benchmarks/local_steps.py --out FILE [--task classification|stereo] [--settings SETTING ...] [--seeds 0 1 2]
        [--updates N] [--cohorts N] [--algorithm NAME] [--schedule NAME]

A SETTING is CODEC@H, as int16@1 (dense, an exchange after every update) or topk-256-4@10 (of 4096 values the largest 256, 4 bits each, an
exchange after 10 local steps), with what differs from the usual behind commas: topk-256-4@10,residual=95,rate=0.7,momentum=0.9,lr=0.01
(percent of the residual that comes with the next contribution; rate and momentum of the outer step; peak of the rate). Without --settings:
the dense one and ``automl.training.settings.thin``.

Every run has as many updates (rounds times H), microbatches and samples. Classification: digits, 200 updates, 4 cohorts with 4 microbatches
of 32 a step each. Stereo: layers, 100 updates, 4 cohorts with a microbatch of 8 a step each. BatchNorm is recalibrated, nothing is
fine-tuned, the 8 random subnets are the same ones in every run. Each run appends a line of JSON to FILE; what is there already is not run
again. Then prints a
table: the largest, the smallest and the mean of the random subnets, each the mean over the seeds with its range, and how many times fewer
bytes cohorts send than they would with 2 bytes a weight after every update. One process, one thread: some minutes a run.
"""

import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import results
import torch

from manta_swarm.automl.data.catalog import load_dataset
from manta_swarm.automl.evaluation.held_out import metric_of, quality_report
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import thin, usual
from manta_swarm.automl.training.trainer import SimulatedSwarm, Trainer
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import ALGORITHMS, SCHEDULES

_UPDATES = {"classification": 200, "stereo": 100}
_SETTING = re.compile(r"([a-z0-9-]+)@([1-9][0-9]*)((?:,(?:residual|rate|momentum|lr)=[0-9.]+)*)")

Run = dict[str, object]


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """What all runs of one call have in common."""

    task: str
    updates: int
    cohorts: int
    algorithm: str
    schedule: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How cohorts exchange what they learnt."""

    name: str
    codec: str
    local_steps: int
    residual_percent: int = 100
    outer_rate: str | None = None  # None: the usual one
    outer_momentum: str | None = None
    learning_rate: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """Return the setting of a text.

        Raises:
            ValueError: it is none.
        """
        found = _SETTING.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no setting; write it like topk-256-4@10,residual=95,rate=0.7,momentum=0.9,lr=0.01")
        others = dict(part.split("=") for part in found[3].split(",")[1:])
        return cls(
            text,
            codec_named(found[1]).name,
            int(found[2]),
            int(others.get("residual", 100)),
            others.get("rate"),
            others.get("momentum"),
            others.get("lr"),
        )


def usual_settings(task: str) -> list[str]:
    """Return the dense setting and the thin one."""
    chosen = thin(task)
    return ["int16@1", f"{chosen.codec}@{chosen.local_steps},residual={chosen.residual_percent}"]


def trained(training_spec: TrainingSpec, setting: Setting, seed: int) -> Run:
    """Train once; return the figures."""
    usually = usual(training_spec.task).with_local_steps(setting.local_steps)
    optimizer = usually.optimizer
    optimizer = replace(
        optimizer,
        outer_rate=setting.outer_rate or optimizer.outer_rate,
        outer_momentum=setting.outer_momentum or optimizer.outer_momentum,
        learning_rate=setting.learning_rate or optimizer.learning_rate,
    )
    rounds = -(-training_spec.updates // setting.local_steps)
    plan = Plan(usually.supernet, training_spec.schedule, training_spec.algorithm, optimizer, rounds, seed, setting.local_steps)
    dataset = load_dataset(usually.dataset, None)
    swarm = SimulatedSwarm(usually.microbatch_samples, usually.target_batch, training_spec.cohorts, setting.codec, setting.residual_percent)
    trainer = Trainer(plan, dataset, swarm)
    started_s = time.monotonic()
    while not trainer.finished:
        trainer.step()
    report = quality_report(trainer.state.parameters, plan.supernet, dataset)
    traffic = trainer.traffic
    assert traffic is not None
    return {
        "largest": report["largest"],
        "smallest": report["smallest"],
        "random": report["random"],
        "baseline": report["baseline"],
        "rounds": rounds,
        "round_bytes": traffic.sent_bytes,
        "fp16_ratio": traffic.fp16_ratio,
        "seconds": round(time.monotonic() - started_s),
    }


def known_runs(path: Path) -> list[Run]:
    """Return the runs that a file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def place_of(training_spec: TrainingSpec, setting: Setting, seed: int) -> Run:
    """Return what names a run in the file."""
    return {
        "task": training_spec.task,
        "updates": training_spec.updates,
        "cohorts": training_spec.cohorts,
        "algorithm": training_spec.algorithm,
        "schedule": training_spec.schedule,
        "setting": setting.name,
        "seed": seed,
    }


def run(training_spec: TrainingSpec, settings: Sequence[Setting], seeds: Sequence[int], path: Path) -> list[Run]:
    """Train whatever the file lacks, and return all that was asked for."""
    found = []
    for seed in seeds:
        for setting in settings:
            place = place_of(training_spec, setting, seed)
            there = [one for one in known_runs(path) if one.items() >= place.items()]
            if not there:
                there = [{**place, **trained(training_spec, setting, seed)}]
                with path.open("a") as file:
                    file.write(json.dumps(there[0]) + "\n")
                print(f"  {setting.name} seed {seed}: {there[0]['seconds']} s", file=sys.stderr, flush=True)
            found.append(there[0])
    return found


def show(training_spec: TrainingSpec, settings: Sequence[Setting], runs: Sequence[Run]) -> None:
    """Print a table for a person."""
    metric = metric_of(training_spec.task)
    print(
        f"\n{training_spec.task}, {training_spec.algorithm}, {training_spec.schedule}: {training_spec.updates} updates, "
        f"{training_spec.cohorts} cohorts, {metric}; "
        f"{len(runs) // len(settings)} seeds"
    )
    print(f"{'setting':<40} {'largest':>22} {'smallest':>22} {'mean of 8 random':>22} {'bytes a round':>14} {'fewer than fp16':>16}")
    for setting in settings:
        of_setting = [one for one in runs if one["setting"] == setting.name]
        columns = [
            written([float(one["largest"]) for one in of_setting], metric),  # type: ignore[arg-type]
            written([float(one["smallest"]) for one in of_setting], metric),  # type: ignore[arg-type]
            written([statistics.mean(one["random"]) for one in of_setting], metric),  # type: ignore[arg-type]
        ]
        results.keep(setting=setting.name, runs=of_setting)
        first = of_setting[0]
        qualities = " ".join(f"{column:>22}" for column in columns)
        print(f"{setting.name:<40} {qualities} {first['round_bytes']:>14,} {first['fp16_ratio']:>15.1f}x")


def written(values: Sequence[float], metric: str) -> str:
    """Return the mean and the range, in percent or in pixels."""
    factor, digits = (1.0, 3) if metric == "epe" else (100.0, 1)
    mean, low, high = (f"{factor * value:.{digits}f}" for value in (statistics.mean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low}-{high})"


def main() -> None:
    """Run from the command line."""
    parser = results.parser(__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    parser.add_argument("--task", choices=sorted(_UPDATES), default="classification")
    parser.add_argument("--settings", nargs="+", metavar="SETTING")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--updates", type=int, metavar="N")
    parser.add_argument("--cohorts", type=int, default=4, metavar="N")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default=ALGORITHMS[0])
    parser.add_argument("--schedule", choices=SCHEDULES, default=SCHEDULES[0])
    arguments = parser.parse_args()
    try:
        settings = [Setting.parse(text) for text in arguments.settings or usual_settings(arguments.task)]
    except ValueError as error:
        parser.error(str(error))
    updates = arguments.updates or _UPDATES[arguments.task]
    training_spec = TrainingSpec(arguments.task, updates, arguments.cohorts, arguments.algorithm, arguments.schedule)
    torch.set_num_threads(1)
    show(training_spec, settings, run(training_spec, settings, arguments.seeds, arguments.out))
    results.write(arguments)


if __name__ == "__main__":
    main()
