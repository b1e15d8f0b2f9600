"""Comes into a run that not everybody may take part in: by the manifest's list, the log's admission proof or an invitation shown once."""

import contextlib

from manta_swarm.network import timeouts
from manta_swarm.network.admission_filter import AdmissionFilter, Known, stranger_told
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import OwnNode, Refused
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.finding import NotThere
from manta_swarm.peer.contact.invitation import admission_by, admission_proof_of, not_invited, not_let_in, not_listed, only_a_guest
from manta_swarm.peer.contact.revoked import RevokedKeys
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.admission import GUEST, LIST, AdmissionProof
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault, Unreachable, UserError
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity

METHOD = "admission"


async def enter(
    node: OwnNode, identity: Identity, store: PeerStore, config: PeerConfig, signed: SignedManifest, *, trains: bool = True
) -> OwnNode:
    """Return this node, held to whom the run admits, once this peer is among them; where that is everybody the node as it is.

    Raises:
        UserError: the run does not admit this peer, or does no more, or as a guest and it ``trains``; the message says what to ask for.
        NotThere: the log, which would let it in, does not answer.
    """
    manifest = signed.open()
    if manifest.admission.is_open:
        return node
    named = Admitted(manifest, signed.run)  # by the manifest
    own = None
    if identity.public_key not in named:
        if manifest.admission.how == LIST:
            raise not_listed(manifest, identity)
        own = await _pass(node, identity, store, config, manifest, signed.run)
        if trains and own.unchecked().role == GUEST:
            raise only_a_guest(manifest)
    revoked = RevokedKeys(node, Operators.of(manifest, signed.run), named)
    with contextlib.suppress(Unreachable, RemoteFault):  # it is asked again
        await revoked.look()
    admission_filter = AdmissionFilter(node, Known(manifest, signed.run, revoked), own, stranger_told(manifest), revoked)
    await admission_filter.open()
    return admission_filter


async def _pass(
    node: OwnNode, identity: Identity, store: PeerStore, config: PeerConfig, manifest: Manifest, run: bytes
) -> Signed[AdmissionProof]:
    """Return this peer's admission proof: the one that it has, or what the log gives for its invitation."""
    line = OperatorLine(node, Operators.of(manifest, run))
    kept = store.own_proof(run).read()
    if kept is not None:
        try:
            return admission_proof_of(kept, run, identity.public_key, manifest.operators)
        except RemoteFault:
            pass  # another key's, or damaged: the log gives it again
    request = b"" if config.invitation is None else pack(admission_by(config.invitation, identity, run))
    try:
        answer = await line.call(METHOD, request, timeout_s=timeouts.CALL_S)
        own = admission_proof_of(answer, run, identity.public_key, manifest.operators)
    except Unreachable as error:
        raise NotThere(f"the log, which lets peers into {manifest.name}, does not answer ({error})") from error
    except Refused as error:
        raise (not_let_in(manifest, error) if request else not_invited(manifest, identity)) from error
    except RemoteFault as error:
        raise UserError(f"the log of {manifest.name} answers with no admission proof ({error}): ask its operator") from error
    store.own_proof(run).write(pack(own))
    return own
