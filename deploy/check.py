"""Runs what deploy/Containerfile runs, without a container: its commands, in a clean virtual environment of a temporary folder.

    python3.12 deploy/check.py [--torch cuda]

It first refuses a recipe that does not say by digest or hash what it takes. ``--torch`` is the build argument TORCH. What it cannot check
is the images that the recipe builds on, and the user that it makes.
"""

import argparse
import json
import os
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


def unpinned(found: list[tuple[str, str]]) -> list[str]:
    """Return what a recipe takes without saying by digest or hash what it is: images, and what pip installs."""
    defaults = dict(rest.split("=", 1) for word, rest in found if word == "ARG" and "=" in rest)
    stages = {rest.split(" AS ")[1] for word, rest in found if word == "FROM" and " AS " in rest}
    images = [re.sub(r"\$\{(\w+)\}", lambda name: defaults.get(name[1], ""), rest.split()[0]) for word, rest in found if word == "FROM"]
    loose = [image for image in images if image not in stages and not re.search(r"@sha256:[0-9a-f]{64}$", image)]
    installs = [each.strip() for word, rest in found if word == "RUN" for each in re.split(r"&&|;", rest) if "pip install" in each]
    ours = re.compile(r"pip install --no-deps --no-build-isolation \.$")  # what was copied into the image
    return loose + [each for each in installs if "--require-hashes" not in each and not ours.search(each)]


def main() -> None:
    """Install as the recipe does, then ask each program for its help."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", default="cpu", help="names the file of torch and torchvision: cpu, or cuda")
    os.environ["TORCH"] = parser.parse_args().torch
    found = instructions(RECIPE.read_text())
    if loose := unpinned(found):
        sys.exit(f"not pinned by digest or hash: {'; '.join(loose)}")
    with tempfile.TemporaryDirectory(prefix="manta-deploy-") as folder:
        source, environment = Path(folder) / "src", Path(folder) / "manta"
        source.mkdir()
        for word, rest in first_stage(found):
            if word == "COPY":
                *names, target = rest.split()
                for name in names:
                    copy(ROOT / name, source / target, is_into=target.endswith("/"))
            elif word == "RUN":
                run(adapted(rest, environment), source)
        (command,) = (json.loads(rest) for word, rest in found if word == "CMD")
        run(f"{environment}/bin/{command[0]} {command[1]} --help > /dev/null", source)
        run(f"{environment}/bin/manta-aggregator init run.toml && {environment}/bin/manta-aggregator check run.toml", source)
    print("the recipe's commands work")


def adapted(command: str, environment: Path) -> str:
    """Return a command of the recipe with the places of this computer."""
    return command.replace("python -m venv", f"{shlex.quote(sys.executable)} -m venv").replace("/opt/manta", str(environment))


def copy(source: Path, target: Path, *, is_into: bool) -> None:
    """Copy a file or a folder as COPY does; ``is_into``: the target is a folder for it."""
    if is_into:
        target.mkdir(exist_ok=True)
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
