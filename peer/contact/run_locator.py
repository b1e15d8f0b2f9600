"""What brings a person to a run: addresses, or a run on this computer, and an invitation where not everybody is let in. No network."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from manta_swarm.network.invitation import read_invitation
from manta_swarm.peer.store import LastRun
from manta_swarm.protocol.admission import GUEST, Admission, AdmissionProof, access_shown
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.light import MAX_SIGNED_PROOF_BYTES
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.runtime import local_runs

if TYPE_CHECKING:
    from manta_swarm.peer.config import PeerConfig


def find_addresses(config: "PeerConfig", last: LastRun | None) -> tuple[tuple[str, ...], str | None]:
    """Return addresses to join by, and the id of the run to expect there, if one is known.

    ``last`` is the run joined last, if there is one.

    Raises:
        UserError: none was given and none is known.
    """
    if config.initial_peers:
        return config.initial_peers, config.run
    if last is not None and config.run in (None, last.run):
        return last.addresses, last.run
    for local in local_runs.find():
        if config.run in (None, local.run):
            return local.addresses, local.run
    raise UserError(
        "no run was found: give the address that the operator printed with --initial-peers (or MANTA_INITIAL_PEERS), "
        "or start an aggregator on this computer with manta-aggregator start"
    )


def check_invitation(told: str) -> None:
    """Refuse an invitation by which nobody can train.

    Raises:
        UserError: it is none, or a guest's.
    """
    if read_invitation(told).invitation.unchecked().access == GUEST:
        raise UserError("--invitation: it is for guests, who look on and train nothing; ask for one to train by")


def admission_by(told: str, identity: Identity, run: bytes) -> Signed[Admission]:
    """Return the admission of one's own key by the invitation that a person gave.

    Raises:
        UserError: it is none, or to another run.
    """
    token = read_invitation(told)
    if token.invitation.unchecked().run != run:
        raise UserError(f"--invitation: it is to another run, {token.invitation.unchecked().run.hex()}; give that run's address")
    return token.admission(identity.public_key)


def admission_proof_of(data: bytes, run: bytes, key: bytes, operators: Collection[bytes]) -> Signed[AdmissionProof]:
    """Return the packed admission proof of ``key``.

    Raises:
        RemoteFault: it is none, or another key's, or none of the run's operators signed it.
    """
    shown = unpack(Signed[AdmissionProof], data, max_bytes=MAX_SIGNED_PROOF_BYTES)
    access_shown(shown, run, key, operators)
    return shown


def not_listed(manifest: Manifest, identity: Identity) -> UserError:
    """Return what a person is told whom the manifest does not list."""
    return UserError(
        f"the run {manifest.name} takes the peers that its manifest lists, and yours, {peer_name(identity.public_key)}, is none of "
        "them: restore the key that is (manta-peer identity restore FILE), or ask its operator about another run"
    )


def not_invited(manifest: Manifest, identity: Identity) -> UserError:
    """Return what a person is told who has no invitation."""
    return UserError(
        f"the run {manifest.name} takes invited peers only, and yours, {peer_name(identity.public_key)}, is not in: "
        "ask its operator for an invitation (manta-aggregator invite makes one), and give it with --invitation FILE"
    )


def not_let_in(manifest: Manifest, error: Exception) -> UserError:
    """Return what a person is told whose invitation is refused."""
    return UserError(f"the invitation does not let you into {manifest.name} ({error}): ask who gave it for another")


def only_a_guest(manifest: Manifest) -> UserError:
    """Return what a person is told who wants to train, and came in as a guest."""
    return UserError(
        f"the run {manifest.name} let this peer in as a guest, who looks on and trains nothing: "
        "ask its operator for an invitation to train by, and join under another key (--dir NEW-FOLDER)"
    )
