"""A volunteer's settings: flags, then ``MANTA_*`` variables, then two files in the peer's directory, then the defaults.

The files are ``limits.toml``, which ``manta-peer limits`` writes, and before it, so weaker, ``peer.toml``, which a person does.
``load_config`` refuses values that cannot be. ``check_join`` and ``check_visit`` refuse settings with which a peer cannot begin, as far as
it shows without torch, hivemind and the run; whoever takes part relies on that. Nothing is made by any of them.
"""

import os
import re
import sys
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import ConfigDict, Field, ValidationError, field_validator

from manta_swarm.automl.data.names import check_root
from manta_swarm.automl.latency.table import LatencyTable
from manta_swarm.network.addresses import check_listen, check_peer_address
from manta_swarm.network.invitation import read_invitation
from manta_swarm.peer.cohort.token import check_token
from manta_swarm.peer.contact.run_locator import check_invitation, find_addresses
from manta_swarm.peer.limits.limits import LightLimits, Limits, flag_of, kept_limits, limits_file, read_size, refused, settings_in
from manta_swarm.peer.limits.sensors import THIS_COMPUTER
from manta_swarm.peer.store import read_last_run
from manta_swarm.protocol.cohorts import NUM_SIZES, cohort_name
from manta_swarm.protocol.errors import SignatureError, UserError
from manta_swarm.protocol.signing import PublicKey, key_named
from manta_swarm.runtime.commands import check_installed
from manta_swarm.runtime.disk import IDENTITY, load_identity, only_process
from manta_swarm.runtime.listen_address import ListenAddress

_NO_USE_TO_LIGHT = (
    *("view", "private_data", "latency_table", "workers", "cuda_graphs", "size"),
    *("gateway_cert", "gateway_key", "lease_only"),
)
_NO_USE_TO_AUDITING = (
    *("gateway", "gateway_cert", "gateway_key", "lease_only", "view", "private_data", "private_noise", "latency_table"),
    *("payout", "cohort", "alone", "size", "workers", "cuda_graphs"),
)
# Of the drivers that torch computes with on Linux: NVIDIA's, of its boards too, AMD's, and that of Windows underneath.
_GPU_FILES = ("nvidiactl", "nvidia0", "nvhost-ctrl-gpu", "nvgpu", "kfd", "dxg")
NO_GPU = "this computer has no GPU that torch can use; give --gpus none, or all, which takes what there is"


@dataclass(frozen=True, slots=True)
class GatewayUrl:
    """Where a gateway is, and which key it must have."""

    url: str  # without a slash at its end
    name: str  # its key as people write it; empty: whoever it is

    @classmethod
    def of(cls, text: str) -> "GatewayUrl":
        """Return what a person wrote: ``http://HOST:PORT/``, perhaps with ``#12D3Koo...`` at its end.

        Raises:
            UserError: it is no such URL.
        """
        try:
            parts = urllib.parse.urlsplit(text)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or parts.query or parts.username is not None:
            raise UserError(f"--gateway {text}: with --light give the URL that the gateway printed, as http://203.0.113.7:8080/#12D3Koo...")
        return cls(urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), parts.fragment)


class PeerConfig(Limits):
    """A peer's settings; see each field, and those of ``Limits``."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)  # gpus = 1 is what a person writes

    dir: Path = Field(
        default_factory=lambda: Path(platformdirs.user_data_dir("manta")) / "peer",
        description="folder of identity, settings and signed work",
    )
    initial_peers: tuple[str, ...] = Field(default=(), description="multiaddresses of nodes of the run")
    run: str | None = Field(default=None, description="the run's id, 64 hex digits; any other run is refused")
    invitation: str | None = Field(default=None, description="your invitation's file or text, where a run takes invited peers only")
    payout: str | None = Field(
        default=None, description="name of the key (12D3Koo...) that the credit adds up to; default: this peer's own"
    )
    cohort: str | None = Field(
        default=None,
        description="peers of one name and token average before they hand in; default: those of this host and user",
    )
    alone: bool = Field(default=False, description="hand in alone, whoever else is near")
    size: int | None = Field(
        default=None, ge=1, le=NUM_SIZES, description="model-parallel: largest size of networks that train here; default: as measured"
    )
    listen: tuple[str, ...] = Field(
        default=("/ip4/0.0.0.0/tcp/0",), description="multiaddresses to listen on; port 0 is a free one; none: only dial out"
    )
    gpus: str = Field(default="all", description="all, none, or GPUs by index, as 0 or 0,2")
    workers: int | None = Field(
        default=None, ge=1, le=256, description="processes that share the CPU's threads; default: none, the peer's own"
    )
    cuda_graphs: bool = Field(default=False, description="GPUs record microbatches and replay them; nobody has run that on a GPU yet")
    light: bool = Field(default=False, description="lease single microbatches from a gateway; no data set, no open port, little memory")
    gateway: tuple[str, ...] = Field(
        default=(), description="HOST:PORT to lease microbatches to light contributors at; with light the URLs of gateways"
    )
    gateway_cert: Path | None = Field(
        default=None, description="PEM file of the gateway's certificate; without one a proxy does TLS, or nobody"
    )
    gateway_key: Path | None = Field(default=None, description="PEM file of the certificate's key")
    lease_only: bool = Field(
        default=False, description="a gateway: train one microbatch a local step here, only for what came back of leases"
    )
    audit_only: bool = Field(
        default=False, description="train nothing; compute others' contributions again, with all that the limits allow"
    )
    data_root: Path | None = Field(default=None, description="folder of data sets that come with no library")
    data_limit: int | None = Field(
        default=20_000_000_000,
        ge=1,
        description="disk for a data set whose shards come from other peers, as 20GB; none: as much as there is",
    )
    private_data: Path | None = Field(
        default=None, description="folder of your own labelled images, for runs with private data; they stay there"
    )
    private_noise: float | None = Field(
        default=None, gt=0, le=1e6, description="private data: deviation of the noise on what is handed in, as a multiple of private_clip"
    )
    private_clip: float | None = Field(
        default=None, gt=0, le=1e30, description="private data: the norm to which a vector is clipped before noise is added"
    )
    private_epsilon: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="private data with noise: leave before more than this epsilon is given away"
    )
    private_delta: float = Field(default=1e-5, gt=0, lt=1, description="probability that what epsilon promises does not hold")
    tell_accuracy: bool | None = Field(
        default=None,
        description="private data: tell the operator the model's accuracy on your held-out images; default: yes, with noise no",
    )
    view: Literal["left", "right"] | None = Field(
        default=None,
        description="stereo: this computer has only the left views and disparities, or only the right views; a cohort peer has the others",
    )
    latency_table: Path | None = Field(default=None, description="file of this device's latencies, for whoever asks")

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
        """The limits alone.

        Raises:
            ValidationError: a light contributor has no use for one of them; not where ``load_config`` returned the settings.
        """
        return (LightLimits if self.light else Limits)(**{name: getattr(self, name) for name in Limits.model_fields})

    @property
    def gateways(self) -> tuple[GatewayUrl, ...]:
        """Where a light contributor leases microbatches.

        Raises:
            UserError: one is no URL; not after ``check_join``.
        """
        return tuple(GatewayUrl.of(text) for text in self.gateway)

    @property
    def listen_address(self) -> ListenAddress | None:
        """Where a gateway listens; None: this peer is to be none.

        Raises:
            UserError: it is no such address; not after ``check_join``.
        """
        return ListenAddress.at(self.gateway[0], self.gateway_cert, self.gateway_key) if self.gateway else None

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


def _environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in PeerConfig.model_fields:
        if text := os.environ.get(_variable(name)):
            values[name] = tuple(text.replace(",", " ").split()) if name in ("initial_peers", "listen", "gateway") else text
    return values


def directory_of(flags: dict[str, Any]) -> Path:
    """Return the peer's directory, by ``flags``, the environment, or the default."""
    given = {**_environment(), **flags}
    return Path(os.path.expanduser(given["dir"])) if "dir" in given else PeerConfig().dir


def config_of(flags: dict[str, Any]) -> PeerConfig:
    """Return the settings of ``flags`` over the defaults, whatever the environment and the files say.

    Raises:
        UserError: a value cannot be.
    """
    try:
        return PeerConfig(**flags)
    except ValidationError as error:
        raise refused(error, flag_of) from error


def load_config(flags: dict[str, Any]) -> PeerConfig:
    """Return the settings of ``flags`` (those that were given) over the environment, the TOML files and the defaults.

    Raises:
        UserError: a file cannot be read, or a value cannot be; the message says where it was written.
    """
    environment, directory = _environment(), directory_of(flags)
    path, kept_path = directory / "peer.toml", limits_file(directory)
    settings = settings_in(path)
    keys = [name for name in PeerConfig.model_fields if name != "dir"]  # a file does not say where it is
    for name in settings:
        if name not in keys:
            raise UserError(f"{path}: {name!r} is not a key of this file; its keys are {', '.join(keys)}")
    kept = kept_limits(directory)

    def origin(name: str) -> str:
        """Return where the person wrote a value."""
        if name in flags:
            return flag_of(name)
        if name in environment:
            return _variable(name)
        return f"{kept_path if name in kept else path}: {name}"

    try:
        config = PeerConfig(**{**settings, **kept, **environment, **flags, "dir": directory})
        _ = config.limits  # which a light contributor may have no use for
        return config
    except ValidationError as error:
        raise refused(error, origin) from error


def check_join(config: PeerConfig) -> None:
    """Refuse settings with which no peer can begin here and now.

    Raises:
        UserError: there are some; the message says what to do.
    """
    _check_audit_only(config)
    if config.light:
        _check_light(config)
    else:
        check_installed()
        _check_gateway(config)
        _check_noise(config)
        _check_gpus(config)
        THIS_COMPUTER.check(config.limits)
        _check_files(config)
        _check_addresses(config, find_addresses(config, read_last_run(config.dir))[0])
        if not (config.alone or config.gateway or config.audit_only):
            check_token()
    if config.invitation is not None:
        check_invitation(config.invitation)
    _check_directory(config.dir)


def check_visit(config: PeerConfig) -> None:
    """Refuse settings with which nobody can visit a run.

    Raises:
        UserError: there are some.
    """
    check_installed()
    _check_addresses(config, find_addresses(config, None)[0])
    if config.invitation is not None:
        read_invitation(config.invitation)


def _check_addresses(config: PeerConfig, addresses: Sequence[str]) -> None:
    """Refuse addresses that nobody can listen on, and such as are no peer's."""
    check_listen(config.listen_addresses)
    for address in addresses:
        check_peer_address(address)


def _check_light(config: PeerConfig) -> None:
    """Refuse settings that a light contributor cannot begin with, or has no use for."""
    if not config.gateway:
        raise UserError("--light needs the URL of a gateway: --gateway http://HOST:PORT/, as the gateway printed it (or MANTA_GATEWAY)")
    if idle := _flags(config, _NO_USE_TO_LIGHT):
        raise UserError(f"--light takes its microbatches and their data from a gateway, and computes in one process: leave {idle} out")
    THIS_COMPUTER.check(config.limits)
    _ = config.gateways


def _check_audit_only(config: PeerConfig) -> None:
    """Refuse settings that a peer that trains nothing has no use for."""
    if not config.audit_only:
        return
    if config.light:
        raise UserError("--audit-only: a light contributor has no state and no data to audit with; leave --light out")
    if idle := _flags(config, _NO_USE_TO_AUDITING):
        raise UserError(f"--audit-only trains nothing, and hands in nothing: leave {idle} out")


def _flags(config: PeerConfig, names: Sequence[str]) -> str:
    """Return the flags of those of the settings that are given."""
    return ", ".join(flag_of(name) for name in names if getattr(config, name))


def _check_gateway(config: PeerConfig) -> None:
    """Refuse settings with which no gateway can open."""
    listen_address = config.listen_address
    if listen_address is None:
        if config.lease_only or config.gateway_cert or config.gateway_key:
            raise UserError("--lease-only, --gateway-cert and --gateway-key are for a gateway: give --gateway HOST:PORT too")
        return
    if config.view is not None:
        raise UserError("leases need samples with both views, and with --view one is here: leave --gateway or --view out")
    if len(config.gateway) > 1:
        raise UserError("--gateway: a peer listens at one HOST:PORT; several are for light contributors (--light)")
    listen_address.listen()[0].close()


def _check_noise(config: PeerConfig) -> None:
    """Refuse settings of noise that do not go together."""
    sigma, clip, limit = config.private_noise, config.private_clip, config.private_epsilon
    if sigma is None or clip is None:
        if (sigma, clip, limit) != (None, None, None):
            raise UserError("noise needs both --private-noise SIGMA and --private-clip C; --private-epsilon E is a limit for it")
    elif config.tell_accuracy:
        raise UserError("--tell-accuracy tells a figure without noise, which no account of privacy counts: leave it out, or the noise")


def _check_gpus(config: PeerConfig) -> None:
    """Refuse GPUs by index on a computer that has no driver for any; which of them there are, torch says (``peer.workers.devices``)."""
    if config.cuda_graphs and config.gpus == "none":
        raise UserError("--cuda-graphs is for GPUs, and --gpus none leaves them alone: leave one of them out")
    if config.gpus in ("all", "none") or sys.platform != "linux" or any(Path("/dev", name).exists() for name in _GPU_FILES):
        return
    raise UserError(f"--gpus: GPU {config.gpus.partition(',')[0]} is not there: {NO_GPU}")


def _check_files(config: PeerConfig) -> None:
    """Refuse files and folders that are not there, or cannot be read."""
    if config.latency_table is not None:
        LatencyTable.load(config.latency_table)
    if config.data_root is not None:
        check_root(config.data_root)
    if config.private_data is not None:
        try:
            os.listdir(config.private_data)
        except OSError as error:
            raise UserError(f"cannot read {config.private_data}: {error.strerror}") from error


def _check_directory(directory: Path) -> None:
    """Refuse a directory that another peer uses, or whose key is no use."""
    if (directory / "lock").exists():
        with only_process(directory):
            pass
    if (directory / IDENTITY).exists():
        load_identity(directory / IDENTITY)
