"""What all sections of a run file have in common; and where in the file one of their keys stands, so that a mistake can be shown."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

_SECTION = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")


class Section(BaseModel):
    """A part of the run file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_for_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true for 1, which nobody means who writes it."""
        assert info.field_name is not None
        if _has_truth(value) and _has_numbers(cls.model_fields[info.field_name].annotation):
            raise ValueError("true and false are no numbers: give a number")
        return value


def _has_truth(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, (list, tuple)) and any(map(_has_truth, value)))


def _has_numbers(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_has_numbers, get_args(annotation)))


def line_of(text: str, where: Sequence[int | str]) -> int | None:
    """Return the line of a section's key, or of the section; None where it is not found, in a file that is written in another way."""
    if not where:
        return None
    section, at_section = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SECTION.match(line):
            section = found[1]
            if section == where[0]:
                at_section = number
        elif (found := _KEY.match(line)) and ((section, found[1]) == tuple(where[:2]) or (section, found[1]) == ("", where[0])):
            return number
    return at_section
