"""What a person lets a peer use of this computer, the file that keeps it, and what follows from it and the computer's state.

``Limits`` are settings, in the words of a person (60%, 10Mbit, 22:00-07:00) or as what they are kept as. ``reasons`` says why nothing is to
be computed now. Shares, threads and rates hold all the time; what applies them is elsewhere (``peer.limits.limiter``).
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.disk import make_directory, replace_file, settings_text

Span: TypeAlias = tuple[int, int]  # minutes of the day, from the first one to before the second one; over midnight where that is less

NONE = "none"  # a limit that is lifted
LEAST_RATE = 100_000  # bytes a second: with less, calls would end before their answers are through (``network.timeouts``)
COOLER_C = 5  # who became hot goes on so much below the limit: else it would stop and start all the time
_DAY_MIN = 24 * 60
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMG]?)(B|bit)(?:/s|ps)?")
_RATES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
EVALUATION = 10  # hundredths of the time, where nobody says
_AUDIT = "takes a share of the time, up to 100%; 0% audits nothing"
_SHARE = "takes a share of the time, from 1% to 100%"
_EVALUATION = "takes a share of the time, up to 100%; 0% measures nothing for others"
_CELSIUS = re.compile(r"([0-9]{1,3})\s*°?\s*C?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([MG])(i?)B")
_TIME = re.compile(r"([0-9]+)\s*(s|min|m|h)")
_TIMES = {"s": 1, "min": 60, "m": 60, "h": 3600}


class Limits(BaseModel):
    """What a peer may take; see each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    duty: int = Field(default=100, ge=1, le=100, description="share of the time to compute microbatches in, as 60%; in between it rests")
    cpu_threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads that compute; default: all cores")
    gpu_memory: int | None = Field(default=None, ge=256_000_000, description="most memory for microbatches on each GPU, as 6GB")
    max_temperature: int | None = Field(
        default=None, ge=30, le=120, description=f"pause while CPU or GPU are hotter, as 80C, until they are {COOLER_C} degrees cooler"
    )
    max_upload: int | None = Field(default=None, ge=LEAST_RATE, description="most to send a second, as 10Mbit or 2MB")
    max_download: int | None = Field(default=None, ge=LEAST_RATE, description="most to receive a second, as 10Mbit or 2MB")
    when_idle: int | None = Field(
        default=None, ge=10, le=86_400, description="compute only while nobody has used this computer for so long, as 5min"
    )
    schedule: tuple[Span, ...] | None = Field(
        default=None, description="compute only at these times of the day, as 22:00-07:00; several with commas"
    )
    on_ac: bool = Field(default=False, description="compute only on mains power, not on battery")
    evaluation: int = Field(
        default=EVALUATION,
        ge=0,
        le=100,
        description="share of the time to measure networks for others in, as 10%; on one thread of low priority; 0%: none",
    )
    audit: int = Field(
        default=0,
        ge=0,
        le=100,
        description="share of the time to compute others' contributions again in, as 20%; on one thread of low priority; 0%: none",
    )

    @field_validator("duty", mode="before")
    @classmethod
    def _read_duty(cls, value: Any) -> Any:
        text = _text(value)
        if text == NONE:
            return 100
        if text is not None and (found := re.fullmatch(r"([0-9]{1,3})\s*%?", text)):
            value = int(found[1])
        share = _whole(value, _SHARE)
        if share is not None and not 1 <= share <= 100:
            raise ValueError(f"{_SHARE}, not {share}%")
        return share

    @field_validator("evaluation", mode="before")
    @classmethod
    def _read_evaluation(cls, value: Any) -> Any:
        return _share_or_none(value, EVALUATION, _EVALUATION)

    @field_validator("audit", mode="before")
    @classmethod
    def _read_audit(cls, value: Any) -> Any:
        return _share_or_none(value, 0, _AUDIT)

    @field_validator("on_ac", mode="before")
    @classmethod
    def _read_on_ac(cls, value: Any) -> Any:
        return False if _text(value) == NONE else value

    @field_validator("cpu_threads", mode="before")
    @classmethod
    def _read_threads(cls, value: Any) -> Any:
        return None if _text(value) in (NONE, "all") else value

    @field_validator("gpu_memory", mode="before")
    @classmethod
    def _read_memory(cls, value: Any) -> Any:
        return read_size(value)

    @field_validator("max_temperature", mode="before")
    @classmethod
    def _read_temperature(cls, value: Any) -> Any:
        return _read(value, _CELSIUS, "takes degrees Celsius, as 80", lambda celsius: int(celsius[1]))

    @field_validator("max_upload", "max_download", mode="before")
    @classmethod
    def _read_rate(cls, value: Any) -> Any:
        return _read(value, _RATE, "takes a rate with its unit, as 10Mbit or 2MB (a second)", _rate_of)

    @field_validator("when_idle", mode="before")
    @classmethod
    def _read_idle(cls, value: Any) -> Any:
        return _read(value, _TIME, "takes a time, as 90s, 5min or 1h", lambda time: int(time[1]) * _TIMES[time[2]])

    @field_validator("schedule", mode="before")
    @classmethod
    def _read_schedule(cls, value: Any) -> Any:
        text = _text(value)
        if text is None or text == NONE:
            return None if text else value
        return tuple(_span(part.strip()) for part in text.split(","))

    def words(self) -> dict[str, str]:
        """Return each limit that is set, in the words in which it may be set again."""
        shown = {
            "duty": None if self.duty == 100 else f"{self.duty}%",
            "cpu_threads": _shown(self.cpu_threads, str),
            "gpu_memory": _shown(self.gpu_memory, _mega),
            "max_temperature": _shown(self.max_temperature, lambda celsius: f"{celsius}C"),
            "max_upload": _shown(self.max_upload, _rate),
            "max_download": _shown(self.max_download, _rate),
            "when_idle": _shown(self.when_idle, lambda idle_s: f"{idle_s // 60}min" if idle_s % 60 == 0 else f"{idle_s}s"),
            "schedule": None if self.schedule is None else _spans(self.schedule),
            "on_ac": "true" if self.on_ac else None,
            "audit": f"{self.audit}%" if self.audit else None,
            "evaluation": None if self.evaluation == EVALUATION else f"{self.evaluation}%",
        }
        return {name: text for name, text in shown.items() if text is not None}


class LightLimits(Limits):
    """What a light contributor may take: no more than it has a use for."""

    @model_validator(mode="after")
    def _are_of_use(self) -> "LightLimits":
        if self.gpu_memory is not None:
            raise ValueError("--gpu-memory: a light contributor computes on the CPU; leave it out")
        if self.audit:
            raise ValueError("--audit: a light contributor has no state and no data to audit with; leave it out")
        if self.evaluation not in (EVALUATION, 0):
            raise ValueError("--evaluation: a light contributor has no state and no data to measure with; leave it out")
        return self


@dataclass(frozen=True, slots=True)
class Readings:
    """The computer's state, as far as a limit asks for it; None: it is not known now."""

    minute: int  # of this computer's day
    on_battery: bool | None = False
    idle_s: float | None = None  # since somebody used it
    celsius: float | None = None  # of the hottest of its CPUs and GPUs


def reasons(limits: Limits, now: Readings, *, was_hot: bool) -> dict[str, str]:
    """Return why nothing is to be computed now, in words by limit; nothing: it may be. What is not known keeps it from computing.

    ``was_hot``: it was too hot the last time, and is until it is ``COOLER_C`` below the limit.
    """
    found = {}
    if limits.schedule is not None and not any(_is_in(now.minute, span) for span in limits.schedule):
        found["schedule"] = f"it is {_clock(now.minute)}, outside of {_spans(limits.schedule)}"
    if limits.when_idle is not None:
        if now.idle_s is None:
            found["when_idle"] = "nobody can say whether this computer is in use"
        elif now.idle_s < limits.when_idle:
            found["when_idle"] = "this computer is in use"
    if limits.on_ac and now.on_battery is not False:
        found["on_ac"] = "on battery" if now.on_battery else "nobody can say whether it is on battery"
    if limits.max_temperature is not None:
        if now.celsius is None:
            found["max_temperature"] = "nobody can say how hot it is"
        elif now.celsius > limits.max_temperature - (COOLER_C if was_hot else 0):
            found["max_temperature"] = f"hot: {now.celsius:g} of {limits.max_temperature} degrees"
    return found


def listed(words: Mapping[str, str]) -> str:
    """Return limits, in the words that ``Limits.words`` gives, as a line for a person."""
    return ", ".join(name.replace("_", "-") if text == "true" else f"{name.replace('_', '-')} {text}" for name, text in words.items())


def _text(value: Any) -> str | None:
    return value.strip() if isinstance(value, str) else None


def _share_or_none(value: Any, default: int, takes: str) -> int:
    """Return a share of the time in hundredths, which may be 0; the default where the limit is lifted."""
    text = _text(value)
    if text == NONE:
        return default
    if text is not None and (found := re.fullmatch(r"([0-9]{1,3})\s*%?", text)):
        value = int(found[1])
    share: int | None = _whole(value, takes)
    if share is None or not 0 <= share <= 100:
        raise ValueError(f"{takes}, not {value!r}")
    return share


def _read(value: Any, form: re.Pattern[str], takes: str, meant: Callable[[re.Match[str]], int]) -> Any:
    """Return what is ``meant`` by a text of this form, None where it lifts the limit; what a program wrote needs no unit."""
    text = _text(value)
    if text is None:
        return _whole(value, f"{takes}, or none")
    if text == NONE:
        return None
    found = form.fullmatch(text)
    if found is None:
        raise ValueError(f"{takes}, or none, not {text!r}")
    return meant(found)


def read_size(value: Any) -> Any:
    """Return the bytes that a person means by 6GB or 800MB; None where none are meant.

    Raises:
        ValueError: it is no size.
    """
    return _read(value, _SIZE, "takes a size, as 6GB or 800MB", _size_of)


def _size_of(found: re.Match[str]) -> int:
    return round(float(found[1]) * (1024 if found[3] else 1000) ** (2 if found[2] == "M" else 3))


def _rate_of(found: re.Match[str]) -> int:
    rate = round(float(found[1]) * _RATES[found[2]] / (8 if found[3] == "bit" else 1))
    if rate < LEAST_RATE:
        raise ValueError(
            f"{found[0]} a second is too little to take part, calls would end before their answers are through: "
            f"give at least {_rate(LEAST_RATE)}"
        )
    return rate


def _whole(value: Any, takes: str) -> Any:
    """Return a whole number, which needs no unit where a program wrote it, or nothing; a bool is none, and neither is a text."""
    if value is None or type(value) is int:
        return value
    raise ValueError(f"{takes}, not {value!r}")


def _shown(value: int | None, words: Callable[[int], str]) -> str | None:
    return None if value is None else words(value)


def _rate(rate: int) -> str:
    return _mega(rate) if rate >= 10**6 else f"{rate / 1e3:.3f}".rstrip("0").rstrip(".") + "kB"


def _mega(count: int) -> str:
    """Return bytes in megabytes, to the last byte."""
    return f"{count / 1e6:.6f}".rstrip("0").rstrip(".") + "MB"


def _span(text: str) -> Span:
    found = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])\s*-\s*([01]?[0-9]|2[0-4]):([0-5][0-9])", text)
    if found is None:
        raise ValueError(f"takes times of the day, as 22:00-07:00 or 12:00-13:00,22:00-07:00, or none, not {text!r}")
    begins, ends = (int(found[place]) * 60 + int(found[place + 1]) for place in (1, 3))
    if ends > _DAY_MIN or (begins == ends % _DAY_MIN and ends != _DAY_MIN):
        raise ValueError(f"{text!r} is no time between two different times of a day")
    return begins, ends % _DAY_MIN


def _is_in(minute: int, span: Span) -> bool:
    begins, ends = span
    return begins <= minute < ends if begins < ends else minute >= begins or minute < ends


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _spans(spans: tuple[Span, ...]) -> str:
    return ",".join(f"{_clock(begins)}-{_clock(ends or _DAY_MIN)}" for begins, ends in spans)


def limits_file(directory: Path) -> Path:
    """Return the file of a peer's directory."""
    return directory / "limits.toml"


def settings_in(path: Path) -> dict[str, Any]:
    """Return what a file of settings (TOML) says; nothing where there is none.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return tomllib.loads(settings_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; mend it, or move it away") from error


def kept_limits(directory: Path) -> dict[str, Any]:
    """Return what ``manta-peer limits`` was told of the peer of ``directory``, in the person's words.

    Raises:
        UserError: the file cannot be read.
    """
    path = limits_file(directory)
    kept = settings_in(path)
    if wrong := sorted(set(kept) - set(Limits.model_fields)):
        raise UserError(f"{path}: {wrong[0]!r} is no limit; delete the file, or that line")
    return kept


def keep_limits(directory: Path, told: dict[str, str]) -> None:
    """Keep what a person said of limits, over what was said before; the directory is made if it is not there.

    Raises:
        UserError: a limit that cannot be, or the directory cannot be made.
        StorageError: the disk refuses.
    """
    checked(told)
    make_directory(directory)
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in {**kept_limits(directory), **told}.items()]
    text = "\n".join(("# Written by manta-peer limits; stronger than peer.toml.", *lines, ""))
    replace_file(limits_file(directory), text.encode())


def checked(told: dict[str, str], before: Limits | None = None) -> Limits:
    """Return the limits ``before``, or none, changed by what a person said.

    Raises:
        UserError: a limit that cannot be; the message says what it takes.
    """
    try:
        before = before or Limits()
        return type(before)(**{**before.model_dump(), **told})
    except ValidationError as error:
        raise refused(error, flag_of) from error


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def refused(error: ValidationError, origin: Callable[[str], str]) -> UserError:
    """Return the one line that says what is wrong with a setting; ``origin`` says where the person wrote it."""
    problem = error.errors()[0]
    said = problem["msg"].removeprefix("Value error, ")
    return UserError(f"{origin(str(problem['loc'][0]))}: {said}" if problem["loc"] else said)  # settings that do not go together
