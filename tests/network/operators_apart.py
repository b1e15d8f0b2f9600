"""Operators of one run, an etcd beside each of the first three, and peers: each on a host of its own, in a network that can be cut."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from manta_swarm.aggregator.settings.config import RunConfig
from tests.etcds import RealEtcd, running
from tests.faults.split_network import SplitNetwork
from tests.network.operators import OperatorPrograms, name_of

NUM_ETCDS = 3
_PORT = 31000


def etcd_of(place: int) -> str:
    """Return how the host of an operator's etcd is called here."""
    return f"etcd-{place}"


class OperatorsApart(OperatorPrograms):
    """Programs on hosts of their own, which have the programs' names."""

    def __init__(self, directory: Path, config: RunConfig, network: SplitNetwork) -> None:
        """Use ``directory``, and hosts that are there."""
        self._network = network
        super().__init__(directory, config, [_client_url(network, place) for place in range(NUM_ETCDS)])

    def listen(self, name: str) -> str:
        """See ``Programs.listen``."""
        return f"/ip4/{self._network.hosts[name].address}/tcp/{_PORT}"

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs ``python ARGUMENTS`` on the program's host."""
        return self._network.hosts[name].command(sys.executable, *arguments)

    def cut_off(self, place: int) -> None:
        """Cut an operator off from everybody else; its etcd stays with the others."""
        self._network.cut([name_of(place)], [name for name in self._network.hosts if name != name_of(place)])

    def cut_off_with_etcd(self, place: int) -> None:
        """Cut an operator and its etcd, if it has one, off from everybody else, but not from each other."""
        site = [name for name in (name_of(place), etcd_of(place)) if name in self._network.hosts]
        self._network.cut(site, [name for name in self._network.hosts if name not in site])

    def cut_off_from_operators(self, place: int) -> None:
        """Cut an operator off from the other operators; it reaches every etcd, and peers."""
        self._network.cut([name_of(place)], [name_of(other) for other in range(self.count) if other != place])

    def cut_off_from_etcds(self, place: int) -> None:
        """Cut an operator off from every etcd; it reaches the other operators, and peers."""
        self._network.cut([name_of(place)], [etcd_of(each) for each in range(NUM_ETCDS)])

    def join(self) -> None:
        """Have all lines work again."""
        self._network.join()


@contextlib.contextmanager
def operators_apart(directory: Path, config: RunConfig, peers: list[str]) -> Iterator[OperatorsApart]:
    """Yield four operators that are not started yet, whose etcds run, with hosts for peers of these names."""
    names = [*map(name_of, range(4)), *map(etcd_of, range(NUM_ETCDS)), *peers]
    with SplitNetwork(names) as network:
        folder = directory / "etcd"
        folder.mkdir()
        meeting = [f"http://{network.hosts[etcd_of(place)].address}:2380" for place in range(NUM_ETCDS)]
        etcds = [
            RealEtcd(folder, place, meeting, url=_client_url(network, place), on_host=network.hosts[etcd_of(place)].command())
            for place in range(NUM_ETCDS)
        ]
        with running(etcds), OperatorsApart(directory, config, network) as programs:
            yield programs


def _client_url(network: SplitNetwork, place: int) -> str:
    return f"http://{network.hosts[etcd_of(place)].address}:2379"
