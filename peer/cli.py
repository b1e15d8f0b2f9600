"""manta-peer: the volunteer's program. Parses, calls, prints, exits.

A command imports what it needs itself: first what reads and checks the settings, then, once they hold, what works.
"""

import asyncio
import os
import shlex
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from manta_swarm.peer.commands import DATA_ROOT, DIR, INITIAL_PEERS, RUN, clear_errors, directory_in, given
from manta_swarm.peer.commands.credits import credits_command
from manta_swarm.peer.commands.upkeep import COMMANDS, limit_options, limits_command
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.commands import end_soon, ending_at_ctrl_c
from manta_swarm.runtime.console import FORMATS, set_up_logging

if TYPE_CHECKING:
    from manta_swarm.peer.config import PeerConfig
    from manta_swarm.runtime.console import PrintingConsole


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Lend this computer to a Manta run."""


@main.command(name="join")
@click.option("--gpus", metavar="all|none|0,2", help="GPUs to use, by index; without one the CPU computes.  [default: all]")
@click.option("--workers", type=int, metavar="N", help="Share the CPU's threads among N processes.")
@click.option("--cuda-graphs", is_flag=True, default=None, help="Record microbatches on GPUs and replay them: small networks train faster.")
@INITIAL_PEERS
@RUN
@click.option("--invitation", metavar="FILE|TEXT", help="What its operator gave you, where a run takes invited peers only.")
@click.option("--payout", metavar="KEY", help="The key that the credit adds up to, 12D3Koo...  [default: this peer's own]")
@click.option(
    "--cohort", metavar="NAME", help="Average with the peers of this name and token (MANTA_COHORT_TOKEN).  [default: yours on this host]"
)
@click.option("--alone", is_flag=True, default=None, help="Hand in alone, whoever else is near.")
@click.option("--size", type=int, metavar="1..4", help="Model-parallel: train networks up to this size only.  [default: as measured]")
@click.option(
    "--listen", multiple=True, metavar="MADDR|none", help="Address to listen on; none: only dial out.  [default: /ip4/0.0.0.0/tcp/0]"
)
@DIR
@DATA_ROOT
@click.option("--data-limit", metavar="SIZE", help="Disk for a data set that other peers give.  [default: 20GB; none: all there is]")
@click.option("--view", metavar="left|right", help="Stereo: this computer has only these views, a cohort peer the others.")
@click.option("--private-data", type=click.Path(path_type=Path), metavar="DIR", help="Images of your own, where a run asks for them.")
@click.option("--private-noise", type=float, metavar="SIGMA", help="Own images: add noise of SIGMA times the clip to what is handed in.")
@click.option("--private-clip", type=float, metavar="C", help="Own images, with noise: the norm that what is handed in is clipped to.")
@click.option("--private-epsilon", type=float, metavar="E", help="Own images, with noise: leave before more than that is given away.")
@click.option("--private-delta", type=float, metavar="D", help="At which epsilon is meant.  [default: 0.00001]")
@click.option(
    "--tell-accuracy/--no-tell-accuracy",
    default=None,
    help="Tell the operator how good the model is on held-out images of your own, or not.  [default: tell; with noise not]",
)
@click.option("--latency-table", type=click.Path(path_type=Path), metavar="FILE", help="This device's latencies, for whoever asks.")
@click.option(
    "--gateway", multiple=True, metavar="HOST:PORT", help="Lease microbatches to light contributors here.  [with --light: a gateway's URL]"
)
@click.option(
    "--gateway-cert", type=click.Path(path_type=Path), metavar="FILE", help="The gateway's certificate, PEM.  [default: plain HTTP]"
)
@click.option("--gateway-key", type=click.Path(path_type=Path), metavar="FILE", help="The certificate's key, PEM.")
@click.option("--lease-only", is_flag=True, default=None, help="A gateway: train no more here than it has to.")
@click.option(
    "--light", is_flag=True, default=None, help="Lease single microbatches from a --gateway: no data, no open port, little memory."
)
@click.option("--audit-only", is_flag=True, default=None, help="Train nothing: audit what others hand in, with all that the limits allow.")
@limit_options
@click.option("--plain", is_flag=True, help="A line a round.")
@click.option("--json", "as_json", is_flag=True, help="An object a line, for programs.")
@click.option("--log-format", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="json: one object a line.")
@click.option("--verbose", is_flag=True, help="Log what happens between the rounds.")
def join_command(log_format: str, verbose: bool, plain: bool, as_json: bool, **options: Any) -> None:
    """Join a run and train until it is finished. Ctrl-C hands in what is trained and leaves; twice stops at once."""
    set_up_logging(log_format, verbose=verbose)
    with clear_errors():
        from manta_swarm.automl.environment import keep_freed_memory
        from manta_swarm.peer.config import check_join, load_config
        from manta_swarm.runtime.console import Form, PrintingConsole

        if plain and as_json:
            raise UserError("--plain or --json, not both")
        config = load_config(given(options))
        if config.light and as_json:
            raise UserError("--json: a light contributor says lines only; its status.json has the figures")
        check_join(config)
        keep_freed_memory()
        console = PrintingConsole(Form.OBJECTS) if as_json else _console_of(config, is_plain=plain)
        if config.light:
            _contribute(config, console)
        else:
            _join(config, console)


@main.command(name="status")
@DIR
def status_command(**options: Any) -> None:
    """Say where a peer stands. It may be at work or have ended; why it is in its cohort is said too."""
    with clear_errors():
        from manta_swarm.peer.commands.report import lines_of

        for line in lines_of(directory_in(options)):
            click.echo(line)


@main.command(name="dashboard")
@DIR
def dashboard_command(**options: Any) -> None:
    """Show a peer on the whole terminal. It may be one of another terminal, or a service; closing this changes nothing
    for it."""
    with clear_errors():
        from manta_swarm.peer.control import look

        directory = directory_in(options)
        look(directory)  # else there is nothing to see
        _check_dashboard()
        with ending_at_ctrl_c():
            from manta_swarm.peer.dashboard.dashboard import watch

        watch(directory)


@main.command(name="tables")
@INITIAL_PEERS
@RUN
@click.option("--listen", multiple=True, metavar="MADDR", help="Address to listen on.  [default: /ip4/0.0.0.0/tcp/0]")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Folder to write them to.")
@click.option("--verbose", is_flag=True, help="Log why a table is missing.")
def tables_command(out: Path, verbose: bool, **options: Any) -> None:
    """Collect the latency tables that a run's members hand out. One file a device, for manta-search find --latency-table."""
    set_up_logging(FORMATS[0], verbose=verbose)
    with clear_errors():
        from manta_swarm.peer.config import check_visit, load_config

        config = load_config(given(options))
        check_visit(config)
        with ending_at_ctrl_c():
            from manta_swarm.peer.commands.tables import collect

        for path, found in asyncio.run(collect(config, out)):
            conditions = found.table.conditions
            how = f"{conditions.device}, {conditions.threads} threads, {conditions.dtype}, batches of {conditions.batch}"
            click.echo(f"{path}: {conditions.name} ({how}, {conditions.runtime})")


@main.command(name="pause")
@DIR
def pause_command(**options: Any) -> None:
    """Let a peer compute nothing until resume. What is trained is handed in, GPUs are free at once."""
    with clear_errors():
        from manta_swarm.peer.control import PAUSE, tell

        click.echo(tell(directory_in(options), PAUSE))


@main.command(name="resume")
@DIR
def resume_command(**options: Any) -> None:
    """Let a paused peer go on."""
    with clear_errors():
        from manta_swarm.peer.control import RESUME, tell

        click.echo(tell(directory_in(options), RESUME))


@main.command(name="leave")
@DIR
@click.option("--now", is_flag=True, help="Stop at once; what was signed is kept for the next start.")
def leave_command(now: bool, **options: Any) -> None:
    """Let a peer hand in what is trained, and end. It does what Ctrl-C does where it was started; with --now, what a
    second one does."""
    with clear_errors():
        from manta_swarm.peer.control import LEAVE, STOP, tell

        click.echo(tell(directory_in(options), STOP if now else LEAVE))


def _contribute(config: "PeerConfig", console: "PrintingConsole") -> None:
    """Take part as a light contributor: nothing that is imported here knows hivemind, or data."""
    with ending_at_ctrl_c():
        from manta_swarm.peer.features.light.session import contribute

    for number in (signal.SIGINT, signal.SIGTERM):  # as the other programs: also where a script's & had SIGINT ignored
        if signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, signal.default_int_handler)
    with console:
        is_over = asyncio.run(contribute(config, console))
    sys.stdout.flush()
    if not is_over:
        os._exit(0)  # the person left: what else Python does at its end waits for the microbatch under way


def _console_of(config: "PeerConfig", *, is_plain: bool) -> "PrintingConsole":
    """Return what says lines: with a live view below them, where there is a terminal for it."""
    from manta_swarm.peer.config import directory_of
    from manta_swarm.peer.dashboard.live import LiveView, is_possible
    from manta_swarm.runtime.console import PrintingConsole

    if is_plain or not is_possible():
        return PrintingConsole()
    where = "" if config.dir == directory_of({}) else f" --dir {shlex.quote(str(config.dir))}"
    return LiveView(f"Ctrl-C leaves the run; in another terminal: manta-peer dashboard{where}")


def _check_dashboard() -> None:
    """Refuse what needs a terminal where there is none.

    Raises:
        UserError: there is none, or nothing to draw on it with.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise UserError("the dashboard needs a terminal with a TERM that is not dumb; manta-peer status says the same in lines")
    if find_spec("textual") is None:
        raise UserError("the dashboard needs Textual, which comes with the extra: pip install 'manta-swarm[swarm]'")


def _join(config: "PeerConfig", console: "PrintingConsole") -> None:
    with ending_at_ctrl_c():
        from manta_swarm.peer.joining import Stopped, join

    try:
        with console:
            asyncio.run(join(config, console=console))
    except Stopped:
        click.echo("manta-peer: stopped at once; what was signed is kept, and is handed in at the next start", err=True)
        sys.stdout.flush()
        os._exit(130)  # all is closed; what else Python does at its end waits for the microbatch under way
    finally:
        end_soon()


for command in (*COMMANDS, credits_command, limits_command):
    main.add_command(command)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
