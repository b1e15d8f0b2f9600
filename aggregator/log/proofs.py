"""Proofs that a log lied, checked by whoever was given one: a file is all that it takes."""

import re
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.guard import MAX_EVIDENCE_BYTES
from manta_swarm.automl.files import read_bounded
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.network.wrong_group import MeanShape, WrongGroup
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import EncodingError, NothingProven, OtherVersion, RemoteFault, UserError
from manta_swarm.protocol.histories import Departure, Histories, Shown
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signing import Digest, PublicKey

MAX_PROOF_BYTES = 256 * 1024 * 1024  # a group of the body of each of the most contributions, dense, and more

_KINDS: tuple[tuple[type[Histories | WrongGroup], int], ...] = (
    (Histories, MAX_EVIDENCE_BYTES),
    (WrongGroup, MAX_PROOF_BYTES),
)


@dataclass(frozen=True, slots=True)
class FileProof:
    """What a file proves by itself."""

    run: Digest
    operators: tuple[PublicKey, ...]  # who did it
    what: str  # in one line


def check_proof(path: Path, run: str | None = None) -> FileProof:
    """Return what a file proves, perhaps about one run (its id) only.

    Raises:
        NothingProven: it is whole and rightly signed, and shows no fault of anybody.
        UserError: it cannot be read, is no proof, or is about another run.
        OwnFault: this machine's arithmetic cannot be relied on.
    """
    if run is not None and not re.fullmatch(r"[0-9a-f]{64}", run):
        raise UserError(f"a run's id is 64 hexadecimal digits in lower case, not {run[:80]!r}")
    data = read_bounded(path, MAX_PROOF_BYTES)
    try:
        proof = _opened(data)
        if run is not None and proof.manifest.run.hex() != run:
            raise UserError(f"{path} is about another run, {proof.manifest.run.hex()}: ask for a proof about yours, or give that run")
        return _checked(proof)
    except NothingProven as error:
        raise NothingProven(f"{path} proves nothing against anybody: {error}") from error
    except OtherVersion as error:
        raise UserError(f"{path} cannot be checked: {error}") from error
    except RemoteFault as error:
        raise UserError(f"{path} is no proof: {error}; ask whoever kept it for the file again") from error


def _opened(data: bytes) -> Histories | WrongGroup:
    """Return the proof in a file; its parts are not checked yet.

    Raises:
        EncodingError: there is none.
    """
    for kind, max_bytes in _KINDS:
        try:
            return unpack(kind, data, max_bytes=max_bytes)
        except EncodingError:
            continue
    raise EncodingError("it is damaged, or a file of another kind")


def _checked(proof: Histories | WrongGroup) -> FileProof:
    """Return what a proof shows.

    Raises:
        NothingProven: no fault of anybody.
        RemoteFault: a part is not what it should be.
    """
    run = proof.manifest.run
    if isinstance(proof, WrongGroup):
        found = proof.check(_shape_of)
        what = f"of the mean of round {found.round} group {found.place} has {found.differs} values that its table does not come to"
        return FileProof(run, found.operators, what)
    shown = proof.check()
    heads = f"it has signed heads of {shown.entries_held}, and of {shown.shown.size}"
    if shown.departure is Departure.ROLLED_BACK:
        raise NothingProven(f"{heads}: an honest log signs both, and which was shown last is not in the file")
    if shown.departure is Departure.UNPROVEN:
        raise NothingProven(f"{heads}: an honest log signs both, and whether the log went on from one to the other is not in the file")
    return FileProof(run, shown.operators, _forked(shown))


def _forked(shown: Shown) -> str:
    """Return what two heads of two histories prove."""
    what = "the log has two histories" if shown.counts else "two histories were signed for, of which at most one is the log's"
    held, other = shown.held, shown.shown
    root, other_root = (f"of root {head.root.hex()[:16]}" for head in (held, other))
    size = "as many" if held.size == other.size else other.size
    return f"{what}; {_who(len(shown.operators))} signed for {shown.entries_held}, {root}, and for {size} {other_root}"


def _who(operators: int) -> str:
    return "the key above" if operators == 1 else f"each of these {operators} keys"


def _shape_of(manifest: Manifest) -> MeanShape:
    """Return what the means of a run depend on.

    Raises:
        UserError: this version does not know its supernet or its schedule.
    """
    import torch  # here and not above: a file that proves nothing is told before they are loaded

    from manta_swarm.automl.models.networks import build
    from manta_swarm.automl.training.coverage import RunTrainingSpec

    try:
        training_spec = RunTrainingSpec(manifest)
    except ValueError as error:
        raise UserError(f"{error}; install the version that the operator names") from error
    return MeanShape(build(space_named(manifest.supernet), torch.device("cpu")).num_weights, training_spec.coverage)
