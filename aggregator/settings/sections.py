"""The sections of a run file: each field with its unit and reason, refused alone; the defaults are those of classification, dense."""

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, field_validator

from manta_swarm.aggregator.features.operators.etcd import check_endpoint
from manta_swarm.aggregator.settings.base import Section
from manta_swarm.automl.spaces.space import fitted_name
from manta_swarm.automl.training.settings import recipe_for, usual
from manta_swarm.protocol.admission import LIST, AdmissionRule
from manta_swarm.protocol.cosignatures import MAX_COSIGNATURES
from manta_swarm.protocol.deterrence import MOST_GAIN, least_pending_rounds, most_gain
from manta_swarm.protocol.errors import SignatureError, UserError
from manta_swarm.protocol.exchange import GREATEST_MIN_EXPONENT, LEAST_MIN_EXPONENT, MAX_LOCAL_STEPS, MAX_OPEN_MS, MAX_ROWS, codec_named
from manta_swarm.protocol.fields import MAX_ROUND, check_name
from manta_swarm.protocol.manifest import MAX_OPERATORS
from manta_swarm.protocol.recipe import ALL_PERCENT, MAX_PERCENT, USUAL, Recipe
from manta_swarm.protocol.signing import key_named
from manta_swarm.protocol.verdicts import MAX_AUDITORS, MAX_KEPT_ROUNDS, MAX_PROVEN, AuditRules

OPEN = "open"  # [trust] mode

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
        description="sandwich: all sizes at once; shrinking (experimental): first the full network, then smaller ones join",
    )
    cohorts: Literal["consent", "affinity"] = Field(
        default="consent",
        description="consent: who shares a token averages before handing in; affinity: whoever is near, for people who know each other",
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
        description="exchanges of the whole swarm until the run is finished; each has [exchange] local_steps updates",
    )


class AdmissionSection(Section):
    """[admission]"""

    how: Literal["open", "invitation", "list"] = Field(
        default="open",
        description="who may take part: open: everybody; invitation: whoever you invite (manta-aggregator invite); list: the peers below",
    )
    peers: _Names = Field(
        default=(), description="of a list: the peers' ids, 12D3Koo..., as manta-peer identity prints them; nobody comes in later"
    )

    def rule(self) -> AdmissionRule:
        """Return the manifest's part.

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
        default=_USUAL.dataset, description="what is trained on, and with it the task; see manta-search data; digits needs no download"
    )
    supernet: str = Field(
        default=_USUAL.supernet,
        description="the weights that all subnets share: classifier-tiny, classifier-base, stereo-tiny or stereo-base; fitted to the data",
    )
    classes: tuple[str, ...] = Field(
        default=(),
        description="private data: the names of the classes' folders at the peers, in the order of the labels; [] for the data set's own",
    )

    share_shards: bool = Field(
        default=False,
        description="true: who joins gets the shards of a set shards-NAME from here and from other peers; its licence is yours to judge",
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
        default=_USUAL.target_batch, ge=2, description="samples of the whole swarm that a round aims at: its length adapts by itself"
    )
    microbatch_samples: int = Field(
        default=_USUAL.microbatch_samples, ge=2, le=65536, description="samples of one microbatch: one micro-batch through one architecture"
    )
    weight_cap: int = Field(
        default=_USUAL.target_batch // 2, ge=2, description="samples: nobody weighs more in a round's mean and rewards, however many it has"
    )
    max_claim_samples: int = Field(default=16 * _USUAL.target_batch, ge=2, description="a claim of more samples is refused")
    first_open_s: float = Field(default=60, gt=0, description="how long the first round is open for contributions")
    min_open_s: float = Field(default=2, gt=0, description="the least that a round is open")
    max_open_s: float = Field(default=600, gt=0, description="the most")

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
        description="how values travel: int16, int8, or topk-KEPT-BITS: of 4096 the KEPT largest (1 to 2048), in 2 to 8 bits each",
    )
    residual_percent: int = Field(
        default=_USUAL.residual_percent,
        ge=0,
        le=100,
        description="of what topk left out so far that is added to the next contribution; without meaning for the others",
    )
    max_rows: int = Field(default=64, ge=1, le=MAX_ROWS, description="contributions that a round takes at most")
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
    learning_rate: str = Field(default=_USUAL.optimizer.learning_rate, description="decimal text; the peak of a phase's one-cycle schedule")
    beta1: str = Field(default=_USUAL.optimizer.beta1, description="decimal text; AdamW's first moment, SGD's momentum")
    beta2: str = Field(default=_USUAL.optimizer.beta2, description="decimal text; AdamW's second moment")
    epsilon: str = Field(default=_USUAL.optimizer.epsilon, description="decimal text")
    weight_decay: str = Field(default=_USUAL.optimizer.weight_decay, description="decimal text")
    warmup_percent: int = Field(
        default=_USUAL.optimizer.warmup_percent, ge=0, le=100, description="of a phase's rounds, until the rate is at its peak"
    )
    outer_rate: str = Field(
        default=_USUAL.optimizer.outer_rate,
        description="decimal text; with several local steps: how much of their mean change the next state takes",
    )
    outer_momentum: str = Field(
        default=_USUAL.optimizer.outer_momentum, description="decimal text; with several local steps: Nesterov's, of these mean changes"
    )


class RecipeSection(Section):
    """[recipe]"""

    augmentation: Literal["auto"] | tuple[int, int] = Field(
        default="auto",
        description='how strongly images are changed, in percent in the first and in the last round, as in [100, 0]; "auto": 100 '
        "where the data are seen more than 50 times in all, and for stereo, else 0",
    )
    smaller_percent: int = Field(
        default=USUAL.smaller_percent, ge=0, le=MAX_PERCENT, description="of that strength: what all architectures have but the largest"
    )
    decay: Literal["matrices", "all"] = Field(
        default="matrices", description="which weights [optimizer] weight_decay is for: matrices, not those of norms, biases and transforms"
    )
    taught_percent: int = Field(
        default=USUAL.taught_percent,
        ge=0,
        le=ALL_PERCENT,
        description="of the rounds, the last ones, in which a microbatch learns from the largest network of the state that its round begins"
        " with, too; light contributors have nothing to do in these",
    )

    @field_validator("augmentation")
    @classmethod
    def _check_augmentation(cls, augmentation: Literal["auto"] | tuple[int, int]) -> Literal["auto"] | tuple[int, int]:
        if augmentation != "auto":
            Recipe(*augmentation)
        return augmentation

    def recipe(self, task: str, num_train: int, samples: int) -> Recipe:
        """Return the manifest's part: of a training of so many samples, drawn from ``num_train``."""
        if self.augmentation == "auto":
            usually = recipe_for(task, num_train, samples)
            return replace(usually, smaller_percent=self.smaller_percent, decay=self.decay, taught_percent=self.taught_percent)
        return Recipe(*self.augmentation, self.smaller_percent, self.decay, self.taught_percent)


class RewardsSection(Section):
    """[rewards]"""

    pool: int = Field(default=1_000_000, ge=1, description="credit units shared out each round")
    unaudited_percent: int = Field(
        default=25,
        ge=1,
        le=100,
        description="private data, whose microbatches nobody can compute again: of a round's pool, what one key earns at most",
    )


class TrustSection(Section):
    """[trust]"""

    mode: Literal["open", "audited"] = Field(
        default="open",
        description="open: a run of friends, whoever signs is believed; audited: some contributions are computed again, lies earn nothing",
    )
    proven: _Names = Field(
        default=(),
        max_length=MAX_PROVEN,
        description="names (12D3Koo...) of peers that weigh fully from the start; others once audits say so",
    )
    auditors: _Names = Field(
        default=(),
        max_length=MAX_AUDITORS,
        description="names (12D3Koo...) of the named auditors, whose verdicts count; empty: your own, made in DIR/auditor at the start; "
        "of several operators one each, as manta-aggregator key --dir DIR/auditor prints it",
    )
    proven_after: int = Field(default=20, ge=1, le=2**16, description="contributions that have to be found good until a peer is proven")
    audit_percent: int = Field(default=5, ge=1, le=100, description="of the contributions with a proven peer that are audited")
    newcomer_percent: int = Field(
        default=10, ge=1, le=100, description="of what proven peers train, that audits of contributions without one cost at most"
    )
    kept_rounds: int = Field(
        default=60, ge=1, le=MAX_KEPT_ROUNDS, description="rounds within which a peer has to bring what an audit of its contribution needs"
    )
    pending_rounds: int = Field(
        default=120,
        ge=1,
        le=2 * MAX_KEPT_ROUNDS,
        description="rounds after which a round is paid, by what was found until then; check says how few are too few",
    )
    settle_s: float = Field(
        default=600.0,
        ge=0,
        description="how long verdicts are waited for after the last round (yours, not part of the manifest); all is paid then, or before, "
        "once all that was drawn is decided",
    )

    def rules(self, auditor: bytes, num_operators: int) -> tuple[AuditRules, ...]:
        """Return the manifest's part; ``auditor`` is the key of the operator's own, which is named where the run file names none.

        Raises:
            ValueError: values that do not go together, or under which lying pays.
        """
        if self.mode == OPEN:
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
        description="of several operators, all of them, in one order for all: 12D3Koo..., as manta-aggregator key prints them; the first "
        "one begins the run; empty: you alone",
    )
    quorum: int = Field(
        default=0,
        ge=0,
        le=MAX_OPERATORS,
        description="so many of them sign each head of the log before it counts; 0: of 4 operators 3, of 3 operators 2",
    )
    etcd: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description='where etcd answers, which says whose turn it is to write (yours, not part of the manifest): ["http://127.0.0.1:2379"]',
    )

    @field_validator("etcd")
    @classmethod
    def _are_endpoints(cls, etcd: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_endpoint, etcd))

    def public_keys(self, alone: bytes) -> tuple[bytes, ...]:
        """Return the keys; ``alone`` is that of an operator without others."""
        return tuple(key_named(name) for name in self.keys) or (alone,)

    def checked_quorum(self) -> int:
        """Return how many of them sign.

        Raises:
            ValueError: values that do not go together.
        """
        count = max(1, len(self.keys))
        if count > 1 and not self.etcd:
            raise ValueError("[operators]: several operators need etcd, which says whose turn it is: name where it answers")
        if self.quorum:
            return self.quorum
        return max(count // 2 + 1, count - (count - 1) // 3 if count > 3 else 0)  # one liar of four, two of seven


class FollowerSection(Section):
    """[follower] (not part of the manifest: may change at any start)"""

    evaluate_every: int = Field(default=0, ge=0, description="rounds between evaluations on held-out data; 0: only after the last round")
    front_every: int = Field(
        default=0,
        ge=0,
        description="rounds between fronts of small to large networks, measured by the peers that allow it: snapshots/front.json; 0: none",
    )
    audit_share: float = Field(
        default=0.25, gt=0, le=1, description="of one core's time, that your own auditor takes at most, where [trust] has any"
    )
    audit_disk_gb: float = Field(
        default=20.0,
        gt=0,
        description="what peers bring for audits takes on the disk at most, where [trust] has any; what has no room is not audited",
    )
    keep_snapshots: int = Field(default=3, ge=1, description="newest snapshots to keep, beside that of a teacher")
    keep_bodies: int = Field(
        default=32,
        ge=4,
        description="newest rounds whose contributions are kept: they can be computed again; the start says the disk it takes",
    )
    witnesses: _Names = Field(
        default=(),
        max_length=MAX_COSIGNATURES,
        description="names (12D3Koo...) of witnesses whose cosignatures always have a place; others have what is left of the 32",
    )
    data_root: str = Field(default="", description="folder with the data sets that come with no library; empty: none is needed")
