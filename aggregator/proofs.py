"""Proofs that a log lied, checked by whoever was shown one: a file is all that it takes."""

import re
from pathlib import Path

from automl.files import read_bounded
from automl.space import space_named
from protocol.errors import RemoteFault, UserError
from protocol.records import Manifest
from swarm.wrong_group import Finding, Measure, verify_wrong_group

MAX_PROOF_BYTES = 256 * 1024 * 1024  # a group of each of the most rows, dense, and more


def check_proof(path: Path, run: str | None = None) -> Finding:
    """Return what the file of a proof shows (``swarm.wrong_group``), perhaps about one run (its id) only.

    Raises:
        UserError: it cannot be read, or proves nothing.
        OwnFault: this machine's arithmetic cannot be relied on.
    """
    if run is not None and not re.fullmatch(r"[0-9a-f]{64}", run):
        raise UserError(f"a run's id is 64 hexadecimal digits in lower case, not {run[:80]!r}")
    data = read_bounded(path, MAX_PROOF_BYTES)
    try:
        return verify_wrong_group(data, _measure, None if run is None else bytes.fromhex(run))
    except RemoteFault as error:
        raise UserError(f"{path} proves nothing: {error}") from error


def _measure(manifest: Manifest) -> Measure:
    """Return what the means of a run depend on.

    Raises:
        UserError: this version does not know its supernet or its schedule.
    """
    import torch  # here and not above: a file that proves nothing is told before they are loaded

    from automl.course import RunCourse
    from automl.networks import build

    try:
        course = RunCourse(manifest)
    except ValueError as error:
        raise UserError(f"{error}; install the version that the operator names") from error
    return Measure(build(space_named(manifest.supernet), torch.device("cpu")).num_weights, course.coverage)
