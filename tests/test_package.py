"""What is installed is what is here: the wheel has every module and every file of the packages, and its programs start."""

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "codec", "runtime", "automl", "network", "peer", "aggregator", "programs")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as an install puts them somewhere; it is built of a copy, for building leaves folders behind."""
    copy, wheels, installed = (tmp_path_factory.mktemp(name) for name in ("copy", "wheels", "installed"))
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is no checkout: which files belong to the project is not known")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    quiet = ["--quiet", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "pip", "wheel", *quiet, "--no-deps", "--wheel-dir", str(wheels), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    return installed


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(installed: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "--", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    here = {f"manta_swarm/{name}" for name in listed if (ROOT / name).is_file()}
    there = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert {name for name in there if ".dist-info" not in name} == here | {"manta_swarm/__init__.py", "manta_swarm/py.typed"}


def test_an_install_adds_one_name(installed: Path) -> None:
    assert sorted(path.name for path in installed.iterdir() if path.suffix != ".dist-info") == ["manta_swarm"]


def test_every_package_of_the_checkout_is_a_link_to_the_folder_at_the_top() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "manta_swarm").iterdir() if path.is_symlink()}
    assert links == {name: Path("..", name) for name in PACKAGES}


def test_importing_the_package_loads_nothing_but_itself() -> None:
    program = "import sys; before = set(sys.modules); import manta_swarm; print(*sorted(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-P", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.split()) == (0, ["manta_swarm"]), ended.stderr


def test_its_programs_start_and_say_their_version(installed: Path, tmp_path: Path) -> None:
    (found,) = installed.glob("*.dist-info/entry_points.txt")
    scripts = configparser.ConfigParser()
    scripts.read(found)
    version = found.parent.name.removesuffix(".dist-info").split("-")[1]
    assert set(scripts["console_scripts"]) == {"manta-peer", "manta-aggregator", "manta-swarm", "manta-search"}
    for name, target in scripts["console_scripts"].items():
        module, _, function = target.partition(":")
        call = f"sys.argv = [{name!r}, *sys.argv[1:]]; print({module}.__file__, file=sys.stderr); {module}.{function}()"
        ended = subprocess.run(
            [sys.executable, "-P", "-c", f"import sys, {module}; {call}", "--version"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (ended.returncode, ended.stdout) == (0, f"{name}, version {version}\n"), ended.stderr
        assert ended.stderr.startswith(str(installed))
