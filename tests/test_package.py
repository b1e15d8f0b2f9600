"""What is installed is what is here, under one name: by a wheel, by a source archive and the wheel of that, and by an editable install."""

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "codec", "runtime", "automl", "network", "peer", "aggregator", "programs")
PROGRAMS = {"manta-peer", "manta-aggregator", "manta-swarm", "manta-search"}
QUIET = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
IS_CHECKOUT = (ROOT / "manta_swarm" / "peer").is_symlink()

pytestmark = pytest.mark.skipif(not IS_CHECKOUT, reason="this is no checkout: which files belong to the project is not known")


def tracked(*folders: str) -> set[str]:
    """Return the files of the checkout that git knows, by their paths."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", *folders], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("git does not know this folder")
    return {name for name in listed.stdout.split("\0") if name and ((ROOT / name).is_symlink() or (ROOT / name).is_file())}


def succeed(*command: str | Path, cwd: Path | None = None, path: Path | None = None) -> str:
    """Run a command, which finds modules on ``path`` beside what is installed, and return what it says."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    ended = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def built(source: Path, folder: Path) -> Path:
    """Return the wheel of a source folder, made as pip has it made."""
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    succeed(sys.executable, "-c", build, folder, cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpacked(wheel: Path, folder: Path) -> Path:
    """Return the folder that has the wheel's files, as an install puts them somewhere."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Return the digest of each file of an installed package by its path."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, for building leaves folders behind."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def archive(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source archive."""
    folder = tmp_path_factory.mktemp("archive")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    succeed(sys.executable, "-c", build, folder, cwd=checkout)
    (file,) = folder.glob("*.tar.gz")
    with tarfile.open(file) as opened:
        opened.extractall(folder, filter="data")
    file.unlink()
    (there,) = folder.iterdir()
    return there


@pytest.fixture(scope="module")
def wheel(archive: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout's wheel. The archive is made before, so that it is not of a folder that was built in."""
    return built(checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the checkout's wheel."""
    return unpacked(wheel, tmp_path_factory.mktemp("installed"))


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(installed: Path) -> None:
    there = {name for name in contents(installed) if ".dist-info" not in name}
    assert there == {f"manta_swarm/{name}" for name in tracked(*PACKAGES)} | {"manta_swarm/__init__.py", "manta_swarm/py.typed"}


def test_an_install_adds_one_name(installed: Path) -> None:
    assert sorted(path.name for path in installed.iterdir() if path.suffix != ".dist-info") == ["manta_swarm"]


def test_every_package_of_the_checkout_is_a_link_to_the_folder_at_the_top() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "manta_swarm").iterdir() if path.is_symlink()}
    assert links == {name: Path("..", name) for name in PACKAGES}


def test_the_source_archive_has_real_folders_below_the_one_name_and_all_else_of_the_checkout(archive: Path) -> None:
    assert not any(path.is_symlink() for path in archive.rglob("*"))
    here = {name if name.split("/")[0] not in PACKAGES else f"manta_swarm/{name}" for name in tracked()}
    here -= {f"manta_swarm/{name}" for name in PACKAGES} | {".gitignore"}
    made = {"PKG-INFO", "setup.cfg"}
    assert {name for name in contents(archive) if ".egg-info/" not in name} - made == here


def test_the_wheel_of_the_source_archive_is_that_of_the_checkout(archive: Path, installed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(archive, tmp_path / "copy")
    assert contents(unpacked(built(copy, tmp_path / "wheel"), tmp_path / "installed")) == contents(installed)


def test_tests_run_in_the_unpacked_source_archive(archive: Path) -> None:
    said = succeed(sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/protocol/test_versions.py", cwd=archive)
    assert " passed" in said


def test_importing_the_package_loads_nothing_but_itself() -> None:
    program = "import sys; before = set(sys.modules); import manta_swarm; print(*sorted(set(sys.modules) - before))"
    assert succeed(sys.executable, "-P", "-c", program, cwd=ROOT, path=ROOT).split() == ["manta_swarm"]


def test_what_is_installed_has_its_api_for_researchers(installed: Path, tmp_path: Path) -> None:
    """What the API gives, ``tests/automl/test_api.py`` shows of the same files."""
    program = (
        "import manta_swarm; from importlib.util import find_spec; print(manta_swarm.__file__, find_spec('manta_swarm.automl.api').origin)"
    )
    package = installed / "manta_swarm"
    found = succeed(sys.executable, "-P", "-c", program, cwd=tmp_path, path=installed).split()
    assert found == [str(package / "__init__.py"), str(package / "automl" / "api.py")]


def test_its_programs_start_and_say_their_version(installed: Path, tmp_path: Path) -> None:
    (found,) = installed.glob("*.dist-info/entry_points.txt")
    scripts = configparser.ConfigParser()
    scripts.read(found)
    version = found.parent.name.removesuffix(".dist-info").split("-")[1]
    assert set(scripts["console_scripts"]) == PROGRAMS
    for name, target in scripts["console_scripts"].items():
        module, _, function = target.partition(":")
        call = f"sys.argv = [{name!r}, *sys.argv[1:]]; print({module}.__file__, flush=True); {module}.{function}()"
        program = f"import sys, {module}; {call}"
        where, said = succeed(sys.executable, "-P", "-c", program, "--version", cwd=tmp_path, path=installed).splitlines()
        assert said == f"{name}, version {version}"
        assert where.startswith(str(installed))


def test_what_an_index_shows_of_the_readme_has_no_link_that_only_the_repository_can_follow(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    shown = metadata.read_text(encoding="utf-8")
    assert "Description-Content-Type: text/markdown" in shown
    assert "    make demo" in shown
    assert re.findall(r"\]\((?!https://)", shown) == []


def test_an_editable_install_imports_the_checkout_by_the_one_name(checkout: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    succeed(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    succeed(sys.executable, "-m", "pip", "--python", python, "install", *QUIET, "--no-build-isolation", "-e", checkout)
    program = "import manta_swarm.protocol.merkle as imported; print(imported.__file__)"
    assert Path(succeed(python, "-P", "-c", program, cwd=tmp_path).strip()).resolve() == checkout / "protocol" / "merkle.py"
    for name in PROGRAMS:
        assert succeed(environment / "bin" / name, "--version", cwd=tmp_path).startswith(f"{name}, version ")


def test_another_distribution_may_have_packages_of_the_names_of_ours(wheel: Path, tmp_path: Path) -> None:
    """A wheel's files are put beside those of all others, whatever is there by their names."""
    for name in (*PACKAGES, "swarm"):
        (tmp_path / "target" / name).mkdir(parents=True)
        (tmp_path / "target" / name / "__init__.py").write_text(f"THEIRS = {name!r}\n")
    target = unpacked(wheel, tmp_path / "target")
    program = "import sys; from manta_swarm.programs import search; sys.argv[0] = 'manta-search'; search()"
    assert "Usage: manta-search find" in succeed(sys.executable, "-P", "-c", program, "find", "--help", cwd=tmp_path, path=target)
    both = "import swarm, automl, manta_swarm.automl.cli, manta_swarm.network.addresses; print(swarm.THEIRS, automl.THEIRS)"
    assert succeed(sys.executable, "-P", "-c", both, cwd=tmp_path, path=target) == "swarm automl\n"


def test_the_versions_of_python_are_the_same_wherever_they_are_said() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith("Programming Language :: Python :: 3.")]
    bounds = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"])
    assert bounds is not None
    lowest, above = map(int, bounds.groups())
    assert said == [f"3.{minor}" for minor in range(lowest, above)]
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"\(3, (\d+)\)", makefile) == [str(minor) for minor in range(lowest, above)]
    for page in ("README.md", "CONTRIBUTING.md", "docs/installing.md"):
        assert f"Python {' or '.join(said)}" in (ROOT / page).read_text(), page
