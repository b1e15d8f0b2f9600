"""Proofs that a log lied, checked by whoever was shown one: a file is all that it takes."""

import re
from pathlib import Path

from aggregator.log.evidence import MAX_EVIDENCE_BYTES
from automl.files import read_bounded
from automl.spaces.space import space_named
from protocol.encoding import unpack
from protocol.errors import RemoteFault, UserError
from protocol.histories import Departure, Histories, Shown, Twice, TwoHeads
from protocol.manifest import Manifest
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


def check_histories(path: Path, run: str | None = None) -> Shown | None:
    """Return what the file shows of a log that does not hold to what it signed (``protocol.histories``); None: it is of something else.

    Raises:
        UserError: it cannot be read, or shows nothing.
    """
    data = read_bounded(path, MAX_PROOF_BYTES)
    try:
        evidence = unpack(Histories, data, max_bytes=MAX_EVIDENCE_BYTES)
    except RemoteFault:
        return None
    if run is not None and evidence.manifest.run.hex() != run:
        raise UserError(f"{path} is about another run, {evidence.manifest.run.hex()}")
    try:
        return evidence.check()
    except RemoteFault as error:
        raise UserError(f"{path} shows nothing: {error}") from error


def check_two_heads(path: Path, run: str | None = None) -> TwoHeads | None:
    """Return what the file has of two heads of one size (``protocol.histories.TwoHeads``), which are a proof; None: something else.

    Raises:
        UserError: it cannot be read, or proves nothing.
    """
    try:
        evidence = unpack(TwoHeads, read_bounded(path, MAX_PROOF_BYTES), max_bytes=MAX_EVIDENCE_BYTES)
    except RemoteFault:
        return None
    if run is not None and evidence.manifest.run.hex() != run:
        raise UserError(f"{path} is about another run, {evidence.manifest.run.hex()}")
    try:
        evidence.check()
    except RemoteFault as error:
        raise UserError(f"{path} proves nothing: {error}") from error
    return evidence


def said_of(shown: Shown) -> str:
    """Return what evidence shows, and how far that is proven."""
    held, entries = shown.held.tree_head.size, shown.shown.size
    who = _who(len(shown.operators))
    signed = f"{who} signed for {held} entries, up to round {shown.held.round.round}"
    if shown.departure is Departure.FORKED:
        return f"proven: the log has two histories; {signed}, and for others"
    if shown.departure is Departure.WENT_BACK:
        return f"{signed}, and for {entries}, which it showed after them as whoever kept this says: a log that went back"
    return f"{signed}, and showed {entries} without a proof that they go on from there, as whoever kept this says"


def said_of_two(twice: Twice) -> str:
    """Return what two heads of one size prove."""
    what = "the log has two histories" if twice.is_forked else "two histories were signed for, of which at most one is the log's"
    roots = [head.root.hex()[:16] for head in (twice.one, twice.other)]
    signed = f"{_who(len(twice.liars))} signed for {twice.one.size} entries of root {roots[0]}, and for as many of root {roots[1]}"
    return f"proven: {what}; {signed}"


def _who(operators: int) -> str:
    return "the key above" if operators == 1 else f"each of these {operators} keys"


def _measure(manifest: Manifest) -> Measure:
    """Return what the means of a run depend on.

    Raises:
        UserError: this version does not know its supernet or its schedule.
    """
    import torch  # here and not above: a file that proves nothing is told before they are loaded

    from automl.models.networks import build
    from automl.training.course import RunCourse

    try:
        course = RunCourse(manifest)
    except ValueError as error:
        raise UserError(f"{error}; install the version that the operator names") from error
    return Measure(build(space_named(manifest.supernet), torch.device("cpu")).num_weights, course.coverage)
