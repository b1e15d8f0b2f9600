"""A swarm of real programs to which things happen, and what has to hold of its log and of its honest peers when all is over."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from manta_swarm.aggregator.log.storage import is_at_rest, read_manifest, reading
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import AggregatorSection, ExchangeSection
from manta_swarm.aggregator.states.replay import RoundToReplay, TableCollector, replay_directory
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.signing import Identity
from tests.network.processes import LISTEN, ROOT, Programs, Status, are_gone, small_run, wait_for

HERE = Path(__file__).parent
ENDLESS = 1000  # rounds: nobody waits for the last one
_KEPT = 2000  # rounds whose bodies stay: a replay begins at the run's start


def quick_run(**round_settings: Any) -> RunConfig:
    """Return a run whose rounds take about half a second: a few microbatches of 16 samples from each of two or three peers."""
    settings = {"target_batch": 192, "weight_cap": 96, "max_claim_samples": 640, "first_open_s": 1.0, "min_open_s": 0.5, **round_settings}
    config = small_run(rounds=ENDLESS, **settings)
    return config.model_copy(update={"aggregator": AggregatorSection(keep_bodies=_KEPT)})


def cohort_run(**round_settings: Any) -> RunConfig:
    """Return a run of several local steps and sparse contributions, whose rounds leave a cohort the time to do them together."""
    config = quick_run(
        **{"target_batch": 640, "weight_cap": 320, "first_open_s": 3.0, "min_open_s": 3.0, "max_open_s": 6.0, **round_settings}
    )
    return config.model_copy(update={"exchange": ExchangeSection(local_steps=2, codec="topk-512-3")})


class Scene(Programs):
    """One run's programs, some of which are strange: this folder's, in which one function is another."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        """Use ``directory``; nothing is written outside of it."""
        super().__init__(directory, config)
        self._ledger: Ledger | None = None
        self._tables = TableCollector()
        self.token = secrets.token_bytes(32)
        self._environment = {"MANTA_STATE_DIR": str(directory / "state"), "MANTA_COHORT_TOKEN": self.token.hex()}

    def start_command(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        """See ``Programs.start_command``."""
        super().start_command(name, *arguments, environment={**self._environment, **(environment or {})})

    def start_peer(self, name: str, cohort: str | None = None, *arguments: str, environment: dict[str, str] | None = None) -> None:
        """See ``Programs.start_peer``; without a cohort it is alone."""
        alone = () if cohort is not None else ("--alone",)
        super().start_peer(name, cohort or name, *alone, "--verbose", *arguments, environment=environment)

    def start_strange_peer(self, name: str, what: str, cohort: str | None = None) -> None:
        """Start a peer that is strange (see ``strange_peer.py``); it may end as it likes."""
        aggregator = self.status("aggregator")
        where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"])
        self._start_strange(name, "strange_peer", what, "join", *where, *self._own(name, cohort))

    def give_identity(self, name: str, identity: Identity) -> None:
        """Let a peer that was never started have this key."""
        path = self.directory / name / "identity.key"
        path.parent.mkdir(mode=0o700)
        path.touch(0o600)
        path.write_bytes(identity.to_libp2p())

    def start_peer_by(self, name: str, address: str) -> None:
        """Start a peer that finds the run at ``address``."""
        where = ("--initial-peers", address, "--run", self.status("aggregator")["run"])
        self.start_command(name, "-P", "-m", "manta_swarm.peer.cli", "join", *where, *self._own(name))

    def start_strange_log(self, what: str) -> None:
        """Start the aggregator, or start it again, as a strange one (see ``strange_log.py``); it may end as it likes."""
        directory = self.directory / "aggregator"
        (directory / "status.json").unlink(missing_ok=True)
        where = ("--dir", str(directory), "--listen", LISTEN, "--no-monitor")
        self._start_strange("aggregator", "strange_log", what, "start", str(self.directory / "run.toml"), *where)

    def _start_strange(self, name: str, module: str, what: str, *arguments: str) -> None:
        if what == "tomorrow":  # its clock is another one from its first moment on: it is not forked
            self.start_command(name, str(HERE / f"{module}.py"), what, *arguments)
        else:
            self.start_command(name, "-P", "-m", f"tests.faults.{module}", what, *arguments, environment={"PYTHONPATH": ROOT})
        self.expect_end(name)

    def _own(self, name: str, cohort: str | None = None) -> tuple[str, ...]:
        alone = () if cohort is not None else ("--alone",)
        own = ("--listen", LISTEN, "--dir", str(self.directory / name), "--gpus", "none", "--verbose")
        return ("--cohort", cohort or name, *alone, *own)

    # What happens.

    def family(self, name: str) -> list[psutil.Process]:
        """Return a program's process and those that it started: its keeper and its p2p daemon."""
        process = psutil.Process(self._children[name].process.pid)
        return [process, *process.children(recursive=True)]

    def kill_all(self, name: str) -> None:
        """End a program with SIGKILL; return when its daemon is gone too, and with it its port."""
        family = self.family(name)
        self.kill(name)
        wait_for(lambda: are_gone(family), f"all of {name} is gone")

    def wait_until_gone(self, name: str, family: list[psutil.Process]) -> int:
        """Return the exit code of a program that ends by itself, once its daemon is gone too."""
        returncode = self.wait_for_end(name)
        wait_for(lambda: are_gone(family), f"all of {name} is gone")
        return returncode

    @contextlib.contextmanager
    def without_daemon(self, name: str) -> Iterator[None]:
        """Stop a program's p2p daemon for a while: connections stay open, and nothing comes or goes."""
        daemon = self.family(name)[-1]
        assert "p2pd" in daemon.name()
        daemon.suspend()
        try:
            yield
        finally:
            daemon.resume()

    # What is seen.

    def rounds_go_on(self, count: int = 3) -> None:
        """Return once so many more rounds are committed."""
        self.wait_for_round(self.status("aggregator").get("round", 0) + count)

    def counts_again(self, name: str, count: int = 2) -> None:
        """Return once a peer has so many more rounds counted."""
        before = self.status(name).get("rounds_counted", 0)
        self.wait_until(lambda: self.status(name).get("rounds_counted", 0) >= before + count, f"{name} has rounds counted")

    def ledger(self) -> Ledger:
        """Return the log's ledger as it is now, each entry checked as it comes."""
        directory = self.directory / "aggregator"
        if self._ledger is None:
            signed = read_manifest(directory)
            self._ledger = Ledger(signed, RunTrainingSpec(signed.open()))
        with reading(directory, at_rest=is_at_rest(directory)) as connection:
            query = "SELECT bytes FROM entries WHERE position >= ? ORDER BY position"
            for (entry,) in connection.execute(query, (self._ledger.size,)):
                self._ledger.append(entry)
                if self._ledger.is_between_rounds:
                    self._tables.take(self._ledger)
        return self._ledger

    def tables(self) -> dict[int, RoundToReplay]:
        """Return what the log says of each round by now."""
        self.ledger()
        return self._tables.rounds

    def rounds_with(self, key: str) -> list[int]:
        """Return the rounds whose tables have a claim of ``key`` (hex)."""
        return [round_ for round_, played in self.tables().items() if any(bytes.fromhex(key) in one.keys for one in played.listed)]

    def rounds_together(self, *keys: str) -> list[int]:
        """Return the rounds in whose tables one contribution has the claims of all these keys (hex), and no others."""
        wanted = {bytes.fromhex(key) for key in keys}
        return [round_ for round_, played in self.tables().items() if any(wanted == set(one.keys) for one in played.listed)]

    @property
    def manifest(self) -> Manifest:
        """The run's."""
        return read_manifest(self.directory / "aggregator").open()

    # How it ends.

    def let_leave(self, *names: str) -> None:
        """Let these peers leave."""
        for name in names:
            self.interrupt(name)
        for name in names:
            assert (name, self.wait_for_end(name)) == (name, 0)

    def end(self, *names: str) -> None:
        """Let these peers leave, then the log, as a person lets them."""
        self.let_leave(*names)
        self.interrupt("aggregator")
        assert self.wait_for_end("aggregator") == 0

    def assert_all_agree(self, *names: str, lost: dict[str, int] | None = None) -> None:
        """Check that the log holds and can be computed again, that these peers ended on its states, that no promise was broken.

        No program met an error unforeseen. The peers have lost nothing that they trained, but for what ``lost`` allows by name.
        """
        directory = self.directory / "aggregator"
        rounds = self.tables()
        verify_directory(directory)
        replayed = replay_directory(directory)
        assert replayed.first == 0
        assert replayed.rounds >= len(rounds)  # the log may be at work
        states = {round_: played.entry.state.hex() for round_, played in rounds.items()}
        assert "Traceback" not in self.log("aggregator")
        for name in names:
            assert "Traceback" not in self.log(name)
            status = self.status(name)
            assert (name, status["state"]) == (name, states[status["round"]])
            assert (name, status["promises_broken"]) == (name, 0)
            if status["samples_lost"] > (lost or {}).get(name, 0) or (status["dropped"] and name not in (lost or {})):
                raise AssertionError(f"{name} lost samples: {status}")
            assert (name, _counted(rounds, status)) >= (name, status["samples_counted"])


def _counted(rounds: dict[int, RoundToReplay], status: Status) -> int:
    """Return the samples of a peer in all tables; its cohort peers' are among them where it handed in with others."""
    key = bytes.fromhex(status["key"])
    return sum(one.counted for played in rounds.values() for one in played.listed if key in one.keys)


def ordered_identities(count: int) -> list[Identity]:
    """Return new keys in their order: among cohort peers the first is the founder."""
    return sorted((Identity(secrets.token_bytes(32)) for _ in range(count)), key=lambda identity: identity.public_key)
