"""The commands of manta-aggregator about a run file: write one, check one. Parses, asks, calls, prints, exits."""

import math
import sys
from pathlib import Path
from typing import Any

import click

from manta_swarm.aggregator.commands import DATA_ROOT, RUN_FILE, clear_errors
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import TASKS
from manta_swarm.runtime.commands import ending_at_ctrl_c


@click.command()
@RUN_FILE
@click.option("--task", type=click.Choice(TASKS), help="Task that the settings suit.  [default: classification]")
@click.option("--dense", is_flag=True, default=None, help="Exchange every value, one step a round: for few peers with fast links.")
@click.option("--name", metavar="NAME", help="Run's name, shown to volunteers.  [default: the data set's]")
@click.option("--dataset", metavar="NAME", help="Data set; see manta-search data.  [default: the task's usual one]")
@click.option("--supernet", metavar="NAME", help="Weights that all subnets share.  [default: the task's small ones]")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Exchanges of the whole swarm.  [default: the task's usual number]")
@click.option("--private", is_flag=True, default=None, help="Each peer trains on images of its own; they stay there.")
def init(run_file: Path, **options: Any) -> None:
    """Write a run file with every setting explained. For little traffic: several local steps a round, and the largest values.

    On a terminal, without options, it asks.
    """
    with clear_errors():
        if run_file.exists():
            raise UserError(f"{run_file} exists already; it is left as it is: choose another name, or move it away")
        given = {name: value for name, value in options.items() if value is not None}
        if not given and sys.stdin.isatty() and sys.stdout.isatty():
            given = _asked()
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.settings.config import write_run_file

        settings = _settings(given)
        settings.check()
        write_run_file(run_file, settings)
        click.echo(f"wrote {run_file}; read it, then: manta-aggregator check {run_file}, and manta-aggregator start {run_file} --dir DIR")


def _asked() -> dict[str, Any]:
    """Return what the operator answers; an empty answer takes what is usual."""
    task = click.prompt("What is trained", type=click.Choice(TASKS), default=TASKS[0])
    given: dict[str, Any] = {"task": task}
    given["dense"] = not click.confirm("Do peers come over the internet, where little traffic matters", default=True)
    if task == TASKS[0]:
        given["private"] = click.confirm("Does each peer train on images of its own, which stay where they are", default=False)
    usual = _settings(given)
    given["dataset"] = click.prompt("The data set (manta-search data lists them)", default=usual.data.dataset)
    given["supernet"] = click.prompt("The supernet", default=usual.data.supernet)
    given["name"] = click.prompt("The run's name, shown to volunteers", default=given["dataset"])
    given["rounds"] = click.prompt("Rounds", type=click.IntRange(1), default=usual.run.rounds)
    return given


def _settings(given: dict[str, Any]) -> Any:
    """Return the run file of these answers.

    Raises:
        UserError: one of them cannot be.
    """
    from pydantic import ValidationError

    from manta_swarm.aggregator.settings.config import RunConfig

    task = given.get("task", TASKS[0])
    values = (RunConfig.usual(task) if given.get("dense") else RunConfig.thin(task)).model_dump()
    values["run"]["name"] = given.get("name", given.get("dataset", values["run"]["name"]))
    values["run"]["rounds"] = given.get("rounds", values["run"]["rounds"])
    values["run"]["data"] = "private" if given.get("private") else "shared"
    for key in ("dataset", "supernet"):
        values["data"][key] = given.get(key, values["data"][key])
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UserError(f"--{problem['loc'][-1]}: {problem['msg'].removeprefix('Value error, ')}") from error


@click.command()
@RUN_FILE
@DATA_ROOT
@click.option(
    "--samples-per-s",
    type=click.FloatRange(0.01),
    default=50.0,
    show_default=True,
    metavar="RATE",
    help="Samples a second that a peer trains; a guess.",
)
@click.option(
    "--peers",
    type=click.IntRange(1, 1_000_000),
    multiple=True,
    metavar="N",
    help="Number of peers; may be repeated.  [default: 10, 100, 1000]",
)
def check(run_file: Path, data_root: Path | None, samples_per_s: float, peers: tuple[int, ...]) -> None:
    """Say whether RUN_FILE makes a run, and what it will take. That is traffic, memory, disk and time, for 10, 100 and 1,000 peers."""
    with clear_errors():
        from manta_swarm.aggregator.settings.config import load_run_file
        from manta_swarm.automl.data.names import check_name

        if not math.isfinite(samples_per_s):
            raise UserError(f"--samples-per-s takes a number, not {samples_per_s}")
        config = load_run_file(run_file)
        root = data_root or config.data_root
        check_name(config.data.dataset, root)
        with ending_at_ctrl_c():
            from manta_swarm.aggregator.settings.forecast import PEERS, lines, sizes_of
            from manta_swarm.automl.data.catalog import load_dataset

        from manta_swarm.protocol.signing import Identity

        dataset = load_dataset(config.data.dataset, root)
        manifest = config.manifest(Identity(bytes(32)), bytes(32), dataset)
        click.echo(
            f"{run_file} makes a run: {manifest.task} on {manifest.dataset}, {manifest.supernet}, {manifest.algorithm}, "
            f"{manifest.schedule}, {manifest.num_rounds} rounds, local steps: {manifest.exchange.local_steps}, {manifest.exchange.codec}"
        )
        for line in lines(config, sizes_of(config, dataset), samples_per_s, peers or PEERS):
            click.echo(line)


COMMANDS = (init, check)
