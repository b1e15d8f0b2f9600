"""manta-swarm: a real swarm on one computer. Starts the programs that volunteers and operators start, watches them, and reports.

Knows the programs by their command lines and their status.json only: it takes no part in the run. Nothing that it starts outlives it
(``aggregator.children``); what has to hold for a run to have succeeded is in ``aggregator.local_report``.
"""

import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from aggregator.children import Child, stop
from aggregator.config import RunConfig, RunSection, write_run_file
from aggregator.local_progress import Progress
from aggregator.local_report import (
    AggregatorStatus,
    Fate,
    LedgerReport,
    PeerReport,
    PeerStatus,
    Report,
    fate,
    make_report,
    read_status,
    show,
)
from aggregator.verify import verify_directory
from protocol.errors import MantaError, OwnFault, UserError
from swarm.disk import make_directory

_LISTEN = "/ip4/127.0.0.1/tcp/0"
_ALGORITHMS = ("data-parallel", "model-parallel")
_MAX_PEERS = 256
_MAX_SEED = 2**63 - 1
_DEFAULT_MINIMA = (90.0, 80.0)  # percent: largest, smallest; for the full schedule
_POLL_S = 0.2
_START_S = 180.0  # a cold start of torch from a slow disk
_STALL_S = 300.0  # without a new round
_END_S = 60.0  # between the run's end and that of its peers
_VERIFY_S = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person asked for, checked."""

    peers: int
    cohorts: int
    rounds: int | None  # None: the full schedule
    algorithm: str
    directory: Path
    seed: int
    min_largest: float | None  # percent; None: any will do
    min_smallest: float | None

    def cohort(self, index: int) -> str:
        """Return the cohort of a peer: equal shares, neighbours together."""
        return f"cohort-{index * self.cohorts // self.peers}"


class Told(MantaError):
    """The person or the system told the swarm to stop."""

    def __init__(self, number: int) -> None:
        """Remember which signal it was."""
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class LocalSwarm:
    """One aggregator, some peers."""

    def __init__(self, settings: Settings, console: Console, told: list[int]) -> None:
        """Prepare; ``told`` grows by each signal that arrives."""
        self._settings = settings
        self._console = console
        self._told = told
        self._started_s = time.monotonic()
        self._children: dict[str, Child] = {}
        self._fates: dict[str, Fate] = {}
        self._status: AggregatorStatus | None = None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = os.environ.get("MANTA_THREADS") or str(max(1, cores // settings.peers))
        self._environment = {"MANTA_THREADS": threads, "PYTHONUNBUFFERED": "1"}

    def run(self) -> Report:
        """Run the swarm to the end of its run and return how it went; nothing is left running, however this ends.

        Raises:
            Told: a signal came.
            OwnFault: a program failed, or the swarm came to nothing; the message says which and shows its last lines.
        """
        try:
            status = self._start_aggregator()
            self._start_peers(status)
            with Progress(self._console, status.num_rounds) as progress:
                self._watch(progress)
            self._wait_for_peers()
        finally:
            self.close()
        self._status = read_status(AggregatorStatus, self._settings.directory / "aggregator") or self._status
        return self._report()

    def close(self) -> None:
        """Stop what still runs: the peers, who may want to finish a round, before the aggregator that they need for it."""
        aggregator = self._children.get("aggregator")
        stop([child for child in self._children.values() if child is not aggregator], hurry=self._in_a_hurry)
        if aggregator is not None:
            stop([aggregator], hurry=self._in_a_hurry)

    def _in_a_hurry(self) -> bool:
        return len(self._told) > 1

    def _start(self, name: str, *arguments: str) -> Child:
        # -P: a file or directory of the same name where the person happens to stand is not our program.
        command = [sys.executable, "-P", "-m", *arguments]
        child = Child.start(name, command, self._settings.directory / f"{name}.log", self._environment)
        self._children[name] = child
        return child

    def _start_aggregator(self) -> AggregatorStatus:
        settings, directory = self._settings, self._settings.directory
        run_file = directory / "run.toml"
        run = {"name": f"digits-{settings.algorithm}", "algorithm": settings.algorithm, "seed": settings.seed}
        rounds = {} if settings.rounds is None else {"rounds": settings.rounds}
        write_run_file(run_file, RunConfig(run=RunSection.model_validate({**run, **rounds})))
        self._console.print(f"starting an aggregator and {settings.peers} peers in {directory}", highlight=False, soft_wrap=True)
        self._start("aggregator", "aggregator.cli", "start", str(run_file), "--dir", str(directory / "aggregator"), "--listen", _LISTEN)
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            self._tick()
            if self._status is not None and self._status.addresses:
                return self._status
        raise OwnFault(f"the aggregator did not listen within {_START_S:.0f} s; its last lines:\n{self._last_lines('aggregator')}")

    def _start_peers(self, status: AggregatorStatus) -> None:
        address = status.addresses[0]
        for index in range(self._settings.peers):
            name = f"peer-{index}"
            where = ("--listen", _LISTEN, "--dir", str(self._settings.directory / name))
            what = ("--initial-peers", address, "--run", status.run, "--cohort", self._settings.cohort(index), "--gpus", "all")
            self._start(name, "peer.cli", "join", *what, *where)
        self._console.print("another peer may join while it runs:")
        self._console.print(
            f"  manta-peer join --gpus all --initial-peers {address} --run {status.run}", markup=False, highlight=False, soft_wrap=True
        )

    def _tick(self) -> None:
        """Wait a little; then see what came: signals, ended programs, a new status."""
        time.sleep(_POLL_S)
        if self._told:
            raise Told(self._told[0])
        aggregator = self._children["aggregator"]
        if aggregator.returncode is not None:
            raise OwnFault(self._obituary("aggregator", aggregator.returncode))
        self._status = read_status(AggregatorStatus, self._settings.directory / "aggregator") or self._status
        for name in self._running_peers():
            returncode = self._children[name].returncode
            if returncode is None:
                continue
            self._fates[name] = fate(returncode, self._peer_status(name))
            if self._fates[name] is Fate.FAILED:
                raise OwnFault(self._obituary(name, returncode))
            if self._fates[name] is not Fate.FINISHED:
                how = "was killed" if self._fates[name] is Fate.KILLED else "left"
                self._console.print(f"{name} {how}; the others go on", highlight=False)

    def _peers(self) -> list[str]:
        return [name for name in self._children if name.startswith("peer-")]

    def _running_peers(self) -> list[str]:
        return [name for name in self._peers() if name not in self._fates]

    def _peer_status(self, name: str) -> PeerStatus:
        return read_status(PeerStatus, self._settings.directory / name) or PeerStatus()

    def _last_lines(self, name: str) -> str:
        return self._children[name].last_lines()

    def _obituary(self, name: str, returncode: int) -> str:
        how = f"was ended by {signal.Signals(-returncode).name}" if returncode < 0 else f"ended with exit code {returncode}"
        return f"{name} {how}; its last lines:\n{self._last_lines(name)}"

    def _watch(self, progress: Progress) -> None:
        """Look on until the run is finished."""
        seen, deadline_s = -1, 0.0
        while True:
            self._tick()
            assert self._status is not None
            running = self._running_peers()
            losses = [loss for name in running if (loss := self._peer_status(name).loss) is not None]
            progress.update(self._status.round, len(running), sum(losses) / len(losses) if losses else None)
            if self._status.finished:
                return
            if not running and Fate.FINISHED not in self._fates.values():
                raise OwnFault(f"no peer is left after round {self._status.round} of {self._status.num_rounds}")
            if self._status.round > seen:
                seen, deadline_s = self._status.round, time.monotonic() + _STALL_S
            if time.monotonic() > deadline_s:
                raise OwnFault(f"no round after round {seen} within {_STALL_S:.0f} s; see the logs in {self._settings.directory}")

    def _wait_for_peers(self) -> None:
        deadline_s = time.monotonic() + _END_S
        while self._running_peers() and time.monotonic() < deadline_s:
            self._tick()
        for name in self._running_peers():
            self._fates[name] = Fate.LATE

    def _report(self) -> Report:
        settings, status = self._settings, self._status
        assert status is not None
        ledger, credits = self._verify()
        peers = []
        for name in self._peers():
            peer = self._peer_status(name)
            peers.append(PeerReport.make(name, peer, self._fates[name], credits.get(peer.key, 0)))
        return make_report(
            status,
            tuple(peers),
            ledger,
            algorithm=settings.algorithm,
            seed=settings.seed,
            min_largest=settings.min_largest,
            min_smallest=settings.min_smallest,
            wall_time_s=time.monotonic() - self._started_s,
            directory=settings.directory,
        )

    def _verify(self) -> tuple[LedgerReport, dict[str, int]]:
        """Return what ``manta-aggregator ledger verify`` says, and the credits by key in hex."""
        directory = self._settings.directory / "aggregator"
        verifier = self._start("verify", "aggregator.cli", "ledger", "verify", "--dir", str(directory))
        try:
            deadline_s = time.monotonic() + _VERIFY_S
            while verifier.returncode is None and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                if self._told:
                    raise Told(self._told[0])
        finally:
            stop([verifier], hurry=self._in_a_hurry)
        printed = re.findall(r"\broot ([0-9a-f]{64})$", verifier.last_lines(), re.MULTILINE)
        if verifier.returncode != 0 or not printed:
            return LedgerReport(verified=False, size=0, root="", detail=verifier.last_lines(3)), {}
        try:
            found = verify_directory(directory)
        except MantaError as error:
            return LedgerReport(verified=False, size=0, root="", detail=str(error)), {}
        agrees = found.root.hex() == printed[-1]
        detail = f"{found.size} entries, {found.rounds} rounds" if agrees else f"its root is {found.root.hex()}, not {printed[-1]}"
        credits = {key.hex(): amount for key, amount in found.credits.items()}
        return LedgerReport(verified=agrees, size=found.size, root=printed[-1], detail=detail), credits


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask a program to end, instead of ending."""
    told: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_settings(
    *,
    peers: int,
    cohorts: int,
    rounds: int | None,
    algorithm: str,
    directory: Path | None,
    seed: int,
    min_largest: float | None,
    min_smallest: float | None,
) -> Settings:
    """Return the settings, the directory made.

    Raises:
        UserError: a value that cannot be, or a directory that holds something.
    """
    if not 1 <= peers <= _MAX_PEERS:
        raise UserError(f"--peers takes a number from 1 to {_MAX_PEERS}, not {peers}")
    if not 1 <= cohorts <= peers:
        raise UserError(f"--cohorts takes a number from 1 to that of the peers ({peers}), not {cohorts}")
    if rounds is not None and rounds < 1:
        raise UserError(f"--rounds takes a number from 1 on, not {rounds}")
    if algorithm not in _ALGORITHMS:
        raise UserError(f"--algorithm takes {' or '.join(_ALGORITHMS)}, not {algorithm!r}")
    if not 0 <= seed <= _MAX_SEED:
        raise UserError(f"--seed takes a number from 0 to {_MAX_SEED}, not {seed}")
    for name, percent in (("largest", min_largest), ("smallest", min_smallest)):
        if percent is not None and not 0 <= percent <= 100:
            raise UserError(f"--min-{name} takes percent, from 0 to 100, not {percent:g}")
    if rounds is None:
        min_largest = _DEFAULT_MINIMA[0] if min_largest is None else min_largest
        min_smallest = _DEFAULT_MINIMA[1] if min_smallest is None else min_smallest
    return Settings(peers, cohorts, rounds, algorithm, _make_directory(directory), seed, min_largest, min_smallest)


def _make_directory(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="manta-swarm-"))
    directory = directory.expanduser().absolute()
    make_directory(directory)
    if any(directory.iterdir()):
        raise UserError(f"{directory} holds something already, which is left as it is; choose an empty or a new directory with --dir")
    return directory


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="manta-swarm")
def main() -> None:
    """Run a whole swarm on this computer."""


@main.command()
@click.option("--peers", type=int, default=4, show_default=True, metavar="N", help="Peers to start.")
@click.option("--cohorts", type=int, default=2, show_default=True, metavar="N", help="Cohorts to spread them over.")
@click.option("--rounds", type=int, metavar="N", help="Rounds to train.  [default: as many as the accuracy needs]")
@click.option("--algorithm", default=_ALGORITHMS[0], show_default=True, metavar="|".join(_ALGORITHMS), help="Who trains what.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), metavar="DIR", help="New or empty.  [default: a temporary one, kept]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Everything random in the run follows from it.")
@click.option(
    "--min-largest", type=float, metavar="PERCENT", help="Fail if the largest subnet is worse.  [default: 90; none with --rounds]"
)
@click.option(
    "--min-smallest", type=float, metavar="PERCENT", help="Fail if the smallest subnet is worse.  [default: 80; none with --rounds]"
)
def up(
    peers: int,
    cohorts: int,
    rounds: int | None,
    algorithm: str,
    directory: Path | None,
    seed: int,
    min_largest: float | None,
    min_smallest: float | None,
) -> None:
    """Start an aggregator and peers, train a run to its end, check everything, report. Ctrl-C stops all of it."""
    try:
        settings = make_settings(
            peers=peers,
            cohorts=cohorts,
            rounds=rounds,
            algorithm=algorithm,
            directory=directory,
            seed=seed,
            min_largest=min_largest,
            min_smallest=min_smallest,
        )
        with _signals() as told:
            report = LocalSwarm(settings, Console(), told).run()
    except UserError as error:
        click.echo(f"manta-swarm: {error}", err=True)
        sys.exit(2)
    except Told as error:
        click.echo(f"manta-swarm: {error}; nothing is left running; files: {settings.directory}", err=True)
        sys.exit(128 + error.number)
    except MantaError as error:
        click.echo(f"manta-swarm: {error}\nfiles: {settings.directory}", err=True)
        sys.exit(1)
    (settings.directory / "report.json").write_text(report.model_dump_json(indent=1))
    show(report, Console())
    sys.exit(0 if report.succeeded else 1)


if __name__ == "__main__":
    main()
