"""A decoy as its operator hands it on: the plant that the log takes before its first claim, and the salt by which it reveals itself.

A decoy is a peer of the operator's whose claims are known to be bad, and which nobody can tell from others: who finds them good has not
looked (``protocol.standing``).
"""

from dataclasses import dataclass

from protocol.audits import SALT_BYTES, Plant, Reveal, SignedPlant, SignedReveal, decoy_digest
from protocol.errors import EncodingError
from protocol.fields import require
from protocol.signing import Identity

FILE = "decoy"  # in the folder of the peer that is one
MAX_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Decoy:
    """What makes a peer a decoy."""

    salt: bytes
    plant: SignedPlant

    def __post_init__(self) -> None:
        require(len(self.salt) == SALT_BYTES, f"a salt has {SALT_BYTES} bytes")

    @classmethod
    def made(cls, run: bytes, operator: Identity, key: bytes, salt: bytes) -> "Decoy":
        """Return what makes the peer of ``key`` a decoy in a run, by its operator's word."""
        return cls(salt, SignedPlant.sign(Plant(run, operator.public_key, decoy_digest(key, salt)), operator))

    def check(self, run: bytes, key: bytes) -> None:
        """Check that this makes a decoy of ``key`` in ``run``.

        Raises:
            EncodingError: it does not.
            SignatureError: its plant is not signed.
        """
        plant = self.plant.open()
        if plant.run != run:
            raise EncodingError("it is for another run")
        if plant.decoy != decoy_digest(key, self.salt):
            raise EncodingError("it is for another key")

    def revealed(self, run: bytes, decoy: Identity) -> SignedReveal:
        """Return the decoy's own word that it is one."""
        return SignedReveal.sign(Reveal(run, decoy.public_key, self.salt), decoy)
