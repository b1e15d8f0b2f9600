"""manta-swarm: a real swarm on one computer. Parses, calls, prints, exits.

A command imports what it needs itself: first what reads and checks the settings, then, once they hold, what works.
"""

import signal
import sys
from pathlib import Path
from typing import Any

import click

from manta_swarm.aggregator.local import MAX_PEERS
from manta_swarm.protocol.errors import MantaError, UserError
from manta_swarm.protocol.exchange import MAX_LOCAL_STEPS
from manta_swarm.protocol.fields import MAX_ROUND
from manta_swarm.protocol.manifest import ALGORITHMS, SCHEDULES, TASKS
from manta_swarm.runtime.commands import check_installed, ending_at_ctrl_c, ending_in_a_line
from manta_swarm.runtime.disk import replace_file
from manta_swarm.runtime.signals import collecting

_PEERS = click.IntRange(1, MAX_PEERS)
_WORKERS = click.IntRange(1, 256)  # as many as a peer takes
_ROUNDS = click.IntRange(1, MAX_ROUND)
_STEPS = click.IntRange(1, MAX_LOCAL_STEPS)
_SEEDS = click.IntRange(0, 2**63 - 1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Run a whole swarm on this computer."""


@main.command()
@click.option("--peers", type=_PEERS, metavar="N", help="Peers to start.  [default: 4, or a peer for each folder of --private]")
@click.option(
    "--cohorts",
    type=_PEERS,
    metavar="N",
    help="Cohorts to spread them over.  [default: 2; with --private, and for no cohorts, as many as peers]",
)
@click.option("--affinity", is_flag=True, help="Let peers that are near form cohorts by themselves.")
@click.option(
    "--workers", type=_WORKERS, metavar="N", help="Processes that share a peer's threads; on the CPU alone.  [default: none but its own]"
)
@click.option("--rounds", type=_ROUNDS, metavar="N", help="Rounds to train.  [default: enough for a good result]")
@click.option("--local-steps", type=_STEPS, default=1, show_default=True, metavar="H", help="Updates of a cohort between two exchanges.")
@click.option("--codec", default="int16", show_default=True, metavar="NAME", help="Codec of exchanges: int16, int8 or topk-KEPT-BITS.")
@click.option("--task", type=click.Choice(TASKS), help="What is learnt.  [default: that of --data, else classification]")
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default=ALGORITHMS[0], show_default=True, help="What a cohort trains in a round."
)
@click.option(
    "--schedule",
    type=click.Choice(SCHEDULES),
    default=SCHEDULES[0],
    show_default=True,
    help="How the sizes are trained; shrinking is experimental.",
)
@click.option("--data", metavar="NAME", help="Data set; see manta-search data.  [default: digits, or layers for stereo]")
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Data sets that come with no library.")
@click.option(
    "--private",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with each peer's own data in a folder; --data is the aggregator's, to measure by.",
)
@click.option("--supernet", metavar="NAME", help="Family of supernets.  [default: the task's tiny one]")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), metavar="DIR", help="Folder, new or empty.  [default: a temporary one, kept]"
)
@click.option("--seed", type=_SEEDS, default=0, show_default=True, metavar="N", help="Everything random follows from it.")
@click.option(
    "--min-largest",
    type=float,
    metavar="PERCENT",
    help="Fail if the largest subnet is worse.  [default: 90 for digits; none with --rounds]",
)
@click.option(
    "--min-smallest",
    type=float,
    metavar="PERCENT",
    help="Fail if the smallest subnet is worse.  [default: 80 for digits; none with --rounds]",
)
@click.option(
    "--max-epe",
    type=float,
    metavar="PIXELS",
    help="Stereo: fail if the largest or smallest errs more.  [default: a constant's error; none with --rounds]",
)
@click.option("--monitor", metavar="ADDRESS", help="HOST:PORT of the monitor's page.  [default: 127.0.0.1:8787, or a free port]")
@click.option("--no-monitor", is_flag=True, help="Start no monitor.")
def up(**options: Any) -> None:
    """Start an aggregator and peers, train a run to its end, report. What came of it is checked. Ctrl-C stops all of it."""
    with ending_in_a_line("manta-swarm"):
        _run(options)


def _run(options: dict[str, Any]) -> None:
    from manta_swarm.aggregator.local.settings import Options, make_settings

    check_installed()
    settings = make_settings(Options(**options))
    with ending_at_ctrl_c():
        from rich.console import Console

        from manta_swarm.aggregator.local.report import show
        from manta_swarm.aggregator.local.swarm import LocalSwarm, Stopped

    try:
        with collecting(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as told:
            report = LocalSwarm(settings, Console(), told).run()
    except UserError:
        raise
    except Stopped as error:
        click.echo(f"manta-swarm: {error}; nothing is left running; files: {settings.directory}", err=True)
        sys.exit(128 + error.number)
    except MantaError as error:
        click.echo(f"manta-swarm: {error}\nfiles: {settings.directory}", err=True)
        sys.exit(1)
    replace_file(settings.directory / "report.json", report.model_dump_json(indent=1).encode())
    show(report, Console())
    sys.exit(0 if report.succeeded else 1)


if __name__ == "__main__":
    main()
