"""The forms in which a subnet is exported, by their names, and what the files are called. No torch."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from manta_swarm.protocol.errors import UserError

PT2, ONNX, FOLDER = "pt2", "onnx", "folder"
INT8 = "int8"  # ONNX too, with weights and activations of 8 bits; made where it is asked for
PTE = "pte"  # for ExecuTorch; made where it is asked for
FORMATS = (PT2, ONNX, FOLDER)  # made where nobody asks for others
ALL_FORMATS = (*FORMATS, INT8, PTE)
SUFFIXES = (f".{PT2}", f".{ONNX}")  # of files that this project opens
MAX_STORED = 64  # subnets whose statistics lie beside a snapshot (automl.export.subnet)
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"  # of a folder
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,49}")
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def check_targets(folder: Path, name: str, formats: Sequence[str], replace: bool) -> dict[str, str]:
    """Return what each format is to be called in ``folder``.

    Raises:
        UserError: something has such a name already (see ``automl.export.files.write``), or a package for ONNX or ExecuTorch is missing.
    """
    if ONNX in formats or INT8 in formats:
        check_onnx_packages()
    if PTE in formats and find_spec("executorch") is None:
        raise missing_executorch()
    names = {PT2: f"{name}.pt2", ONNX: f"{name}.onnx", FOLDER: name, INT8: f"{name}.int8.onnx", PTE: f"{name}.pte"}
    targets = {form: names[form] for form in ALL_FORMATS if form in formats}
    for target in targets.values():
        _check_target(folder / target, replace)
    return targets


def default_name(supernet: str, architecture_id: str) -> str:
    """Return what an exported subnet is called where nobody gives it a name."""
    return f"{supernet}-{architecture_id[:8]}"


def check_licence(licence: str) -> str:
    """Return the short name of a licence, as model hubs have them.

    Raises:
        UserError: it is no such name.
    """
    if not isinstance(licence, str) or _LICENCE.fullmatch(licence) is None:
        raise UserError(f"{str(licence)[:60]!r} is no short name of a licence: write it like mit, apache-2.0 or cc-by-4.0")
    return licence


def _check_target(path: Path, replace: bool) -> None:
    """Refuse to write over what is there, unless it is to be replaced and is nothing but an export."""
    if not path.exists() and not path.is_symlink():
        return
    if not replace:
        raise UserError(f"{path} is there already; choose another --name or --out, or replace it with --force")
    if path.suffix in (*SUFFIXES, f".{PTE}"):
        is_export = path.is_file()
    else:
        is_export = path.is_dir() and {entry.name for entry in path.iterdir()} <= {CONFIG, WEIGHTS, CARD}
    if not is_export or path.is_symlink():
        raise UserError(f"{path} is something else than an export, and is not replaced; choose another --name or --out")


def check_onnx_packages() -> None:
    """Refuse what needs ONNX where a package for it is missing.

    Raises:
        UserError: one is.
    """
    missing = next((name for name in ONNX_PACKAGES if find_spec(name) is None), None)
    if missing is not None:
        raise missing_package(missing)


def missing_package(name: str) -> UserError:
    """Return what a person is told who lacks a package that writes or reads ONNX."""
    return UserError(f"for ONNX the package {name} is missing: pip install 'manta-swarm[export]'")


def missing_executorch() -> UserError:
    """Return what a person is told who lacks the package that writes .pte files."""
    return UserError("for .pte files the package executorch is missing: pip install 'manta-swarm[executorch]'")


def check_opens(path: Path) -> None:
    """Refuse a program of ExecuTorch's, which trusts what it runs: it could be a stranger's.

    Raises:
        UserError: it is one.
    """
    if path.suffix == f".{PTE}":
        raise UserError(
            f"{path} is for ExecuTorch on a device, and is not opened here; give the .pt2, the .onnx or the folder of the network"
        )
