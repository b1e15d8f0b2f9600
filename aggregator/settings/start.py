"""What an operator asks of ``manta-aggregator start``: checked before torch and hivemind are loaded, and relied on by what serves the run.

Nothing is made by the check, and nothing is changed. What only the data can say is refused once they are loaded (``RunConfig.manifest``).
"""

from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.guard import refuse_handed_over
from manta_swarm.aggregator.log.storage import DATABASE, log_key, read_manifest
from manta_swarm.aggregator.monitor.settings import check_address
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.inviting import check_gateway_key
from manta_swarm.automl.data.names import check_name
from manta_swarm.automl.training.snapshot_header import read_header
from manta_swarm.network.addresses import check_listen
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.signing import peer_name
from manta_swarm.runtime.commands import check_installed
from manta_swarm.runtime.disk import IDENTITY, check_directory, load_identity, only_process
from manta_swarm.runtime.listen_address import ListenAddress


@dataclass(frozen=True, slots=True)
class Start:
    """A run file and the options beside it."""

    config: RunConfig
    directory: Path  # of the run
    listen: str | None = None  # address; None: every one, and a port that stays the same
    data_root: Path | None = None  # folder of the data sets that come with no library
    gateway: ListenAddress | None = None  # where light contributors get leases
    page: str | None = None  # where the monitor's page is; empty: nowhere; None: where the run file says
    threads: int | None = None  # of the CPU; None: all
    initial_peers: tuple[str, ...] = ()  # addresses of peers of the run, by which the others find a log that has moved
    first_state: Path | None = None  # snapshot, with whose weights a new run begins
    is_newest: bool = False  # the operator's word for a folder that is a copy: its log has all that was ever signed

    def check(self) -> None:
        """Refuse what no aggregator can be started with.

        Raises:
            UserError: so it is; the message says what to do.
            StorageError: the directory lacks what a run needs.
        """
        config, directory = self.config, self.directory
        check_installed()
        check_name(config.data.dataset, self.data_root)
        if self.listen is not None:
            check_listen([self.listen])
        if self.gateway is not None:
            config.check_gateway()
            check_gateway_key(config.admission, directory)
            self.gateway.listen()[0].close()
        if self.first_state is not None:
            read_header(self.first_state)
        check_address(self.page, config.monitor)
        check_directory(directory)
        self._check_operators()
        if (directory / "lock").exists():
            with only_process(directory):
                pass
        refuse_handed_over(directory)
        if (directory / DATABASE).exists():
            read_manifest(directory)
            log_key(directory)
        elif (directory / IDENTITY).exists():
            load_identity(directory / IDENTITY)

    def _check_operators(self) -> None:
        """Refuse settings of several operators of whom this is none, or where nothing says how this one is to find the run."""
        keys, path = self.config.operators.keys, self.directory / IDENTITY
        if not keys:
            return
        name = peer_name(load_identity(path).public_key) if path.exists() else None
        if name not in keys:
            own = "there is no key yet" if name is None else f"the key there, {name}, is none of them"
            raise UserError(
                f"[operators] keys names the run's operators, and {own}: manta-aggregator key --dir {self.directory} prints the one that "
                "has to stand there, in the run files of all"
            )
        if name != keys[0] and not (self.directory / DATABASE).exists() and not self.initial_peers:
            raise UserError(
                "the first of the operators begins the run, and this is another: give its address, which it prints when it starts, "
                "with --initial-peers MADDR"
            )


def listen_address_of(gateway: str | None, certificate: Path | None, key: Path | None) -> ListenAddress | None:
    """Return where the gateway is to listen; None: there is to be none.

    Raises:
        UserError: see ``ListenAddress.at``, or its files are given without it.
    """
    if gateway is not None:
        return ListenAddress.at(gateway, certificate, key)
    if certificate is not None or key is not None:
        raise UserError("--gateway-cert and --gateway-key are for a gateway: give --gateway HOST:PORT too")
    return None
