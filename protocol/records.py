"""The records that travel and that the log keeps: manifest, announcement, claim, contribution, ticket, round, receipt.

Each is a frozen dataclass of int, text, bytes and tuples, encoded by ``protocol.encoding``; ``__post_init__`` checks the ranges,
so a decoded record is a valid one. Signatures are checked by ``open``, kind by kind. Real numbers are decimal
text ("0.002"): a float has no canonical form.
"""

import re
from dataclasses import dataclass

from protocol.affinity import NOWHERE, Position
from protocol.encoding import decode, from_value, pack, unpack
from protocol.errors import EncodingError, OtherVersion, RemoteFault, SignatureError
from protocol.exchange import MAX_COHORT, MAX_FLOOR, MAX_LOCAL_STEPS, MAX_LOT_MS, MAX_OPEN_MS, MAX_ROWS, MIN_FLOOR, Exchange
from protocol.private import DATA, PRIVATE, SHARED, PrivateData
from protocol.recipe import USUAL, Recipe
from protocol.signing import Digest, Identity, check_public_key, sha256, verify
from protocol.sizes import ALL, is_size, size_of
from protocol.versions import PROGRAM, PROTOCOL, check_form, check_version

MAX_ENTRY_BYTES = 4096
MAX_PAYLOAD_BYTES = MAX_ENTRY_BYTES - 96  # of what an entry holds: its kind, a signature and the framing of all are fewer bytes
MAX_MANIFEST_BYTES = 262_144
MAX_SIGNED_MANIFEST_BYTES = MAX_MANIFEST_BYTES + 128  # the payload, its signature, the version and the framing of all
MAX_ANNOUNCEMENT_BYTES = 512
MAX_ROUND = 2**40
MAX_ARCHITECTURES = 32  # that a round asks of a cohort
MAX_ROLES = 8
MAX_NORM = 2**62 - 1  # of a threshold
MAX_LOTS = 2**32
MAX_COSTS = 4096  # prices of a manifest
MAX_GENE_TEXT = 40
TASKS = ("classification", "stereo")
ALGORITHMS = ("data-parallel", "model-parallel")
SCHEDULES = ("sandwich", "shrinking")
COHORTS = ("consent", "affinity")

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
    outer_rate: str  # of the step that a round's mean is where a round has several local steps; else it is not used
    outer_momentum: str  # Nesterov's, of the same step

    def __post_init__(self) -> None:
        _require(self.name in ("adamw", "sgd"), f"unknown optimizer {self.name!r}")
        for value in (self.learning_rate, self.beta1, self.beta2, self.epsilon, self.weight_decay, self.outer_rate, self.outer_momentum):
            _require(_DECIMAL.fullmatch(value) is not None, f"{value!r} is not a decimal number")
        _require(float(self.beta1) < 1 and float(self.beta2) < 1, "betas are below 1")
        _require(float(self.outer_rate) > 0 and float(self.outer_momentum) < 1, "outer_rate is above 0, outer_momentum below 1")
        _require(self.name != "adamw" or float(self.epsilon) > 0, "AdamW's epsilon is above 0")
        _require(0 <= self.warmup_percent <= 100, "warmup_percent is between 0 and 100")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The signed, canonical description of a run; its SHA-256 is the run's id."""

    name: str
    task: str  # one of TASKS
    dataset: str  # a name that automl.data knows; where data are private the operator's own, which nobody trains on
    data_digest: bytes
    supernet: str  # a name that automl knows: "classifier-tiny", "classifier-tiny-3x100"
    seed: int
    algorithm: str  # one of ALGORITHMS: who trains what in a round
    schedule: str  # one of SCHEDULES: what there is to train, round by round
    num_rounds: int
    lot_samples: int  # samples of one lot
    optimizer: Optimizer
    initial_state: bytes  # digest of the state of round 0
    exchange: Exchange
    reward_pool: int  # credit units shared out each round
    costs: tuple[tuple[str, int], ...]  # price key -> MACs; see ``protocol.rewards.architecture_cost``
    operators: tuple[bytes, ...]  # Ed25519 keys; the first one's log decides
    cohorts: str  # one of COHORTS: who may be a mate of a peer without a label, those who share its token, or whoever of the run is near
    data: str = SHARED  # one of DATA: everybody trains on the data set, or each peer on images of its own, which stay there
    private: tuple[PrivateData, ...] = ()  # what these have to be: one where data are private, else none
    recipe: Recipe = USUAL  # how lots are augmented, and what decays

    def __post_init__(self) -> None:
        for what in ("name", "dataset", "supernet"):
            check_name(getattr(self, what), what)
        for what, known in (("task", TASKS), ("algorithm", ALGORITHMS), ("schedule", SCHEDULES), ("cohorts", COHORTS), ("data", DATA)):
            _require(getattr(self, what) in known, f"{what} must be one of {', '.join(known)}")
        check_digest(self.data_digest, "data_digest")
        check_digest(self.initial_state, "initial_state")
        _require(self.cohorts == "consent" or not self.is_private, "with private data cohorts come of consent")
        _require(0 <= self.seed < 2**63, "seed is between 0 and 2^63")
        _require(1 <= self.num_rounds <= MAX_ROUND, "num_rounds is at least 1")
        _require(1 <= self.reward_pool <= 2**48, "reward_pool is at least 1 and at most 2^48")
        _require(1 <= self.lot_samples <= 65_536, "lot_samples is at least 1 and at most 65536")
        _require(self.lot_samples <= self.exchange.weight_cap, "weight_cap is at least one lot")
        least = self.lot_samples * self.exchange.local_steps
        _require(least <= self.exchange.max_claim_samples, f"max_claim_samples is at least one lot a local step, {least}")
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
        _require(len(self.private) == int(self.is_private), "what private images have to be is said once where data are private, else not")
        _require(self.task == "classification" or not self.is_private, "private data are labelled images: the task is classification")

    @property
    def is_private(self) -> bool:
        """Whether each peer trains on images of its own: nobody can compute its lots again, so credits are unaudited."""
        return self.data == PRIVATE

    @property
    def credit_cap(self) -> int:
        """What one key earns in a round at most: the pool, or where data are private a part of it, rounded up."""
        return -(-self.reward_pool * self.private[0].credit_percent // 100) if self.is_private else self.reward_pool

    def cost_table(self) -> dict[str, int]:
        """Return price key -> MACs."""
        return dict(self.costs)


@dataclass(frozen=True, slots=True)
class Signed:
    """The bytes of a record with a signature: what travels, and what the log keeps."""

    payload: bytes
    signature: bytes

    @property
    def digest(self) -> Digest:
        """What names it: SHA-256 of the payload and the signature together."""
        return sha256(pack(self))


@dataclass(frozen=True, slots=True)
class SignedManifest(Signed):
    """A manifest's bytes and its first operator's signature, as they are served, and its version; this form is that of all versions."""

    protocol: int = PROTOCOL
    program: str = PROGRAM  # the oldest release that takes part: what to install, for who has another version

    def __post_init__(self) -> None:
        check_form(self.protocol, self.program)

    @property
    def run(self) -> Digest:
        """The run's id."""
        return sha256(self.payload)

    def open(self) -> Manifest:
        """Return the manifest, its signature checked.

        Raises:
            OtherVersion: it is of another version than this program; the message says what to install.
            EncodingError: the payload is no manifest, or of another version than the fields beside it say.
            SignatureError: its first operator did not sign it.
        """
        try:
            manifest = unpack(Manifest, self.payload, max_bytes=MAX_MANIFEST_BYTES)
            verify("manifest", manifest.operators[0], self.payload, self.signature)
        except RemoteFault:
            check_version(self.protocol, self.program)  # of another one, this program cannot know the form
            raise
        if (self.protocol, self.program) != (PROTOCOL, PROGRAM):
            raise EncodingError("it names another version than it is signed as")
        return manifest

    @classmethod
    def read(cls, data: bytes) -> "SignedManifest":
        """Return what was packed; it is not opened yet.

        Raises:
            OtherVersion: it is of a version before all releases, which did not name their version.
            EncodingError: it is no signed manifest.
        """
        value = decode(data, max_bytes=MAX_SIGNED_MANIFEST_BYTES)
        if type(value) is tuple and len(value) == 2:
            raise OtherVersion("it is of a version before the first release, which nobody reads any more: start a new run")
        return from_value(cls, value)

    @classmethod
    def sign(cls, manifest: Manifest, operator: Identity) -> "SignedManifest":
        """Return the manifest signed by its first operator."""
        payload = pack(manifest)
        return cls(payload, operator.sign("manifest", payload))


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a peer says of itself in the DHT, again and again: that it is there, whose state it can hand out, and who is near it."""

    run: bytes
    key: bytes
    cohort: str  # without its size, which follows from those of its members
    round: int  # whose state it holds
    sequence: int  # grows with every announcement of this key: milliseconds since 1970
    position: Position = NOWHERE
    size: int = ALL  # the largest that its device is fast enough for, see ``protocol.sizes``; in data-parallel it means nothing

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_name(self.cohort, "cohort")
        _require(size_of(self.cohort) == ALL, "an announced cohort's name says no size")
        _require(is_size(self.size), "size out of range")
        _require(0 <= self.round <= MAX_ROUND, "round out of range")
        _require(0 <= self.sequence < 2**62, "sequence out of range")


@dataclass(frozen=True, slots=True)
class Claim:
    """A peer's statement of its lots on one base, made once: whoever hands it in, and when, does not change its bytes."""

    run: bytes
    round: int  # the round after the base
    base: bytes  # digest of the commit whose state the lots were trained on; the run's id before the first
    key: bytes
    founder: bytes  # the key that convenes the cohort: naming it is the consent; a peer alone names itself
    cohort: str  # the name, with the size, that model-parallel's architectures follow from
    local_steps: int  # H, the manifest's
    work: tuple[int, ...]  # lots of each architecture that the round asks of the cohort, in that order
    lots_root: bytes  # RFC 9162 root over the packed LotRecords in the order of their index
    steps_root: bytes  # the same over the packed StepRecords, one a local step; empty where H = 1
    vector: bytes  # SHA-256 of what was learnt, float32 little-endian: the mean gradient, or the change of the weights over all steps
    residual: bytes  # SHA-256 of the residual of which a part was added to it before coding; empty: of zeros
    lot_ms: int  # median duration of its lots

    def __post_init__(self) -> None:
        for what in ("run", "base", "lots_root", "vector", "key", "founder"):
            check_digest(getattr(self, what), what)
        check_name(self.cohort, "cohort")
        _require(1 <= self.round <= MAX_ROUND, "round out of range")
        _require(1 <= self.local_steps <= MAX_LOCAL_STEPS, f"a round has 1 to {MAX_LOCAL_STEPS} local steps")
        _require(len(self.steps_root) == (32 if self.local_steps > 1 else 0), "steps_root is a digest where there are several local steps")
        _require(0 < len(self.work) <= MAX_ARCHITECTURES, f"a claim counts 1 to {MAX_ARCHITECTURES} architectures")
        _require(all(0 <= lots <= MAX_LOTS for lots in self.work) and sum(self.work) > 0, "a claim has at least one lot")
        _require(len(self.residual) in (0, 32), "a residual's digest has 32 bytes, or none")
        _require(1 <= self.lot_ms <= MAX_LOT_MS, f"a lot takes 1 to {MAX_LOT_MS} ms")

    @property
    def lots(self) -> int:
        """Lots over all architectures."""
        return sum(self.work)


@dataclass(frozen=True, slots=True)
class LotRecord:
    """One lot as a leaf of ``Claim.lots_root``."""

    step: int  # from 0, below ``Claim.local_steps``
    index: int
    architecture: str
    samples: int
    loss: str  # as C's printf writes it with %.6g
    projection: bytes  # a few signed random sums of the gradient, float32 little-endian: what an audit compares


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One local step as a leaf of ``Claim.steps_root``; digests are SHA-256 of float32 vectors, little-endian."""

    step: int  # from 0
    samples: int  # that this peer trained in it
    state: bytes  # digest of the weights before it
    vector: bytes  # of this peer's mean gradient
    mean: bytes  # of the cohort's; the same as ``vector`` where the step was taken alone


@dataclass(frozen=True, slots=True)
class SignedClaim(Signed):
    """A claim's bytes with its signer's signature: exactly what the log keeps."""

    def open(self) -> Claim:
        """Return the claim, its signature checked.

        Raises:
            EncodingError: the payload is no claim.
            SignatureError: its key did not sign it.
        """
        claim = unpack(Claim, self.payload, max_bytes=MAX_PAYLOAD_BYTES)
        verify("claim", claim.key, self.payload, self.signature)
        return claim

    @classmethod
    def sign(cls, claim: Claim, identity: Identity) -> "SignedClaim":
        """Return ``claim`` signed by its own key."""
        payload = pack(claim)
        return cls(payload, identity.sign("claim", payload))


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a cohort hands in for one base: its claims, and the body that was coded from their vectors."""

    run: bytes
    round: int  # the round after the base; it may count in a later one
    base: bytes
    founder: bytes
    claims: tuple[bytes, ...]  # SignedClaim.digest of each member, in the order of their keys
    body: bytes  # root over the body's groups
    residual: bytes  # SHA-256 of what coding left out of the cohort's vector: the residual of each member once this is listed; empty: zeros

    def __post_init__(self) -> None:
        for what in ("run", "base", "founder", "body"):
            check_digest(getattr(self, what), what)
        _require(1 <= self.round <= MAX_ROUND, "round out of range")
        _require(1 <= len(self.claims) <= MAX_COHORT, f"a contribution has 1 to {MAX_COHORT} claims")
        for claim in self.claims:
            check_digest(claim, "claim")
        _require(len(self.residual) in (0, 32), "a residual's digest has 32 bytes, or none")


@dataclass(frozen=True, slots=True)
class SignedContribution(Signed):
    """A contribution's bytes with its founder's signature: exactly what the log keeps."""

    def open(self) -> Contribution:
        """Return the contribution, its signature checked.

        Raises:
            EncodingError: the payload is no contribution.
            SignatureError: its founder did not sign it.
        """
        contribution = unpack(Contribution, self.payload, max_bytes=MAX_PAYLOAD_BYTES)
        verify("contribution", contribution.founder, self.payload, self.signature)
        return contribution

    @classmethod
    def sign(cls, contribution: Contribution, founder: Identity) -> "SignedContribution":
        """Return ``contribution`` signed by its founder."""
        payload = pack(contribution)
        return cls(payload, founder.sign("contribution", payload))


@dataclass(frozen=True, slots=True)
class Header:
    """A contribution as it is handed in, without its body: with the claims that it lists, in its order."""

    contribution: SignedContribution
    claims: tuple[SignedClaim, ...]

    def __post_init__(self) -> None:
        _require(1 <= len(self.claims) <= MAX_COHORT, f"a header has 1 to {MAX_COHORT} claims")


@dataclass(frozen=True, slots=True)
class Ticket:
    """The log's word that a contribution and its body are on its disk, and will be in the table of a round."""

    run: bytes
    round: int  # that it counts in
    contribution: bytes  # SignedContribution.digest

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.contribution, "contribution")
        _require(1 <= self.round <= MAX_ROUND, "round out of range")


@dataclass(frozen=True, slots=True)
class SignedTicket(Signed):
    """A ticket's bytes with the operator's signature."""

    def open(self, operator: bytes) -> Ticket:
        """Return the ticket, the signature of ``operator`` checked.

        Raises:
            EncodingError: the payload is no ticket.
            SignatureError: the operator did not sign it.
        """
        ticket = unpack(Ticket, self.payload, max_bytes=MAX_PAYLOAD_BYTES)
        verify("ticket", operator, self.payload, self.signature)
        return ticket

    @classmethod
    def sign(cls, ticket: Ticket, operator: Identity) -> "SignedTicket":
        """Return ``ticket`` signed by the operator."""
        payload = pack(ticket)
        return cls(payload, operator.sign("ticket", payload))


@dataclass(frozen=True, slots=True)
class Threshold:
    """How large contributions of one role usually are: what the next tables are clipped by."""

    role: int
    norm: int  # weighted median of their norms, in units of 2^floor of the entry that has it
    samples: int  # weighted median of their samples

    def __post_init__(self) -> None:
        _require(0 <= self.role < MAX_ROLES, "role out of range")
        _require(0 <= self.norm <= MAX_NORM and 1 <= self.samples <= 2**48, "norm or samples out of range")


@dataclass(frozen=True, slots=True)
class Round:
    """A round entry; the contributions in the log between the round entry before and this one are its table."""

    run: bytes
    round: int
    base: bytes  # digest of the commit before; the run's id before the first
    table: bytes  # root over the packed rows
    rows: int
    weights: bytes  # root over the rows' weights in the mean, clipped, each packed as an integer
    mean: bytes  # root over the mean's groups
    state: bytes  # digest of the next state
    counted: int  # samples of the table, before anybody's weight was capped
    thresholds: tuple[Threshold, ...]  # by role, for the tables to come
    floor: int  # of the exponents of bodies on this base
    open_ms: int  # how long the next round is open

    def __post_init__(self) -> None:
        for what in ("run", "base", "table", "weights", "mean", "state"):
            check_digest(getattr(self, what), what)
        _require(1 <= self.round <= MAX_ROUND, "round out of range")
        _require(1 <= self.rows <= MAX_ROWS and 1 <= self.counted < 2**62, "rows or samples out of range")
        roles = [threshold.role for threshold in self.thresholds]
        _require(len(roles) <= MAX_ROLES and roles == sorted(set(roles)), "thresholds are sorted by role, one each")
        _require(MIN_FLOOR <= self.floor <= MAX_FLOOR, "floor out of range")
        _require(1 <= self.open_ms <= MAX_OPEN_MS, "a round is open for 1 ms to a day")


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger record: ``kind`` says what is packed in the body, a "claim", a "contribution" (both signed) or a "round"."""

    kind: str
    body: bytes

    def __post_init__(self) -> None:
        _require(self.kind in _ENTRIES, f"unknown kind of entry {self.kind!r}")


_ENTRIES: dict[str, type] = {"claim": SignedClaim, "contribution": SignedContribution, "round": Round}
Logged = SignedClaim | SignedContribution | Round


@dataclass(frozen=True, slots=True)
class Receipt:
    """An entry, its inclusion proof and the signed tree head (a C2SP note) that it is proven under."""

    entry: bytes  # a packed Entry
    index: int
    proof: tuple[bytes, ...]
    tree_head: str


def open_entry(data: bytes) -> Logged:
    """Return the record inside an entry's bytes; signatures are not checked here (see ``protocol.ledger``).

    Raises:
        EncodingError: not an entry.
    """
    entry = unpack(Entry, data, max_bytes=MAX_ENTRY_BYTES)
    record: Logged = unpack(_ENTRIES[entry.kind], entry.body, max_bytes=MAX_ENTRY_BYTES)
    return record


def entry_of(record: Logged) -> bytes:
    """Return the log entry of a record."""
    kind = next(kind for kind, cls in _ENTRIES.items() if isinstance(record, cls))
    return pack(Entry(kind, pack(record)))


def commit_digest(entry: bytes) -> Digest:
    """Return a commit's digest: SHA-256 of its round entry's bytes. Before the first round it is the run's id."""
    return sha256(entry)
