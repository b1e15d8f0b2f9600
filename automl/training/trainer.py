"""Trains a supernet in one process: the microbatches, the mean and the update of a swarm with one peer a cohort, by the same code.

With one cohort and one local step a round nothing is coded. Otherwise contributions are, their table has a mean, and what sparse coding
leaves out comes with the next contribution, as between strangers (``automl.training.cohorts``).

With a directory it keeps snapshots there, and goes on from the newest one after whatever ended it: the same microbatches, the same losses.
On the same machine, with as many threads, it ends on the same bits as without the break.

DIR/training.json                   the settings, so that nobody goes on with others
DIR/exchange-00000040.safetensors   residuals, exponents and norms after a round, where contributions are coded; older than its state
DIR/round-00000040.safetensors      the newest state, and the teacher's where the schedule has one
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.devices import Recorder
from manta_swarm.automl.training.cohorts import (
    MAX_COHORTS,
    CohortLearnt,
    ExchangeMemory,
    LocalCohort,
    LocalExchange,
    load_memory,
    save_memory,
)
from manta_swarm.automl.training.coverage import coverage_of
from manta_swarm.automl.training.microbatches import Microbatch, Worker
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.snapshot import load_snapshot, save_snapshot
from manta_swarm.automl.training.update import LocalSteps, State, initial_state, next_state, state_digest
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.microbatches import place_of_microbatch
from manta_swarm.protocol.signing import sha256
from manta_swarm.runtime.disk import write_durably
from manta_swarm.runtime.round_folder import RoundFolder

_FORMAT = "manta/training/v3"
_SUFFIX = ".safetensors"
_FP16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Step:
    """What one round of training came to."""

    round: int
    phase: str
    loss: float  # mean over the round's samples
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What cohorts send each other in one round, tables and receipts aside."""

    sent_bytes: int  # by all cohorts together: each sends one body
    fp16_ratio: float  # how many times more it were with 2 bytes a weight at every local step


@dataclass(frozen=True, slots=True)
class SimulatedSwarm:
    """The swarm that a training in one process stands for: how it shares out a round, and what its cohorts exchange.

    Raises:
        ValueError: no or too many cohorts, or a percentage out of range.
    """

    microbatch_samples: int  # of one microbatch
    target_batch: (
        int  # samples of a round; each local step of each cohort has as many microbatches as its share of them needs, at least one
    )
    cohorts: int = 1
    codec: str | None = None  # of what they exchange; None: int16, but with one cohort and one local step nothing is coded
    residual_percent: int = 100  # of a residual that comes with the next contribution

    def __post_init__(self) -> None:
        if not 1 <= self.cohorts <= MAX_COHORTS or not 0 <= self.residual_percent <= 100:
            raise ValueError(f"there are 1 to {MAX_COHORTS} cohorts and 0 to 100 percent of a residual")

    def codec_of(self, plan: Plan) -> str | None:
        """Return the codec by which contributions are coded; None where nothing is."""
        return self.codec or ("int16" if self.cohorts > 1 or plan.local_steps > 1 else None)


class Trainer:
    """A training in this process."""

    def __init__(
        self,
        plan: Plan,
        dataset: Dataset,
        swarm: SimulatedSwarm,
        *,
        device: str = "cpu",
        parts: Sequence[Dataset] = (),
        recorder: Recorder | None = None,
    ) -> None:
        """Begin with the plan's first state.

        Args:
            plan: what to train.
            dataset: on what.
            swarm: by how many cohorts, in which microbatches.
            device: where microbatches are computed.
            parts: what each cohort trains on in place of the data set, as where data are private; empty: all on the data set.
            recorder: of the device, where microbatches are to be recorded and replayed.

        Raises:
            ValueError: there is not a part for each cohort, or the codec is unknown.
        """
        if parts and len(parts) != swarm.cohorts:
            raise ValueError(f"{len(parts)} parts of the data for {swarm.cohorts} cohorts")
        self.plan = plan
        self.swarm = swarm
        self.state = initial_state(plan)
        self._num_microbatches = -(-swarm.target_batch // (swarm.microbatch_samples * swarm.cohorts * plan.local_steps))
        self._worker = Worker(plan.supernet, dataset, device, recorder=recorder)
        self._teacher: State | None = None
        self._cohorts = [LocalCohort.numbered(number) for number in range(swarm.cohorts)]
        own = {
            cohort.name: Worker(plan.supernet, part, device, recorder=recorder) for cohort, part in zip(self._cohorts, parts, strict=False)
        }
        self._workers = own or {cohort.name: self._worker for cohort in self._cohorts}
        for worker in dict.fromkeys(self._workers.values()):
            worker.warm_up()
        codec = swarm.codec_of(plan)
        self._exchange: LocalExchange | None = None
        if codec is not None:
            self._exchange = LocalExchange(codec, swarm.residual_percent, self._worker.num_weights, swarm.cohorts)

    @property
    def finished(self) -> bool:
        """Whether every round is trained."""
        return self.state.round >= self.plan.num_rounds

    @property
    def traffic(self) -> Traffic | None:
        """What a round sends; None where nothing is coded."""
        if self._exchange is None:
            return None
        body_bytes = self._exchange.contribution_bytes
        dense_bytes = _FP16_BYTES * self._worker.num_weights * self.plan.local_steps
        return Traffic(body_bytes * len(self._cohorts), dense_bytes / body_bytes)

    @property
    def memory(self) -> ExchangeMemory | None:
        """What the exchange has left; None where nothing is coded."""
        return None if self._exchange is None else self._exchange.memory

    def step(self) -> Step:
        """Train one round and take its update; where that breaks off, all is as it was after the round before."""
        state, memory = self.state, self.memory
        try:
            return self._step()
        except BaseException:
            self.state = state
            if self._exchange is not None and memory is not None:
                self._exchange.memory = memory
            raise

    def _step(self) -> Step:
        plan, round_ = self.plan, self.state.round + 1
        self._prepare_teacher()
        base = sha256(encode(("local round", self.state.round)))  # there is no log whose commit could stand here
        losses: list[float] = []  # of the microbatches, in order
        learnt = [self._learn(cohort, base, losses) for cohort in self._cohorts]
        self.state = next_state(self.state, self._mean(learnt), plan)
        if self._exchange is not None and plan.sorts_after(round_):
            self._exchange.sorted()
        loss = 0.0
        for each in losses:  # not ``sum``, which adds otherwise from one version of Python to the next
            loss += each
        return Step(round_, plan.phase(round_).name, loss / len(losses), plan.learning_rate(round_))

    def _learn(self, cohort: LocalCohort, base: bytes, losses: list[float]) -> Tensor:
        """Return what a cohort learns in a round: the mean gradient, or the change of the weights after its local steps."""
        if self.plan.local_steps == 1:
            return self._gradient(cohort, base, 0, self.state.parameters, losses)
        local = LocalSteps(self.state, self.plan)
        for step in range(self.plan.local_steps):
            local.step(self._gradient(cohort, base, step, local.weights, losses))
        return local.learnt()

    def _gradient(self, cohort: LocalCohort, base: bytes, step: int, weights_N: Tensor, losses: list[float]) -> Tensor:
        """Return a cohort's mean gradient in one local step; the microbatches' losses are added to ``losses``."""
        worker = self._workers[cohort.name]
        worker.load(weights_N)
        architectures = self.plan.architectures(self.state.round + 1, cohort.name)
        total = torch.zeros(self._worker.num_weights)
        for index in range(self._num_microbatches * step, self._num_microbatches * (step + 1)):
            architecture = architectures[place_of_microbatch(len(architectures), base, cohort.key, index)]
            strength = self.plan.augmentation(self.state.round + 1, architecture)
            result = worker.train(
                Microbatch(self.plan.seed, base, step, cohort.key, index, architecture, self.swarm.microbatch_samples, strength)
            )
            total += result.gradient
            losses.append(result.loss)
        return total / self._num_microbatches

    def _mean(self, learnt: list[Tensor]) -> Tensor:
        """Return the round's mean (N,) of what each cohort learnt."""
        if self._exchange is None:
            return learnt[0]
        samples, round_ = self.swarm.microbatch_samples * self._num_microbatches * self.plan.local_steps, self.state.round + 1
        every = []
        for cohort, values in zip(self._cohorts, learnt, strict=True):
            mask = coverage_of(self.plan, round_, cohort.name)
            every.append(CohortLearnt(cohort, values.numpy(), samples, self.plan.role(round_, cohort.name), mask))
        return torch.from_numpy(self._exchange.mean(every))

    def resume(self, state: State, teacher: State | None, memory: ExchangeMemory | None = None) -> None:
        """Go on from a state of this plan.

        Args:
            state: where to begin.
            teacher: the one that it names, if it names one.
            memory: what the exchange had left then; None: nothing is coded, or this is the first state.

        Raises:
            ValueError: the state is of another network, the teacher another one, or the memory of other cohorts.
        """
        if state.parameters.numel() != self._worker.num_weights:
            raise ValueError(f"the state has {state.parameters.numel()} weights, and {self.plan.supernet} has {self._worker.num_weights}")
        if state.teacher and (teacher is None or state_digest(teacher) != state.teacher):
            raise ValueError("the state learns from another teacher than the one given")
        if memory is not None:
            if self._exchange is None or len(memory.residuals) != len(self._cohorts):
                raise ValueError("the exchange was one of other cohorts")
            self._exchange.memory = memory
        self.state, self._teacher = state, teacher
        self._teach(None)

    @property
    def teacher(self) -> State | None:
        """The state that the later phases learn from, once there is one."""
        return self._teacher

    def _prepare_teacher(self) -> None:
        phase = self.plan.phase(self.state.round + 1)
        if not phase.distils:
            return
        if phase.teaches_itself:
            self._teach(self.state.parameters)
            return
        if self._teacher is None:
            self._teacher = self.state  # the round before was the last one of the full phase
        self._teach(self._teacher.parameters)

    def _teach(self, parameters: Tensor | None) -> None:
        for worker in self._workers.values():
            worker.teach(parameters)


def _differs(name: str, there: object, here: object) -> str:
    """Return what differs between two values of a setting, the innermost ones."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key, value in here.items():
            if there.get(key) != value:
                return _differs(f"{name}'s {key}", there.get(key), value)
    return f"{name} {there!r}, not {here!r}"


class TrainingDirectory:
    """Where a training is kept on the disk."""

    def __init__(self, directory: Path, trainer: Trainer, dataset: Dataset) -> None:
        """Make the directory, or go on with what it holds.

        Args:
            directory: new, empty, or one of a training with the same settings.
            trainer: moves to the newest state that is there.
            dataset: whose name and digest are kept.

        Raises:
            UserError: it holds something else.
            StorageError: the disk refuses.
        """
        self._directory = directory
        self._states, self._exchanges = (RoundFolder(directory, prefix=prefix) for prefix in ("round-", "exchange-"))
        self._trainer = trainer
        plan, data = asdict(trainer.plan), dataset.digest.hex()
        swarm = {**asdict(trainer.swarm), "codec": trainer.swarm.codec_of(trainer.plan) or "none"}
        self._settings = {"format": _FORMAT, **plan, "dataset": dataset.name, "data": data, **swarm}
        self._metadata = {"run": "local", "supernet": trainer.plan.supernet, "dataset": dataset.name, "schedule": trainer.plan.schedule}
        path = directory / "training.json"
        part = path.with_name(f"{path.name}.part")  # what a kill while the settings were written leaves
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._check(path)
                self._go_on()
            elif any(each != part for each in directory.iterdir()):
                raise UserError(f"{directory} holds something that is no training; it is left as it is: choose another folder with --out")
            else:
                write_durably(path, json.dumps(self._settings, indent=1).encode())
                self.save()
        except OSError as error:
            raise StorageError(f"cannot use {directory}: {error.strerror}; choose another folder with --out") from error

    def _check(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {error}; remove the folder, or choose another one with --out") from error
        for name, value in self._settings.items():
            if not isinstance(found, dict) or found.get(name) != value:
                there = found.get(name) if isinstance(found, dict) else None
                raise UserError(f"{self._directory} holds a training with {_differs(name, there, value)}; choose another folder with --out")

    def _go_on(self) -> None:
        rounds = self._states.rounds(_SUFFIX)
        if not rounds:  # killed before the first one was written
            self.save()
            return
        try:
            state, _ = load_snapshot(self._states.path(rounds[-1], _SUFFIX))
        except UserError as error:
            raise UserError(f"{error}; remove the folder to begin anew, or choose another one with --out") from error
        teacher = None
        if state.teacher and self._trainer.plan.teacher_round is not None:
            teacher, _ = load_snapshot(self._states.path(self._trainer.plan.teacher_round, _SUFFIX))
        memory = None
        if self._trainer.memory is not None:
            memory = load_memory(self._exchanges.path(state.round, _SUFFIX), state.parameters.numel())
        try:
            self._trainer.resume(state, teacher, memory)
        except ValueError as error:
            raise UserError(f"{self._directory}: {error}; remove the folder to begin anew") from error

    def save(self) -> Path:
        """Write the newest state, durable when this returns; older ones go, but for the teacher's. Return its file."""
        state, memory = self._trainer.state, self._trainer.memory
        path, teacher_round = self._states.path(state.round, _SUFFIX), self._trainer.plan.teacher_round
        if memory is not None:
            save_memory(self._exchanges.path(state.round, _SUFFIX), memory)  # before the state: one that is there can be gone on from
        save_snapshot(path, state, {**self._metadata, "state": state_digest(state).hex()})
        self._states.prune(state.round, () if teacher_round is None else (teacher_round,))
        self._exchanges.prune(state.round)
        return path

    def rounds(self, every: int) -> Iterator[Step]:
        """Train to the end, and yield each round; a snapshot follows every ``every`` rounds and where a phase ends.

        Who wants no more rounds calls ``save``.

        Raises:
            UserError: the training has diverged; what is kept is from before.
        """
        trainer = self._trainer
        while not trainer.finished:
            step = trainer.step()
            if not math.isfinite(step.loss):
                raise UserError(
                    f"the training has diverged: the loss of round {step.round} is no number; choose another folder with --out, "
                    f"and a --learning-rate below {trainer.plan.optimizer.learning_rate}"
                )
            yield step
            if step.round % every == 0 or trainer.plan.phase(step.round).last == step.round:
                self.save()
