"""The container file, the compose file and the units start what there is, with what it knows, pinned and bounded, and not as root."""

import importlib.util
import json
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from manta_swarm.aggregator.cli import main as aggregator
from manta_swarm.peer.cli import main as peer
from manta_swarm.peer.commands.service import unit_text

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
    links = {path.name for path in (ROOT / "manta_swarm").iterdir() if path.is_symlink()}
    assert {name for name in copied if (ROOT / name).is_dir()} == {"manta_swarm", *links}
    assert all((ROOT / name).exists() for name in copied)
    assert {"setup.py", "README.md", *PROJECT["project"]["license-files"]} <= set(copied)


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


def test_commands_of_the_recipe_are_adapted_to_this_computer() -> None:
    runs = [rest for word, rest in check.first_stage(RECIPE) if word == "RUN"]
    adapted = [check.adapted(each, Path("/tmp/there")) for each in runs]
    assert any("/tmp/there/bin/pip install --require-hashes" in each for each in adapted)
    assert not any("/opt/manta" in each for each in adapted)


# What is installed, and how much of the computer it may take.

PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)(?: ; [^\\\n]+?)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n")


def pins(*names: str) -> dict[str, Version]:
    """Return the versions that files of ``deploy`` pin by hashes; there is nothing else in them but comments."""
    found = dict[str, Version]()
    for name in names:
        text = re.sub(r"^#.*\n", "", (DEPLOY / name).read_text(), flags=re.MULTILINE)
        assert PIN.sub("", text) == ""
        found |= {one["name"]: Version(one["version"]) for one in PIN.finditer(text)}
    return found


def test_the_recipe_takes_nothing_that_is_not_pinned_by_a_digest_or_a_hash() -> None:
    assert check.unpinned(RECIPE) == []
    text = (DEPLOY / "Containerfile").read_text()
    for before, after, loose in (
        (r"@sha256:[0-9a-f]{64}", "", "python:3.12.14-slim-trixie"),
        (r"(?m)^FROM \$\{BASE\}$", "FROM debian:stable", "debian:stable"),
        (r"--require-hashes -r deploy/build.txt", "-r deploy/build.txt", "pip install -r deploy/build.txt"),
        (r"--no-deps --no-build-isolation \.", ".", "pip install ."),
    ):
        changed, count = re.subn(before, after, text)
        assert count == 1
        assert any(loose in each for each in check.unpinned(check.instructions(changed)))


@pytest.mark.parametrize("torch", ["torch-cpu.txt", "torch-cuda.txt"])
def test_what_is_pinned_is_all_that_the_programs_need(torch: str) -> None:
    pinned = pins("build.txt", "requirements.txt", torch)
    needed = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["swarm"],
        *PROJECT["build-system"]["requires"],
    ]
    for requirement in map(Requirement, needed):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert not pins("requirements.txt").keys() & pins(torch).keys()
    assert pins("build.txt").items() <= pins("requirements.txt").items()


def test_torch_and_torchvision_are_of_one_build() -> None:
    for name in ("torch-cpu.txt", "torch-cuda.txt"):
        found = pins(name)
        torch, vision = found["torch"], found["torchvision"]
        assert torch.local == vision.local
        assert torch.minor - vision.minor == -15  # as they have been released together since torch 2.0


@pytest.mark.parametrize("text", [(DEPLOY / "manta-aggregator.service").read_text(), unit_text(Path("peer"))], ids=["aggregator", "peer"])
def test_a_unit_has_a_bound_for_all_that_its_processes_take(text: str) -> None:
    (service,) = re.findall(r"^\[Service\]$(.*?)^\[Install\]$", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"^MemoryMax=[1-9][0-9]*[G%]$", service, re.MULTILINE)
    assert re.search(r"^TasksMax=[1-9][0-9]*$", service, re.MULTILINE)
    assert "To change it: systemctl" in service
    assert list(DEPLOY.glob("*.service")) == [DEPLOY / "manta-aggregator.service"]  # another one is looked at above


def test_each_service_of_the_compose_file_has_one_too() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert text.count("image: manta\n") == text.count("mem_limit:") == text.count("pids_limit:") == 2
