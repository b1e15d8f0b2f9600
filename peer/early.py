"""What is wrong with a peer's settings, as far as it shows without torch, hivemind and the run: looked at before any of them is loaded.

The same functions look again where the peer needs what they return. Nothing is made here, and nothing is changed.
"""

import os
import sys
from pathlib import Path

from automl.data.names import check_root
from automl.latency.table import LatencyTable
from peer.cohort.token import check_token
from peer.config import PeerConfig
from peer.contact.invitation import check_invitation
from peer.contact.whereabouts import find_addresses
from peer.light.client import GatewayUrl
from peer.limits.limits import EVALUATION, Limits
from peer.limits.sensors import THIS_COMPUTER
from peer.store import read_last_run
from protocol.errors import UserError
from runtime.commands import check_installed
from runtime.disk import IDENTITY, load_identity, only_process
from swarm.addresses import check_listen, check_peer_address
from swarm.door import Door
from swarm.invitation import read_invitation

_NOT_LIGHT = (
    "view",
    "private_data",
    "latency_table",
    "workers",
    "cuda_graphs",
    "size",
    "gateway_cert",
    "gateway_key",
    "lease_only",
)  # settings that would do nothing
_NOT_AUDITING = (
    "gateway",
    "gateway_cert",
    "gateway_key",
    "lease_only",
    "view",
    "private_data",
    "private_noise",
    "latency_table",
    "payout",
    "cohort",
    "alone",
    "size",
    "workers",
    "cuda_graphs",
)  # settings of who trains
# Of the drivers that torch computes with on Linux: NVIDIA's, of its boards too, AMD's, and that of Windows underneath.
_GPU_FILES = ("nvidiactl", "nvidia0", "nvhost-ctrl-gpu", "nvgpu", "kfd", "dxg")


def check(config: PeerConfig) -> None:
    """Refuse settings with which no peer can begin.

    Raises:
        UserError: there are some; the message says what to do.
    """
    check_audit_only(config)
    if config.light:
        check_light(config)
    else:
        check_installed()
        check_gateway(config)
        check_noise(config)
        check_gpus(config.gpus)
        if config.cuda_graphs and config.gpus == "none":
            raise UserError("--cuda-graphs is for GPUs, and --gpus none leaves them alone: leave one of them out")
        THIS_COMPUTER.check(config.limits)
        _check_files(config)
        check_listen(config.listen_addresses)
        for address in find_addresses(config, read_last_run(config.dir))[0]:
            check_peer_address(address)
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
    check_listen(config.listen_addresses)
    for address in find_addresses(config, None)[0]:
        check_peer_address(address)
    if config.invitation is not None:
        read_invitation(config.invitation)


def check_light(config: PeerConfig) -> None:
    """Refuse settings that a light contributor cannot begin with, or has no use for.

    Raises:
        UserError: there are some.
    """
    if not config.gateway:
        raise UserError("--light needs the URL of a gateway: --gateway http://HOST:PORT/, as the gateway printed it (or MANTA_GATEWAY)")
    idle = [name for name in _NOT_LIGHT if getattr(config, name)]
    if idle:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise UserError(f"--light takes its lots and their data from a gateway, and computes in one process: leave {flags} out")
    check_light_limits(config.limits)
    THIS_COMPUTER.check(config.limits)
    for text in config.gateway:
        GatewayUrl.of(text)


def check_light_limits(limits: Limits) -> None:
    """Refuse limits that a light contributor has no use for.

    Raises:
        UserError: there is one.
    """
    if limits.gpu_memory is not None:
        raise UserError("--gpu-memory: a light contributor computes on the CPU; leave it out")
    if limits.audit:
        raise UserError("--audit: a light contributor has no state and no data to audit with; leave it out")
    if limits.evaluation not in (EVALUATION, 0):
        raise UserError("--evaluation: a light contributor has no state and no data to measure with; leave it out")


def check_audit_only(config: PeerConfig) -> None:
    """Refuse settings that a peer that trains nothing has no use for.

    Raises:
        UserError: there are some.
    """
    if not config.audit_only:
        return
    if config.light:
        raise UserError("--audit-only: a light contributor has no state and no data to audit with; leave --light out")
    idle = [name for name in _NOT_AUDITING if getattr(config, name)]
    if idle:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise UserError(f"--audit-only trains nothing, and hands in nothing: leave {flags} out")


def check_gateway(config: PeerConfig) -> None:
    """Refuse settings with which no gateway can open.

    Raises:
        UserError: there are some.
    """
    if not config.gateway:
        if config.lease_only or config.gateway_cert or config.gateway_key:
            raise UserError("--lease-only, --gateway-cert and --gateway-key are for a gateway: give --gateway HOST:PORT too")
        return
    if config.view is not None:
        raise UserError("leases need samples with both views, and with --view one is here: leave --gateway or --view out")
    if len(config.gateway) > 1:
        raise UserError("--gateway: a peer listens at one HOST:PORT; several are for light contributors (--light)")
    Door.at(config.gateway[0], config.gateway_cert, config.gateway_key).listen()[0].close()


def check_noise(config: PeerConfig) -> None:
    """Refuse settings of noise that do not go together.

    Raises:
        UserError: there are some.
    """
    sigma, clip, limit = config.private_noise, config.private_clip, config.private_epsilon
    if sigma is None or clip is None:
        if (sigma, clip, limit) != (None, None, None):
            raise UserError("noise needs both --private-noise SIGMA and --private-clip C; --private-epsilon E is a limit for it")
    elif config.tell_accuracy:
        raise UserError("how good the model is on images of your own has no noise and is in no account: leave out --tell-accuracy or noise")


def check_gpus(gpus: str) -> None:
    """Refuse GPUs by index on a computer that has no driver for any; which of them there are, torch says (``peer.crew.devices``).

    Raises:
        UserError: so it is.
    """
    if gpus in ("all", "none") or sys.platform != "linux" or any(Path("/dev", name).exists() for name in _GPU_FILES):
        return
    raise UserError(f"--gpus: GPU {gpus.partition(',')[0]} is not there: {NO_GPU}")


NO_GPU = "this computer has no GPU that torch can use; give --gpus none, or all, which takes what there is"


def _check_files(config: PeerConfig) -> None:
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
