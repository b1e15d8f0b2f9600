"""A real swarm on one computer: starts the programs that volunteers and operators start, watches them, and shows how far they are.

Knows the programs by their command lines and their status.json only: it takes no part in the run. Nothing that it starts outlives it
(``runtime.child``); what has to hold for a run to have succeeded is in ``aggregator.local.report``.
"""

import os
import re
import secrets
import signal
import time
from collections.abc import Mapping

from rich import progress
from rich.console import Console

from manta_swarm.aggregator.local.report import LedgerReport, PeerFate, PeerReport, Report, fate, make_report
from manta_swarm.aggregator.local.settings import SwarmSettings
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.monitor.settings import address_to_show
from manta_swarm.aggregator.settings.config import write_run_file
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.errors import MantaError, OwnFault
from manta_swarm.runtime.child import Child, Program, python, stop
from manta_swarm.runtime.signals import Told

_LINE_EVERY_S = 10.0

_LISTEN = "/ip4/127.0.0.1/tcp/0"
_POLL_S = 0.2
_START_S = 180.0  # a cold start of torch from a slow disk
_STALL_S = 300.0  # without a new round
_EVALUATE_S = 1800.0  # after the last one
_END_S = 60.0  # between the run's end and that of its peers
_VERIFY_S = 300.0


class SwarmProgress:
    """Shows rounds, loss and peers until it is left."""

    def __init__(self, console: Console, num_rounds: int) -> None:
        """Prepare for a run of ``num_rounds``."""
        self._console = console
        self._num_rounds = num_rounds
        self._line_due_s = 0.0
        self._ended = False
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("round"),
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[what]}"),
            progress.TimeElapsedColumn(),
            console=console,
            auto_refresh=False,  # a second thread and starting programs do not go together
        )
        self._task = self._bar.add_task("", total=num_rounds, what="the peers are starting")

    def __enter__(self) -> "SwarmProgress":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def update(self, round_: int, peers: int, loss: float | None) -> None:
        """Show where the run stands; ``loss`` is the mean over the peers."""
        ended = round_ == self._num_rounds
        loss_text = "" if loss is None else f"{loss:.3f}"
        if self._console.is_terminal:
            what = "evaluating" if ended else f"{peers} peers" + (f" · loss {loss_text}" if loss_text else "")
            self._bar.update(self._task, completed=round_, what=what, refresh=True)
        elif time.monotonic() >= self._line_due_s or (ended and not self._ended):
            self._ended = ended
            self._line_due_s = time.monotonic() + _LINE_EVERY_S
            line = f"{'evaluating' if ended else 'training'} round={round_}/{self._num_rounds} peers={peers}"
            self._console.print(line + (f" loss={loss_text}" if loss_text else ""), highlight=False, soft_wrap=True)


class Stopped(MantaError):
    """The person or the system told the swarm to stop."""

    def __init__(self, number: int) -> None:
        """Remember which signal it was."""
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class LocalSwarm:
    """Starts, watches and ends one aggregator and some peers on this computer."""

    def __init__(self, settings: SwarmSettings, console: Console, told: Told) -> None:
        """Prepare; ``told`` grows by each signal that arrives."""
        self._settings = settings
        self._console = console
        self._told = told
        self._started_s = time.monotonic()
        self._children: dict[str, Child] = {}
        self._fates: dict[str, PeerFate] = {}
        self._status: AggregatorStatus | None = None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = os.environ.get("MANTA_CPU_THREADS") or str(max(1, cores // settings.peers))
        self._environment = {"MANTA_CPU_THREADS": threads, "PYTHONUNBUFFERED": "1"}
        # What the members of a cohort prove to each other: of this swarm alone, and on no command line, which others on this computer see.
        self._of_peers = {"MANTA_COHORT_TOKEN": secrets.token_hex(32)}

    def run(self) -> Report:
        """Run the swarm to the end of its run and return how it went; nothing is left running, however this ends.

        Raises:
            Stopped: a signal came.
            OwnFault: a program failed, or the swarm came to nothing; the message says which and shows its last lines.
        """
        try:
            status = self._start_aggregator()
            self._start_peers(status)
            with SwarmProgress(self._console, status.num_rounds) as progress:
                self._watch(progress)
            self._wait_for_peers()
        finally:
            self.close()
        self._status = AggregatorStatus.read(self._settings.directory / "aggregator") or self._status
        return self._report()

    def close(self) -> None:
        """Stop what still runs: the peers, who may want to hand in what they trained, before the aggregator that takes it."""
        aggregator = self._children.get("aggregator")
        stop([child for child in self._children.values() if child is not aggregator], hurry=self._told)
        if aggregator is not None:
            stop([aggregator], hurry=self._told)

    def _start(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        log_path = self._settings.directory / f"{name}.log"
        settings = {**self._environment, **(environment or {})}
        child = Child.start(Program(name, python("-m", *arguments), log_path, settings))
        self._children[name] = child
        return child

    def _start_aggregator(self) -> AggregatorStatus:
        settings, directory = self._settings, self._settings.directory
        run_file = directory / "run.toml"
        write_run_file(run_file, settings.run)
        self._console.print(f"starting an aggregator and {settings.peers} peers in {directory}", highlight=False, soft_wrap=True)
        where = ("--dir", str(directory / "aggregator"), "--listen", _LISTEN, *settings.monitor)
        self._start("aggregator", "manta_swarm.aggregator.cli", "start", str(run_file), *where)
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            self._tick()
            if self._status is not None and self._status.addresses:
                if self._status.monitor is not None:
                    address = address_to_show(self._status.monitor, self._status.run)
                    self._console.print(f"watch it at {address}", highlight=False, soft_wrap=True)
                return self._status
        raise OwnFault(f"the aggregator did not listen within {_START_S:.0f} s; its last lines:\n{self._last_lines('aggregator')}")

    def _start_peers(self, status: AggregatorStatus) -> None:
        address = status.addresses[0]
        data = () if self._settings.data_root is None else ("--data-root", str(self._settings.data_root))
        workers = self._settings.workers
        devices = ("--gpus", "all") if workers is None else ("--gpus", "none", "--workers", str(workers))
        for index in range(self._settings.peers):
            name = f"peer-{index}"
            where = ("--listen", _LISTEN, "--dir", str(self._settings.directory / name))
            what = ("--initial-peers", address, "--run", status.run, *devices)
            cohort = self._settings.cohort(index)
            label = () if cohort is None else ("--cohort", cohort)
            own = ("--private-data", str(self._settings.private[index])) if self._settings.private else data
            self._start(name, "manta_swarm.peer.cli", "join", *what, *label, *own, *where, environment=self._of_peers)
        self._console.print("another peer may join while it runs:")
        shown = ("--private-data", "DIR") if self._settings.private else data
        line = " ".join(("manta-peer join --gpus all --initial-peers", address, "--run", status.run, *shown))
        self._console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)

    def _tick(self) -> None:
        """Wait a little; then see what came: signals, ended programs, a new status."""
        time.sleep(_POLL_S)
        if self._told.numbers:
            raise Stopped(self._told.numbers[0])
        aggregator = self._children["aggregator"]
        if aggregator.returncode is not None:
            raise OwnFault(self._obituary(aggregator))
        self._status = AggregatorStatus.read(self._settings.directory / "aggregator") or self._status
        for name in self._running_peers():
            returncode = self._children[name].returncode
            if returncode is None:
                continue
            self._fates[name] = fate(returncode, self._peer_status(name))
            if self._fates[name] is PeerFate.FAILED:
                raise OwnFault(self._obituary(self._children[name]))
            if self._fates[name] is not PeerFate.FINISHED:
                how = "was killed" if self._fates[name] is PeerFate.KILLED else "left"
                self._console.print(f"{name} {how}; the others go on", highlight=False)

    def _peers(self) -> list[str]:
        return [name for name in self._children if name.startswith("peer-")]

    def _running_peers(self) -> list[str]:
        return [name for name in self._peers() if name not in self._fates]

    def _peer_status(self, name: str) -> PeerStatus:
        return PeerStatus.read(self._settings.directory / name) or PeerStatus("", "")

    def _last_lines(self, name: str) -> str:
        return self._children[name].last_lines()

    def _obituary(self, child: Child) -> str:
        return f"{child.name} {child.ending}; its last lines:\n{child.last_lines()}"

    def _watch(self, progress: SwarmProgress) -> None:
        """Look on until the run is finished, and all is paid."""
        seen, deadline_s, timeout_s = -1, 0.0, _STALL_S
        while True:
            self._tick()
            assert self._status is not None
            running = self._running_peers()
            losses = [loss for name in running if (loss := self._peer_status(name).loss) is not None]
            progress.update(self._status.round, len(running), sum(losses) / len(losses) if losses else None)
            if self._status.finished and self._status.settled:
                return
            if not running and PeerFate.FINISHED not in self._fates.values():
                raise OwnFault(f"no peer is left after round {self._status.round} of {self._status.num_rounds}")
            if self._status.round > seen:
                seen = self._status.round
                timeout_s = _EVALUATE_S + self._settle_s if seen == self._status.num_rounds else _STALL_S
                deadline_s = time.monotonic() + timeout_s
            if time.monotonic() > deadline_s:
                missing = "the evaluation" if seen == self._status.num_rounds else f"the round after round {seen}"
                raise OwnFault(f"{missing} did not come within {timeout_s:.0f} s; see the logs in {self._settings.directory}")

    @property
    def _settle_s(self) -> float:
        """How long verdicts are waited for after the last round."""
        return self._settings.run.trust.settle_s if self._settings.run.is_audited else 0.0

    def _wait_for_peers(self) -> None:
        # At the end peers measure on images of their own, where they have some.
        deadline_s = time.monotonic() + (_EVALUATE_S if self._settings.private else _END_S)
        while self._running_peers() and time.monotonic() < deadline_s:
            self._tick()
        for name in self._running_peers():
            self._fates[name] = PeerFate.LATE

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
            run=settings.run,
            cohorts=len({peer.cohort for peer in peers}) if settings.by_affinity else settings.cohorts,
            limits=settings.limits,
            wall_time_s=time.monotonic() - self._started_s,
            directory=settings.directory,
        )

    def _verify(self) -> tuple[LedgerReport, dict[str, int]]:
        """Return what ``manta-aggregator ledger verify`` says, and the credits by key in hex."""
        directory = self._settings.directory / "aggregator"
        verifier = self._start("verify", "manta_swarm.aggregator.cli", "ledger", "verify", "--dir", str(directory))
        try:
            deadline_s = time.monotonic() + _VERIFY_S
            while verifier.returncode is None and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                if self._told.numbers:
                    raise Stopped(self._told.numbers[0])
        finally:
            stop([verifier], hurry=self._told)
        printed = re.findall(r"\broot ([0-9a-f]{64})$", verifier.last_lines(), re.MULTILINE)
        if verifier.returncode != 0 or not printed:
            return LedgerReport(verified=False, size=0, root="", detail=verifier.last_lines(3)), {}
        try:
            found = verify_directory(directory)
        except MantaError as error:
            return LedgerReport(verified=False, size=0, root="", detail=str(error)), {}
        agrees = found.root.hex() == printed[-1]
        detail = f"{found.size} entries, {found.rounds} rounds" if agrees else f"its root is {found.root.hex()}, not {printed[-1]}"
        credits = {key.hex(): amount for key, amount in found.reputation.earned.items() if amount}
        return LedgerReport(verified=agrees, size=found.size, root=printed[-1], detail=detail), credits
