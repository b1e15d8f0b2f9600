"""A run's manifest: the signed, canonical description of one training job; its SHA-256 is the run's id.

Real numbers are decimal text ("0.002"): a float has no canonical form.
"""

import re
from dataclasses import dataclass

from manta_swarm.protocol.admission import EVERYBODY, AdmissionRule
from manta_swarm.protocol.encoding import decode, from_value, pack, unpack
from manta_swarm.protocol.errors import EncodingError, OtherVersion, RemoteFault, SignatureError
from manta_swarm.protocol.exchange import Exchange
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, check_name, require
from manta_swarm.protocol.private import DATA, PRIVATE, SHARED, PrivateData
from manta_swarm.protocol.signing import Digest, Identity, check_public_key, sha256, verify
from manta_swarm.protocol.verdicts import AuditRules
from manta_swarm.protocol.versions import PROGRAM, PROTOCOL, check_form, check_version

PIECE_BYTES = 1 << 20  # of all but the last
MAX_LIST_BYTES = 8 << 20
MAX_SHARDS = 7_000  # so that a list of so many, and of as many classes as there can be, is a record (protocol.encoding.MAX_ITEMS)
MAX_SHARD_BYTES = 1 << 30

DECAYS = ("all", "matrices")
MAX_PERCENT = 200
ALL_PERCENT = 100

MAX_MANIFEST_BYTES = 262_144
MAX_SIGNED_MANIFEST_BYTES = MAX_MANIFEST_BYTES + 128  # the payload, its signature, the version and the framing of all
MAX_COSTS = 4096  # prices of a manifest
MAX_GENE_TEXT = 40
MAX_OPERATORS = 7
TASKS = ("classification", "stereo")
ALGORITHMS = ("data-parallel", "model-parallel")
SCHEDULES = ("sandwich", "shrinking")
COHORTS = ("token", "affinity")

_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?")


@dataclass(frozen=True, slots=True)
class TravellingShards:
    """What a peer needs to know of a set to get it from others, beside the set's digest. The operator answers for its licence."""

    list_root: bytes  # over the pieces of the list of the shards
    list_bytes: int
    size_bytes: int  # of all shards
    train_shards: int  # how many of them are of samples to train with: the first ones

    def __post_init__(self) -> None:
        if len(self.list_root) != 32:
            raise ValueError(f"list_root has {len(self.list_root)} bytes, not 32")
        if not 1 <= self.list_bytes <= MAX_LIST_BYTES:
            raise ValueError(f"a list of shards has 1 to {MAX_LIST_BYTES} bytes")
        if not 1 <= self.train_shards < MAX_SHARDS:
            raise ValueError(f"a set has 2 to {MAX_SHARDS} shards, of which one at least is held out")
        if not 1 <= self.size_bytes <= MAX_SHARDS * MAX_SHARD_BYTES:
            raise ValueError("size_bytes is of shards that cannot be")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How strongly images are changed in training, by round and architecture, which weights decay, and when networks teach each other."""

    first_percent: int = 100  # of the usual strength of augmentation, in the first round
    last_percent: int = 100  # in the last one; in between it goes evenly from the one to the other
    smaller_percent: int = 100  # of a round's strength: what every architecture has but the largest
    decay: str = "matrices"  # one of DECAYS: all weights, or all but those of normalisations, biases and transforms of kernels
    taught_percent: int = 0  # of the rounds, the last ones, in which all learn from the largest network of the base's state, too

    def __post_init__(self) -> None:
        for percent in (self.first_percent, self.last_percent, self.smaller_percent):
            if not 0 <= percent <= MAX_PERCENT:
                raise ValueError(f"augmentation is of 0 to {MAX_PERCENT} percent")
        if self.decay not in DECAYS:
            raise ValueError(f"what decays is one of {', '.join(DECAYS)}")
        if not 0 <= self.taught_percent <= ALL_PERCENT:
            raise ValueError(f"microbatches are taught in 0 to {ALL_PERCENT} percent of the rounds")

    def strength(self, round: int, num_rounds: int, *, is_largest: bool) -> int:
        """Return the percentage of the usual augmentation that a microbatch of a round (1 to ``num_rounds``) has."""
        change = (self.last_percent - self.first_percent) * (round - 1) // max(num_rounds - 1, 1)
        percent = self.first_percent + change
        return percent if is_largest else percent * self.smaller_percent // 100


USUAL = Recipe()


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
        require(self.name in ("adamw", "sgd"), f"unknown optimizer {self.name!r}")
        for value in (self.learning_rate, self.beta1, self.beta2, self.epsilon, self.weight_decay, self.outer_rate, self.outer_momentum):
            require(_DECIMAL.fullmatch(value) is not None, f"{value!r} is not a decimal number")
        require(float(self.beta1) < 1 and float(self.beta2) < 1, "betas are below 1")
        require(float(self.outer_rate) > 0 and float(self.outer_momentum) < 1, "outer_rate is above 0, outer_momentum below 1")
        require(self.name != "adamw" or float(self.epsilon) > 0, "AdamW's epsilon is above 0")
        require(0 <= self.warmup_percent <= 100, "warmup_percent is between 0 and 100")


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
    microbatch_samples: int  # samples of one microbatch
    optimizer: Optimizer
    initial_state: bytes  # digest of the state of round 0
    exchange: Exchange
    reward_pool: int  # credit units shared out each round
    costs: tuple[tuple[str, int], ...]  # price key -> MACs; see ``protocol.rewards.architecture_cost``
    operators: tuple[bytes, ...]  # Ed25519 keys; the first one signs the manifest
    cohorts: str  # one of COHORTS: who shares a token is a cohort; or also who is near, if it has neither token nor label
    data: str = SHARED  # one of DATA: everybody trains on the data set, or each peer on images of its own, which stay there
    private: tuple[PrivateData, ...] = ()  # what these have to be: one where data are private, else none
    recipe: Recipe = USUAL  # how microbatches are augmented, and what decays
    shards: tuple[TravellingShards, ...] = ()  # one where the data set is in shards that peers get from each other, else none
    audits: tuple[AuditRules, ...] = ()  # one where contributions are audited; none: all weigh alike, and a round is paid at once
    admission: AdmissionRule = EVERYBODY  # who may take part
    quorum: int = 1  # of the operators sign a tree head of the log before it counts

    def __post_init__(self) -> None:
        for what in ("name", "dataset", "supernet"):
            check_name(getattr(self, what), what)
        for what, known in (("task", TASKS), ("algorithm", ALGORITHMS), ("schedule", SCHEDULES), ("cohorts", COHORTS), ("data", DATA)):
            require(getattr(self, what) in known, f"{what} must be one of {', '.join(known)}")
        check_digest(self.data_digest, "data_digest")
        check_digest(self.initial_state, "initial_state")
        require(self.cohorts == "token" or not self.is_private, "with private data cohorts share a token")
        require(0 <= self.seed < 2**63, "seed is between 0 and 2^63")
        require(1 <= self.num_rounds <= MAX_ROUND, f"num_rounds is 1 to {MAX_ROUND}")
        require(1 <= self.reward_pool <= 2**48, "reward_pool is at least 1 and at most 2^48")
        require(1 <= self.microbatch_samples <= 65_536, "microbatch_samples is at least 1 and at most 65536")
        require(self.microbatch_samples <= self.exchange.weight_cap, "weight_cap is at least one microbatch")
        require(self.schedule == "sandwich" or self.recipe.taught_percent == 0, "the phases of shrinking have a teacher of their own")
        least = self.microbatch_samples * self.exchange.local_steps
        require(least <= self.exchange.max_claim_samples, f"max_claim_samples is at least one microbatch a local step, {least}")
        require(len(self.costs) <= MAX_COSTS, f"a manifest has at most {MAX_COSTS} prices")
        require(all(0 < len(key) <= MAX_GENE_TEXT for key, _ in self.costs), f"what is priced has 1 to {MAX_GENE_TEXT} characters")
        require(len({key for key, _ in self.costs}) == len(self.costs), "nothing is priced twice")
        require(all(0 <= cost < 2**62 for _, cost in self.costs), "a cost is not negative")
        require(1 <= len(self.operators) <= MAX_OPERATORS, f"a run has 1 to {MAX_OPERATORS} operators")
        require(len(set(self.operators)) == len(self.operators), "no operator is named twice")
        require(len(self.operators) // 2 < self.quorum <= len(self.operators), "quorum is more than half of the operators, and at most all")
        for key in self.operators:
            try:
                check_public_key(key)
            except SignatureError as error:
                raise ValueError(f"operators: {error}") from error
        require(len(self.private) == int(self.is_private), "what private images have to be is said once where data are private, else not")
        require(self.task == "classification" or not self.is_private, "private data are labelled images: the task is classification")
        require(len(self.audits) <= 1, "a run has one set of rules of audits, or none")
        require(not (self.is_private and self.is_audited), "private data are nobody's but their peer's: no audit can look at them")
        require(len(self.shards) <= int(not self.is_private), "of at most one data set shards travel, and of none where data are private")

    @property
    def is_private(self) -> bool:
        """Whether each peer trains on images of its own: nobody can compute its microbatches again, so credits cannot be audited."""
        return self.data == PRIVATE

    @property
    def audit_rules(self) -> AuditRules | None:
        """The rules of audits; None: there are none."""
        return self.audits[0] if self.audits else None

    @property
    def is_audited(self) -> bool:
        """Whether contributions are audited."""
        return bool(self.audits)

    @property
    def audits_steps(self) -> bool:
        """Whether several local steps are audited: a contribution lists whoever counted in one of them, whatever comes after."""
        return self.is_audited and self.exchange.local_steps > 1

    @property
    def credit_cap(self) -> int:
        """What one key earns by a round's table at most: the pool, or where data are private a part of it, rounded up."""
        return -(-self.reward_pool * self.private[0].credit_percent // 100) if self.is_private else self.reward_pool

    @property
    def work_pool(self) -> int:
        """What of the pool is shared out among a round's claims for their work: all but what is for audits."""
        return self.reward_pool - self.audit_pool

    @property
    def audit_pool(self) -> int:
        """What of the pool is for audits, where they count."""
        return self.reward_pool * self._audit_percent // 100

    @property
    def _audit_percent(self) -> int:
        return self.audits[0].pool_percent if self.audits else 0

    @property
    def train_shards(self) -> int:
        """How many shards to train with travel among the peers; 0: none do."""
        return self.shards[0].train_shards if self.shards else 0

    def cost_table(self) -> dict[str, int]:
        """Return price key -> MACs."""
        return dict(self.costs)


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest's bytes and its first operator's signature, as they are served, and its version; this form is that of all versions."""

    payload: bytes
    signature: bytes
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
