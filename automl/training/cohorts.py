"""Several cohorts in one process: what each gives, what coding leaves it, and the mean of their table, by a swarm's arithmetic.

A cohort here is one peer with a key of its own. All are equally fast, every contribution is listed, and none is old. No network, no log.

Shapes: N all weights of the supernet.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from manta_swarm.automl.training.settings import first_min_exponent
from manta_swarm.codec.coding import Body, body_num_bytes, encode, parse
from manta_swarm.codec.mean import table_mean
from manta_swarm.codec.residuals import covered, given, left_over
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import MAX_ROWS, codec_named
from manta_swarm.protocol.records import Threshold
from manta_swarm.protocol.table import Weighing
from manta_swarm.runtime.disk import write_durably

MAX_COHORTS = MAX_ROWS
_FORMAT = "manta/local-exchange/v1"

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LocalCohort:
    """Who trains: a cohort of one."""

    name: str
    key: bytes

    @classmethod
    def numbered(cls, number: int) -> "LocalCohort":
        """Return the cohort of this number; the first bytes of keys, which sweeps begin by, differ as those of real ones do."""
        return cls(f"local-{number}", number.to_bytes(2, "little") + bytes(30))


@dataclass(frozen=True, slots=True)
class CohortLearnt:
    """What a cohort has to say in a round."""

    cohort: LocalCohort
    values: Vector  # (N,): the mean gradient, or the change of the weights
    samples: int
    role: int  # see ``protocol.rewards``
    mask: NDArray[np.bool_] | None  # (N,): what its architecture covers; None: all


@dataclass(frozen=True, slots=True)
class ExchangeMemory:
    """What one round's exchange leaves to the next one's."""

    min_exponent: int  # of exponents
    thresholds: tuple[Threshold, ...]
    residuals: tuple[Vector | None, ...]  # of each cohort; None: zeros


class LocalExchange:
    """The exchange between the cohorts of one process."""

    def __init__(self, codec: str, residual_percent: int, num_values: int, num_cohorts: int) -> None:
        """Begin without residuals; contributions are coded by ``codec``, and ``residual_percent`` of a residual comes with the next one."""
        self._codec = codec_named(codec)
        self._percent = residual_percent
        self._num_values = num_values
        self.memory = ExchangeMemory(first_min_exponent(codec), (), (None,) * num_cohorts)

    @property
    def contribution_bytes(self) -> int:
        """How long one cohort's body is."""
        return body_num_bytes(self._codec.name, self._num_values)

    def mean(self, every: Sequence[CohortLearnt]) -> Vector:
        """Return the mean (N,) of the round's table, in which every cohort is; they come in the order of residuals. Moves ``memory`` on.

        Who has values that are not finite is not in the table, as if the contribution had not come. A mean of nothing is zero.

        Raises:
            OwnFault: as ``codec.scaling.check_denormals``.
        """
        min_exponent, residuals = self.memory.min_exponent, list(self.memory.residuals)
        table: list[Weighing] = []
        bodies: list[Body] = []
        masks: list[NDArray[np.bool_] | None] = []
        for place, learnt in enumerate(every):
            whole = given(learnt.values, residuals[place], self._percent, learnt.mask)
            if not np.isfinite(whole).all():
                continue
            data = encode(self._codec.name, covered(whole, learnt.mask), min_exponent)
            body = parse(self._codec.name, data, self._num_values)
            table.append(Weighing(0, learnt.role, learnt.samples))
            bodies.append(body)
            masks.append(learnt.mask)
            if self._codec.is_sparse:
                residuals[place] = left_over(whole, body, min_exponent)
        if not table:
            return np.zeros(self._num_values, np.float32)
        found = table_mean(table, bodies, [min_exponent] * len(table), self.memory.thresholds, min_exponent, self._num_values, masks)
        self.memory = ExchangeMemory(found.min_exponent, found.thresholds, tuple(residuals))
        return found.mean

    def sorted(self) -> None:
        """The weights were reordered: no residual fits any more."""
        memory = self.memory
        self.memory = ExchangeMemory(memory.min_exponent, memory.thresholds, (None,) * len(memory.residuals))


def save_memory(path: Path, memory: ExchangeMemory) -> None:
    """Write what an exchange has left; the file is there whole after a crash, or not at all.

    Raises:
        StorageError: the disk refuses.
    """
    tensors = {f"residual{place}": residual for place, residual in enumerate(memory.residuals) if residual is not None}
    thresholds = [[threshold.role, threshold.norm, threshold.samples] for threshold in memory.thresholds]
    metadata = {
        "format": _FORMAT,
        "min_exponent": str(memory.min_exponent),
        "thresholds": json.dumps(thresholds),
        "cohorts": str(len(memory.residuals)),
    }
    write_durably(path, safetensors.numpy.save(tensors, metadata))


def load_memory(path: Path, num_values: int) -> ExchangeMemory:
    """Return what ``save_memory`` wrote; ``num_values``: N.

    Raises:
        UserError: there is no such file, or it is something else.
    """
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"it is not of the format {_FORMAT!r}")
        thresholds = tuple(Threshold(*each) for each in json.loads(metadata["thresholds"]))
        residuals = tuple(tensors.pop(f"residual{place}", None) for place in range(int(metadata["cohorts"])))
        min_exponent = int(metadata["min_exponent"])
        if tensors or any(each is not None and (each.shape != (num_values,) or each.dtype != np.float32) for each in residuals):
            raise ValueError("its residuals are not float32 vectors of the supernet's length")
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} does not hold what an exchange has left: {error}; remove the folder to begin anew") from error
    return ExchangeMemory(min_exponent, thresholds, residuals)
