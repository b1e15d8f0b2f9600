"""manta-search: trains, searches, exports and looks at supernets in this process. Knows no network: it works on snapshots and data.

A command's module is imported when it is asked for; it imports no torch before the person's words are checked (``automl.commands``).
"""

import importlib

import click

# Each command in the order in which a person needs them, and the module that has it.
_COMMANDS = {
    "data": "data",
    "split": "data",
    "space": "space",
    "train": "train",
    "evaluate": "evaluate",
    "profile": "profile",
    "find": "find",
    "calibrate": "export",
    "export": "export",
}


class _Commands(click.Group):
    """The commands in the modules of automl.commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a person needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"manta_swarm.automl.commands.{_COMMANDS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Train a supernet; find, export and evaluate the subnet that fits a device."""


if __name__ == "__main__":
    main()
