"""A peer's line to the operator's log: the newest commit, and proposals; what comes back is believed only with its proof."""

from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError
from protocol.receipts import ProvenRound, open_round_receipt
from protocol.records import MAX_MANIFEST_BYTES, MAX_ROUND_BYTES, Manifest, Proposal, Receipt, SignedManifest
from protocol.signing import PublicKey
from swarm.rpc import Endpoint

MAX_RECEIPT_BYTES = 2 * MAX_ROUND_BYTES
MAX_PROPOSAL_BYTES = 3 * 512 * 1024  # a table of the most and largest claims, and all votes
_CALL_TIMEOUT_S = 20.0
_PROPOSE_TIMEOUT_S = 90.0  # the log fetches the mean and computes the next state before it answers


@dataclass(frozen=True, slots=True)
class Commitment:
    """A commit as it travels: the receipt, and what it was found to prove."""

    receipt: Receipt
    proven: ProvenRound


async def fetch_manifest(endpoint: Endpoint, key: PublicKey) -> SignedManifest:
    """Return the manifest that node ``key`` serves; its signature is not checked yet (``SignedManifest.open``).

    Raises:
        Unreachable, Refused: the node does not answer, or serves none.
        EncodingError: what it sent is no signed manifest.
    """
    answer = await endpoint.call(key, "manifest", b"", timeout_s=_CALL_TIMEOUT_S)
    return unpack(SignedManifest, answer, max_bytes=MAX_MANIFEST_BYTES + 256)


async def serve_manifest(endpoint: Endpoint, signed: SignedManifest) -> None:
    """Hand the run's manifest to whoever asks."""
    data = pack(signed)

    async def answer(_caller: PublicKey, _request: bytes) -> bytes:
        return data

    await endpoint.serve("manifest", answer)


class LogClient:
    """Asks the first operator's log of one run."""

    def __init__(self, endpoint: Endpoint, manifest: Manifest, run: bytes) -> None:
        self._endpoint = endpoint
        self._run = run
        self.operator = PublicKey(manifest.operators[0])

    async def latest(self) -> Commitment | None:
        """Return the newest commit; None before the first round.

        Raises:
            Unreachable: no log can be reached.
            RemoteFault: what it answers proves nothing.
        """
        answer = await self._endpoint.call(self.operator, "latest", b"", timeout_s=_CALL_TIMEOUT_S)
        return self.open(answer) if answer else None

    async def propose(self, proposal: Proposal) -> Commitment:
        """Hand in a proposal; return the commit of its round, which may be another group's.

        Raises:
            Unreachable: no log can be reached.
            Refused: the log does not take the proposal.
            RemoteFault: what it answers proves nothing.
        """
        answer = await self._endpoint.call(self.operator, "propose", pack(proposal), timeout_s=_PROPOSE_TIMEOUT_S)
        commitment = self.open(answer)
        if commitment.proven.round.statement.round != proposal.statement.round:
            raise EncodingError("the log answered with another round's commit")
        return commitment

    def open(self, data: bytes) -> Commitment:
        """Return the commit whose packed receipt is ``data``, from wherever it came.

        Raises:
            RemoteFault: it proves nothing.
        """
        receipt = unpack(Receipt, data, max_bytes=MAX_RECEIPT_BYTES)
        return Commitment(receipt, open_round_receipt(receipt, self._run, self.operator))
