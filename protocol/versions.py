"""Which version of the protocol this program speaks, and what a person is told whose run has another one.

The version stands beside the bytes that are signed as a manifest (``protocol.manifest.SignedManifest``), in a form that never changes: so
every program from version 5 on can read of which version a run is, and what takes part in it. Of the records a program knows those of
its own version; whatever is signed is signed for that version alone (``protocol.signing``), so it never passes for another one's.
"""

import re

from manta_swarm.protocol.errors import OtherVersion

PROTOCOL = 14  # grows with every change of what is signed, logged or sent; it is the version of all signatures, too
PROGRAM = "0.1.0"  # the oldest release of manta-swarm that takes part in runs of this version
MAX_PROTOCOL = 2**16

_RELEASE = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")


def check_form(protocol: int, program: str) -> None:
    """Refuse what names no version.

    Raises:
        ValueError: it does not.
    """
    if not 1 <= protocol <= MAX_PROTOCOL:
        raise ValueError("a protocol's version is above zero")
    if len(program) > 20 or _RELEASE.fullmatch(program) is None:
        raise ValueError("the release of a program is numbers with dots between them")


def check_version(protocol: int, program: str) -> None:
    """Refuse a run of another version than this program's.

    Args:
        protocol: the run's.
        program: the oldest release of manta-swarm that takes part in it.

    Raises:
        OtherVersion: it is another one; the message says what to install.
    """
    if protocol == PROTOCOL:
        return
    if protocol > PROTOCOL:
        raise OtherVersion(
            f"it is of version {protocol} of the protocol, and this program, of version {PROTOCOL}, is too old for it: "
            f"install manta-swarm {program} or a later release"
        )
    raise OtherVersion(
        f"it is of version {protocol} of the protocol, and this program, of version {PROTOCOL}, is too new for it: "
        f"install manta-swarm {program}"
    )
