"""Lets a light contributor into a run that not everybody may take part in: through its gateway, by its admission proof or an invitation."""

from manta_swarm.peer.contact.invitation import admission_by, admission_proof_of, not_invited, not_let_in, not_listed, only_a_guest
from manta_swarm.peer.features.light.client import GatewayClient, NotLetIn
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.admission import GUEST, LIST, AdmissionProof, role_shown
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault, UserError
from manta_swarm.protocol.light import EnterRequest
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity


class Entry:
    """One light contributor's."""

    def __init__(self, identity: Identity, store: PeerStore, told: str | None) -> None:
        """Prepare; ``told`` is the invitation that the person gave, None: none."""
        self._identity = identity
        self._store = store
        self._told = told

    def enter(self, client: GatewayClient, manifest: Manifest, run: bytes) -> None:
        """Have the gateway know that this key is in.

        Raises:
            UserError: the run does not let it in; the message says what to ask for.
            Unreachable: the gateway is away, or reaches no log.
            RemoteFault: it says what makes no sense.
            StorageError: the admission proof cannot be kept.
        """
        key = self._identity.public_key
        if manifest.admission.is_open or key in Admitted(manifest, run):
            return
        if manifest.admission.how == LIST:
            raise not_listed(manifest, self._identity)
        shown = self._kept(manifest, run)
        if shown is None and self._told is None:
            raise not_invited(manifest, self._identity)
        if shown is not None and shown.unchecked().role == GUEST:
            raise only_a_guest(manifest)
        admission = () if shown is not None or self._told is None else (admission_by(self._told, self._identity, run),)
        request = EnterRequest(run, key, () if shown is None else (shown,), admission)
        try:
            found = client.enter(request)
        except NotLetIn as error:
            if shown is not None:
                raise UserError(f"{manifest.name} does not let your key in any more ({error}): ask its operator why") from error
            raise not_let_in(manifest, error) from error
        role_shown(found, run, key, manifest.operators)
        if shown is None:
            self._store.own_proof(run).write(pack(found))

    def _kept(self, manifest: Manifest, run: bytes) -> Signed[AdmissionProof] | None:
        kept = self._store.own_proof(run).read()
        if kept is None:
            return None
        try:
            return admission_proof_of(kept, run, self._identity.public_key, manifest.operators)
        except RemoteFault:
            return None  # another key's, or damaged: the invitation leads to it again
