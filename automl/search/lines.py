"""The lines of a search's journal, read strictly: one JSON object each; see ``automl.search.journal``."""

import json
import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from manta_swarm.automl.evaluation.held_out import Quality, metric_of
from manta_swarm.automl.evaluation.samples import MAX_LOSS, Measured
from manta_swarm.automl.spaces.space import Architecture, SearchSpace
from manta_swarm.protocol.errors import UserError

FORMAT = "manta/search/v2"
MAX_BYTES = 1 << 30  # some thousand architectures on 25,000 samples
MAX_LINE_BYTES = 4 << 20  # about 500,000 samples

_FORMATS = ("manta/search/v1", FORMAT)
_QUALITY_ALONE = frozenset(("part", "architecture", "quality"))
_FIELDS = _QUALITY_ALONE | {"losses", "wrong"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One architecture on one part of the held-out data."""

    part: str
    architecture: Architecture
    quality: Quality
    measured: Measured | None  # None: of version 1, the quality alone


@dataclass(slots=True)
class Reader:
    """Reads the lines of one journal; all that have samples have equally many on a part."""

    path: Path  # for what is said
    space: SearchSpace
    advice: str  # what to do where it is damaged
    _num_samples: dict[str, int] = field(default_factory=dict)

    def settings(self, line: bytes) -> dict[str, object]:
        """Return the settings in the first line.

        Raises:
            UserError: it is none of a journal.
        """
        found = self._parsed(1, line, frozenset(("format", "settings")))
        settings = found["settings"]
        if found["format"] not in _FORMATS or not isinstance(settings, dict):
            raise self.damaged(f"it does not begin as one of format {FORMAT}")
        return settings

    def entry(self, number: int, line: bytes) -> Entry:
        """Return what line ``number``, from 2, says.

        Raises:
            UserError: it is not of this space, or damaged.
        """
        entry = self._parsed(number, line, _FIELDS, _QUALITY_ALONE)
        try:
            part, quality = str(entry["part"]), entry["quality"]
            architecture = Architecture.parse(str(entry["architecture"]), self.space)
            if not isinstance(quality, dict) or not all(type(value) in (int, float) and math.isfinite(value) for value in quality.values()):
                raise ValueError("its qualities are no finite numbers")
            quality[metric_of(self.space.task)]
            return Entry(part, architecture, quality, self._measured(part, quality, entry) if "losses" in entry else None)
        except (ValueError, KeyError) as error:
            raise self.damaged(f"line {number} is none of this search ({error})") from error

    def check_samples(self, part: str, measured: Measured) -> None:
        """Refuse what was measured on another number of samples than what the journal has.

        Raises:
            UserError: so it is.
        """
        there, here = self._num_samples.setdefault(part, len(measured.losses)), len(measured.losses)
        if there != here:
            raise UserError(f"{self.path} has networks measured on {there} held-out samples, and now it is {here}; {self.advice}")

    def _measured(self, part: str, quality: Quality, entry: dict[str, object]) -> Measured:
        losses = _whole_numbers(entry["losses"], MAX_LOSS)
        wrong = _whole_numbers(entry["wrong"], len(losses) - 1)
        if not losses or len(losses) != self._num_samples.setdefault(part, len(losses)) or sorted(set(wrong)) != wrong.tolist():
            raise ValueError("its samples are not those of the others")
        return Measured(quality, losses, wrong)

    def _parsed(self, number: int, line: bytes, *fields: frozenset[str]) -> dict[str, object]:
        try:
            value = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or set(value) not in fields:
            raise self.damaged(f"line {number} does not have the fields {', '.join(sorted(fields[0]))}")
        return value

    def damaged(self, why: str) -> UserError:
        """Return what to raise, and what a person is told."""
        return UserError(f"{self.path} is damaged: {why}; {self.advice}")


def _whole_numbers(value: object, most: int) -> "array[int]":
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each <= most for each in value):
        raise ValueError(f"its samples are no whole numbers from 0 to {most}")
    return array("i", value)
