"""Real programs on loopback for tests: started as a person starts them, watched through their status.json, and gone at the end.

A test waits for things that happen (``wait_until``) with a deadline that a busy machine does not reach; it never compares times.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psutil

from manta_swarm.aggregator.settings.config import RunConfig, template
from manta_swarm.aggregator.settings.sections import RoundSection, RunSection
from manta_swarm.runtime.child import AT_ONCE, Child, Program, stop
from tests import forked

DEADLINE_S = 240.0
# Settings of a round for which each of two peers has a second to compute, and nothing more until the next one.
LITTLE_WORK = {"target_batch": 64, "max_claim_samples": 32, "weight_cap": 32}
LISTEN = "/ip4/127.0.0.1/tcp/0"
ROOT = str(Path(__file__).resolve().parents[2])
_POLL_S = 0.1

Status = dict[str, Any]


def read_json(path: Path) -> Status:
    """Return a JSON file's content; an empty one while there is none."""
    try:
        found: Status = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def small_run(*, rounds: int = 6, schedule: Literal["sandwich", "shrinking"] = "sandwich", **round_settings: Any) -> RunConfig:
    """Return a run whose rounds take a second or two: 4 microbatches of 16 samples from each of two peers."""
    settings = {"target_batch": 128, "microbatch_samples": 16, **round_settings}
    return RunConfig(run=RunSection(name="test", rounds=rounds, schedule=schedule), round=RoundSection(**settings))


def wait_for(condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S, detail: Callable[[], str] = str) -> None:
    """Return once ``condition`` holds; fail with ``detail`` if it does not within the deadline."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}\n{detail()}")
        time.sleep(_POLL_S)


class ForkedChild(Child):
    """A program that starts in a moment (``tests.forked``), for a ``LocalSwarm`` in the test's process."""

    @classmethod
    def start(cls, program: Program) -> "Child":
        server = forked.server()
        if server is None or program.log_path is None:
            return super().start(program)
        process: Any = server.start(program.command[program.command.index("-m") + 1 :], program.log_path, program.environment)
        return cls(program, process)


class Programs:
    """One run's programs, by name: "aggregator", and peers as the test calls them. Use with ``with``."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        """Use ``directory`` for run.toml, the programs' directories and their logs."""
        self.directory = directory
        self._children: dict[str, Child] = {}
        self._meant_to_end: set[str] = set()
        self._run_file = directory / "run.toml"
        self._run_file.write_text(template(config))

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        running = list(self._children.values())
        # Nobody waits for a last round here; a test of an orderly end calls ``interrupt`` and ``wait_for_end`` itself.
        stop(running, hurry=AT_ONCE)
        if error is not None:
            error.add_note(self.logs())

    # Starting and ending.

    def start_aggregator(self, *arguments: str) -> Status:
        """Start the aggregator, or start it again, with more arguments if there are any; return its status once it listens.

        It has no monitor, unless the arguments say where.
        """
        directory = self.directory / "aggregator"
        (directory / "status.json").unlink(missing_ok=True)
        where = ("--dir", str(directory), "--listen", self.listen("aggregator"), *(() if "--monitor" in arguments else ("--no-monitor",)))
        self._start("aggregator", "manta_swarm.aggregator.cli", "start", str(self._run_file), *where, *arguments)
        self.wait_until(lambda: bool(self.status("aggregator").get("addresses")), "the aggregator listens")
        return self.status("aggregator")

    def start_peer(self, name: str, cohort: str = "cohort-0", *arguments: str, environment: dict[str, str] | None = None) -> None:
        """Start a peer, or start it again, with more arguments if there are any; it joins the aggregator's run."""
        self._start(name, "manta_swarm.peer.cli", *self._joining(name, cohort), *arguments, environment=environment)

    def start_cheat(self, name: str, kind: str, *arguments: str, at: str = "aggregator") -> None:
        """Start a peer that cheats (``tests.network.cheats``), alone, with more arguments if there are any."""
        self._start(name, "tests.network.cheats", kind, *self._joining(name, name, at), *arguments, environment={"PYTHONPATH": ROOT})

    def _joining(self, name: str, cohort: str, at: str = "aggregator") -> tuple[str, ...]:
        aggregator = self.status(at)
        where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"])
        own = ("--cohort", cohort, "--listen", self.listen(name), "--dir", str(self.directory / name), "--gpus", "none")
        return ("join", *where, *own)

    def start_command(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        """Start ``python ARGUMENTS``, for example a peer of the test's own that lies."""
        settings = {"MANTA_CPU_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._meant_to_end.discard(name)
        program = Program(name, self.command(name, *arguments), self.directory / f"{name}.log", settings)
        self._children[name] = self._forked(program) or Child.start(program)

    def _forked(self, program: Program) -> Child | None:
        """Start a program that starts in a moment (``tests.forked``); None: it is to be started for real."""
        is_module = program.command[:3] == [sys.executable, "-P", "-m"] and program.command[3] in forked.MODULES
        if not is_module or program.environment.get("PYTHONPATH", ROOT) != ROOT or (server := forked.server()) is None:
            return None
        assert program.log_path is not None
        process: Any = server.start(program.command[3:], program.log_path, program.environment)
        return Child(program, process)

    def listen(self, name: str) -> str:
        """Return where a program listens."""
        del name
        return LISTEN

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs ``python ARGUMENTS`` as the program ``name``."""
        del name
        return [sys.executable, *arguments]

    def _start(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.start_command(name, "-P", "-m", *arguments, environment=environment)

    def kill(self, name: str) -> None:
        """End a program with SIGKILL; return when it is gone."""
        self._meant_to_end.add(name)
        self._children[name].process.kill()
        self._children[name].process.wait(DEADLINE_S)

    def expect_end(self, name: str) -> None:
        """Take no offence when a program ends, with whatever exit code: it is meant to."""
        self._meant_to_end.add(name)

    def interrupt(self, name: str) -> None:
        """Send a program what Ctrl-C sends."""
        self._meant_to_end.add(name)
        self._children[name].process.send_signal(signal.SIGINT)

    def pause(self, name: str) -> None:
        """Stop a program's clock, so to speak: it does nothing until ``resume``."""
        self._children[name].process.send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a paused program go on."""
        self._children[name].process.send_signal(signal.SIGCONT)

    def wait_for_end(self, name: str) -> int:
        """Return a program's exit code once it has ended by itself."""
        self._meant_to_end.add(name)
        self.wait_until(lambda: self._children[name].returncode is not None, f"{name} ends")
        returncode = self._children[name].returncode
        assert returncode is not None
        return returncode

    # Watching.

    def status(self, name: str) -> Status:
        """Return a program's newest status; an empty one before it has any."""
        return read_json(self.directory / name / "status.json")

    def log(self, name: str) -> str:
        """Return what a program has printed."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        """Return where everybody stands and the end of what they printed."""
        parts = []
        for name, child in self._children.items():
            parts.append(f"--- {name} (exit code {child.returncode}) {json.dumps(self.status(name))}\n{child.last_lines(12)}")
        return "\n".join(parts)

    def wait_until(self, condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Return once ``condition`` holds. Fails after the deadline, and at once if a program ended with an error that nobody asked to."""

        def holds() -> bool:
            for name, child in self._children.items():
                if name not in self._meant_to_end and child.returncode not in (None, 0):
                    raise AssertionError(f"{name} ended with exit code {child.returncode} before: {what}\n{self.logs()}")
            return condition()

        wait_for(holds, what, deadline_s=deadline_s, detail=self.logs)

    def wait_for_round(self, round_: int) -> None:
        """Return once the log has committed ``round_``."""
        self.wait_until(lambda: self.status("aggregator").get("round", 0) >= round_, f"round {round_} is committed")


def processes_of(directory: Path) -> list[psutil.Process]:
    """Return every process on this computer with ``directory`` in its command line, and all that such processes have started."""
    found: dict[int, psutil.Process] = {}
    known = forked.commands()
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(str(directory) in argument for argument in known.get(process.pid) or process.cmdline()):
                found.update({each.pid: each for each in (process, *process.children(recursive=True))})
        except psutil.Error:
            continue  # it ended while it was looked at
    return list(found.values())


def are_gone(processes: list[psutil.Process]) -> bool:
    """Return whether all of these have ended (a zombie has)."""
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            continue
    return True
