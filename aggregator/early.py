"""What is wrong with an operator's files, folder and address, as far as it shows before torch and hivemind are loaded.

The same is looked at again where it is used. Nothing is made here, and nothing is changed.
"""

from pathlib import Path

from aggregator.log.storage import DATABASE, read_manifest, refuse_handed_over
from aggregator.monitor.door import check_address
from aggregator.settings.config import RunConfig
from automl.data.names import check_name
from protocol.admission import NO_STRANGERS, OPEN
from protocol.errors import UserError
from protocol.private import NO_LEASES, PRIVATE
from swarm.addresses import check_listen
from swarm.disk import IDENTITY, check_directory, load_identity, only_process
from swarm.door import Door
from swarm.loading import check_installed


def check_start(config: RunConfig, directory: Path, listen: str | None, data_root: Path | None, gateway: Door | None, monitor: str) -> None:
    """Refuse what no aggregator can be started with; ``monitor`` is where its page is to be, empty: nowhere.

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
        if config.run.data == PRIVATE:
            raise UserError(NO_LEASES)
        if config.admission.how != OPEN:
            raise UserError(NO_STRANGERS)
        gateway.listen()[0].close()
    check_address(monitor)
    check_directory(directory)
    if (directory / "lock").exists():
        with only_process(directory):
            pass
    refuse_handed_over(directory)
    if (directory / DATABASE).exists():
        check_run(directory)
        check_key(directory)
    if (directory / IDENTITY).exists():
        load_identity(directory / IDENTITY)


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
