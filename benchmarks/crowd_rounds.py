"""The log's rounds and the peers' in virtual time, with durations in place of gradients and networks: the world of ``crowd.py``.

Rounds are those of ``protocol.closing``, ``protocol.rounds``, ``protocol.pace`` and ``protocol.exchange``; records are real, but nothing is
signed, and there is no ledger: what it would refuse for its age is refused here.
"""

import heapq
import itertools
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from manta_swarm.protocol.closing import Closing, NotTaken
from manta_swarm.protocol.exchange import MAX_AGE, next_open_ms
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.records import Claim, ClaimStep, Contribution, InclusionPromise, Round, StepMean
from manta_swarm.protocol.rounds import CommitRef, PeerStage, RoundMachine
from manta_swarm.protocol.signing import Identity, sha256

RUN = sha256(b"crowd")
OPERATOR = Identity(sha256(b"operator"))
MICROBATCH_SAMPLES = 16
FASTEST_MICROBATCH_MS = 400
UNEVEN = (0.4, 0.8, 1.0, 1.8)  # microbatches of a peer's, one after the other, as long as this times its mean: its architectures differ
CHECK_MS, SYNC_MS = 2, 15  # of a body at the log, one after the other; of those that wait, together
COMMIT_MS, ROW_MS = 100, 1  # of a round, and more of each row
CODING_MS = 20  # of a body, before its header can go
AGAIN_MS = 200  # after a header or body that was not taken


@dataclass(frozen=True)
class Signed:
    """Stands for a signed claim or contribution, whose signature nobody looks at here."""

    opened: Claim | Contribution

    def open(self) -> Claim | Contribution:
        return self.opened

    @property
    def digest(self) -> bytes:
        """As good as a digest: a key has one contribution on a base."""
        return sha256(self.opened.key + self.opened.base) if isinstance(self.opened, Claim) else sha256(self.opened.body)


@dataclass(frozen=True)
class Header:
    contribution: Signed
    claims: tuple[Signed, ...]


class Plain:
    """A training spec whose rounds are all alike."""

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        return (1,)

    def role(self, round: int, cohort: str) -> int:
        return 0

    def sorts_after(self, round: int) -> bool:
        return False


class World:
    """Virtual time: what happens, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()

    def after(self, delay_ms: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_ms, next(self._sequence), happens))

    def run(self) -> None:
        while self._events:
            self.now, _, happens = heapq.heappop(self._events)
            happens()


@dataclass
class Table:
    """What a commit tells: the round, and whose work is in it."""

    round: Round
    claims: list[Claim]


class Log:
    """Intake, rounds and commits, without a ledger."""

    def __init__(self, world: World, manifest: Manifest) -> None:
        self.world, self.manifest = world, manifest
        self.closing = Closing(manifest.exchange.max_rows)
        self.open_ms = manifest.exchange.first_open_ms
        self.last, self.state = bytes(RUN), manifest.initial_state
        self.tables: list[Table] = []
        self.listed: set[tuple[bytes, bytes]] = set()
        self.handed: dict[bytes, Header] = {}
        self.peers: list[Peer] = []
        self.over_at = math.inf  # the last commit
        self._checked_at = 0.0
        self._ticks_at = -1.0
        self.closing.open(1, self.open_ms, frozenset(), None)

    @property
    def now(self) -> int:
        return int(self.world.now)

    @property
    def is_over(self) -> bool:
        return len(self.tables) == self.manifest.num_rounds

    def header(self, header: Header) -> str:
        """Return what is to be done next: "body", "inclusion promise", "listed", "again", or why it is refused for good."""
        opened = header.contribution.opened
        if (opened.founder, opened.base) in self.listed:
            return "listed"
        round_ = self.closing.round_for_header(header.contribution.digest, self.now)
        if round_ > self.manifest.num_rounds:
            return "the run was over"
        if round_ - opened.round > MAX_AGE:
            return "too old"
        try:
            self.closing.header(opened.founder, {opened.founder: opened.claims[0]}, opened.round, header.contribution.digest, self.now)
        except NotTaken:
            return "again"
        finally:
            self.look()
        self.handed[header.contribution.digest] = header
        return "inclusion_promise" if self.closing.is_good(header.contribution.digest) else "body"

    def body(self, contribution: bytes, answer: Callable[[int | None], None]) -> None:
        """Take a body; ``answer`` gets the round of its inclusion promise, or None."""
        try:
            self.closing.arrived(contribution, self.now)
        except NotTaken:
            answer(None)
            return
        self._checked_at = max(self._checked_at, self.world.now) + CHECK_MS
        self.world.after(self._checked_at - self.world.now, lambda: self.good(contribution, answer))

    def good(self, contribution: bytes, answer: Callable[[int | None], None]) -> None:
        self.closing.good(contribution)
        round_ = self.closing.round_of(contribution)
        self.world.after(SYNC_MS, lambda: answer(round_))
        self.look()

    def look(self) -> None:
        closed = self.closing.tick(self.now)
        if closed is not None:
            self.world.after(COMMIT_MS + ROW_MS * len(closed), lambda: self.commit(closed))
            return
        next_ms = self.closing.next_ms(self.now)
        if next_ms is not None and self.now + next_ms != self._ticks_at:
            self._ticks_at = self.now + next_ms
            self.world.after(max(next_ms, 1), self.look)

    def commit(self, closed: Sequence[bytes]) -> None:
        claims = [claim.opened for contribution in closed for claim in self.handed.pop(contribution).claims]
        assert not self.listed.intersection((claim.key, claim.base) for claim in claims)
        assert len({claim.key for claim in claims}) == len(claims)
        self.listed.update((claim.key, claim.base) for claim in claims)
        samples = sum(claim.microbatches for claim in claims) * MICROBATCH_SAMPLES
        self.open_ms = next_open_ms(self.manifest.exchange, self.open_ms, samples, [claim.microbatch_ms for claim in claims])
        number, table = len(self.tables) + 1, sha256(b"".join(closed))
        self.state = sha256(self.state + table)
        round_ = Round(RUN, number, self.last, number, len(closed), table, table, self.state, (), -32, self.open_ms)
        self.last = CommitRef.after(round_).commit
        self.tables.append(Table(round_, claims))
        self.closing.open(number + 1, self.open_ms, frozenset(claim.key for claim in claims), None if self.is_over else self.now)
        for peer in self.peers:
            peer.tell(round_, self.open_ms)
        if self.is_over:
            self.over_at = self.world.now
        else:
            self.look()


@dataclass
class Tally:
    """What became of a peer's time and samples."""

    computed_ms: float = 0.0
    counted: int = 0
    lost: Counter[str] = field(default_factory=Counter)


class Peer:
    """One peer's loop."""

    def __init__(self, world: World, log: Log, place: int, microbatches_ms: Sequence[float], rng: random.Random) -> None:
        self.world, self.log, self.rng = world, log, rng
        self.key = sha256(b"peer %d" % place)
        start = CommitRef.start(log.manifest, RUN)
        self.machine = RoundMachine(log.manifest, RUN, self.key, Plain(), start)
        self.pace = Pace()
        self.microbatches_ms = itertools.cycle(microbatches_ms)
        self.latency_ms = rng.uniform(10, 150)  # one way
        self.upload_ms = rng.uniform(20, 300)
        self.catch_up_ms = rng.uniform(50, 500)
        self.leaves_in = 0  # a round; 0: it stays
        self.is_gone = False
        self.is_awake = True  # else it waits for something that calls ``step``
        self.wakes_at = 0.0
        self.signed_at: float | None = None  # until it has an inclusion promise
        self.open_ms = log.open_ms
        self.listed_in = 0  # the newest round whose table has this peer, as far as it knows
        self.microbatches = 0
        self.tally = Tally()

    def varied(self, duration_ms: float) -> float:
        return duration_ms * self.rng.lognormvariate(0, 0.15)

    def then(self, delay_ms: float, happens: Callable[[], None]) -> None:
        """Do something after a while, unless the peer has left by then."""
        self.world.after(delay_ms, lambda: self.is_gone or happens())

    def begin(self) -> None:
        self.pace.opened(self.world.now, self.log.closing.left_ms(self.log.now))
        self.step()

    def tell(self, round_: Round, left_ms: int) -> None:
        self.then(self.varied(self.latency_ms), lambda: self.committed(round_, left_ms))

    def committed(self, round_: Round, left_ms: int) -> None:
        before = self.machine.dropped.copy()
        commit = self.machine.committed(round_)
        reason = next(iter(self.machine.dropped - before), "microbatches too old")
        self.tally.lost["the run was over" if self.log.is_over else reason] += commit.samples_lost
        self.pace.opened(self.world.now, left_ms)
        self.open_ms = round_.open_ms
        if commit.inclusion_promise is not None:
            self.listed_in = commit.inclusion_promise.round
        self.microbatches = self.machine.samples // MICROBATCH_SAMPLES
        if round_.round + 1 == self.leaves_in:
            self.world.after(self.rng.uniform(0, left_ms), self.leave)
        self.step()

    def leave(self) -> None:
        self.is_gone = True

    def step(self) -> None:
        """Do what there is to do, unless something is under way already."""
        if not self.is_awake:
            return
        machine, now = self.machine, self.world.now
        stage = machine.stage
        if stage is PeerStage.SIGNED:
            self.hand_in()
        elif stage is PeerStage.BEHIND:
            state = machine.newest.state
            self.busy(self.varied(self.catch_up_ms), lambda: machine.caught_up(state))
        elif stage is PeerStage.WORKING:
            if not machine.is_overdue and self.may_start_microbatch():
                self.train()
            else:
                self.sign()
                self.step()
        elif stage is PeerStage.PROMISED and machine.may_work_ahead and 2 * self.pace.microbatch_ms > self.open_ms:
            if self.pace.microbatch_ms < self.pace.left_ms(now):
                if self.wakes_at < now:
                    self.wakes_at = now + self.pace.left_ms(now) - self.pace.microbatch_ms + 1
                    self.then(self.wakes_at - now, self.step)
            elif self.may_start_microbatch():
                self.train()

    def may_start_microbatch(self) -> bool:
        is_awaited = self.listed_in == self.machine.newest.round > 0
        return self.pace.may_start_microbatch(self.world.now, self.microbatches, is_awaited=is_awaited)

    def busy(self, duration_ms: float, done: Callable[[], object]) -> None:
        self.is_awake = False

        def over() -> None:
            self.is_awake = True
            done()
            self.step()

        self.then(duration_ms, over)

    def train(self) -> None:
        self.machine.microbatch_started()
        duration_ms = self.varied(next(self.microbatches_ms))

        def trained() -> None:
            self.pace.microbatch_took(duration_ms)
            self.tally.computed_ms += duration_ms - max(0.0, min(duration_ms, self.world.now - self.log.over_at))
            if self.machine.microbatch_trained(MICROBATCH_SAMPLES):
                self.microbatches += 1
            else:
                self.tally.lost["the run was over" if self.log.is_over else "microbatches too old"] += MICROBATCH_SAMPLES

        self.busy(duration_ms, trained)

    def sign(self) -> None:
        base = self.machine.base
        work = sha256(self.key + base.commit)
        steps = (ClaimStep(0, self.microbatches - 1, (), work),)
        claim = Claim(
            RUN,
            base.round + 1,
            base.commit,
            self.key,
            self.key,
            self.key,
            "home",
            steps,
            (self.microbatches,),
            work,
            b"",
            self.pace.microbatch_ms,
        )
        contribution = Contribution(RUN, base.round + 1, base.commit, self.key, (work,), 1, (StepMean(work, 1),), work, b"")
        assert self.machine.sign(Header(Signed(contribution), (Signed(claim),)))
        self.microbatches, self.signed_at = 0, self.world.now

    # The log answers after a latency each way; every answer finds the peer as it was, or with newer commits.

    def hand_in(self) -> None:
        header = self.machine.signed.header
        self.is_awake = False
        self.then(CODING_MS + self.varied(self.latency_ms), lambda: self.header_came(header))

    def header_came(self, header: Header) -> None:
        answer = self.log.header(header)
        self.then(self.varied(self.latency_ms), lambda: self.answered(header, answer))

    def answered(self, header: Header, answer: str) -> None:
        if answer == "body":
            if self.signed_at is not None and header.contribution.opened.round == self.machine.round:
                self.pace.header_took(self.world.now - self.signed_at)
            self.then(self.varied(self.upload_ms) + self.varied(self.latency_ms), lambda: self.body_came(header))
            return
        if answer == "inclusion_promise":
            self.promised(header, self.log.closing.round_of(header.contribution.digest))
        elif answer == "listed":
            self.machine.listed()
        elif answer == "again":
            self.busy(AGAIN_MS, lambda: None)
            return
        elif self.machine.signed is not None:
            self.tally.lost[answer] += self.machine.refused(answer)
        self.is_awake = True
        self.step()

    def body_came(self, header: Header) -> None:
        def told(round_: int | None) -> None:
            self.then(self.varied(self.latency_ms), lambda: self.promised(header, round_))

        self.log.body(header.contribution.digest, told)

    def promised(self, header: Header, round_: int | None) -> None:
        if round_ is not None:
            self.machine.promised(InclusionPromise(RUN, round_, header.contribution.digest))
            if self.signed_at is not None and round_ == header.contribution.opened.round:
                self.pace.inclusion_promise_took(self.world.now - self.signed_at)
            self.signed_at = None
        self.is_awake = True
        self.step()
