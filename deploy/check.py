"""Runs what deploy/Containerfile runs, without a container: its commands, in a clean virtual environment of a temporary folder.

    python deploy/check.py [--index https://download.pytorch.org/whl/cpu]

Without ``--index`` torch and torchvision come from wherever pip gets its packages, both in one step as in the recipe. What it cannot check
is the images that the recipe builds on, and the user that it makes.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RECIPE = HERE / "Containerfile"


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a recipe: the word, and what follows it on its line and those that continue it."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def first_stage(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the instructions of the stage that installs."""
    places = [place for place, (word, _) in enumerate(found) if word == "FROM"]
    return found[places[0] : places[1]]


def main() -> None:
    """Install as the recipe does, then ask each program for its help."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", help="for torch and torchvision")
    index = parser.parse_args().index
    found = instructions(RECIPE.read_text())
    with tempfile.TemporaryDirectory(prefix="manta-deploy-") as folder:
        source, environment = Path(folder) / "src", Path(folder) / "manta"
        source.mkdir()
        for word, rest in first_stage(found):
            if word == "COPY":
                *names, target = rest.split()
                for name in names:
                    copy(ROOT / name, source / target)
            elif word == "RUN":
                run(adapted(rest, environment, index), source)
        (command,) = (json.loads(rest) for word, rest in found if word == "CMD")
        run(f"{environment}/bin/{command[0]} {command[1]} --help > /dev/null", source)
        run(f"{environment}/bin/manta-aggregator init run.toml && {environment}/bin/manta-aggregator check run.toml", source)
    print("the recipe's commands work")


def adapted(command: str, environment: Path, index: str | None) -> str:
    """Return a command of the recipe with the places of this computer, and the index that was asked for."""
    wanted = f"--index-url {shlex.quote(index)}" if index else ""
    command = re.sub(r'--index-url "[^"]*"', wanted, command)
    return command.replace("python -m venv", f"{shlex.quote(sys.executable)} -m venv").replace("/opt/manta", str(environment))


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder as COPY does."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def run(command: str, folder: Path) -> None:
    """Run a command of the recipe; end with it if it fails."""
    print(f"+ {command}", flush=True)
    if subprocess.run(["/bin/sh", "-c", command], cwd=folder, check=False).returncode:
        sys.exit(f"failed: {command}")


if __name__ == "__main__":
    main()
