"""Who may lease from a gateway in a run that not everybody may take part in: it shows the log what light contributors show it.

What a gateway knows of who is in, it knows as every node does (``network.admission_filter``); the log alone lets anybody in.
"""

from collections import OrderedDict

from manta_swarm.network import timeouts
from manta_swarm.network.admission_filter import NOT_ADMITTED, Known, NotAdmitted
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.admission import GUEST, Admission, AdmissionProof, role_shown
from manta_swarm.protocol.admitted import LOOKS_ON
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.light import MAX_ENTER_BYTES, MAX_SIGNED_PROOF_BYTES, EnterRequest
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey

METHOD = "admission"
_REFUSED_MS = 60_000.0  # an invitation that the log refused is not brought again for so long
_MAX_REFUSED = 1024


class Entrance:
    """A gateway's, in one run."""

    def __init__(self, context: RunContext, known: Known) -> None:
        """Let in whom ``known`` knows; the context's node asks the log about others."""
        self._known = known
        self._manifest = context.manifest
        self._run = context.run
        self._clock = context.clock
        self._line = OperatorLine(context.node, Operators.of(context.manifest, context.run))
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # invitation -> when the log refused it, and why

    def check(self, key: bytes) -> None:
        """Refuse a key that is not in, or a guest, as far as is known here: it has to ``enter`` first.

        Raises:
            NotAdmitted: so it is.
        """
        if not self._known.trains(PublicKey(key)):
            raise NotAdmitted(f"{NOT_ADMITTED}: this run is not open to everybody")

    async def enter(self, request: bytes) -> Signed[AdmissionProof]:
        """Return the admission proof of the key of a packed EnterRequest, which may lease from now on.

        Raises:
            NotAdmitted: the run does not let it in, or as a guest.
            RemoteFault: what it shows is malformed, not signed, or for something else.
            Unreachable: the log does not answer.
        """
        asked = unpack(EnterRequest, request, max_bytes=MAX_ENTER_BYTES)
        if asked.run != self._run:
            raise EncodingError("a request for another run")
        shown = asked.shown[0] if asked.shown else await self._given(asked.admission[0], asked.key)
        self._known.learn(PublicKey(asked.key), shown)
        if not self._known.trains(PublicKey(asked.key)):
            raise NotAdmitted(LOOKS_ON)
        return shown

    async def _given(self, signed: Signed[Admission], key: bytes) -> Signed[AdmissionProof]:
        """Return what the log gives for an admission; what can be seen to be none is not brought to it."""
        admission = signed.open()
        invitation = admission.invitation.unchecked()
        if admission.key != key or invitation.run != self._run or invitation.operator not in self._manifest.operators:
            raise NotAdmitted("an admission of another key, to another run, or by somebody who is no operator of it")
        if invitation.role == GUEST:
            raise NotAdmitted(LOOKS_ON)
        digest = admission.invitation.digest
        if digest in self._refused and self._clock.now_ms() < self._refused[digest][0] + _REFUSED_MS:
            raise NotAdmitted(self._refused[digest][1])
        try:
            answer = await self._line.call(METHOD, pack(signed), timeout_s=timeouts.CALL_S)
        except Refused as error:
            self._refused.pop(digest, None)
            self._refused[digest] = self._clock.now_ms(), str(error)
            if len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
            raise NotAdmitted(str(error)) from error
        shown = unpack(Signed[AdmissionProof], answer, max_bytes=MAX_SIGNED_PROOF_BYTES)
        role_shown(shown, self._run, key, self._manifest.operators)
        return shown
