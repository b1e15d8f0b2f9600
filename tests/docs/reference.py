"""Writes what docs/reference has, from the code: python -m tests.docs.reference

Commands come from click, settings from pydantic, metrics and exit codes from their tables, HTTP routes from starlette; the shapes of the
monitor's answers are in ``tests.docs.api``. A table has the first clause of a description. Nothing here imports torch or hivemind.
"""

import importlib
import json
import re
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from manta_swarm.aggregator.monitor.metrics import METRICS, kind_of
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.runtime.commands import EXIT_CODES
from tests.docs import api
from tests.documents import ROOT

FOLDER = ROOT / "docs" / "reference"
PROGRAMS = {
    "manta-peer": "manta_swarm.peer.cli",
    "manta-aggregator": "manta_swarm.aggregator.cli",
    "manta-swarm": "manta_swarm.aggregator.local.cli",
    "manta-search": "manta_swarm.automl.cli",
}
_DEFAULT = re.compile(r"\s*\[(?:default: )?([^]]*)\]$")
_CLAUSE = 3  # words, before a colon, that say enough
_DEFAULT_WORDS = 5  # a default of more is left to --help
_SETTING = "[setting](peer-toml.md)"


# Markdown.


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a table's lines."""
    lines = [head, ("---",) * len(head), *rows]
    return [f"|{'|'.join(cell.replace('|', chr(92) + '|') for cell in line)}|" for line in lines] + [""]


def code(text: str) -> str:
    """Return a span of code; nothing of nothing."""
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """Return the first sentence of a help text, without the point at its end."""
    words = " ".join(text.split())
    return re.split(r"(?<!\.)\.(?: |$)", words, maxsplit=1)[0]


def clause(text: str) -> str:
    """Return the first clause of a description: up to a semicolon."""
    return sentence(text).partition("; ")[0]


# Commands.


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all below it, each with what is typed."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from commands(f"{name} {below}", found)


def flag(option: click.Option) -> str:
    """Return an option as it is typed, with its value's name."""
    long = [name for name in option.opts if name.startswith("--")]
    names = "/".join([*long, *option.secondary_opts])
    return names if option.is_flag else f"{names} {value_name(option)}"


def value_name(parameter: click.Parameter) -> str:
    """Return the name of a parameter's value."""
    if isinstance(parameter.type, click.Choice):
        return "|".join(map(str, parameter.type.choices))
    return (parameter.metavar or parameter.make_metavar(click.Context(click.Command("none")))).removesuffix(" RANGE")


def default_of(option: click.Option) -> str:
    """Return what holds where an option is not given: as its help says, or its own default."""
    if found := _DEFAULT.search(option.help or ""):
        return found[1] if len(found[1].split()) <= _DEFAULT_WORDS else ""
    if option.required:
        return "required"
    given = option.to_info_dict()["default"]
    return str(given) if isinstance(given, str | int | float) and not isinstance(given, bool) and given != "" else ""


def option_row(option: click.Option) -> tuple[str, ...]:
    """Return an option's line."""
    says = clause(_DEFAULT.sub("", option.help or ""))
    head = says.partition(": ")[0]
    return (code(flag(option)), head if len(head.split()) >= _CLAUSE else says, default_of(option))


def usage(command: click.Command) -> str:
    """Return the arguments and the options that have to be given."""
    required = [flag(one) for one in command.params if isinstance(one, click.Option) and one.required]
    arguments = [value_name(one) for one in command.params if isinstance(one, click.Argument)]
    return " ".join([*required, *arguments])


def shown_options(command: click.Command) -> list[click.Option]:
    """Return a command's options but for those that each has."""
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden and one.name != "version"]


def program_lines(program: str) -> Iterator[str]:
    """Yield what there is to say of a program."""
    main = importlib.import_module(PROGRAMS[program]).main
    found = list(commands(program, main))
    settings = {f"--{name.replace('_', '-')}" for name in PeerConfig.model_fields} if program == "manta-peer" else set()
    rows = [option_row(option) for _, command in found for option in shown_options(command) if option.opts[0] not in settings]
    often = {row for row, count in Counter(rows).items() if count > 1}
    yield from (f"## {program}", "", main.help or "", "")
    said: list[tuple[str, ...]] = []
    taken: list[tuple[str, ...]] = [("several", *row) for row in sorted(often)]
    for name, command in found[1:]:
        options = shown_options(command)
        of_settings = [one for one in options if one.opts[0] in settings]
        own = [option_row(one) for one in options if one not in of_settings]
        also = [code(row[0].strip("`").partition(" ")[0]) for row in own if row in often and row[2] != "required"]
        also += _settings_of(of_settings)
        typed = name.removeprefix(program).strip()
        says = f"{sentence(command.help or '')}." + (f" Also {', '.join(also)}." if also else "")
        said.append((code(f"{typed} {usage(command)}".strip()), says))
        taken += [(code(typed), *row) for row in own if row not in often]
    yield from table(("command", ""), said)
    yield from table(("command", "option", "", "default"), taken)


def _settings_of(options: list[click.Option]) -> list[str]:
    """Return which settings a command has as options; the folder is one of all."""
    names = [one.name for one in options if one.name != "dir"]
    for kind, word in ((PeerConfig, "every [setting](peer-toml.md)"), (Limits, "every limit")):
        if set(names) == set(kind.model_fields) - {"dir"}:
            return [word]
    return [code(one.opts[0]) for one in options if one.name != "dir"]


def commands_page() -> str:
    """Return the page of all commands."""
    lines = [
        "# Commands",
        "",
        "What has to be given stands behind a command; `--help` says more. Options of manta-peer that are a",
        f"{_SETTING} are described there, and all its commands take `--dir`. [Exit codes](exit-codes.md).",
        "",
    ]
    for program in PROGRAMS:
        lines += program_lines(program)
    return "\n".join(lines)


# Settings.


def _bounds(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    if most is not None and most >= 2**40:
        most = None
    return f"{'' if least is None else f'{least:.10g}'}..{'' if most is None else f'{most:.10g}'}"


def limits_of(field: FieldInfo) -> str:
    """Return the bounds of a setting."""
    least = most = over = under = size = None
    for one in field.metadata:
        least, most = getattr(one, "ge", least), getattr(one, "le", most)
        over, under = getattr(one, "gt", over), getattr(one, "lt", under)
        size = getattr(one, "max_length", size)
    ends = (None if over is None else f">{over:g}", None if under is None else f"<{under:g}", None if size is None else f"..{size}")
    return _joined(*(end or "" for end in ends), _bounds(least, most))


def type_of(annotation: Any) -> str:
    """Return a setting's type in a word or two."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "/".join(map(str, arguments))
    if origin is typing.Annotated:
        return type_of(arguments[0])
    if origin is tuple:
        return "list"
    if arguments:
        return "/".join(type_of(one) for one in arguments if one is not NoneType)
    return {str: "text", int: "int", float: "number", bool: "bool", Path: "path"}.get(annotation, str(annotation))


def said_of(field: FieldInfo) -> str:
    """Return what a setting means: its first clause, and of a choice all."""
    says = field.description or ""
    return says if "Literal" in str(field.annotation) else clause(says)


def toml(value: Any) -> str:
    """Return a default as a file has it."""
    if value is None:
        return ""
    if isinstance(value, str | bool | tuple):
        return code(json.dumps(value, ensure_ascii=False))
    return code(f"{value:g}" if isinstance(value, float) else _whole(value))


def _whole(value: int) -> str:
    return f"{value:_}" if value >= 100_000 else str(value)


def run_file_page() -> str:
    """Return the page of the run file's keys."""
    lines = [
        "# Run file",
        "",
        "`manta-aggregator init` writes this file, with every key explained, for a task. The defaults here are those of dense",
        "classification.",
        "",
    ]
    for name, section in RunConfig.model_fields.items():
        kind = section.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)
        note = (kind.__doc__ or "").partition(" ")[2].strip("()")
        lines += [f"## [{name}]", "", *([f"{note[0].upper()}{note[1:]}.", ""] if note else [])]
        rows = [
            (code(key), _joined(type_of(field.annotation), limits_of(field)), toml(field.default), said_of(field))
            for key, field in kind.model_fields.items()
        ]
        lines += table(("key", "type", "default", ""), rows)
    return "\n".join(lines)


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def peer_toml_page() -> str:
    """Return the page of a peer's settings."""
    join = importlib.import_module(PROGRAMS["manta-peer"]).main.commands["join"]
    flags = {option.name: option for option in shown_options(join)}
    rows = []
    for name, field in PeerConfig.model_fields.items():
        option = flags[name]
        variable = f"MANTA_{name.upper()}"
        default = "" if field.default_factory else toml(field.default)
        kind = _joined(type_of(field.annotation), limits_of(field))
        rows.append((code(name), code(flag(option)), code(variable), kind, default, said_of(field)))
    lines = [
        "# peer.toml",
        "",
        "`manta-peer init` writes this file, with every key, into the peer's folder. The flags of `manta-peer join` come first, then the",
        "variables, then `limits.toml`, which `manta-peer limits` writes, then `peer.toml`. `dir` is no key of it. Variables list",
        "addresses with commas.",
        "",
    ]
    lines += table(("key", "flag", "variable", "type", "default", ""), rows)
    return "\n".join(lines)


# Metrics and exit codes.


def metrics_page() -> str:
    """Return the page of the monitor's metrics."""
    rows = ((code(name), kind_of(name), " ".join(map(code, one.labels)), one.help) for name, one in METRICS.items())
    return "\n".join(
        ["# Metrics", "", "`GET /metrics` of the monitor has them for Prometheus.", "", *table(("metric", "type", "labels", ""), rows)]
    )


def exit_codes_page() -> str:
    """Return the page of exit codes."""
    lines = ["# Exit codes", "", *table(("code", "means"), ((str(number), says) for number, says in EXIT_CODES.items()))]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return each file's name and what it has."""
    made = {
        "commands.md": commands_page(),
        "run-file.md": run_file_page(),
        "peer-toml.md": peer_toml_page(),
        "metrics.md": metrics_page(),
        "exit-codes.md": exit_codes_page(),
        "api.md": api.page(),
        "openapi.json": json.dumps(api.openapi(), indent=1),
    }
    return {name: text.rstrip("\n") + "\n" for name, text in made.items()}


def main() -> None:
    """Write all files."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
