"""A volunteer's settings: flags, then ``MANTA_*`` variables, then two files in the peer's directory, then the defaults.

The files are ``limits.toml``, which ``manta-peer limits`` writes, and before it, so weaker, ``peer.toml``, which a person does.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import ConfigDict, Field, ValidationError, field_validator

from peer.limits.limits import Limits, read_size
from protocol.cohorts import cohort_name
from protocol.errors import SignatureError, UserError
from protocol.signing import PublicKey, key_named
from protocol.sizes import NUM_SIZES
from runtime.disk import make_directory, replace_file, settings_text

_LIMITS_FILE = "limits.toml"
_OLD_NAMES = {"threads": "cpu_threads"}


class PeerConfig(Limits):
    """What a peer was told; see each field, and those of ``Limits``."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)  # gpus = 1 is what a person writes

    dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("manta")) / "peer", description="identity, settings, sealed work"
    )
    initial_peers: tuple[str, ...] = Field(default=(), description="multiaddresses of nodes of the run")
    run: str | None = Field(default=None, description="the run's id, 64 hex digits: refuse any other run")
    invitation: str | None = Field(default=None, description="where a run takes invited peers only: the invitation's file, or its text")
    payout: str | None = Field(
        default=None, description="the account: the name of the key (12D3Koo...) that the credit adds up to; default: this peer's own"
    )
    cohort: str | None = Field(
        default=None,
        description="peers with the same name and token average among themselves before they hand in; default: those of this host and user",
    )
    alone: bool = Field(default=False, description="hand in alone, whoever else is near")
    size: int | None = Field(
        default=None, ge=1, le=NUM_SIZES, description="model-parallel: up to which size networks are trained here; default: as measured"
    )
    listen: tuple[str, ...] = Field(
        default=("/ip4/0.0.0.0/tcp/0",), description="multiaddresses to listen on, port 0 is a free one; none: only dial out"
    )
    gpus: str = Field(default="all", description="all, none, or the indices of those to use, as 0 or 0,2")
    workers: int | None = Field(
        default=None, ge=1, le=256, description="processes that share the CPU's threads; default: none, the peer's own"
    )
    cuda_graphs: bool = Field(default=False, description="GPUs record lots and replay them; nobody has run that on a GPU yet")
    light: bool = Field(default=False, description="lease single lots from a gateway: no data set, no open port, little memory")
    gateway: tuple[str, ...] = Field(
        default=(), description="HOST:PORT to lease lots to light contributors at; with light the URLs of gateways"
    )
    gateway_cert: Path | None = Field(
        default=None, description="PEM file of the gateway's certificate; without one a proxy does TLS, or nobody"
    )
    gateway_key: Path | None = Field(default=None, description="PEM file of its key")
    lease_only: bool = Field(default=False, description="a gateway: of its own one lot a local step, and only for what came back of leases")
    audit_only: bool = Field(
        default=False, description="train nothing: compute contributions of others again, with all that the limits allow"
    )
    data_root: Path | None = Field(default=None, description="folder with the data sets that come with no library")
    data_limit: int | None = Field(
        default=20_000_000_000,
        ge=1,
        description="disk that the data set may take where its shards come from other peers, as 20GB; none: as much as there is",
    )
    private_data: Path | None = Field(
        default=None, description="folder with labelled images of one's own, for runs whose data are private: they stay there"
    )
    private_noise: float | None = Field(
        default=None, gt=0, le=1e6, description="private data: noise on what is handed in, its deviation as a multiple of private_clip"
    )
    private_clip: float | None = Field(default=None, gt=0, le=1e30, description="private data: the norm that it is clipped to before")
    private_epsilon: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="private data with noise: leave before more than so much was given away"
    )
    private_delta: float = Field(default=1e-5, gt=0, lt=1, description="the probability that what epsilon promises does not hold")
    tell_accuracy: bool | None = Field(
        default=None,
        description="private data: tell the operator how good the model is on held-out images of one's own; default: yes, with noise no",
    )
    view: Literal["left", "right"] | None = Field(
        default=None, description="stereo: this computer has the pairs' left views and disparities, or the right views; a mate the others"
    )
    latency_table: Path | None = Field(default=None, description="file with this device's latencies, to be handed to whoever asks")

    @field_validator("data_limit", mode="before")
    @classmethod
    def _read_data_limit(cls, value: Any) -> Any:
        return read_size(value)

    @field_validator("run")
    @classmethod
    def _check_run(cls, run: str | None) -> str | None:
        if run is not None and not re.fullmatch(r"[0-9a-f]{64}", run):
            raise ValueError(f"a run's id is 64 hexadecimal digits in lower case, not {run!r}")
        return run

    @field_validator("payout")
    @classmethod
    def _check_payout(cls, payout: str | None) -> str | None:
        if payout is not None:
            account_named(payout)
        return payout

    @property
    def payout_key(self) -> PublicKey | None:
        """The key that the credit adds up to; None: this peer's own."""
        return None if self.payout is None else key_named(self.payout)

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: tuple[str, ...]) -> tuple[str, ...]:
        if "none" in listen and len(listen) > 1:
            raise ValueError("takes addresses, or none, not both")
        return listen

    @property
    def limits(self) -> Limits:
        """The limits alone."""
        return Limits(**{name: getattr(self, name) for name in Limits.model_fields})

    @property
    def listen_addresses(self) -> tuple[str, ...]:
        """Where to listen; nowhere if this peer only dials out."""
        return () if self.listen == ("none",) else self.listen

    @field_validator("cohort")
    @classmethod
    def _check_cohort(cls, cohort: str | None) -> str | None:
        return None if cohort is None else cohort_name(cohort, "")

    @field_validator("data_root", "private_data", "latency_table", "gateway_cert", "gateway_key")
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: str) -> str:
        gpus = gpus.replace(" ", "")
        if gpus in ("all", "none"):
            return gpus
        if not re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})*", gpus):
            raise ValueError(f"takes all, none, or the indices of GPUs, as 0 or 0,2, not {gpus!r}")
        indices = [int(index) for index in gpus.split(",")]
        twice = next((index for index in indices if indices.count(index) > 1), None)
        if twice is not None:
            raise ValueError(f"names GPU {twice} twice: a GPU has one worker")
        return ",".join(map(str, indices))


def account_named(name: str) -> PublicKey:
    """Return the key of an account's name.

    Raises:
        ValueError: there is no such key; the message says what the name of one is.
    """
    try:
        return key_named(name)
    except SignatureError as error:
        raise ValueError(f"{name[:80]!r} is no key ({error}): give the name of one, 12D3Koo..., as manta-peer identity shows it") from error


def _variable(name: str) -> str:
    return f"MANTA_{name.upper()}"


def _names(name: str) -> list[str]:
    """Return a setting's names, the one of today first."""
    return [name, *(old for old, new in _OLD_NAMES.items() if new == name)]


def _environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in (*_OLD_NAMES, *PeerConfig.model_fields):
        text = os.environ.get(_variable(name))
        if text:
            values[_OLD_NAMES.get(name, name)] = (
                tuple(text.replace(",", " ").split()) if name in ("initial_peers", "listen", "gateway") else text
            )
    return values


def _settings_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(settings_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; mend it, or move it away") from error


def directory_of(flags: dict[str, Any]) -> Path:
    """Return the peer's directory, by ``flags``, the environment, or the default."""
    given = {**_environment(), **flags}
    return Path(os.path.expanduser(given["dir"])) if "dir" in given else PeerConfig().dir


def load_config(flags: dict[str, Any]) -> PeerConfig:
    """Return the settings of ``flags`` (those that were given) over the environment, the TOML files and the defaults.

    Raises:
        UserError: a file cannot be read, or a value cannot be; the message says where it was written.
    """
    environment, directory = _environment(), directory_of(flags)
    path, kept_path = directory / "peer.toml", directory / _LIMITS_FILE
    settings = _settings_file(path)
    keys = [name for name in PeerConfig.model_fields if name != "dir"]  # a file does not say where it is
    for name in settings:
        if name not in (*keys, *_OLD_NAMES):
            raise UserError(f"{path}: {name!r} is not a key of this file; its keys are {', '.join(keys)}")
    named = {_OLD_NAMES.get(name, name): name for name in settings}
    settings = {_OLD_NAMES.get(name, name): value for name, value in settings.items()}
    kept = kept_limits(directory)

    def origin(name: str) -> str:
        """Return where the person wrote a value."""
        if name in flags:
            return f"--{name.replace('_', '-')}"
        if name in environment:
            return next((_variable(old) for old in _names(name) if os.environ.get(_variable(old))), _variable(name))
        return f"{kept_path}: {name}" if name in kept else f"{path}: {named[name]}"

    try:
        return PeerConfig(**{**settings, **kept, **environment, **flags, "dir": directory})
    except ValidationError as error:
        raise _refused(error, origin) from error


def kept_limits(directory: Path) -> dict[str, Any]:
    """Return what ``manta-peer limits`` was told of the peer of ``directory``, in the person's words.

    Raises:
        UserError: the file cannot be read.
    """
    path = directory / _LIMITS_FILE
    kept = _settings_file(path)
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
    replace_file(directory / _LIMITS_FILE, text.encode())


def checked(told: dict[str, str], before: Limits | None = None) -> Limits:
    """Return the limits ``before``, or none, changed by what a person said.

    Raises:
        UserError: a limit that cannot be; the message says what it takes.
    """
    try:
        return Limits(**{**(before or Limits()).model_dump(), **told})
    except ValidationError as error:
        raise _refused(error, lambda name: f"--{name.replace('_', '-')}") from error


def _refused(error: ValidationError, origin: Callable[[str], str]) -> UserError:
    """Return the one line that says what is wrong with a setting; ``origin`` says where the person wrote it."""
    problem = error.errors()[0]
    return UserError(f"{origin(str(problem['loc'][0]))}: {problem['msg'].removeprefix('Value error, ')}")
