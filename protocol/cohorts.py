"""What a cohort is called, and how two peers show each other that they hold its token.

A label names it, else the host, or where the manifest says so whoever is near (``protocol.affinity``).
"""

import hmac
import re
from dataclasses import dataclass

from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.fields import check_name
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.protocol.sizes import ALL, size_of

TOKEN_BYTES = 32
AFFINITY = "affinity"  # stands in the proofs of peers whose cohort may change from round to round


@dataclass(frozen=True, slots=True)
class Group:
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
