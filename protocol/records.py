"""The records that travel and that the log keeps: manifest, announcement, claim, statement, vote, round, receipt.

Each is a frozen dataclass of int, text, bytes and tuples, encoded by ``protocol.encoding``; ``__post_init__`` checks the ranges,
so a decoded record is a valid one. Signatures are checked by the functions at the end, kind by kind. Real numbers are decimal
text ("0.002"): a float has no canonical form.
"""

import re
from dataclasses import dataclass

from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, SignatureError
from protocol.signing import Digest, Identity, check_public_key, sha256, verify

MAX_ENTRY_BYTES = 4096  # a claim entry
MAX_CLAIM_BYTES = MAX_ENTRY_BYTES - 80  # a claim's payload: what the entry around it adds is 80 bytes
MAX_ROUND_BYTES = 65_535  # a round entry
MAX_MANIFEST_BYTES = 262_144
MAX_GROUP = 256  # members of one table: their claims' digests and votes fit a round entry
MAX_ROUND = 2**40
MAX_ARCHITECTURES = 8  # that a claim names; with texts as long as they may be, a claim still fits its entry
MAX_ARCHITECTURE_TEXT = 400
MAX_COSTS = 4096  # prices of a manifest
MAX_GENE_TEXT = 40
TASKS = ("classification", "stereo")
ALGORITHMS = ("data-parallel", "model-parallel")
SCHEDULES = ("sandwich", "shrinking")

_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def check_digest(value: bytes, what: str) -> None:
    """Refuse what has not the length of a digest.

    Raises:
        ValueError: the digest is refused.
    """
    _require(len(value) == 32, f"{what} has {len(value)} bytes, not 32")


def check_name(value: str, what: str) -> None:
    """Refuse what is not a plain lower-case name of 1-63 letters, digits, dots, dashes and underscores.

    Raises:
        ValueError: the name is refused.
    """
    _require(_NAME.fullmatch(value) is not None, f"{what} must be a plain lower-case name, not {value!r}")


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The exact update's settings; every real number is decimal text."""

    name: str  # "adamw" | "sgd"
    learning_rate: str  # the peak of the one-cycle schedule
    beta1: str  # AdamW's first moment; SGD's momentum
    beta2: str
    epsilon: str
    weight_decay: str  # decoupled (AdamW) or added to the gradient (SGD)
    warmup_percent: int  # of the rounds, for the rate to rise linearly to its peak; then it falls linearly to 1 % of it

    def __post_init__(self) -> None:
        _require(self.name in ("adamw", "sgd"), f"unknown optimizer {self.name!r}")
        for value in (self.learning_rate, self.beta1, self.beta2, self.epsilon, self.weight_decay):
            _require(_DECIMAL.fullmatch(value) is not None, f"{value!r} is not a decimal number")
        _require(float(self.beta1) < 1 and float(self.beta2) < 1, "betas are below 1")
        _require(self.name != "adamw" or float(self.epsilon) > 0, "AdamW's epsilon is above 0")
        _require(0 <= self.warmup_percent <= 100, "warmup_percent is between 0 and 100")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The signed, canonical description of a run; its SHA-256 is the run's id."""

    name: str
    task: str  # one of TASKS
    dataset: str  # a name that automl.data knows
    data_digest: bytes
    supernet: str  # a name that automl knows: "classifier-tiny", "classifier-tiny-3x100"
    seed: int
    algorithm: str  # one of ALGORITHMS: who trains what in a round
    schedule: str  # one of SCHEDULES: what there is to train, round by round
    num_rounds: int
    target_batch: int  # samples over all lots that close a round
    lot_samples: int  # samples of one lot
    max_claim_samples: int  # a claim's weight is capped here
    round_deadline_ms: int  # a round closes at the latest this long after the commit before it
    attempt_timeout_ms: int  # from a settled table to a quorum of votes
    optimizer: Optimizer
    initial_state: bytes  # digest of the state of round 0
    cohort_codec: str  # codec between members of a cohort
    swarm_codec: str  # codec between cohorts, and of the mean itself
    reward_pool: int  # credit units shared out each round
    costs: tuple[tuple[str, int], ...]  # price key -> MACs; see ``protocol.rewards.architecture_cost``
    operators: tuple[bytes, ...]  # Ed25519 keys; the first one's log decides

    def __post_init__(self) -> None:
        for what in ("name", "dataset", "supernet", "cohort_codec", "swarm_codec"):
            check_name(getattr(self, what), what)
        for what, known in (("task", TASKS), ("algorithm", ALGORITHMS), ("schedule", SCHEDULES)):
            _require(getattr(self, what) in known, f"{what} must be one of {', '.join(known)}")
        check_digest(self.data_digest, "data_digest")
        check_digest(self.initial_state, "initial_state")
        _require(0 <= self.seed < 2**63, "seed is between 0 and 2^63")
        _require(1 <= self.num_rounds <= MAX_ROUND, "num_rounds is at least 1")
        for what in ("target_batch", "lot_samples", "max_claim_samples", "round_deadline_ms", "attempt_timeout_ms", "reward_pool"):
            _require(1 <= getattr(self, what) <= 2**48, f"{what} is at least 1 and at most 2^48")
        _require(self.lot_samples <= 65_536, "lot_samples is at most 65536")
        _require(len(self.costs) <= MAX_COSTS, f"a manifest has at most {MAX_COSTS} prices")
        _require(all(0 < len(key) <= MAX_GENE_TEXT for key, _ in self.costs), f"what is priced has 1 to {MAX_GENE_TEXT} characters")
        _require(len({key for key, _ in self.costs}) == len(self.costs), "nothing is priced twice")
        _require(all(0 <= cost < 2**62 for _, cost in self.costs), "a cost is not negative")
        _require(1 <= len(self.operators) <= 16, "a run has 1 to 16 operators")
        for key in self.operators:
            try:
                check_public_key(key)
            except SignatureError as error:
                raise ValueError(f"operators: {error}") from error

    def cost_table(self) -> dict[str, int]:
        """Return price key -> MACs."""
        return dict(self.costs)


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest's bytes and its first operator's signature, as they are served."""

    payload: bytes
    signature: bytes

    @property
    def run(self) -> Digest:
        """The run's id."""
        return sha256(self.payload)

    def open(self) -> Manifest:
        """Return the manifest, its signature checked.

        Raises:
            EncodingError: the payload is no manifest.
            SignatureError: its first operator did not sign it.
        """
        manifest = unpack(Manifest, self.payload, max_bytes=MAX_MANIFEST_BYTES)
        verify("manifest", manifest.operators[0], self.payload, self.signature)
        return manifest

    @classmethod
    def sign(cls, manifest: Manifest, operator: Identity) -> "SignedManifest":
        """Return the manifest signed by its first operator."""
        payload = pack(manifest)
        return cls(payload, operator.sign("manifest", payload))


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a peer says of itself in the DHT, again and again: where it stands and how far its round is."""

    run: bytes
    key: bytes
    cohort: str
    last_commit: bytes  # the commit it stands on; the run's id before the first
    round: int  # the round it works on
    samples: int  # trained for that round so far
    ready: int  # 1 when its claim is frozen
    sequence: int  # grows with every announcement of this key: milliseconds since 1970

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.last_commit, "last_commit")
        check_name(self.cohort, "cohort")
        _require(1 <= self.round <= MAX_ROUND and 0 <= self.samples <= 2**48, "round or samples out of range")
        _require(self.ready in (0, 1) and 0 <= self.sequence < 2**62, "ready or sequence out of range")


@dataclass(frozen=True, slots=True)
class Claim:
    """A peer's statement of its lots for one round, made once, the same bytes in every attempt."""

    run: bytes
    round: int
    last_commit: bytes  # digest of the commit whose state the lots were trained on
    key: bytes
    cohort: str
    work: tuple[tuple[str, int], ...]  # architecture (its canonical text) -> samples, sorted by text
    lots: int
    lots_root: bytes  # RFC 9162 root over the encoded LotRecords in order

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.last_commit, "last_commit")
        check_digest(self.lots_root, "lots_root")
        check_name(self.cohort, "cohort")
        _require(1 <= self.round <= MAX_ROUND, "round out of range")
        _require(1 <= self.lots <= 2**32, "a claim has at least one lot")
        names = [name for name, _ in self.work]
        _require(0 < len(names) <= MAX_ARCHITECTURES, f"a claim names 1 to {MAX_ARCHITECTURES} architectures")
        _require(names == sorted(set(names)), "architectures are sorted and named once")
        _require(
            all(0 < len(name) <= MAX_ARCHITECTURE_TEXT for name in names),
            f"an architecture's text has 1 to {MAX_ARCHITECTURE_TEXT} characters",
        )
        _require(all(0 < samples <= 2**40 for _, samples in self.work), "samples out of range")

    @property
    def samples(self) -> int:
        """Samples over all its lots."""
        return sum(samples for _, samples in self.work)


@dataclass(frozen=True, slots=True)
class LotRecord:
    """One lot as a leaf of ``Claim.lots_root``."""

    index: int
    architecture: str
    samples: int
    loss: str  # as C's printf writes it with %.6g
    projection: bytes  # a few signed random sums of the gradient, float32 little-endian: what an audit compares


@dataclass(frozen=True, slots=True)
class SignedClaim:
    """A claim's bytes with its signer's signature: exactly what the log keeps."""

    payload: bytes
    signature: bytes

    def open(self) -> Claim:
        """Return the claim, its signature checked.

        Raises:
            EncodingError: the payload is no claim.
            SignatureError: its key did not sign it.
        """
        claim = unpack(Claim, self.payload, max_bytes=MAX_CLAIM_BYTES)
        verify("claim", claim.key, self.payload, self.signature)
        return claim

    @property
    def digest(self) -> Digest:
        """What a table lists: SHA-256 of the payload and the signature together."""
        return sha256(pack(self))

    @classmethod
    def sign(cls, claim: Claim, identity: Identity) -> "SignedClaim":
        """Return ``claim`` signed by its own key."""
        payload = pack(claim)
        return cls(payload, identity.sign("claim", payload))


@dataclass(frozen=True, slots=True)
class Statement:
    """What a group says its attempt reached; each member signs these bytes (kind "proposal")."""

    run: bytes
    round: int
    last_commit: bytes
    table: bytes  # table_digest of its claims
    mean: bytes  # digest of the mean's canonical bytes
    state: bytes  # digest of the next state's canonical bytes

    def __post_init__(self) -> None:
        for what in ("run", "last_commit", "table", "mean", "state"):
            check_digest(getattr(self, what), what)
        _require(1 <= self.round <= MAX_ROUND, "round out of range")


@dataclass(frozen=True, slots=True)
class Vote:
    """One member's signature under a statement."""

    key: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Proposal:
    """A statement, the claims of its table in the table's order, and the votes of at least two thirds of their keys."""

    statement: Statement
    claims: tuple[SignedClaim, ...]
    votes: tuple[Vote, ...]  # sorted by key

    def __post_init__(self) -> None:
        _require(1 <= len(self.claims) <= MAX_GROUP, f"a table has 1 to {MAX_GROUP} claims")
        _require(len(self.votes) <= len(self.claims), "more votes than claims")


@dataclass(frozen=True, slots=True)
class Round:
    """A round entry: the proposal that the log took, its claims by digest. The log has it: the round has happened."""

    statement: Statement
    claims: tuple[bytes, ...]  # SignedClaim.digest in the table's order
    votes: tuple[Vote, ...]  # sorted by key

    def __post_init__(self) -> None:
        _require(1 <= len(self.claims) <= MAX_GROUP, f"a round has 1 to {MAX_GROUP} claims")
        _require(len(self.votes) <= len(self.claims), "more votes than claims")
        for claim in self.claims:
            check_digest(claim, "claim")


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger record: ``kind`` is "claim" (body: a packed SignedClaim) or "round" (body: a packed Round)."""

    kind: str
    body: bytes

    def __post_init__(self) -> None:
        _require(self.kind in ("claim", "round"), f"unknown kind of entry {self.kind!r}")


@dataclass(frozen=True, slots=True)
class Receipt:
    """An entry, its inclusion proof and the signed tree head (a C2SP note) that it is proven under."""

    entry: bytes  # a packed Entry
    index: int
    proof: tuple[bytes, ...]
    tree_head: str


def open_entry(data: bytes) -> SignedClaim | Round:
    """Return the record inside an entry's bytes; signatures are not checked here (see ``protocol.ledger``).

    Raises:
        EncodingError: not an entry, or larger than its kind may be.
    """
    entry = unpack(Entry, data, max_bytes=MAX_ROUND_BYTES)
    if entry.kind == "round":
        return unpack(Round, entry.body, max_bytes=MAX_ROUND_BYTES)
    if len(data) > MAX_ENTRY_BYTES:
        raise EncodingError(f"a claim entry of {len(data)} bytes where at most {MAX_ENTRY_BYTES} are allowed")
    return unpack(SignedClaim, entry.body, max_bytes=MAX_ENTRY_BYTES)


def claim_entry(claim: SignedClaim) -> bytes:
    """Return the log entry of a claim."""
    return pack(Entry("claim", pack(claim)))


def round_entry(round_: Round) -> bytes:
    """Return the log entry of a round."""
    return pack(Entry("round", pack(round_)))


def commit_digest(entry: bytes) -> Digest:
    """Return a commit's digest: SHA-256 of its round entry's bytes. Before the first round it is the run's id."""
    return sha256(entry)


def sign_vote(statement: Statement, identity: Identity) -> Vote:
    """Return the identity's vote for ``statement``."""
    return Vote(identity.public_key, identity.sign("proposal", pack(statement)))


def check_vote(statement: Statement, vote: Vote) -> None:
    """Check one vote's signature.

    Raises:
        SignatureError: the vote is not its key's.
    """
    verify("proposal", vote.key, pack(statement), vote.signature)


def quorum(members: int) -> int:
    """Return how many votes a proposal of ``members`` needs: two thirds, rounded up."""
    return -(-2 * members // 3)


def table_order(claim: Claim) -> tuple[str, bytes]:
    """Return what a table is sorted by: cohort, then key."""
    return claim.cohort, claim.key


def sort_table(claims: list[tuple[SignedClaim, Claim]]) -> list[tuple[SignedClaim, Claim]]:
    """Return claims in a table's order."""
    return sorted(claims, key=lambda pair: table_order(pair[1]))


def table_digest(claims: tuple[bytes, ...]) -> Digest:
    """Return the digest of a table: of its claims' digests, in order."""
    return sha256(b"".join(claims))
