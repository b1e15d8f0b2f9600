"""manta-search: trains, searches, exports and looks at supernets in this process. Knows no network: it works on snapshots and data.

A command's module is imported when the command is called: torch and what is built on it take seconds, which --version need not wait for.
"""

import importlib
import signal
import sys

import click

_OF_SWARM = frozenset({"torchvision", "sklearn", "skimage", "matplotlib", "PIL"})  # what a light contributor's install lacks
_COMMANDS = ("data", "split", "space", "train", "evaluate", "profile", "find", "export")


class _Commands(click.Group):
    """The modules of automl.commands, each with one command of its own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a person needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in _COMMANDS:
            return None
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:  # Ctrl-C in the middle of an import comes out as whatever the library makes of it
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            command = getattr(importlib.import_module(f"automl.commands.{cmd_name}"), cmd_name)
        except ModuleNotFoundError as error:
            library = (error.name or "").partition(".")[0]
            if library not in _OF_SWARM:
                raise
            click.echo(f"manta-search: {library} is not installed; install Manta with its extra, as in: pip install '.[swarm]'", err=True)
            sys.exit(2)
        finally:
            signal.signal(signal.SIGINT, before)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Train a supernet, find the subnet that fits a device, export it, and say how good it is."""


if __name__ == "__main__":
    main()
