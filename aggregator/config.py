"""An operator's run file (TOML): what the manifest will say, each field with its unit and reason.

The defaults are those of classification, dense; ``RunConfig.usual`` has those of each task, and ``RunConfig.thin`` those that need little
traffic (``automl.settings``). The task itself has no key: it follows from the data.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from aggregator.monitor.settings import MonitorSection
from aggregator.run_file_lines import line_of
from automl.cost import cost_table
from automl.data.dataset import CLASSIFICATION, Dataset
from automl.data.names import task_of
from automl.schedule import Plan
from automl.settings import Settings, first_floor, thin, usual
from automl.space import fitted_name, space_named
from protocol.errors import UserError
from protocol.exchange import MAX_FLOOR, MAX_LOCAL_STEPS, MAX_ROWS, MIN_FLOOR, Exchange, codec_named
from protocol.private import PRIVATE, PrivateData
from protocol.records import Manifest, Optimizer, check_name
from protocol.signing import Identity, sha256

_USUAL = usual("classification")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RunSection(_Section):
    """[run]"""

    name: str = Field(default=_USUAL.dataset, description="a plain lower-case name, shown to volunteers")
    algorithm: Literal["data-parallel", "model-parallel"] = Field(
        default="data-parallel",
        description="data-parallel: every peer trains the round's four architectures; model-parallel: each cohort has its own",
    )
    schedule: Literal["sandwich", "shrinking"] = Field(
        default="sandwich",
        description="sandwich: all sizes at once; shrinking: first the full network, then smaller ones join and learn from it too",
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
        description="exchanges of the whole swarm until the run is finished; each has [exchange] local_steps updates",
    )


class DataSection(_Section):
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


class RoundSection(_Section):
    """[round]"""

    target_batch: int = Field(
        default=_USUAL.target_batch, ge=2, description="samples of the whole swarm that a round aims at: its length adapts by itself"
    )
    lot_samples: int = Field(
        default=_USUAL.lot_samples, ge=2, le=65536, description="samples of one lot: one micro-batch through one architecture"
    )
    weight_cap: int = Field(
        default=_USUAL.target_batch // 2, ge=2, description="samples: nobody weighs more in a round's mean and rewards, however many it has"
    )
    max_claim_samples: int = Field(default=16 * _USUAL.target_batch, ge=2, description="a claim of more samples is refused")
    first_open_s: float = Field(default=60, gt=0, description="how long the first round is open for contributions")
    min_open_s: float = Field(default=2, gt=0, description="the least that a round is open")
    max_open_s: float = Field(default=600, gt=0, description="the most")


class ExchangeSection(_Section):
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
    first_floor: int = Field(
        default=-32, ge=MIN_FLOOR, le=MAX_FLOOR, description="values below 2^first_floor are lost in the first rounds; it adapts by itself"
    )

    @field_validator("codec")
    @classmethod
    def _check_codec(cls, codec: str) -> str:
        codec_named(codec)
        return codec


class OptimizerSection(_Section):
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


class RewardsSection(_Section):
    """[rewards]"""

    pool: int = Field(default=1_000_000, ge=1, description="credit units shared out each round")
    unaudited_percent: int = Field(
        default=25,
        ge=1,
        le=100,
        description="private data, whose lots nobody can compute again: of a round's pool, what one key earns at most",
    )


class FollowerSection(_Section):
    """[follower] (not part of the manifest: may change at any start)"""

    evaluate_every: int = Field(default=0, ge=0, description="rounds between evaluations on held-out data; 0: only after the last round")
    keep_snapshots: int = Field(default=3, ge=1, description="newest snapshots to keep, beside that of a teacher")
    keep_bodies: int = Field(
        default=32,
        ge=4,
        description="newest rounds whose contributions are kept: they can be computed again; the start says the disk it takes",
    )
    data_root: str = Field(default="", description="folder with the data sets that come with no library; empty: none is needed")


class RunConfig(_Section):
    """A whole run file."""

    run: RunSection = RunSection()
    data: DataSection = DataSection()
    round: RoundSection = RoundSection()
    optimizer: OptimizerSection = OptimizerSection()
    exchange: ExchangeSection = ExchangeSection()
    rewards: RewardsSection = RewardsSection()
    follower: FollowerSection = FollowerSection()
    monitor: MonitorSection = MonitorSection()

    @classmethod
    def usual(cls, task: str) -> "RunConfig":
        """Return the settings that suit ``task`` ("classification" or "stereo") and its usual data: dense, one step a round."""
        return cls.of(usual(task))

    @classmethod
    def thin(cls, task: str) -> "RunConfig":
        """Return the settings that need little traffic for ``task`` and its usual data: several local steps, sparse contributions."""
        return cls.of(thin(task))

    @classmethod
    def of(cls, settings: Settings) -> "RunConfig":
        """Return a run file with these settings."""
        batch, lot = settings.target_batch, settings.lot_samples
        return cls(
            run=RunSection(name=settings.dataset, rounds=settings.num_rounds),
            data=DataSection(dataset=settings.dataset, supernet=settings.supernet),
            round=RoundSection(target_batch=batch, lot_samples=lot, weight_cap=max(batch // 2, lot), max_claim_samples=16 * batch),
            optimizer=OptimizerSection.model_validate(asdict(settings.optimizer)),
            exchange=ExchangeSection(
                local_steps=settings.local_steps,
                codec=settings.codec,
                residual_percent=settings.residual_percent,
                first_floor=first_floor(settings.codec),
            ),
        )

    @property
    def data_root(self) -> Path | None:
        """Where data sets lie that come with no library."""
        return Path(self.follower.data_root).expanduser() if self.follower.data_root else None

    def check(self) -> None:
        """Refuse values that do not go together, as far as they show without the data: no torch is needed.

        Raises:
            UserError: there are some.
        """
        name, space = self.data.dataset, space_named(self.data.supernet)
        task = task_of(name)
        self._check_task(name, space.task if task is None else task)
        is_private = self.run.data == PRIVATE
        if self.data.classes and not is_private:
            raise _misplaced_classes()
        if is_private and space.task != CLASSIFICATION:
            raise _not_images(name, space.task)
        private = (_private(self.data.classes or ("a", "b"), 0, self.rewards.unaudited_percent),) if is_private else ()
        nothing = sha256(b"")  # what only the data and the start can say
        plan = self._plan(space.name)
        self._manifest(plan, name, space.task, nothing, private, initial_state=nothing, operator=Identity(bytes(32)).public_key)

    def supernet_for(self, dataset: Dataset) -> str:
        """Return the supernet's name, with the channels and classes of the data in it where they are not its family's.

        Raises:
            UserError: it is for another task than the data.
        """
        self._check_task(dataset.name, dataset.task)
        return fitted_name(self.data.supernet, dataset.image_channels, dataset.num_classes)

    def _check_task(self, dataset: str, task: str) -> None:
        space = space_named(self.data.supernet)
        if space.task != task:
            raise UserError(
                f"[data]: supernet {space.name} is for {space.task}, dataset {dataset} for {task}; "
                f"choose another of the two, or begin with: manta-aggregator init --task {task}"
            )

    def plan(self, dataset: Dataset) -> Plan:
        """Return the training that this run file describes.

        Raises:
            UserError: values that do not go together.
        """
        return self._plan(self.supernet_for(dataset))

    def _plan(self, supernet: str) -> Plan:
        run, optimizer = self.run, self.optimizer_settings()
        return Plan(supernet, run.schedule, run.algorithm, optimizer, run.rounds, run.seed, local_steps=self.exchange.local_steps)

    def private_data(self, dataset: Dataset) -> tuple[PrivateData, ...]:
        """Return what the images of the peers have to be, none where data are shared; ``dataset`` is the operator's, of the same kind.

        Raises:
            UserError: values that do not go together.
        """
        from automl.data.images import ImageDataset  # torch, which whoever only reads a run file does not wait for

        if self.run.data != PRIVATE:
            if self.data.classes:
                raise _misplaced_classes()
            return ()
        if not isinstance(dataset, ImageDataset):
            raise _not_images(dataset.name, dataset.task)
        classes = self.data.classes or dataset.class_names
        if len(classes) != dataset.num_classes:
            raise UserError(f"[data]: {len(classes)} classes are named, the data set {dataset.name} has {dataset.num_classes}")
        return (_private(classes, int(dataset.flips), self.rewards.unaudited_percent),)

    def manifest(self, operator: Identity, initial_state: bytes, dataset: Dataset) -> Manifest:
        """Return the manifest of this run; ``initial_state`` is the digest of the state that the operator made.

        Raises:
            UserError: values that do not go together.
        """
        plan, private = self.plan(dataset), self.private_data(dataset)
        key = operator.public_key
        return self._manifest(plan, dataset.name, dataset.task, dataset.digest, private, initial_state=initial_state, operator=key)

    def _manifest(
        self, plan: Plan, dataset: str, task: str, digest: bytes, private: tuple[PrivateData, ...], *, initial_state: bytes, operator: bytes
    ) -> Manifest:
        try:
            return Manifest(
                name=self.run.name,
                task=task,
                dataset=dataset,
                data_digest=digest,
                supernet=plan.supernet,
                seed=plan.seed,
                algorithm=plan.algorithm,
                schedule=plan.schedule,
                num_rounds=plan.num_rounds,
                lot_samples=self.round.lot_samples,
                optimizer=plan.optimizer,
                initial_state=initial_state,
                exchange=self._exchange(),
                reward_pool=self.rewards.pool,
                costs=cost_table(plan.space),
                operators=(operator,),
                cohorts=self.run.cohorts,
                data=self.run.data,
                private=private,
            )
        except ValueError as error:
            raise UserError(f"the run file does not make a run: {error}") from error

    def _exchange(self) -> Exchange:
        """Return the exchange's part of the manifest.

        Raises:
            ValueError: values that do not go together.
        """
        return Exchange(
            codec=self.exchange.codec,
            residual_percent=self.exchange.residual_percent,
            local_steps=self.exchange.local_steps,
            max_rows=self.exchange.max_rows,
            target_batch=self.round.target_batch,
            max_claim_samples=self.round.max_claim_samples,
            weight_cap=self.round.weight_cap,
            first_floor=self.exchange.first_floor,
            first_open_ms=round(1000 * self.round.first_open_s),
            min_open_ms=round(1000 * self.round.min_open_s),
            max_open_ms=round(1000 * self.round.max_open_s),
        )

    def optimizer_settings(self) -> Optimizer:
        """Return the optimiser's part of the manifest.

        Raises:
            UserError: values that do not go together.
        """
        try:
            return Optimizer(**self.optimizer.model_dump())
        except ValueError as error:
            raise UserError(f"[optimizer]: {error}") from error


def _misplaced_classes() -> UserError:
    return UserError('[data]: classes are named where each peer has images of its own: write data = "private" in [run], or leave them out')


def _not_images(dataset: str, task: str) -> UserError:
    return UserError(f'[run]: data = "private" is for labelled images; {dataset} is a set for {task}')


def _private(classes: Sequence[str], mirrored: int, unaudited_percent: int) -> PrivateData:
    try:
        return PrivateData(tuple(classes), mirrored, unaudited_percent)
    except ValueError as error:
        raise UserError(f"[data]: classes: {error}") from error


def load_run_file(path: Path) -> RunConfig:
    """Return the settings of a run file.

    Raises:
        UserError: no such file, not TOML, an unknown key or a value that cannot be.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return RunConfig(**tomllib.loads(text))
    except FileNotFoundError as error:
        raise UserError(f"there is no run file {path}; write one with: manta-aggregator init {path}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except ValidationError as error:
        problem, *others = error.errors()
        where = ".".join(str(part) for part in problem["loc"])
        what = "is not a key of a run file" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        line = line_of(text, problem["loc"])
        at = str(path) if line is None else f"{path}, line {line}"
        more = f" ({len(others)} more like this)" if others else ""
        raise UserError(f"{at}: {where}: {what}{more}; manta-aggregator init writes a file with all keys") from error


def template(settings: RunConfig) -> str:
    """Return a run file with these settings, every key explained."""
    lines = ["# A Manta run. Change what you like before the first start; after it the run is what it is.", ""]
    for section_name, section_field in RunConfig.model_fields.items():
        section: BaseModel = getattr(settings, section_name)
        assert section_field.annotation is not None
        lines.append(section.__doc__ or f"[{section_name}]")
        lines[-1] = f"[{section_name}]" + (f"  # {lines[-1].partition(' ')[2].strip('()')}" if " " in lines[-1] else "")
        for name, field in type(section).model_fields.items():
            lines.append(f"# {field.description}")
            lines.append(f"{name} = {_toml(getattr(section, name))}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | tuple) else repr(value)


def write_run_file(path: Path, settings: RunConfig) -> None:
    """Write a new run file with these settings, every key explained.

    Raises:
        UserError: the file exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(settings))
    except FileExistsError as error:
        raise UserError(f"{path} exists already; it is left as it is: choose another name, or move it away") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from error
