"""Real operators of one run on loopback, with an etcd: killed and started again as a test wants, and peers that work for them."""

from collections.abc import Sequence
from pathlib import Path

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log.storage import DATABASE
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import OperatorsSection
from tests.command import typed
from tests.etcds import free_port
from tests.network.processes import Programs, Status


def name_of(place: int) -> str:
    """Return how an operator is called here."""
    return f"operator-{place}"


class OperatorPrograms(Programs):
    """Several operators instead of one aggregator."""

    def __init__(self, directory: Path, config: RunConfig, etcd: Sequence[str], count: int = 4, quorum: int = 0) -> None:
        """Use ``directory``; each operator has its key, and all have the same run file."""
        self.count = count
        self._ports = {name_of(place): free_port() for place in range(count)}
        keys = tuple(_key_in(directory / name_of(place)) for place in range(count))
        super().__init__(directory, config.model_copy(update={"operators": OperatorsSection(keys=keys, quorum=quorum, etcd=tuple(etcd))}))
        self.names = dict(zip(keys, map(name_of, range(count)), strict=True))

    def listen(self, name: str) -> str:
        """See ``Programs.listen``; an operator comes back to its port."""
        return f"/ip4/127.0.0.1/tcp/{self._ports.get(name, 0)}"

    def start_operator(self, place: int) -> None:
        """Start an operator, or start it again where it was.

        At its first start the others that are at work are its way to the run; at a later one it knows where they were.
        """
        name = name_of(place)
        others = list[str]()
        if not (self.directory / name / DATABASE).exists():
            others = [address for other in self.at_work() if other != place for address in self.status(name_of(other))["addresses"]]
        (self.directory / name / "status.json").unlink(missing_ok=True)
        where = ("--dir", str(self.directory / name), "--listen", self.listen(name), "--no-monitor")
        ways = [argument for address in others for argument in ("--initial-peers", address)]
        self._start(name, "manta_swarm.aggregator.cli", "start", str(self._run_file), *where, "--threads", "1", *ways)

    def start_operators(self) -> None:
        """Start all of them; return once each listens."""
        for place in range(self.count):
            self.start_operator(place)
            self.wait_until(lambda place=place: bool(self.status(name_of(place)).get("addresses")), f"operator {place} listens")

    def at_work(self) -> list[int]:
        """Return the operators that run now."""
        running = [place for place in range(self.count) if name_of(place) in self._children]
        return [place for place in running if self._children[name_of(place)].returncode is None and self.status(name_of(place))]

    def start_peer_of(self, name: str, place: int, *arguments: str) -> None:
        """Start a peer that comes to the run by an operator, alone, with more arguments if there are any."""
        self._start(name, "manta_swarm.peer.cli", *self._joining(name, name, name_of(place)), *arguments)

    def round(self, places: Sequence[int]) -> int:
        """Return the newest round that one of these operators has."""
        return max((self.status(name_of(place)).get("round", 0) for place in places), default=0)

    def status_of(self, place: int) -> Status:
        """Return where an operator stands among the others."""
        found: Status = self.status(name_of(place)).get("operators") or {}
        return found

    def hear_each_other(self) -> bool:
        """Return whether each operator says that it hears all the others."""
        return all(len(self.status_of(place).get("heard", ())) == self.count - 1 for place in range(self.count))

    def leader(self, among: Sequence[int] | None = None) -> int | None:
        """Return the operator at work, or one of some, that says that it writes; None: none does."""
        places = self.at_work() if among is None else among
        return next((place for place in places if self.status_of(place).get("acts_as") == "leader"), None)

    def wait_for_leader(self) -> int:
        """Return the leader, once there is one."""
        self.wait_until(lambda: self.leader() is not None, "an operator writes")
        leader = self.leader()
        assert leader is not None
        return leader


def _key_in(directory: Path) -> str:
    ended = typed(main, "key", "--dir", directory)
    assert ended.exit_code == 0, ended.errors
    return ended.output.strip()
