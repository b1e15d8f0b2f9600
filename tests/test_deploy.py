"""The container file, the compose file and the unit start what there is, with what it knows, and not as root."""

import importlib.util
import json
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from aggregator.cli import main as aggregator
from peer.cli import main as peer

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS = {"manta-aggregator": aggregator, "manta-peer": peer}

_spec = importlib.util.spec_from_file_location("check", DEPLOY / "check.py")
assert _spec is not None
assert _spec.loader is not None
check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check)
RECIPE = check.instructions((DEPLOY / "Containerfile").read_text())


def known(arguments: list[str]) -> None:
    """Fail if a program knows no such command, or the command no such option."""
    command = COMMANDS[Path(arguments[0]).name].commands[arguments[1]]
    options = {name for parameter in command.params for name in parameter.opts if isinstance(parameter, click.Option)}
    used = {argument for argument in arguments[2:] if argument.startswith("--")}
    assert used <= options, (used, options)


def test_the_image_has_every_package_and_nothing_that_is_not_there() -> None:
    copied = [name for word, rest in RECIPE if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]]
    packages = {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert {name for name in copied if (ROOT / name).is_dir()} == packages
    assert all((ROOT / name).exists() for name in copied)
    assert {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= set(copied)


def test_the_image_starts_the_aggregator_and_not_as_root() -> None:
    words = [word for word, _ in RECIPE]
    user = dict(RECIPE)["USER"]
    assert user not in ("root", "0")
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "FROM")
    known(json.loads(dict(RECIPE)["CMD"]))


def test_the_unit_starts_the_aggregator_and_leaves_what_needs_a_person_alone() -> None:
    lines = dict(
        line.split("=", 1) for line in (DEPLOY / "manta-aggregator.service").read_text().splitlines() if line[:1].isupper() and "=" in line
    )
    known(shlex.split(lines["ExecStart"]))
    assert lines["RestartPreventExitStatus"] == "2 3"
    assert lines["User"] not in ("", "root")


def test_the_compose_file_starts_a_peer_with_options_that_there_are() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    (command,) = (line.partition(":")[2].strip() for line in text.splitlines() if line.strip().startswith("command:"))
    known(json.loads(command))


@pytest.mark.parametrize("index", [None, "https://example.org/cpu"])
def test_commands_of_the_recipe_are_adapted_to_this_computer(index: str | None) -> None:
    runs = [rest for word, rest in check.first_stage(RECIPE) if word == "RUN"]
    adapted = [check.adapted(each, Path("/tmp/there"), index) for each in runs]
    assert any("install torch torchvision" in each for each in adapted)
    assert not any("/opt/manta" in each or "download.pytorch.org" in each for each in adapted)
    assert any("example.org" in each for each in adapted) == (index is not None)
