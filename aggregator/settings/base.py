"""What all sections of a run file have in common."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


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
