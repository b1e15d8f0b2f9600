"""Finds a run at the addresses that lead to it, and comes into it, also where not everybody may take part."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from manta_swarm.network import timeouts
from manta_swarm.network.admission_filter import AdmissionFilter, AdmittedKeys, stranger_told
from manta_swarm.network.log_client import fetch_manifest
from manta_swarm.network.node import Node, parse_address
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import OwnNode, Refused
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.run_locator import admission_by, admission_proof_of, not_invited, not_let_in, not_listed, only_a_guest
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.admission import GUEST, LIST, MAX_PAGE, MAX_PAGE_BYTES, PEER, TAKEN_BACK, AdmissionProof, AskRevoked, Revoked
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, OtherVersion, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity
from manta_swarm.runtime import local_runs

REVOKED_METHOD = "revoked"

METHOD = "admission"


class NotThere(UserError):
    """Nobody of the run answers now; somebody may later."""


def _what_to_try(config: PeerConfig, expected_run: str | None) -> str:
    """Return what a person can do when nobody answers; a run on this computer may be the one that is meant."""
    others = [local for local in local_runs.find() if local.run != expected_run]
    if config.initial_peers or not others:
        return "check the address, and that the aggregator runs and its port is open"
    return f"that is the run joined last; for {others[0].name}, which runs on this computer, add --run {others[0].run}"


async def start_node(
    config: PeerConfig, identity: Identity, identity_path: Path, addresses: tuple[str, ...], expected_run: str | None
) -> Node:
    """Return a node that has met one of ``addresses``; whether others can call it is to be found out.

    Raises:
        NotThere: none answers; the message says what to do.
        UserError: it cannot listen where it should; the message says what to do.
    """
    try:
        return await Node.start(identity, identity_path, listen=config.listen_addresses, initial_peers=addresses, serves_dht=False)
    except Unreachable as error:
        raise NotThere(f"{error}: {_what_to_try(config, expected_run)}") from error


async def fetch_checked_manifest(node: Node, given: Sequence[str], expected_run: str | None) -> SignedManifest:
    """Return the manifest that one of those serves by whom the node entered, its signature and the run's id checked.

    Raises:
        NotThere: none answers, or has the run.
        UserError: what is served at an address that was ``given`` is not to be believed, or not the run that was meant.
    """
    problems = []
    for address in node.entered_by:
        try:
            signed = await fetch_manifest(node, parse_address(address)[0])
            signed.open()
            if expected_run is None or signed.run.hex() == expected_run:
                return signed
            problem = f"{address} serves run {signed.run.hex()}, not {expected_run}"
            advice = "check --run, or give the address of that run's aggregator"
        except Unreachable as error:
            problems.append(str(error))
            continue
        except OtherVersion as error:
            problem, advice = f"the run at {address} is of another version", str(error)
        except RemoteFault as error:
            problem, advice = f"the manifest that {address} serves is refused ({error})", "ask the operator for the right address"
        if address in given:
            raise UserError(f"{problem}; {advice}")
        problems.append(problem)
    raise NotThere(f"no manifest could be fetched ({'; '.join(problems)}); ask the operator whether the run is up")


class RevokedKeys:
    """Knows the revoked keys, and whom the manifest lets in. Implements ``network.admission_filter.Roll`` and ``Keeper``."""

    def __init__(self, node: OwnNode, operators: Operators, named: Admitted) -> None:
        """Know of none yet; ``node`` asks, and its own key must not be among them. ``named``: whom the manifest lets in."""
        self._own = node.key
        self._line = OperatorLine(node, operators)
        self._operators = operators
        self._known = 0  # revocations that were taken
        self._named = named
        self.out: set[bytes] = set()

    def trains(self, key: bytes) -> bool:
        """See ``Roll``; whoever has an admission proof shows it."""
        return self._named.trains(key)

    async def look(self) -> None:
        """Ask for what was taken back since the last look.

        Raises:
            Unreachable: the log does not answer.
            RemoteFault: what it answers is nothing that its operators signed.
            UserError: it is this peer's own admission.
        """
        while True:
            answer = await self._line.call(REVOKED_METHOD, pack(AskRevoked(self._known)), timeout_s=timeouts.CALL_S)
            page = unpack(Revoked, answer, max_bytes=MAX_PAGE_BYTES).signed
            for signed in page:
                revocation = signed.open()
                if revocation.run != self._operators.run or revocation.operator not in self._operators:
                    raise EncodingError("a revocation of another run, or of somebody who is no operator of it")
                if revocation.what == PEER:
                    self.out.add(revocation.target)
                self._known += 1
            if self._own in self.out:
                raise UserError(f"{TAKEN_BACK}, which is this peer's: ask the operator why; what it earned before stays in the log")
            if len(page) < MAX_PAGE:
                return

    async def keep(self) -> None:
        """Look again and again, until this is cancelled.

        Raises:
            UserError: this peer's own admission was taken back.
        """
        while True:
            with contextlib.suppress(Unreachable, RemoteFault):  # of the log; its other answers say what is wrong with it
                await self.look()
            await asyncio.sleep(timeouts.REVOKED_S)


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
        own = await _own_proof(node, identity, store, config, manifest, signed.run)
        if trains and own.unchecked().access == GUEST:
            raise only_a_guest(manifest)
    revoked = RevokedKeys(node, Operators.of(manifest, signed.run), named)
    with contextlib.suppress(Unreachable, RemoteFault):  # it is asked again
        await revoked.look()
    admission_filter = AdmissionFilter(node, AdmittedKeys(manifest, signed.run, revoked), own, stranger_told(manifest), revoked)
    await admission_filter.open()
    return admission_filter


async def _own_proof(
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
