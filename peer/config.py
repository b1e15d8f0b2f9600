"""A volunteer's settings: flags, then ``MANTA_*`` variables, then ``peer.toml`` in the peer's directory, then the defaults."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import UserError


class PeerConfig(BaseModel):
    """What a peer was told; see each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("manta")) / "peer", description="identity, settings, frozen work"
    )
    initial_peers: tuple[str, ...] = Field(default=(), description="multiaddresses of nodes of the run")
    run: str | None = Field(default=None, description="the run's id, 64 hex digits: refuse any other run")
    cohort: str | None = Field(default=None, description="peers with the same name average first among themselves; default: this host")
    listen: tuple[str, ...] = Field(default=("/ip4/0.0.0.0/tcp/0",), description="multiaddresses to listen on; port 0 is a free one")
    gpus: str = Field(default="all", description="all, none, or how many GPUs to use")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads of the computation; default: all cores")


def _environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in PeerConfig.model_fields:
        text = os.environ.get(f"MANTA_{name.upper()}")
        if text:
            values[name] = tuple(text.replace(",", " ").split()) if name in ("initial_peers", "listen") else text
    return values


def load_config(flags: dict[str, Any]) -> PeerConfig:
    """Return the settings of ``flags`` (those that were given) over the environment, the TOML file and the defaults.

    Raises:
        UserError: an unknown key, or a value that cannot be.
    """
    given = {**_environment(), **flags}
    directory = Path(given.get("dir") or PeerConfig().dir).expanduser()
    path = directory / "peer.toml"
    try:
        settings = tomllib.loads(path.read_text()) if path.exists() else {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    try:
        config = PeerConfig(**{**settings, **given, "dir": directory})
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(str(part) for part in problem["loc"])
        where = path if name in settings and name not in given else f"--{name.replace('_', '-')}"
        what = f"unknown key {name!r}" if problem["type"] == "extra_forbidden" else f"{name}: {problem['msg']}"
        raise UserError(f"{where}: {what}") from error
    if config.run is not None and not re.fullmatch(r"[0-9a-f]{64}", config.run):
        raise UserError(f"--run takes the run's id, 64 hexadecimal digits, not {config.run!r}")
    if not re.fullmatch(r"all|none|[0-9]{1,3}", config.gpus):
        raise UserError(f"--gpus takes all, none or a number, not {config.gpus!r}")
    return config
