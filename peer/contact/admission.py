"""Coming into a run that not everybody may take part in: by the manifest's list, by the log's pass, or by an invitation shown once."""

import contextlib
from collections.abc import Collection

from peer.config import PeerConfig
from peer.contact.finding import NotThere
from peer.contact.revoked import RevokedKeys
from peer.store import PeerStore
from protocol.admission import LIST, SignedPass
from protocol.admitted import Admitted
from protocol.encoding import pack, unpack
from protocol.errors import RemoteFault, Unreachable, UserError
from protocol.manifest import Manifest, SignedManifest
from protocol.operators import Operators
from protocol.signing import Identity, peer_name
from swarm import waits
from swarm.gate import Gate, Known, stranger_told
from swarm.invitation import read_invitation
from swarm.operator_line import OperatorLine
from swarm.rpc import OwnNode, Refused

METHOD = "admission"
_MAX_PASS_BYTES = 512


async def enter(node: OwnNode, identity: Identity, store: PeerStore, config: PeerConfig, signed: SignedManifest) -> OwnNode:
    """Return this node, held to whom the run admits, once this peer is among them; where that is everybody the node as it is.

    Raises:
        UserError: the run does not admit this peer, or does no more; the message says what to ask for.
        NotThere: the log, which would let it in, does not answer.
    """
    manifest = signed.open()
    if manifest.admission.is_open:
        return node
    named = Admitted(manifest, signed.run)  # by the manifest
    own = None
    if identity.public_key not in named:
        if manifest.admission.how == LIST:
            raise UserError(
                f"the run {manifest.name} takes the peers that its manifest lists, and yours, {peer_name(identity.public_key)}, is none of "
                "them: restore the key that is (manta-peer identity restore FILE), or ask its operator about another run"
            )
        own = await _pass(node, identity, store, config, manifest, signed.run)
    revoked = RevokedKeys(node, Operators.of(manifest, signed.run))
    with contextlib.suppress(Unreachable, RemoteFault):  # it is asked again
        await revoked.look()
    known = Known(manifest, signed.run, lambda key: key in named, revoked.__contains__)
    gate = Gate(node, known, own, stranger_told(manifest), revoked.keep)
    await gate.open()
    return gate


async def _pass(node: OwnNode, identity: Identity, store: PeerStore, config: PeerConfig, manifest: Manifest, run: bytes) -> SignedPass:
    """Return this peer's pass: the one that it has, or what the log gives for its invitation."""
    line = OperatorLine(node, Operators.of(manifest, run))
    kept = store.own_pass.load(run)
    if kept is not None:
        try:
            return _checked(kept, run, identity.public_key, manifest.operators)
        except RemoteFault:
            pass  # another key's, or damaged: the log gives it again
    request = b"" if config.invitation is None else _request(config.invitation, identity, run)
    try:
        answer = await line.call(METHOD, request, timeout_s=waits.CALL_S)
        own = _checked(answer, run, identity.public_key, manifest.operators)
    except Unreachable as error:
        raise NotThere(f"the log, which lets peers into {manifest.name}, does not answer ({error})") from error
    except Refused as error:
        if request:
            raise UserError(f"the invitation does not let you into {manifest.name} ({error}): ask who gave it for another") from error
        raise UserError(
            f"the run {manifest.name} takes invited peers only, and yours, {peer_name(identity.public_key)}, is not in: "
            "ask its operator for an invitation (manta-aggregator invite makes one), and give it with --invitation FILE"
        ) from error
    except RemoteFault as error:
        raise UserError(f"the log of {manifest.name} answers with no pass ({error}): ask its operator") from error
    store.own_pass.save(run, pack(own))
    return own


def _request(told: str, identity: Identity, run: bytes) -> bytes:
    token = read_invitation(told)
    if token.invitation.read().run != run:
        raise UserError(f"--invitation: it is to another run, {token.invitation.read().run.hex()}; give that run's address")
    try:
        return pack(token.admission(identity))
    except RemoteFault as error:
        raise UserError(f"--invitation: {error}; ask for one for your own key, {peer_name(identity.public_key)}") from error


def _checked(data: bytes, run: bytes, key: bytes, operators: Collection[bytes]) -> SignedPass:
    shown = unpack(SignedPass, data, max_bytes=_MAX_PASS_BYTES)
    shown.check(run, key, operators)
    return shown
