"""An operator's run file (TOML), and what the manifest will say of it; ``aggregator.settings.sections`` has its keys.

The defaults are those of classification, dense; ``RunConfig.usual`` has those of each task, and ``RunConfig.thin`` those that need little
traffic (``automl.training.settings``). The task itself has no key: it follows from the data.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.settings.base import Section, line_of
from manta_swarm.aggregator.settings.sections import (
    UNAUDITED,
    AdmissionSection,
    AggregatorSection,
    DataSection,
    ExchangeSection,
    LimitsSection,
    OperatorsSection,
    OptimizerSection,
    RecipeSection,
    RewardsSection,
    RoundSection,
    RunSection,
    TrustSection,
)
from manta_swarm.automl.data.dataset import CLASSIFICATION, Dataset
from manta_swarm.automl.data.names import SHARDS, task_of
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import fitted_name, space_named
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.settings import Settings, first_min_exponent, thin, usual
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import MAX_AGE, Exchange
from manta_swarm.protocol.light import why_no_leases
from manta_swarm.protocol.manifest import ALL_PERCENT, Manifest, Optimizer, TravellingShards
from manta_swarm.protocol.private import PRIVATE, PrivateData
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.runtime.disk import settings_text

_IN_WORK = 2  # rounds that may be over while the oldest contribution is judged


class RunConfig(Section):
    """A whole run file."""

    run: RunSection = RunSection()
    admission: AdmissionSection = AdmissionSection()
    data: DataSection = DataSection()
    round: RoundSection = RoundSection()
    optimizer: OptimizerSection = OptimizerSection()
    recipe: RecipeSection = RecipeSection()
    exchange: ExchangeSection = ExchangeSection()
    rewards: RewardsSection = RewardsSection()
    trust: TrustSection = TrustSection()
    operators: OperatorsSection = OperatorsSection()
    aggregator: AggregatorSection = AggregatorSection()
    limits: LimitsSection = LimitsSection()
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
        batch, microbatch = settings.target_batch, settings.microbatch_samples
        return cls(
            run=RunSection(name=settings.dataset, rounds=settings.num_rounds),
            data=DataSection(dataset=settings.dataset, supernet=settings.supernet),
            round=RoundSection(
                target_batch=batch, microbatch_samples=microbatch, weight_cap=max(batch // 2, microbatch), max_claim_samples=16 * batch
            ),
            optimizer=OptimizerSection.model_validate(asdict(settings.optimizer)),
            exchange=ExchangeSection(
                local_steps=settings.local_steps,
                codec=settings.codec,
                residual_percent=settings.residual_percent,
                first_min_exponent=first_min_exponent(settings.codec),
            ),
        )

    @property
    def data_root(self) -> Path | None:
        """Where data sets lie that come with no library."""
        return Path(self.aggregator.data_root).expanduser() if self.aggregator.data_root else None

    @property
    def is_audited(self) -> bool:
        """Whether contributions are audited."""
        return self.trust.mode != UNAUDITED

    def check(self) -> Manifest:
        """Return the manifest of this run as far as it shows without the data, keys and a state: no torch is needed.

        Raises:
            UserError: values that do not go together.
        """
        name, space = self.data.dataset, space_named(self.data.supernet)
        task = task_of(name)
        self._check_task(name, space.task if task is None else task)
        is_private = self.run.data == PRIVATE
        if self.data.classes and not is_private:
            raise UserError(
                '[data]: classes are named where each peer has images of its own: write data = "private" in [run], or leave them out'
            )
        if is_private and space.task != CLASSIFICATION:
            raise _not_images(name, space.task)
        if self.data.share_shards and (is_private or not name.startswith(SHARDS)):
            raise no_shards(name)
        if self.is_audited and is_private:
            raise UserError(
                "[trust]: private data are nobody's but their peer's, and no audit can look at them: "
                'write mode = "unaudited", or data = "shared" in [run]'
            )
        plan, nothing, nobody = self._plan(space.name, 1), sha256(b""), Identity(bytes(32)).public_key
        try:
            return Manifest(
                name=self.run.name,
                task=space.task,
                dataset=name,
                data_digest=nothing,
                supernet=plan.supernet,
                seed=plan.seed,
                algorithm=plan.algorithm,
                schedule=plan.schedule,
                num_rounds=plan.num_rounds,
                microbatch_samples=self.round.microbatch_samples,
                optimizer=plan.optimizer,
                initial_state=nothing,
                exchange=self.exchange_settings(),
                reward_pool=self.rewards.pool,
                costs=cost_table(plan.space),
                operators=self.operators.public_keys(nobody),
                quorum=self.operators.checked_quorum(),
                cohorts=self.run.cohorts,
                data=self.run.data,
                private=(_private(self.data.classes or ("a", "b"), 0, self.rewards.private_percent),) if is_private else (),
                recipe=plan.recipe,
                admission=self.admission.rule(),
                audits=self.trust.rules(nobody, len(self.operators.keys)),
            )
        except ValueError as error:
            raise _no_run(error) from error

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
        return self._plan(self.supernet_for(dataset), dataset.num_train)

    def _plan(self, supernet: str, num_train: int) -> Plan:
        run, optimizer = self.run, self.optimizer_settings()
        if run.schedule != "sandwich" and self.recipe.taught_percent:
            raise UserError(
                "[recipe] taught_percent is for the schedule sandwich: "
                f"the later phases of {run.schedule} have a teacher of their own; leave it out"
            )
        recipe = self.recipe.recipe(space_named(supernet).task, num_train, run.rounds * self.round.target_batch)
        return Plan(supernet, run.schedule, run.algorithm, optimizer, run.rounds, run.seed, self.exchange.local_steps, recipe)

    def private_data(self, dataset: Dataset) -> tuple[PrivateData, ...]:
        """Return what the images of the peers have to be, none where data are shared; ``dataset`` is the operator's, of the same kind.

        Raises:
            UserError: values that do not go together.
        """
        from manta_swarm.automl.data.images import ImageDataset  # torch, which whoever only reads a run file does not wait for

        if self.run.data != PRIVATE:
            return ()
        if not isinstance(dataset, ImageDataset):
            raise _not_images(dataset.name, dataset.task)
        classes = self.data.classes or dataset.class_names
        if len(classes) != dataset.num_classes:
            raise UserError(f"[data]: {len(classes)} classes are named, the data set {dataset.name} has {dataset.num_classes}")
        return (_private(classes, int(dataset.flips), self.rewards.private_percent),)

    def manifest(
        self,
        operator: Identity,
        initial_state: bytes,
        dataset: Dataset,
        shards: tuple[TravellingShards, ...] = (),
        auditor: bytes | None = None,
    ) -> Manifest:
        """Return the manifest of this run.

        Args:
            operator: whose run it is.
            initial_state: digest of the state that the operator made.
            dataset: that of the run file.
            shards: what travels.
            auditor: the key of the operator's own auditor; None: no run file without named auditors is looked at.

        Raises:
            UserError: values that do not go together.
        """
        plan, private, key = self.plan(dataset), self.private_data(dataset), operator.public_key
        try:
            return replace(
                self.check(),
                task=dataset.task,
                dataset=dataset.name,
                data_digest=dataset.digest,
                supernet=plan.supernet,
                costs=cost_table(plan.space),
                recipe=plan.recipe,
                private=private,
                initial_state=initial_state,
                operators=self.operators.public_keys(key),
                shards=shards,
                audits=self.trust.rules(auditor or key, len(self.operators.keys)),
            )
        except ValueError as error:
            raise _no_run(error) from error

    def check_gateway(self) -> None:
        """Refuse a gateway in a run that has nothing for light contributors.

        Raises:
            UserError: so it is.
        """
        if reason := why_no_leases(self.check()):
            raise UserError(reason)
        if self.recipe.taught_percent == ALL_PERCENT:
            raise UserError(
                "a gateway has nothing for light contributors where all microbatches learn from the largest network, which they lack: "
                "make [recipe] taught_percent smaller, or leave the gateway out"
            )

    @property
    def snapshots(self) -> int:
        """How many of the newest states are kept: where contributions are audited, the bases of all that may still be judged."""
        return max(self.aggregator.keep_snapshots, self._rounds_judged)

    @property
    def bodies(self) -> int:
        """How many of the newest rounds have their contributions kept: where they are audited, all rounds that may still be judged."""
        return max(self.aggregator.keep_bodies, self._rounds_judged)

    @property
    def _rounds_judged(self) -> int:
        return self.trust.pending_rounds + MAX_AGE + _IN_WORK if self.is_audited else 0

    def exchange_settings(self) -> Exchange:
        """Return the exchange's part of the manifest.

        Raises:
            ValueError: values that do not go together.
        """
        first_open_ms, min_open_ms, max_open_ms = self.round.open_ms()
        return Exchange(
            codec=self.exchange.codec,
            residual_percent=self.exchange.residual_percent,
            local_steps=self.exchange.local_steps,
            max_rows=self.exchange.max_rows,
            target_batch=self.round.target_batch,
            max_claim_samples=self.round.max_claim_samples,
            weight_cap=self.round.weight_cap,
            first_min_exponent=self.exchange.first_min_exponent,
            first_open_ms=first_open_ms,
            min_open_ms=min_open_ms,
            max_open_ms=max_open_ms,
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


def _no_run(error: ValueError) -> UserError:
    return UserError(f"the run file does not make a run: {error}")


def no_shards(dataset: str) -> UserError:
    """Return what an operator is told who wants shards of another data set to travel."""
    return UserError(
        f"[data]: share_shards = true is for a data set in shards, which all train on, and not for {dataset}: "
        "make shards with manta-search data NAME --shard OUT, or write share_shards = false"
    )


def _not_images(dataset: str, task: str) -> UserError:
    return UserError(f'[run]: data = "private" is for labelled images; {dataset} is a set for {task}')


def _private(classes: Sequence[str], mirrored: int, private_percent: int) -> PrivateData:
    try:
        return PrivateData(tuple(classes), mirrored, private_percent)
    except ValueError as error:
        raise UserError(f"[data]: classes: {error}") from error


def load_run_file(path: Path) -> RunConfig:
    """Return the settings of a run file, checked as far as it goes without the data.

    Raises:
        UserError: no such file, not TOML, an unknown key, a value that cannot be, or values that do not go together.
    """
    try:
        text = settings_text(path)
        values = tomllib.loads(text)
    except FileNotFoundError as error:
        raise UserError(f"there is no run file {path}; write one with: manta-aggregator init {path}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    try:
        config = RunConfig(**values)
    except ValidationError as error:
        problem, *others = error.errors()
        where = ".".join(str(part) for part in problem["loc"])
        what = "is not a key of a run file" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        line = line_of(text, problem["loc"])
        at = str(path) if line is None else f"{path}, line {line}"
        more = f" ({len(others)} more like this)" if others else ""
        raise UserError(f"{at}: {where}: {what}{more}; manta-aggregator init writes a file with all keys") from error
    config.check()
    return config


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
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | tuple | bool) else repr(value)


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
