"""Names of cohorts, the sizes that names end with in model-parallel, and how two peers prove to each other that they hold the token.

A cohort is named by a label, else by its host, or, where the manifest says so, by whoever is near (``protocol.affinity``).
"""

import hmac
import re
from dataclasses import dataclass

from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.fields import check_name
from manta_swarm.protocol.signing import PublicKey, sha256

TOKEN_BYTES = 32
AFFINITY = "affinity"  # stands in the proofs of peers whose cohort may change from round to round

NUM_SIZES = 4
ALL = NUM_SIZES  # architectures of every cost: a name that says nothing
_SIZED = re.compile(r".+\.size-([1-3])")
_MAX_NAME = 63  # characters, see ``protocol.fields.check_name``
_MAX_BARE = _MAX_NAME - len(".size-1")


@dataclass(frozen=True, slots=True)
class OwnCohort:
    """A cohort as one of its members sees it: what it goes by for all of its work on a base."""

    name: str  # with its size, as claims have it
    members: frozenset[PublicKey] | None = None  # the others that are known to be in it; None: whoever proves its token is


def cohort_name(label: str | None, host: str) -> str:
    """Return the name of a peer's cohort: ``label`` if there is one, else one that all peers on ``host`` share.

    The host's own name often names a person and the log is public and for ever: only a digest of it is shown.

    Raises:
        UserError: the label is no plain name, or says a size.
    """
    if label is None:
        return f"host-{sha256(host.encode(errors='surrogateescape')).hex()[:12]}"
    try:
        check_name(label, "a cohort")
    except ValueError as error:
        plain = re.sub(r"[^a-z0-9._-]+", "-", label.lower()).strip("-._")[:63]
        advice = f"; try {plain!r}" if plain else ""
        raise UserError(f"cohort {label!r}: use 1 to 63 lower-case letters, digits, dots, dashes and underscores{advice}") from error
    if size_of(label) != ALL:
        raise UserError(f"cohort {label!r}: the end of the name is for the cohort's size; leave it out, and give --size if you like")
    return label


def meeting_secret(token: bytes, run: bytes) -> bytes:
    """Return what those who hold a token go by to find each other in a run (32 bytes): nobody else can tell where, or crowd them out."""
    return hmac.digest(token, b"manta/meeting/v1" + run, "sha256")


def affinity_token(run: bytes) -> bytes:
    """Return what those whose cohorts come of affinity prove to each other (32 bytes): no more than that they are of the same run."""
    return sha256(b"manta/affinity/v1" + run)


def cohort_peer_proof(token: bytes, run: bytes, cohort: str, caller: PublicKey, callee: PublicKey) -> bytes:
    """Return what ``caller`` shows ``callee``: that it holds the token of a cohort in a run (32 bytes).

    It is of use to nobody else: both keys stand in it, and who calls is known by the connection.
    """
    return hmac.digest(token, b"".join((b"manta/cohort_peer/v1", run, cohort.encode(), caller, callee)), "sha256")


def is_cohort_peer_proof(proof: bytes, token: bytes, run: bytes, cohort: str, caller: PublicKey, callee: PublicKey) -> bool:
    """Return whether ``caller`` holds the token."""
    return hmac.compare_digest(proof, cohort_peer_proof(token, run, cohort, caller, callee))


def is_size(size: int) -> bool:
    """Return whether there is such a size: 1, the least, to ``ALL``."""
    return 1 <= size <= NUM_SIZES


def sized_name(name: str, size: int) -> str:
    """Return what a cohort of this name goes by in claims and rosters where it has this size; a long name loses its end by it.

    Raises:
        ValueError: there is no such size.
    """
    if not is_size(size):
        raise ValueError(f"a size is 1 to {NUM_SIZES}, not {size}")
    return name if size == ALL else f"{name[:_MAX_BARE]}.size-{size}"


def size_of(name: str) -> int:
    """Return the size that a cohort's name says."""
    sized = _SIZED.fullmatch(name)
    return ALL if sized is None else int(sized[1])
