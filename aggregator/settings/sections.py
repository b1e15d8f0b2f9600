"""The sections of a run file: each field with its unit and reason, refused alone; the defaults are those of classification, dense."""

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, field_validator

from manta_swarm.aggregator.features.operators.etcd import check_endpoint
from manta_swarm.aggregator.settings.base import Section
from manta_swarm.automl.spaces.space import fitted_name
from manta_swarm.automl.training.settings import recipe_for, usual
from manta_swarm.network.rates import CALLS_OF_ADDRESS, CALLS_OF_KEY, CallLimits
from manta_swarm.protocol.admission import LIST, AdmissionRule
from manta_swarm.protocol.auditing import MOST_GAIN, least_pending_rounds, most_gain
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.cosignatures import MAX_COSIGNATURES
from manta_swarm.protocol.errors import SignatureError, UserError
from manta_swarm.protocol.exchange import GREATEST_MIN_EXPONENT, LEAST_MIN_EXPONENT, MAX_LOCAL_STEPS, MAX_OPEN_MS, MAX_ROWS, codec_named
from manta_swarm.protocol.fields import MAX_ROUND, check_name
from manta_swarm.protocol.manifest import ALL_PERCENT, MAX_OPERATORS, MAX_PERCENT, USUAL, Manifest, Recipe
from manta_swarm.protocol.signing import key_named
from manta_swarm.protocol.verdicts import MAX_AUDITORS, MAX_KEPT_ROUNDS, MAX_PROVEN, AuditRules

UNAUDITED = "unaudited"  # [trust] mode

_USUAL = usual("classification")


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what are no keys' names."""
    for name in names:
        try:
            key_named(name)
        except SignatureError as error:
            raise ValueError(f"{name[:80]!r} is no peer's id ({error}); manta-peer identity, and manta-aggregator key, print it") from error
    return names


_Names: TypeAlias = Annotated[tuple[str, ...], AfterValidator(_names)]


class RunSection(Section):
    """[run]"""

    name: str = Field(default=_USUAL.dataset, description="a plain lower-case name, shown to volunteers")
    algorithm: Literal["data-parallel", "model-parallel"] = Field(
        default="data-parallel",
        description="data-parallel: every peer trains the round's four architectures; model-parallel: each cohort has its own",
    )
    schedule: Literal["sandwich", "shrinking"] = Field(
        default="sandwich",
        description="sandwich: all sizes at once; shrinking (experimental): the full network first, then smaller ones join",
    )
    cohorts: Literal["token", "affinity"] = Field(
        default="token",
        description="token: peers that share a token average before handing in; affinity: so do peers that are near, for people "
        "who know each other",
    )
    data: Literal["shared", "private"] = Field(
        default="shared",
        description="shared: everybody trains on the data set; private: each peer on labelled images of its own, which stay where they are",
    )
    seed: int = Field(default=0, ge=0, description="everything random in the run follows from it")
    rounds: int = Field(
        default=_USUAL.num_rounds,
        ge=1,
        le=MAX_ROUND,
        description="exchanges until the run is finished; each has [exchange] local_steps updates",
    )


class AdmissionSection(Section):
    """[admission]"""

    how: Literal["open", "invitation", "list"] = Field(
        default="open",
        description="open: everybody may take part; invitation: whom you invite (manta-aggregator invite); list: the peers below",
    )
    peers: _Names = Field(
        default=(), description="ids (12D3Koo...) of the listed peers; manta-peer identity prints one, and nobody comes in later"
    )

    def rule(self) -> AdmissionRule:
        """Return the manifest's rule of admission.

        Raises:
            ValueError: values that do not go together.
        """
        if self.how == LIST and not self.peers:
            raise ValueError(
                '[admission]: how = "list" lets in the peers that are listed, and peers is empty: '
                'name some, as manta-peer identity prints them, or write how = "open"'
            )
        if self.peers and self.how != LIST:
            raise ValueError(f'[admission]: peers is of how = "list", and how is "{self.how}": write "list", or leave peers empty')
        return AdmissionRule(self.how, tuple(sorted(map(key_named, self.peers))))


class DataSection(Section):
    """[data]"""

    dataset: str = Field(
        default=_USUAL.dataset,
        description="what is trained on; the task follows from it; manta-search data knows the names, and digits needs no download",
    )
    supernet: str = Field(
        default=_USUAL.supernet,
        description="weights that all subnets share: classifier-tiny, classifier-base, stereo-tiny or stereo-base; fitted to the data",
    )
    classes: tuple[str, ...] = Field(
        default=(),
        description="private data: the peers' class folders, in the order of the labels; [] for the data set's own",
    )

    share_shards: bool = Field(
        default=False,
        description="true: newcomers get a set shards-NAME from here and from other peers; its licence is yours to judge",
    )

    @field_validator("dataset")
    @classmethod
    def _check_dataset(cls, dataset: str) -> str:
        check_name(dataset, "a data set")
        return dataset

    @field_validator("supernet")
    @classmethod
    def _check_supernet(cls, supernet: str) -> str:
        try:
            fitted_name(supernet, 1, 10)  # refuses all but families
        except UserError as error:
            raise ValueError(str(error)) from error
        return supernet


class RoundSection(Section):
    """[round]"""

    target_batch: int = Field(
        default=_USUAL.target_batch, ge=2, description="samples of the whole swarm that a round aims at; its length adapts by itself"
    )
    microbatch_samples: int = Field(
        default=_USUAL.microbatch_samples, ge=2, le=65536, description="samples of one pass through one architecture"
    )
    weight_cap: int = Field(
        default=_USUAL.target_batch // 2, ge=2, description="samples that one peer weighs at most in a round's mean and rewards"
    )
    max_claim_samples: int = Field(default=16 * _USUAL.target_batch, ge=2, description="a claim of more samples is refused")
    first_open_s: float = Field(default=60, gt=0, description="seconds for which the first round takes contributions")
    min_open_s: float = Field(default=2, gt=0, description="fewest seconds that a round is open")
    max_open_s: float = Field(default=600, gt=0, description="most seconds that a round is open")

    def open_ms(self) -> tuple[int, int, int]:
        """Return how long the first round is open, the least and the most.

        Raises:
            ValueError: values that do not go together.
        """
        first, least, most = (
            round(min(1000 * seconds, MAX_OPEN_MS + 1)) for seconds in (self.first_open_s, self.min_open_s, self.max_open_s)
        )
        if not 1 <= least <= first <= most <= MAX_OPEN_MS:
            raise ValueError(
                f"[round]: first_open_s is {self.first_open_s:g}, min_open_s {self.min_open_s:g} and max_open_s {self.max_open_s:g}: "
                "first_open_s has to be between the two others, min_open_s at least 0.001, a millisecond, and max_open_s at most "
                f"{MAX_OPEN_MS // 1000}, a day"
            )
        return first, least, most


class ExchangeSection(Section):
    """[exchange]"""

    local_steps: int = Field(
        default=_USUAL.local_steps,
        ge=1,
        le=MAX_LOCAL_STEPS,
        description="updates of each cohort between two exchanges; 1: the mean gradient is exchanged, and everybody takes one update",
    )
    codec: str = Field(
        default=_USUAL.codec,
        description="how values travel: int16, int8 or topk-KEPT-BITS; topk sends the KEPT largest (1 to 2048) of 4096, in 2 to 8 "
        "bits each",
    )
    residual_percent: int = Field(
        default=_USUAL.residual_percent,
        ge=0,
        le=100,
        description="percent of what topk left out that the next contribution adds; other codecs leave nothing out",
    )
    max_rows: int = Field(default=64, ge=1, le=MAX_ROWS, description="most contributions of a round")
    first_min_exponent: int = Field(
        default=-32,
        ge=LEAST_MIN_EXPONENT,
        le=GREATEST_MIN_EXPONENT,
        description="values below 2^first_min_exponent are lost in the first rounds; it adapts by itself",
    )

    @field_validator("codec")
    @classmethod
    def _check_codec(cls, codec: str) -> str:
        codec_named(codec)
        return codec


class OptimizerSection(Section):
    """[optimizer]"""

    name: Literal["adamw", "sgd"] = Field(default="adamw", description="the exact update, the same bits on every machine")
    learning_rate: str = Field(default=_USUAL.optimizer.learning_rate, description="peak of a phase's one-cycle schedule; decimal text")
    beta1: str = Field(default=_USUAL.optimizer.beta1, description="AdamW's first moment, or SGD's momentum; decimal text")
    beta2: str = Field(default=_USUAL.optimizer.beta2, description="AdamW's second moment; decimal text")
    epsilon: str = Field(default=_USUAL.optimizer.epsilon, description="AdamW's epsilon; decimal text")
    weight_decay: str = Field(default=_USUAL.optimizer.weight_decay, description="weight decay; decimal text")
    warmup_percent: int = Field(
        default=_USUAL.optimizer.warmup_percent, ge=0, le=100, description="percent of a phase's rounds until the rate peaks"
    )
    outer_rate: str = Field(
        default=_USUAL.optimizer.outer_rate,
        description="share of the local steps' mean change that the next state takes; decimal text; for several local steps",
    )
    outer_momentum: str = Field(
        default=_USUAL.optimizer.outer_momentum,
        description="Nesterov momentum of these mean changes; decimal text; for several local steps",
    )


class RecipeSection(Section):
    """[recipe]"""

    augmentation: Literal["auto"] | tuple[int, int] = Field(
        default="auto",
        description='strength of image changes, in percent, in the first and the last round, as [100, 0]; "auto": 100 for stereo '
        "and where the data are seen more than 50 times, else 0",
    )
    smaller_percent: int = Field(
        default=USUAL.smaller_percent, ge=0, le=MAX_PERCENT, description="percent of that strength for all architectures but the largest"
    )
    decay: Literal["matrices", "all"] = Field(
        default="matrices", description="weights that decay; matrices: not those of norms, biases and transforms"
    )
    taught_percent: int = Field(
        default=USUAL.taught_percent,
        ge=0,
        le=ALL_PERCENT,
        description="percent of the rounds, the last ones, in which microbatches learn from the largest network too; it is that "
        "of the state that the round begins with; light contributors have nothing to do in these",
    )

    @field_validator("augmentation")
    @classmethod
    def _check_augmentation(cls, augmentation: Literal["auto"] | tuple[int, int]) -> Literal["auto"] | tuple[int, int]:
        if augmentation != "auto":
            Recipe(*augmentation)
        return augmentation

    def recipe(self, task: str, num_train: int, samples: int) -> Recipe:
        """Return the manifest's recipe: of a training of so many samples, drawn from ``num_train``."""
        if self.augmentation == "auto":
            usually = recipe_for(task, num_train, samples)
            return replace(usually, smaller_percent=self.smaller_percent, decay=self.decay, taught_percent=self.taught_percent)
        return Recipe(*self.augmentation, self.smaller_percent, self.decay, self.taught_percent)


class RewardsSection(Section):
    """[rewards]"""

    pool: int = Field(default=1_000_000, ge=1, description="credit units shared out each round")
    private_percent: int = Field(
        default=25,
        ge=1,
        le=100,
        description="private data: percent of a round's pool that one key earns at most; nobody can compute such microbatches again",
    )


class TrustSection(Section):
    """[trust]"""

    mode: Literal["unaudited", "audited"] = Field(
        default="unaudited",
        description="unaudited: whoever signs is believed; audited: some contributions are computed again, lies earn nothing",
    )
    proven: _Names = Field(
        default=(),
        max_length=MAX_PROVEN,
        description="names (12D3Koo...) of peers that weigh fully from the start; others do once audits say so",
    )
    auditors: _Names = Field(
        default=(),
        max_length=MAX_AUDITORS,
        description="names (12D3Koo...) of auditors whose verdicts count; empty: your own, made in DIR/auditor at the start; "
        "several operators name one each, as manta-aggregator key --dir DIR/auditor prints it",
    )
    proven_after: int = Field(default=20, ge=1, le=2**16, description="good contributions until a peer is proven")
    audit_percent: int = Field(default=5, ge=1, le=100, description="percent of contributions with a proven peer that are audited")
    newcomer_percent: int = Field(
        default=10, ge=1, le=100, description="percent of proven peers' training that audits of contributions without one cost at most"
    )
    kept_rounds: int = Field(
        default=60, ge=1, le=MAX_KEPT_ROUNDS, description="rounds within which a peer brings what an audit of it needs"
    )
    pending_rounds: int = Field(
        default=120,
        ge=1,
        le=2 * MAX_KEPT_ROUNDS,
        description="rounds after which a round is paid; what audits found until then counts; check says how few are too few",
    )
    settle_s: float = Field(
        default=600.0,
        ge=0,
        description="seconds to wait for verdicts after the last round; all is paid then, or once all that was drawn is decided; "
        "not part of the manifest",
    )

    def rules(self, auditor: bytes, num_operators: int) -> tuple[AuditRules, ...]:
        """Return the manifest's rules of audits; ``auditor`` is the key of the operator's own, which is named where the run file names
        none.

        Raises:
            ValueError: values that do not go together, or under which lying pays.
        """
        if self.mode == UNAUDITED:
            return ()
        if num_operators > 1 and not self.auditors:
            raise ValueError(
                "[trust] auditors: name them, one for each operator: manta-aggregator key --dir DIR/auditor prints an operator's"
            )
        rules = AuditRules(
            named=tuple(sorted({key_named(name) for name in self.auditors})) or (auditor,),
            proven=tuple(sorted({key_named(name) for name in self.proven})),
            proven_after=self.proven_after,
            audit_percent=self.audit_percent,
            newcomer_percent=self.newcomer_percent,
            kept_rounds=self.kept_rounds,
            pending_rounds=self.pending_rounds,
        )
        if (gained := most_gain(rules)) > MOST_GAIN:
            raise ValueError(
                f"[trust]: lying pays, {gained:.1f} contributions until it is found: make pending_rounds {least_pending_rounds(rules)} at "
                "least, or kept_rounds smaller, or audit_percent larger"
            )
        return (rules,)


class OperatorsSection(Section):
    """[operators]"""

    keys: _Names = Field(
        default=(),
        max_length=MAX_OPERATORS,
        description="all operators' keys (12D3Koo...), in one order for all; manta-aggregator key prints one; the first begins "
        "the run; empty: you alone",
    )
    quorum: int = Field(
        default=0,
        ge=0,
        le=MAX_OPERATORS,
        description="operators that sign each tree head before it counts; 0: of 4 operators 3, of 3 operators 2",
    )
    etcd: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description='endpoints of the etcd that says who writes, as ["http://127.0.0.1:2379"]; not part of the manifest',
    )

    @field_validator("etcd")
    @classmethod
    def _are_endpoints(cls, etcd: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_endpoint, etcd))

    def public_keys(self, alone: bytes) -> tuple[bytes, ...]:
        """Return the operators' keys; ``alone`` is that of an operator without others."""
        return tuple(key_named(name) for name in self.keys) or (alone,)

    def checked_quorum(self) -> int:
        """Return how many of the operators sign a tree head.

        Raises:
            ValueError: values that do not go together.
        """
        count = max(1, len(self.keys))
        if count > 1 and not self.etcd:
            raise ValueError("[operators]: several operators need etcd, which says whose turn it is: name where it answers")
        if self.quorum:
            return self.quorum
        return max(count // 2 + 1, count - (count - 1) // 3 if count > 3 else 0)  # one liar of four, two of seven


class AggregatorSection(Section):
    """[aggregator] (not part of the manifest: may change at any start)"""

    evaluate_every: int = Field(default=0, ge=0, description="rounds between evaluations on held-out data; 0: only after the last round")
    front_every: int = Field(
        default=0,
        ge=0,
        description="rounds between fronts of small to large networks that peers measure; they are in snapshots/front.json; 0: none",
    )
    audit_share: float = Field(default=0.25, gt=0, le=1, description="share of one core's time for your own auditor; where [trust] has any")
    audit_disk_gb: float = Field(
        default=20.0,
        gt=0,
        description="gigabytes of disk for what peers bring for audits; what has no room is not audited",
    )
    keep_snapshots: int = Field(default=3, ge=1, description="newest snapshots to keep; a teacher's is kept beside them")
    keep_bodies: int = Field(
        default=32,
        ge=4,
        description="newest rounds whose contributions are kept; they can be computed again; the start says the disk it takes",
    )
    witnesses: _Names = Field(
        default=(),
        max_length=MAX_COSIGNATURES,
        description="names (12D3Koo...) of witnesses whose cosignatures always have a place; others have what is left of the 32",
    )
    data_root: str = Field(default="", description="folder of data sets that come with no library; empty: none is needed")


class LimitsSection(Section):
    """[limits] (not part of the manifest: may change at any start)"""

    calls_of_key: int = Field(
        default=CALLS_OF_KEY,
        ge=50,
        description="calls a second that one peer may make; ten seconds' at once; handing in a contribution counts as 20",
    )
    calls_of_address: int = Field(
        default=CALLS_OF_ADDRESS,
        ge=50,
        description="calls a second that all peers of one network address may make; of IPv6 a /64; not for this computer",
    )
    address_percent: int = Field(
        default=75,
        ge=1,
        le=100,
        description="percent of a round's places that one network address has at most; more while others leave them",
    )

    def calls(self) -> CallLimits:
        """Return how many calls a second a node answers."""
        return CallLimits(self.calls_of_key, self.calls_of_address)

    def closing(self, manifest: Manifest) -> Closing:
        """Return the rounds of a run, before the first is open."""
        return Closing(manifest.exchange.max_rows, self.address_percent, shares_keys=manifest.audits_steps)
