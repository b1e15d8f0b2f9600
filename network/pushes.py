"""What nodes tell each other of bodies and of other blobs that they hand out: offers with the log's promises, and pushes of these."""

from collections.abc import Collection
from dataclasses import dataclass

from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.fields import check_digest
from manta_swarm.protocol.records import Contribution, InclusionPromise
from manta_swarm.protocol.signed import Signed

MAX_PUSH_BYTES = 48 * 1024  # of a push's offers: below what is worth a stream of its own
MAX_OFFERS, MAX_ROOTS = 256, 256  # of a push
MAX_HOPS = 255


@dataclass(frozen=True, slots=True)
class BodyOffer:
    """What shows that a body is worth fetching: its contribution, and the log's word that it has both."""

    contribution: Signed[Contribution]
    inclusion_promise: Signed[InclusionPromise]

    def open(self, run: bytes, operators: Collection[bytes]) -> tuple[Contribution, InclusionPromise]:
        """Return what was signed, the signatures checked.

        Raises:
            EncodingError: these do not belong together, or not to this run.
            SignatureError: its founder, or an operator, did not sign.
        """
        inclusion_promise = self.inclusion_promise.open_by(operators)
        if (inclusion_promise.run, inclusion_promise.contribution) != (run, self.contribution.digest):
            raise EncodingError("an inclusion promise of another run, or for another contribution")
        contribution = self.contribution.open()
        if contribution.run != run or not 0 <= inclusion_promise.round - contribution.round <= MAX_AGE:
            raise EncodingError("a contribution of another run, or of another time than its inclusion promise's")
        return contribution, inclusion_promise


@dataclass(frozen=True, slots=True)
class ShownOffer:
    """An offer of a body, and how far the body has travelled."""

    offer: BodyOffer
    hops: int  # from node to node that the body has passed before the one that shows it; nobody checks it

    def __post_init__(self) -> None:
        if not 0 <= self.hops <= MAX_HOPS:
            raise ValueError("hops out of range")


@dataclass(frozen=True, slots=True)
class Push:
    """What a node tells a link."""

    offers: tuple[ShownOffer, ...]  # bodies that it hands out
    held: tuple[bytes, ...]  # roots of what else it hands out, or begins to: of a commit's mean, or table
    coming: tuple[bytes, ...]  # roots of bodies that it is getting from afar

    def __post_init__(self) -> None:
        if len(self.offers) > MAX_OFFERS or len(self.held) + len(self.coming) > MAX_ROOTS:
            raise ValueError("a push of too much")
        for root in (*self.held, *self.coming):
            check_digest(root, "root")


@dataclass(frozen=True, slots=True)
class PushAnswer:
    """The answer to a push: whether who got it tells the other in turn; if not, another link is to be found."""

    is_linked: int
