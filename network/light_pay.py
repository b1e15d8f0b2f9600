"""What a gateway tells a light contributor of what a round paid it: the proofs of a payout receipt, and the log's word. HTTP carries it."""

from dataclasses import dataclass

from manta_swarm.network.log_client import MAX_CREDIT_BYTES, MAX_LISTING_BYTES, CreditWord
from manta_swarm.protocol.fields import require
from manta_swarm.protocol.light import PREFIX
from manta_swarm.protocol.records import Listing
from manta_swarm.protocol.rewards import RoundContributions

PAY = f"{PREFIX}/pay"
MAX_LIGHT_CLAIMS_BYTES = 2**17  # of a round's contributions: about 150 claims
MAX_PAY_BYTES = MAX_LISTING_BYTES + MAX_LIGHT_CLAIMS_BYTES + MAX_CREDIT_BYTES + 64


@dataclass(frozen=True, slots=True)
class LightPay:
    """What proves that a round counted a contribution (``protocol.payout_receipts``), and what the log says that a key of it has."""

    listing: Listing
    claims: tuple[RoundContributions, ...]  # all of the round, under the same tree head, at most one; none where they are too many
    word: CreditWord  # of one key; nothing proves it

    def __post_init__(self) -> None:
        require(len(self.claims) <= 1, "claims of more than one round")
