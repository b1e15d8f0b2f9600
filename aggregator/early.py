"""What is wrong with an operator's files, folder and address, as far as it shows before torch and hivemind are loaded.

The same is looked at again where it is used. Nothing is made here, and nothing is changed.
"""

from collections.abc import Sequence
from pathlib import Path

from aggregator.attendants.gateway_key import check_gateway_key
from aggregator.log.storage import DATABASE, read_manifest, refuse_handed_over
from aggregator.monitor.door import check_address
from aggregator.operators.etcd import check_endpoint
from aggregator.settings.config import RunConfig
from automl.data.names import check_name
from protocol.errors import UserError
from protocol.signing import peer_name
from runtime.commands import check_installed
from runtime.disk import IDENTITY, check_directory, load_identity, only_process
from swarm.addresses import check_listen
from swarm.door import Door


def check_start(
    config: RunConfig,
    directory: Path,
    listen: str | None,
    data_root: Path | None,
    gateway: Door | None,
    monitor: str | None,
    initial_peers: Sequence[str] = (),
) -> None:
    """Refuse what no aggregator can be started with; ``monitor`` is where its page is to be, empty: nowhere; None: as the run file says.

    Raises:
        UserError: so it is; the message says what to do.
        StorageError: the directory lacks what a run needs.
    """
    check_installed()
    config.check()
    check_name(config.data.dataset, data_root)
    if listen is not None:
        check_listen([listen])
    if gateway is not None:
        config.check_gateway()
        check_gateway_key(config.admission, directory)
        gateway.listen()[0].close()
    check_address(monitor, config.monitor)
    check_directory(directory)
    check_operators(config, directory, initial_peers)
    if (directory / "lock").exists():
        with only_process(directory):
            pass
    refuse_handed_over(directory)
    if (directory / DATABASE).exists():
        check_run(directory)
        check_key(directory)
    if (directory / IDENTITY).exists():
        load_identity(directory / IDENTITY)


def check_operators(config: RunConfig, directory: Path, initial_peers: Sequence[str]) -> None:
    """Refuse settings of several operators that this one cannot start with.

    Raises:
        UserError: it is none of them, or nothing says how it is to find the run.
    """
    for url in config.operators.etcd:
        check_endpoint(url)
    keys = config.operators.keys
    if not keys:
        return
    path = directory / IDENTITY
    name = peer_name(load_identity(path).public_key) if path.exists() else None
    if name not in keys:
        own = "there is no key yet" if name is None else f"the key there, {name}, is none of them"
        raise UserError(
            f"[operators] keys names the run's operators, and {own}: manta-aggregator key --dir {directory} prints the one that "
            "has to stand there, in the run files of all"
        )
    if name != keys[0] and not (directory / DATABASE).exists() and not initial_peers:
        raise UserError(
            "the first of the operators begins the run, and this is another: give its address, which it prints when it starts, "
            "with --initial-peers MADDR"
        )


def door_of(gateway: str | None, certificate: Path | None, key: Path | None) -> Door | None:
    """Return where the gateway is to listen; None: there is to be none.

    Raises:
        UserError: see ``Door.at``, or its files are given without it.
    """
    if gateway is not None:
        return Door.at(gateway, certificate, key)
    if certificate is not None or key is not None:
        raise UserError("--gateway-cert and --gateway-key are for a gateway: give --gateway HOST:PORT too")
    return None


def check_run(directory: Path) -> None:
    """Refuse a directory without a run.

    Raises:
        UserError: it has none.
        StorageError: its manifest is missing or damaged.
    """
    read_manifest(directory)


def check_key(directory: Path) -> None:
    """Refuse a log without its key: a new one would be another operator's.

    Raises:
        UserError: it is missing.
    """
    path = directory / IDENTITY
    if not path.exists():
        raise UserError(f"{path} is missing, the key of the log in {directory}; restore it from a backup")
