"""A claim of any number of lots and steps, with the records that it has the roots of."""

from protocol.encoding import pack
from protocol.evidence import Records
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, LotRecord, SignedClaim, StepRecord
from protocol.signing import Identity, sha256
from tests.claim_steps import steps_of

KEY = Identity(b"\x07" * 32)


def made(lots: int, steps: int = 1, round: int = 3) -> tuple[SignedClaim, Records]:
    """Return a claim with its records."""
    records = Records(
        tuple(LotRecord(min(number, steps - 1), number, "r32 u1.0:k3e2", 16, "2.5", bytes([number % 251]) * 32) for number in range(lots)),
        tuple(StepRecord(number, 16, sha256(b"s"), sha256(b"v"), sha256(b"m")) for number in range(steps if steps > 1 else 0)),
    )
    steps_root = root([leaf_hash(pack(step)) for step in records.steps]) if steps > 1 else b""
    lots_root = root([leaf_hash(pack(lot)) for lot in records.lots])
    own = KEY.public_key
    of_steps = steps_of((lots,), sha256(b"base"), own, steps=steps)
    claim = Claim(
        sha256(b"run"), round, sha256(b"base"), own, own, own, "home", of_steps, (lots,), lots_root, steps_root, sha256(b"v"), b"", 5
    )
    return SignedClaim.sign(claim, KEY), records
