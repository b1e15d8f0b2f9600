"""Trains a supernet in one process: the lots, the mean and the update of a swarm with a single peer, by the same code.

With a directory it keeps snapshots there, and goes on from the newest one after whatever ended it: the same lots, the same losses. On the
same machine, with as many threads, it ends on the same bits as without the break.

DIR/training.json                   the settings, so that nobody goes on with others
DIR/round-00000040.safetensors      the newest state, and the teacher's where the schedule has one
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from automl.data.dataset import Dataset
from automl.files import replace_whole
from automl.schedule import Plan, place_of_lot
from automl.snapshot import load_snapshot, save_snapshot
from automl.training import Lot, Worker
from automl.update import State, initial_state, next_state, state_digest, teacher_digest
from protocol.encoding import encode
from protocol.errors import StorageError, UserError
from protocol.signing import sha256

_COHORT = "local"
_KEY = bytes(32)
_FORMAT = "manta/training/v2"


@dataclass(frozen=True, slots=True)
class Step:
    """What one round of training came to."""

    round: int
    phase: str
    loss: float  # mean over the round's samples
    learning_rate: float


class Trainer:
    """A training in this process."""

    def __init__(self, plan: Plan, dataset: Dataset, *, lot_samples: int, target_batch: int, device: str = "cpu") -> None:
        """Begin with the plan's first state; a round has as many lots of ``lot_samples`` as ``target_batch`` samples need."""
        self.plan = plan
        self.state = initial_state(plan)
        self._dataset = dataset
        self._lot_samples = lot_samples
        self._num_lots = -(-target_batch // lot_samples)
        self._worker = Worker(plan.supernet, dataset, device)
        self._teacher: State | None = None

    @property
    def finished(self) -> bool:
        """Whether every round is trained."""
        return self.state.round >= self.plan.num_rounds

    def step(self) -> Step:
        """Train one round and take its update."""
        plan, round_ = self.plan, self.state.round + 1
        self._worker.load(self.state.parameters)
        self._prepare_teacher()
        architectures = plan.architectures(round_, _COHORT)
        base = sha256(encode(("local round", self.state.round)))  # there is no log whose commit could stand here
        total = torch.zeros(self._worker.num_weights)
        loss = 0.0
        for index in range(self._num_lots):
            architecture = architectures[place_of_lot(len(architectures), base, _KEY, index)]
            result = self._worker.train(Lot(plan.seed, base, 0, _KEY, index, architecture, self._lot_samples))
            total += result.gradient
            loss += result.loss
        self.state = next_state(self.state, total / self._num_lots, plan)
        return Step(round_, plan.phase(round_).name, loss / self._num_lots, plan.learning_rate(round_))

    def resume(self, state: State, teacher: State | None) -> None:
        """Go on from a state of this plan; ``teacher`` is the one that it names, if it names one.

        Raises:
            ValueError: the teacher is another one.
        """
        if state.teacher and (teacher is None or state_digest(teacher) != state.teacher):
            raise ValueError("the state learns from another teacher than the one given")
        self.state, self._teacher = state, teacher
        self._worker.teach(None)

    @property
    def teacher(self) -> State | None:
        """The state that the later phases learn from, once there is one."""
        return self._teacher

    def _prepare_teacher(self) -> None:
        digest = teacher_digest(self.state, self.plan)
        if digest is None:
            return
        if self._teacher is None:
            self._teacher = self.state  # the round before was the last one of the full phase
        self._worker.teach(self._teacher.parameters)


class TrainingDirectory:
    """Where a training is kept on the disk."""

    def __init__(self, directory: Path, trainer: Trainer, dataset: Dataset, settings: dict[str, int | str]) -> None:
        """Make the directory, or go on with what it holds.

        Args:
            directory: new, empty, or one of a training with the same settings.
            trainer: moves to the newest state that is there.
            dataset: whose name and digest are kept.
            settings: whatever else decides the training, for people to read.

        Raises:
            UserError: it holds something else.
            StorageError: the disk refuses.
        """
        self._directory = directory
        self._trainer = trainer
        plan = asdict(trainer.plan)
        self._settings = {"format": _FORMAT, **plan, "dataset": dataset.name, "data": dataset.digest.hex(), **settings}
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
                replace_whole(path, json.dumps(self._settings, indent=1).encode())
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
                raise UserError(
                    f"{self._directory} holds a training with {name} {there!r}, not {value!r}; choose another folder with --out"
                )

    def _go_on(self) -> None:
        paths = sorted(self._directory.glob("round-*.safetensors"))
        if not paths:  # killed before the first one was written
            self.save()
            return
        state, _ = load_snapshot(paths[-1])
        teacher = None
        if state.teacher and self._trainer.plan.teacher_round is not None:
            teacher, _ = load_snapshot(self._path(self._trainer.plan.teacher_round))
        try:
            self._trainer.resume(state, teacher)
        except ValueError as error:
            raise UserError(f"{self._directory}: {error}; remove the folder to begin anew") from error

    def save(self) -> Path:
        """Write the newest state, durable when this returns; older ones go, but for the teacher's. Return its file."""
        state = self._trainer.state
        path = self._path(state.round)
        save_snapshot(path, state, {**self._metadata, "state": state_digest(state).hex()})
        teacher_round = self._trainer.plan.teacher_round
        kept = {path} if teacher_round is None else {path, self._path(teacher_round)}
        for old in self._directory.glob("round-*.safetensors"):
            if old not in kept:
                old.unlink()
        return path

    def run(self, every: int, told: Callable[[Step], bool]) -> None:
        """Train to the end, a snapshot every ``every`` rounds and where a phase ends; ``told`` hears of each round.

        Stops, everything saved, when ``told`` returns False.
        """
        trainer = self._trainer
        while not trainer.finished:
            step = trainer.step()
            go_on = told(step)
            ends_phase = trainer.plan.phase(step.round).last == step.round
            if step.round % every == 0 or ends_phase or not go_on:
                self.save()
            if not go_on:
                return

    def _path(self, round_: int) -> Path:
        return self._directory / f"round-{round_:08d}.safetensors"
