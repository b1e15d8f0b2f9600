"""The records of audits: what a manifest says of trust, and what auditors find.

Findings are *extras*: signed records that stand in the log before the
claims of a round, and take effect with its entry. What they lead to is in ``protocol.trust``; whether a lot's gradient is what its record
says, whoever has the weights can compute.
"""

from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.errors import SignatureError
from protocol.fields import MAX_ROUND, Signed, check_digest, require
from protocol.signing import Identity, check_public_key, verify

MAX_EXTRA_BYTES = 4000  # of a packed one: an entry has room for it
MAX_LOT_BYTES = 1024  # of a packed LotRecord
MAX_PROOF = 40  # hashes: as many as a tree of more lots than a claim can have
MAX_PROVEN = 1024
MAX_AUDITORS = 16
MAX_KEPT_ROUNDS = 1024
MAX_AUDITED_LOTS = 8
PATIENCE = 3  # rounds that an accusation waits for the word of others
SETTLING = PATIENCE + 2  # rounds that it takes at most until that is decided, of a claim that is accused at the last moment
PROJECTION_BYTES = 32

OPEN, AUDITED = "open", "audited"
MODES = (OPEN, AUDITED)
LOT, SUM, WHOLE = "lot", "sum", "whole"
CHECKS = (LOT, SUM, WHOLE)  # one lot computed again · the body against what the lots' records say · all lots, and what follows from them
HOLDS, DIFFERS, WITHHELD = "holds", "differs", "withheld"
THERE = 4  # rounds after its table: whose key has a claim there was there while it was asked what audits need
OUTCOMES = (HOLDS, DIFFERS, WITHHELD)


@dataclass(frozen=True, slots=True)
class Trust:
    """What a run says of audits: whether there are any, who is trusted from the start, and how much is looked at."""

    mode: str  # one of MODES; in an open run, one of friends, no audit counts, all weigh alike and credit is final at once
    proven: tuple[bytes, ...] = ()  # keys that are proven from the start, sorted
    auditors: tuple[bytes, ...] = ()  # keys that audit for the operators, which always may, sorted
    proven_samples: int = 65_536  # that audits have to have found good until a key is proven
    pending_rounds: int = 30  # for which guilt takes back what was earned
    kept_rounds: int = 20  # for which findings on a table are taken; what an audit of it needs is kept for PATIENCE more
    audit_percent: int = 5  # of the claims of a proven key that are audited at least
    audit_lots: int = 1  # lots of a claim that are computed again
    whole_percent: int = 2  # of the claims that are audited: whose lots are all computed again
    audit_pool_percent: int = 10  # of the reward pool, for audits

    def __post_init__(self) -> None:
        require(self.mode in MODES, f"mode must be one of {', '.join(MODES)}")
        for what, most in (("proven", MAX_PROVEN), ("auditors", MAX_AUDITORS)):
            keys: tuple[bytes, ...] = getattr(self, what)
            require(len(keys) <= most and list(keys) == sorted(set(keys)), f"{what}: at most {most} keys, sorted, none twice")
            for key in keys:
                _check_key(key, what)
        require(1 <= self.proven_samples <= 2**48, "proven_samples is between 1 and 2^48")
        require(1 <= self.kept_rounds <= MAX_KEPT_ROUNDS, f"kept_rounds is between 1 and {MAX_KEPT_ROUNDS}")
        least = self.kept_rounds + SETTLING
        require(least <= self.pending_rounds <= 2 * MAX_KEPT_ROUNDS, f"pending_rounds is at least kept_rounds and {SETTLING} more")
        require(1 <= self.audit_percent <= 100 and 0 <= self.whole_percent <= 100, "a percentage of audits is at most 100, and not nothing")
        require(1 <= self.audit_lots <= MAX_AUDITED_LOTS, f"1 to {MAX_AUDITED_LOTS} lots of a claim are audited")
        require(0 <= self.audit_pool_percent <= 50, "audits are paid with at most half of the pool")

    @property
    def shown_rounds(self) -> int:
        """Rounds after a claim's table for which all that an audit needs of it is kept: so long findings on what is accused are taken."""
        return self.kept_rounds + PATIENCE

    @property
    def is_audited(self) -> bool:
        """Whether audits count."""
        return self.mode == AUDITED


ALL_ALIKE = Trust(OPEN)


@dataclass(frozen=True, slots=True)
class LotEvidence:
    """The record of one lot, and the proof that it is under the claim's ``lots_root``."""

    record: bytes  # a packed LotRecord, as the claim's key handed it out
    proof: tuple[bytes, ...]  # its place is the finding's ``lot``

    def __post_init__(self) -> None:
        require(1 <= len(self.record) <= MAX_LOT_BYTES, f"a lot's record has 1 to {MAX_LOT_BYTES} bytes")
        require(len(self.proof) <= MAX_PROOF, f"a proof has at most {MAX_PROOF} hashes")
        for node in self.proof:
            check_digest(node, "a proof's hash")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one auditor found of one claim; whoever has weights and samples can find it again."""

    run: bytes
    auditor: bytes
    claim: bytes  # SignedClaim.digest
    round: int  # whose table has the claim
    row: int  # of that table, from 0
    check: str  # one of CHECKS
    lot: int  # LOT: the place of the lot under the claim's ``lots_root``, which the beacon says; else 0
    outcome: str  # one of OUTCOMES
    projection: bytes  # LOT, WHOLE: of the gradient or the vector as the auditor computed it; SUM: of the decoded body; WITHHELD: empty
    evidence: tuple[LotEvidence, ...]  # LOT: what the key handed out; else, and WITHHELD, none

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.claim, "claim")
        _check_key(self.auditor, "auditor")
        require(1 <= self.round <= MAX_ROUND and 0 <= self.row < 2**16, "round or row out of range")
        require(self.check in CHECKS and self.outcome in OUTCOMES, "an unknown check or outcome")
        require(0 <= self.lot < 2**40 and (self.check == LOT or self.lot == 0), "a lot's place is that of a lot")
        is_withheld = self.outcome == WITHHELD
        require(
            len(self.projection) == (0 if is_withheld else PROJECTION_BYTES), "a projection where something was computed, and only there"
        )
        shown = int(self.check == LOT and not is_withheld)
        require(len(self.evidence) == shown, "the evidence is the lot's record, where one was handed out")


@dataclass(frozen=True, slots=True)
class SignedFinding(Signed):
    """A finding's bytes with its auditor's signature: exactly what the log keeps."""

    def open(self) -> Finding:
        """Return the finding, its signature checked.

        Raises:
            EncodingError: the payload is no finding.
            SignatureError: its auditor did not sign it.
        """
        finding = unpack(Finding, self.payload, max_bytes=MAX_EXTRA_BYTES)
        verify("finding", finding.auditor, self.payload, self.signature)
        return finding

    @classmethod
    def sign(cls, finding: Finding, auditor: Identity) -> "SignedFinding":
        """Return ``finding`` signed by its auditor."""
        payload = pack(finding)
        return cls(payload, auditor.sign("finding", payload))


SignedExtra = SignedFinding
Extra = Finding


def signer_of(extra: Extra) -> bytes:
    """Return the key that signed an extra."""
    return extra.auditor


def _check_key(key: bytes, what: str) -> None:
    try:
        check_public_key(key)
    except SignatureError as error:
        raise ValueError(f"{what}: {error}") from error
