"""A swarm to which something happens every few seconds, and what is seen of it: who lives, what they use, when rounds are committed.

What happens follows from a seed, but for its moments. The first peer of each of two cohorts is never struck: what leaks shows in those who
live long. What is seen is judged in ``soak.py``.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from scale_programs import Place
from scale_swarm import Swarm

from manta_swarm.network.peer_status import PeerStatus

NUM_SPARED = 2
FEWER = 3  # peers than were asked for, before the next thing that happens is a join
STOPPED_S = (2.0, 20.0)  # how long one that is stopped stands still
LEAVING_S = 60.0  # for one that was told to leave, to hand in what it has trained
_REMEMBERED = 0.5  # of the joins are those of a peer that was there before, with its key


@dataclass(frozen=True, slots=True)
class Use:
    """What a program, its keeper and its daemon use at one moment."""

    memory_bytes: int  # that nobody shares
    processes: int
    threads: int
    files: int  # open, sockets among them
    sockets: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The swarm at one moment."""

    time_s: float
    round: int
    alive: int
    uses: dict[str, Use]  # by name: the aggregator and those who are spared


@dataclass
class Seen:
    """What was seen so far."""

    samples: list[Sample] = field(default_factory=list)
    commits_s: dict[int, float] = field(default_factory=dict)  # when a round was seen to be committed
    states: set[tuple[str, int, str]] = field(default_factory=set)  # program, round, digest of the state that it says it holds
    events: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)  # programs that ended as nobody asked them to


class StruckSwarm:
    """A swarm, its strikes, and what is seen. Not for several threads."""

    def __init__(
        self, swarm: Swarm, num_peers: int, cohorts: Mapping[str, str], tokens: Mapping[str, str], microbatch_s: float, seed: int
    ) -> None:
        """Take over a swarm that has started.

        Args:
            swarm: the swarm.
            num_peers: that there are meant to be.
            cohorts: the cohort of each peer.
            tokens: the token of each cohort.
            microbatch_s: how long a newcomer's microbatches take.
            seed: of what happens.
        """
        self.seen = Seen()
        self._swarm = swarm
        self._num_peers = num_peers
        self._cohorts = dict(cohorts)
        self._tokens = dict(tokens)
        self._microbatch_s = microbatch_s
        self._chance = random.Random(seed)
        firsts = {cohort: name for name, cohort in reversed(self._cohorts.items())}
        self.spared = sorted(firsts.values())[:NUM_SPARED]
        self._stopped_until_s: dict[str, float] = {}
        self._leave_until_s: dict[str, float] = {}
        self._alive = set(self._cohorts)
        self._gone: list[str] = []  # whose directory is there and who may come back

    @property
    def alive(self) -> int:
        """How many peers there are: those who stand still are there, those who were told to leave are not."""
        return len(self._alive)

    def strike(self) -> str:
        """Let the next thing happen; return what."""
        quiet = [
            name for name in sorted(self._alive) if name not in self.spared and name not in self._stopped_until_s and self._is_in(name)
        ]
        fewest = self._num_peers - FEWER
        joins = self.alive <= fewest or not quiet or (self.alive < self._num_peers and self._chance.random() < 0.5)
        how = self._chance.choice(("SIGKILL", "SIGTERM", "SIGSTOP"))
        what = self._join() if joins else self._hurt(self._chance.choice(quiet), how)
        self.seen.events[what.split()[0]] += 1
        return what

    def look(self) -> None:
        """Take note of commits, states and ended programs; wake those whose time has come."""
        now_s, swarm = time.monotonic(), self._swarm
        status = swarm.aggregator()
        if status is not None and status.round:
            self.seen.commits_s.setdefault(status.round, now_s)
            self.seen.states.add(("aggregator", status.round, status.state))
        for name in sorted(self._alive):
            peer = swarm.peer(name)
            if peer.state:
                self.seen.states.add((name, peer.round, peer.state))
            if (code := swarm.returncode(name)) is not None:
                self._lost(name, code)
        for name, until_s in list(self._stopped_until_s.items()):
            if now_s > until_s:
                swarm.send(name, signal.SIGCONT)
                del self._stopped_until_s[name]
        for name, until_s in list(self._leave_until_s.items()):
            self._see_leaving(name, swarm.returncode(name), now_s > until_s)
        if (code := swarm.returncode("aggregator")) is not None:
            raise SystemExit(f"the aggregator ended with exit code {code}\n{swarm.last_lines('aggregator')}")

    def sample(self) -> Sample:
        """Take note of what the aggregator and those who are spared use."""
        uses = {name: use_of(self._swarm.process(name)) for name in ("aggregator", *self.spared)}
        sample = Sample(time.monotonic(), self._swarm.round, self.alive, uses)
        self.seen.samples.append(sample)
        return sample

    def calm(self) -> None:
        """Let all go on who stand still."""
        for name in self._stopped_until_s:
            self._swarm.send(name, signal.SIGCONT)
        self._stopped_until_s.clear()

    def statuses(self) -> dict[str, PeerStatus]:
        """Return what the living peers say of themselves."""
        return {name: self._swarm.peer(name) for name in sorted(self._alive)}

    def _is_in(self, name: str) -> bool:
        return bool(self._swarm.peer(name).state)

    def _join(self) -> str:
        back = bool(self._gone) and self._chance.random() < _REMEMBERED
        if back:
            name = self._gone.pop(self._chance.randrange(len(self._gone)))
            (self._swarm.directory / name / "status.json").unlink(missing_ok=True)
        else:
            name = f"peer-{len(self._cohorts)}"
            living = Counter(self._cohorts[each] for each in self._alive)
            self._cohorts[name] = min(self._tokens, key=lambda cohort: (living[cohort], cohort))
        cohort = self._cohorts[name]
        place = Place(self._swarm.directory / name, cohort=cohort, token=self._tokens[cohort])
        self._swarm.start_peer(name, place, self._microbatch_s)
        self._alive.add(name)
        return f"join {name} {cohort}{' again' if back else ''}"

    def _hurt(self, name: str, what: str) -> str:
        self._swarm.send(name, getattr(signal, what))
        if what == "SIGSTOP":
            self._stopped_until_s[name] = time.monotonic() + self._chance.uniform(*STOPPED_S)
        else:
            self._alive.discard(name)
            if what == "SIGTERM":
                self._leave_until_s[name] = time.monotonic() + LEAVING_S
            else:
                self._swarm.wait(name)
                self._gone.append(name)
        return f"{what} {name} {self._cohorts[name]}"

    def _lost(self, name: str, code: int) -> None:
        self._alive.discard(name)
        self._stopped_until_s.pop(name, None)
        self._gone.append(name)
        self.seen.failures.append(f"{name} ended with exit code {code}: {self._swarm.last_lines(name, 3)}")

    def _see_leaving(self, name: str, code: int | None, is_late: bool) -> None:
        if code is None and not is_late:
            return
        del self._leave_until_s[name]
        if code is None:
            self.seen.failures.append(f"{name} did not leave within {LEAVING_S:.0f} s")
            self._swarm.send(name, signal.SIGKILL)
            self._swarm.wait(name)
        elif code != 0:
            self.seen.failures.append(f"{name} left with exit code {code}: {self._swarm.last_lines(name, 3)}")
        self._gone.append(name)


def use_of(process: psutil.Process) -> Use:
    """Return what a program and all processes that it started use now."""
    family = [process, *process.children(recursive=True)]
    files = [file for each in family for file in _files(each.pid)]
    return Use(
        memory_bytes=sum(each.memory_full_info().uss for each in family),
        processes=len(family),
        threads=sum(each.num_threads() for each in family),
        files=len(files),
        sockets=sum(file.startswith("socket:") for file in files),
    )


def _files(pid: int) -> list[str]:
    """Return what a process's file descriptors lead to."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by now
            found.append(os.readlink(path))
    return found
