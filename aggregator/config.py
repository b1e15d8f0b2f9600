"""An operator's run file (TOML): what the manifest will say, each field with its unit and reason."""

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from automl.cost import cost_table
from automl.data.digits import load as load_dataset
from automl.space import space_named
from protocol.errors import UserError
from protocol.records import Manifest, Optimizer
from protocol.signing import Identity


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RunSection(_Section):
    """[run]"""

    name: str = Field(default="digits", description="a plain lower-case name, shown to volunteers")
    algorithm: Literal["data-parallel", "model-parallel"] = Field(
        default="data-parallel",
        description="data-parallel: every peer trains the round's four architectures; model-parallel: each cohort has its own",
    )
    seed: int = Field(default=0, ge=0, description="everything random in the run follows from it")
    rounds: int = Field(default=200, ge=1, description="global steps until the run is finished")


class DataSection(_Section):
    """[data]"""

    dataset: Literal["digits"] = Field(default="digits", description="digits: scikit-learn's 1,797 handwritten digits, no download")
    supernet: Literal["classifier-tiny"] = Field(default="classifier-tiny", description="the weights that all subnets share")


class RoundSection(_Section):
    """[round]"""

    target_batch: int = Field(default=512, ge=2, description="samples over all lots of the swarm that close a round")
    lot_samples: int = Field(default=32, ge=2, le=65536, description="samples of one lot: one micro-batch through one architecture")
    max_claim_samples: int = Field(default=512, ge=2, description="a peer's weight in one round is capped here")
    deadline_s: float = Field(default=20, gt=0, description="a round closes at the latest this many seconds after the last commit")
    attempt_timeout_s: float = Field(default=30, gt=0, description="from a settled table to a quorum of votes; then the attempt is dropped")


class OptimizerSection(_Section):
    """[optimizer]"""

    name: Literal["adamw", "sgd"] = Field(default="adamw", description="the exact update, the same bits on every machine")
    learning_rate: str = Field(default="0.02", description="decimal text; the peak of a one-cycle schedule")
    beta1: str = Field(default="0.9", description="decimal text; AdamW's first moment, SGD's momentum")
    beta2: str = Field(default="0.99", description="decimal text; AdamW's second moment")
    epsilon: str = Field(default="0.00000001", description="decimal text")
    weight_decay: str = Field(default="0.01", description="decimal text")
    warmup_percent: int = Field(default=20, ge=0, le=100, description="of the rounds, until the rate is at its peak")


class CodecSection(_Section):
    """[codec]"""

    cohort: Literal["fp32", "fp16"] = Field(default="fp32", description="between members of a cohort")
    swarm: Literal["fp32", "fp16"] = Field(default="fp16", description="between cohorts, and of the mean itself")


class RewardsSection(_Section):
    """[rewards]"""

    pool: int = Field(default=1_000_000, ge=1, description="credit units shared out each round")


class FollowerSection(_Section):
    """[follower] (not part of the manifest: may change at any start)"""

    evaluate_every: int = Field(default=0, ge=0, description="rounds between evaluations on held-out data; 0: only after the last round")
    keep_snapshots: int = Field(default=3, ge=1, description="newest snapshots to keep")


class RunConfig(_Section):
    """A whole run file."""

    run: RunSection = RunSection()
    data: DataSection = DataSection()
    round: RoundSection = RoundSection()
    optimizer: OptimizerSection = OptimizerSection()
    codec: CodecSection = CodecSection()
    rewards: RewardsSection = RewardsSection()
    follower: FollowerSection = FollowerSection()

    def manifest(self, operator: Identity, initial_state: bytes) -> Manifest:
        """Return the manifest of this run; ``initial_state`` is the digest of the state that the operator made.

        Raises:
            UserError: values that do not go together.
        """
        try:
            return Manifest(
                name=self.run.name,
                task="classification",
                dataset=self.data.dataset,
                data_digest=load_dataset(self.data.dataset).digest,
                supernet=self.data.supernet,
                seed=self.run.seed,
                algorithm=self.run.algorithm,
                num_rounds=self.run.rounds,
                target_batch=self.round.target_batch,
                lot_samples=self.round.lot_samples,
                max_claim_samples=self.round.max_claim_samples,
                round_deadline_ms=round(1000 * self.round.deadline_s),
                attempt_timeout_ms=round(1000 * self.round.attempt_timeout_s),
                optimizer=self.optimizer_settings(),
                initial_state=initial_state,
                cohort_codec=self.codec.cohort,
                swarm_codec=self.codec.swarm,
                reward_pool=self.rewards.pool,
                costs=cost_table(space_named(self.data.supernet)),
                operators=(operator.public_key,),
            )
        except ValueError as error:
            raise UserError(f"the run file does not make a run: {error}") from error

    def optimizer_settings(self) -> Optimizer:
        """Return the optimiser's part of the manifest.

        Raises:
            UserError: values that do not go together.
        """
        try:
            return Optimizer(**self.optimizer.model_dump())
        except ValueError as error:
            raise UserError(f"[optimizer]: {error}") from error


def load_run_file(path: Path) -> RunConfig:
    """Return the settings of a run file.

    Raises:
        UserError: no such file, not TOML, an unknown key or a value that cannot be.
    """
    try:
        return RunConfig(**tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UserError(f"there is no run file {path}; write one with: manta-aggregator init {path}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        what = "is not a key of a run file" if problem["type"] == "extra_forbidden" else problem["msg"]
        raise UserError(f"{path}: {where}: {what}; manta-aggregator init writes a file with all keys") from error


def template(settings: RunConfig) -> str:
    """Return a run file with these settings, every key explained."""
    lines = ["# A Manta run. Change what you like before the first start; after it the run is what it is.", ""]
    for section_name, section_field in RunConfig.model_fields.items():
        section: _Section = getattr(settings, section_name)
        assert section_field.annotation is not None
        lines.append(section.__doc__ or f"[{section_name}]")
        lines[-1] = f"[{section_name}]" + (f"  # {lines[-1].partition(' ')[2].strip('()')}" if " " in lines[-1] else "")
        for name, field in type(section).model_fields.items():
            lines.append(f"# {field.description}")
            lines.append(f"{name} = {_toml(getattr(section, name))}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


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
