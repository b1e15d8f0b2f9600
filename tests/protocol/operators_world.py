"""Several operators in one thread, and everything that may happen to them: messages lost, doubled and late, crashes, several writers.

A log's entry is a number: a contribution's, or that of a round's end. Each operator has a disk (what survives a crash) and a memory (what
does not); between any two writes to the disk it may crash. What is acknowledged to the outside is written down by the world, which checks
after each step that nothing of it is lost and that no two histories were signed for.
"""

import contextlib
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manta_swarm.protocol.ballots import (
    AcceptedBatch,
    Ballot,
    Certificate,
    EntryBatch,
    KeptUnderBallot,
    NotNext,
    OperatorMemory,
    Outdated,
    Promise,
    Takeover,
    Vote,
    Voting,
    accept,
)
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.merkle import leaf_hash, root
from manta_swarm.protocol.operators import LogPosition, Newcomer
from manta_swarm.protocol.signing import Identity, sha256

RUN = sha256(b"run")
IDENTITIES = [Identity(bytes([number + 1]) * 32) for number in range(4)]


class Crash(Exception):
    """The operator's computer went off."""


def contribution(client: int, version: int) -> bytes:
    """The digest of what a client hands in; it may hand in several versions, of which a table has one."""
    return bytes([client]) + version.to_bytes(4, "big") + bytes(27)


def round_end(number: int, table: Sequence[bytes]) -> bytes:
    """The entry of a round."""
    return encode((number, tuple(table)))


def root_of(entries: Sequence[bytes]) -> bytes:
    return root([leaf_hash(entry) for entry in entries])


@dataclass
class Disk:
    """What survives."""

    memory: OperatorMemory = field(default_factory=OperatorMemory)
    kept: dict[bytes, KeptUnderBallot] = field(default_factory=dict)
    entries: tuple[bytes, ...] = ()
    table: dict[int, tuple[bytes, ...]] = field(default_factory=dict)  # by round, as the log has it
    newcomer: Newcomer | None = None


@dataclass
class Writing:
    """What a writer has in memory."""

    ballot: Ballot
    takeover: Takeover
    stage: str = "promises"  # then "fetch", "keep", "open", and "propose" in between
    proposed: EntryBatch | None = None
    voting: Voting | None = None
    certificate: Certificate | None = None
    signed: set[int] = field(default_factory=set)
    having: dict[bytes, set[int]] = field(default_factory=dict)  # of each contribution, who keeps it under this ballot
    rounds: dict[bytes, int] = field(default_factory=dict)  # of each, the round that it counts in
    since: int = 0  # the log's size at the end of the takeover
    after: str = "open"  # the stage after what is proposed is counted


class Operator:
    """One operator, honest: it does what it should, and crashes."""

    def __init__(self, world: "World", place: int) -> None:
        self.world = world
        self.place = place
        self.identity = IDENTITIES[place]
        self.disk = Disk()
        self.writing: Writing | None = None
        self.is_up = True
        self.lives = 0  # disks that it had before

    @property
    def key(self) -> bytes:
        return self.identity.public_key

    @property
    def size(self) -> int:
        return len(self.disk.entries)

    @property
    def round(self) -> int:
        return len(self.disk.table)

    # The disk, before and after each write of which the computer may go off.

    def remember(self, memory: OperatorMemory) -> None:
        self.world.may_crash(self)
        self.disk.memory = memory
        self.world.may_crash(self)

    def keep(self, kept: KeptUnderBallot) -> None:
        self.world.may_crash(self)
        self.disk.kept[kept.contribution] = kept
        self.world.may_crash(self)

    def append(self, entries: Sequence[bytes]) -> None:
        """Commit what counts to the log."""
        self.world.may_crash(self)
        self.disk.entries = (*self.disk.entries, *entries)
        self.disk.table = self.world.tables(self.disk.entries)
        self.world.may_crash(self)

    def sign(self, batch: EntryBatch, certificate: Certificate) -> None:
        self.remember(self.disk.memory.signing(certificate, self.size))
        self.world.sign(self, (*self.disk.entries, *batch.entries))

    # Beginning with an empty disk.

    def lose_disk(self) -> None:
        """Begin anew, with nothing but the key."""
        self.crash()
        self.disk, self.is_up = Disk(newcomer=Newcomer()), True
        self.lives += 1

    def come(self) -> None:
        """Do what a newcomer can do now."""
        newcomer = self.disk.newcomer
        assert newcomer is not None
        others = [key for key in self.world.keys if key != self.key]
        if self.world.takes_part(newcomer, others, self.size, self.round):
            self.remember(self.disk.memory.listening_to(newcomer.promised))
            self.disk.newcomer = None
            return
        self.ask_all("ask_standing", self.lives)
        self.ask_all("ask_entries", self.size)

    def on_ask_standing(self, _sender: int, life: int) -> tuple[Any, ...] | None:
        if self.disk.newcomer is not None:
            return None
        accepted = self.disk.memory.accepted_at(self.size)
        size = self.size if accepted is None else accepted.batch.size
        return "position", life, LogPosition(self.disk.memory.promised, size, self.round)

    def on_position(self, sender: int, life: int, position: LogPosition) -> None:
        if self.disk.newcomer is not None and life == self.lives:  # an answer to what this life asked
            self.world.may_crash(self)
            self.disk.newcomer = self.disk.newcomer.hearing(self.world.keys[sender], position)

    # A follower's answers.

    def promise(self) -> Promise:
        disk = self.disk
        accepted = disk.memory.accepted_at(self.size)
        kept = tuple(each for each in disk.kept.values() if each.round > self.round)
        return Promise(self.size, () if accepted is None else (accepted,), kept)

    def on(self, sender: int, kind: str, *content: Any) -> None:
        if self.disk.newcomer is not None and kind in ("ask_promise", "ask_keep", "ask_accept", "decide"):
            return
        answer = getattr(self, f"on_{kind}")(sender, *content)
        if answer is not None:
            self.world.send(self.place, sender, *answer)

    def on_ask_promise(self, _sender: int, ballot: Ballot) -> tuple[Any, ...] | None:
        try:
            self.remember(self.disk.memory.listening_to(ballot))
        except Outdated:
            return None
        return "promised", ballot, self.promise()

    def on_ask_keep(self, _sender: int, kept: KeptUnderBallot) -> tuple[Any, ...] | None:
        try:
            self.remember(self.disk.memory.listening_to(kept.ballot))
        except Outdated:
            return None
        self.keep(kept)
        return "is_kept", kept.ballot, kept.contribution

    def on_ask_accept(self, _sender: int, ballot: Ballot, batch: EntryBatch) -> tuple[Any, ...] | None:
        if batch.first > self.size:
            return "ask_entries", self.size
        if root_of((*self.disk.entries[: batch.first], *batch.entries)) != batch.root:
            return None
        try:
            self.remember(self.disk.memory.accepting(ballot, batch, self.size))
        except RemoteFault:
            return None
        return "accepted", ballot, accept(RUN, ballot, batch.size, batch.root, self.identity)

    def on_decide(self, _sender: int, certificate: Certificate) -> tuple[Any, ...] | None:
        certificate.check(RUN, self.world.keys, self.world.quorum)
        accepted = self.disk.memory.accepted_at(self.size)
        if accepted is None or (accepted.batch.size, accepted.batch.root) != (certificate.size, certificate.root):
            return ("ask_entries", self.size) if certificate.size > self.size else None
        self.sign(accepted.batch, certificate)
        return "signed", certificate.size, certificate.root

    def on_ask_entries(self, _sender: int, start: int) -> tuple[Any, ...] | None:
        return None if start >= self.size else ("entries", start, self.disk.entries[start:])

    def on_entries(self, _sender: int, start: int, entries: tuple[bytes, ...]) -> tuple[Any, ...] | None:
        if start <= self.size < start + len(entries):
            new = entries[self.size - start :]
            if self.world.counts((*self.disk.entries, *new)):
                self.append(new)
        return None

    # The writer.

    def begin(self, term: int) -> None:
        """Try to become the writer."""
        ballot = Ballot(term, self.key)
        if self.disk.newcomer is not None or ballot <= self.disk.memory.promised:
            return
        self.writing = None
        self.remember(self.disk.memory.listening_to(ballot))
        self.writing = Writing(ballot, Takeover(ballot, len(self.world.keys), self.world.quorum))
        self.writing.takeover.add(self.key, self.promise())
        self.step()

    def others(self) -> list[int]:
        return [place for place in range(self.world.n) if place != self.place]

    def ask_all(self, *content: Any) -> None:
        for place in self.others():
            self.world.send(self.place, place, *content)

    def step(self) -> None:
        """Do what a writer can do now, or a newcomer, and ask again for what it waits for."""
        if self.disk.newcomer is not None:
            self.come()
            return
        writing = self.writing
        if writing is None:
            return
        if writing.ballot < self.disk.memory.promised:
            self.writing = None
            return
        if writing.stage == "promises":
            self.ask_all("ask_promise", writing.ballot)
            if writing.takeover.is_ready:
                writing.stage = "fetch"
        if writing.stage == "fetch":
            self.take_over(writing)
        if writing.stage == "keep":
            for digest, round_ in writing.rounds.items():
                self.hold(writing, digest, round_)
            if all(len(who) >= self.world.quorum for who in writing.having.values()):
                writing.stage = "open"
        if writing.stage == "open":
            for digest, round_ in writing.rounds.items():
                self.hold(writing, digest, round_)
        if writing.stage == "propose":
            self.go_on_proposing(writing)

    def take_over(self, writing: Writing) -> None:
        key, longest = writing.takeover.longest()
        if longest.size > self.size:
            self.world.send(self.place, self.world.keys.index(key), "ask_entries", self.size)
            return
        if longest.size == self.size and (batch := writing.takeover.to_propose()) is not None:
            self.propose(writing, batch, after="restore")
            return
        self.restore(writing)

    def restore(self, writing: Writing) -> None:
        """Take up what has, or may have, an inclusion promise."""
        clients = dict[tuple[int, int], bytes]()
        for kept, _ in writing.takeover.kept():
            if kept.round > self.round:
                clients.setdefault((kept.round, kept.contribution[0]), kept.contribution)
        writing.since = self.size
        writing.rounds = {digest: round_ for (round_, _), digest in clients.items()}
        writing.having = {digest: set() for digest in writing.rounds}
        writing.stage = "keep"

    def hold(self, writing: Writing, digest: bytes, round_: int) -> None:
        if self.place not in writing.having[digest]:
            self.disk.memory.listening_to(writing.ballot)
            self.keep(KeptUnderBallot(writing.ballot, writing.since, round_, digest))
            writing.having[digest].add(self.place)
        for place in self.others():
            if place not in writing.having[digest]:
                self.world.send(self.place, place, "ask_keep", KeptUnderBallot(writing.ballot, writing.since, round_, digest))

    def hand_in(self, client: int, version: int) -> None:
        """A client brings a contribution, which counts in the round that is open, or in the next while that one is being committed."""
        writing = self.writing
        if writing is None or writing.stage not in ("open", "propose") or (writing.stage == "propose" and writing.after != "open"):
            return
        round_ = self.round + 1
        if writing.stage == "propose" and writing.proposed is not None and writing.proposed.first == self.size:
            round_ += 1
        if any((digest[0], one) == (client, round_) for digest, one in writing.rounds.items()):
            return
        digest = contribution(client, version)
        if digest in writing.rounds or any(digest in table for table in self.disk.table.values()):
            return
        writing.rounds[digest] = round_
        writing.having[digest] = set()
        self.hold(writing, digest, round_)

    def close_round(self) -> None:
        writing = self.writing
        if writing is None or writing.stage != "open":
            return
        table = sorted(digest for digest, round_ in writing.rounds.items() if round_ == self.round + 1)
        if not table or any(len(writing.having[digest]) < self.world.quorum for digest in table):
            return
        entries = (*table, round_end(self.round + 1, table))
        self.propose(writing, EntryBatch(self.size, entries, root_of((*self.disk.entries, *entries))), after="open")

    def propose(self, writing: Writing, batch: EntryBatch, *, after: str) -> None:
        writing.proposed, writing.stage, writing.after, writing.certificate = batch, "propose", after, None
        writing.voting, writing.signed = Voting(RUN, writing.ballot, batch, self.world.keys, self.world.quorum), set()
        if root_of((*self.disk.entries, *batch.entries)) != batch.root:
            self.writing = None  # what a liar claimed to have accepted
            return
        self.remember(self.disk.memory.accepting(writing.ballot, batch, self.size))
        writing.voting.add(accept(RUN, writing.ballot, batch.size, batch.root, self.identity))
        self.go_on_proposing(writing)

    def go_on_proposing(self, writing: Writing) -> None:
        batch = writing.proposed
        assert batch is not None
        if writing.certificate is None:
            self.ask_all("ask_accept", writing.ballot, batch)
            return
        self.ask_all("decide", writing.certificate)

    def on_promised(self, sender: int, ballot: Ballot, promise: Promise) -> None:
        writing = self.writing
        if writing is not None and writing.ballot == ballot and writing.stage == "promises":
            writing.takeover.add(self.world.keys[sender], promise)

    def on_is_kept(self, sender: int, ballot: Ballot, digest: bytes) -> None:
        writing = self.writing
        if writing is None or writing.ballot != ballot or digest not in writing.having:
            return
        writing.having[digest].add(sender)
        if len(writing.having[digest]) >= self.world.quorum and writing.stage in ("open", "propose"):
            self.world.inclusion_promises.add((digest, writing.rounds[digest]))

    def on_accepted(self, _sender: int, ballot: Ballot, vote: Vote) -> None:
        writing = self.writing
        if writing is None or writing.ballot != ballot or writing.stage != "propose" or writing.voting is None:
            return
        try:
            writing.voting.add(vote)
        except RemoteFault:
            return  # of a batch before
        if writing.certificate is None and writing.voting.certificate is not None:
            assert writing.proposed is not None
            writing.certificate = writing.voting.certificate
            if self.size != writing.proposed.first:
                self.writing = None  # somebody else went on
                return
            self.sign(writing.proposed, writing.certificate)
            writing.signed = {self.place}

    def on_signed(self, sender: int, size: int, signed_root: bytes) -> None:
        writing = self.writing
        if writing is None or writing.certificate is None or writing.proposed is None or writing.stage != "propose":
            return
        if (size, signed_root) != (writing.certificate.size, writing.certificate.root):
            return
        if self.size != writing.proposed.first:
            self.writing = None
            return
        writing.signed.add(sender)
        if len(writing.signed) >= self.world.quorum:
            self.append(writing.proposed.entries)
            self.world.publish(self.disk.entries)
            self.ask_all("entries", writing.proposed.first, writing.proposed.entries)
            self.counted(writing)

    def counted(self, writing: Writing) -> None:
        writing.proposed = writing.voting = writing.certificate = None
        if writing.after == "restore":
            self.restore(writing)
            return
        writing.stage = "open"
        writing.rounds = {digest: round_ for digest, round_ in writing.rounds.items() if round_ > self.round}
        writing.having = {digest: writing.having[digest] for digest in writing.rounds}

    def crash(self) -> None:
        self.is_up, self.writing = False, None


class Liar(Operator):
    """An operator that accepts, keeps and signs whatever it is asked to, forgets it, and proposes two batches for one place."""

    def on_ask_promise(self, _sender: int, ballot: Ballot) -> tuple[Any, ...] | None:
        rng = self.world.rng
        if rng.random() < 0.3:
            return "promised", ballot, Promise(0, (), ())
        entries = tuple(rng.sample([contribution(7, number) for number in range(3)], 1))
        batch = EntryBatch(self.size, entries, root_of((*self.disk.entries, *entries)))
        shown = replace(self.promise(), accepted=(AcceptedBatch(Ballot(rng.randrange(1, 90), self.key), batch),))
        return "promised", ballot, shown

    def on_ask_keep(self, _sender: int, kept: KeptUnderBallot) -> tuple[Any, ...] | None:
        return "is_kept", kept.ballot, kept.contribution

    def on_ask_accept(self, _sender: int, ballot: Ballot, batch: EntryBatch) -> tuple[Any, ...] | None:
        if batch.first == self.size:
            self.disk.memory = replace(self.disk.memory, accepted=(AcceptedBatch(ballot, batch),))
        return "accepted", ballot, accept(RUN, ballot, batch.size, batch.root, self.identity)

    def on_decide(self, sender: int, certificate: Certificate) -> tuple[Any, ...] | None:
        with contextlib.suppress(RemoteFault):
            super().on_decide(sender, certificate)
        self.world.signed.setdefault(certificate.size, {}).setdefault(certificate.root, set()).add(self.place)
        return "signed", certificate.size, certificate.root

    def lie(self) -> None:
        """Propose one thing to some and another to others, decide what has the votes, for some only; sign all of it."""
        rng, world = self.world.rng, self.world
        ballot = Ballot(rng.choice([rng.randrange(1, 60), self.disk.memory.promised.term + 1]), self.key)
        asked = [operator for operator in world.operators if operator is not self and operator.is_up]
        for version in range(2):
            for size in {operator.size for operator in asked}:
                holder = next(operator for operator in asked if operator.size == size)
                entries = (contribution(8, version), round_end(holder.round + 1, [contribution(8, version)]))
                batch = EntryBatch(size, entries, root_of((*holder.disk.entries, *entries)))
                voting = Voting(RUN, ballot, batch, world.keys, world.quorum)
                voting.add(accept(RUN, ballot, batch.size, batch.root, self.identity))
                self.world.signed.setdefault(batch.size, {}).setdefault(batch.root, set()).add(self.place)
                for operator in rng.sample(asked, rng.randint(1, len(asked))):
                    answer = self.world.call(operator, "ask_accept", self.place, ballot, batch)
                    if answer is not None and answer[0] == "accepted":
                        voting.add(answer[2])
                if voting.certificate is not None:
                    for operator in rng.sample(asked, rng.randint(1, len(asked))):
                        world.send(self.place, operator.place, "decide", voting.certificate)


class World:
    """The operators, the messages between them, and what was promised to the outside."""

    def __init__(
        self, seed: int, *, n: int, quorum: int, liars: int = 0, crash: float = 0.02, loss: float = 0.1, loses_disks: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.n, self.quorum = n, quorum
        self.operators = [Liar(self, place) if place < liars else Operator(self, place) for place in range(n)]
        self.keys = [operator.key for operator in self.operators]
        self.crash_rate, self.loss = crash, loss
        self.unrest = self.rng.choice((0.0015, 0.004, 0.009))  # how often somebody new writes
        self.messages: list[tuple[int, int, tuple[Any, ...]]] = []
        self.inclusion_promises: set[tuple[bytes, int]] = set()
        self.published: tuple[bytes, ...] = ()  # the longest log that was told
        self.signed: dict[int, dict[bytes, set[int]]] = {}  # size -> root -> who signed it
        self.last_signed: dict[int, tuple[bytes, ...]] = {}
        self.has_liar = liars > 0
        self.loses_disks = loses_disks
        self.lost_disks = 0
        self.takes_part: Callable[[Newcomer, Collection[bytes], int, int], bool] = Newcomer.is_over
        self.term = 0
        self.version = 0
        self.cut: set[tuple[int, int]] = set()
        self.checked: tuple[object, ...] = ()

    @staticmethod
    def tables(entries: Sequence[bytes]) -> dict[int, tuple[bytes, ...]]:
        found: dict[int, tuple[bytes, ...]] = {}
        table: list[bytes] = []
        for entry in entries:
            if len(entry) == 32 and entry[5:] == bytes(27):
                table.append(entry)
            else:
                found[len(found) + 1] = tuple(table)
                table = []
        return found

    def may_crash(self, operator: Operator) -> None:
        if self.rng.random() < self.crash_rate:
            raise Crash

    def send(self, sender: int, receiver: int, *content: Any) -> None:
        self.messages.append((sender, receiver, content))

    def call(self, operator: Operator, kind: str, sender: int, *content: Any) -> Any:
        try:
            return getattr(operator, f"on_{kind}")(sender, *content)
        except Crash:
            operator.crash()
            return None

    def sign(self, operator: Operator, entries: tuple[bytes, ...]) -> None:
        """An operator signs the root of these; what an honest one signs always goes on from what it signed before, or comes before it."""
        size, signed_root = len(entries), root_of(entries)
        before = self.last_signed.get(operator.place, ())
        shorter, longer = sorted((before, entries), key=len)
        is_liar = isinstance(operator, Liar)
        goes_on = longer[: len(shorter)] == shorter or (not self.counts(shorter) and self.counts(operator.disk.entries))
        assert is_liar or longer[: len(shorter)] == shorter or (self.has_liar and goes_on), "an honest operator signed two histories"
        self.last_signed[operator.place] = longer if longer[: len(shorter)] == shorter else entries
        roots = self.signed.setdefault(size, {})
        others = [each for each, who in roots.items() if each != signed_root and operator.place in who]
        assert not others or is_liar, "an honest operator signed two roots of one size"
        roots.setdefault(signed_root, set()).add(operator.place)
        assert sum(len(who) >= self.quorum for who in roots.values()) <= 1, "two heads of one size count"
        assert self.has_liar or len(roots) == 1, "two roots of one size were signed"

    def counts(self, entries: tuple[bytes, ...]) -> bool:
        """Whether a quorum has signed the root of these."""
        return not entries or len(self.signed.get(len(entries), {}).get(root_of(entries), ())) >= self.quorum

    def publish(self, entries: tuple[bytes, ...]) -> None:
        """A writer tells the world of its log, which counts."""
        shorter, longer = sorted((self.published, entries), key=len)
        assert longer[: len(shorter)] == shorter, "what was published is not in what is published now"
        self.published = longer

    def check(self) -> None:
        """Check all that must hold at every moment, unless nothing has changed since."""
        kept = (*(operator.disk.entries for operator in self.operators), len(self.inclusion_promises))
        if self.has_liar or kept == self.checked:
            return  # what an honest operator signs, and what counts, is checked where it happens; so is what is published
        self.checked = kept
        longest = max((operator.disk.entries for operator in self.operators), key=len)
        for operator in self.operators:
            assert longest[: operator.size] == operator.disk.entries, "two logs do not agree"
        tables = self.tables(longest)
        for digest, round_ in self.inclusion_promises:
            assert round_ not in tables or digest in tables[round_], f"an inclusion promise for round {round_} is not in its table"
        seen = [digest for table in tables.values() for digest in table]
        assert len(seen) == len(set(seen))

    def act(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        what = rng.random()
        operator = rng.choice(self.operators)
        try:
            if what < 0.8 and self.messages:
                self.deliver()
            elif what < 0.87:
                if operator.is_up:
                    operator.step()
            elif what < 0.94:
                if operator.is_up:
                    operator.hand_in(rng.randrange(4), self.new_version())
            elif what < 0.975:
                if operator.is_up:
                    operator.close_round()
            elif what < 0.975 + self.unrest:
                self.campaign(operator)
            elif what < 0.975 + 1.5 * self.unrest:
                operator.crash()
            elif what < 0.99:
                operator.is_up = True
            elif what < 0.992:
                self.cut = {(a, b) for a in range(self.n) for b in range(self.n) if rng.random() < 0.2} if rng.random() < 0.5 else set()
            elif isinstance(operator, Liar):
                operator.lie()
            elif self.loses_disks and all(each.disk.newcomer is None for each in self.operators) and operator.size:
                operator.lose_disk()
                self.lost_disks += 1
        except Crash:
            operator.crash()
        except (Outdated, NotNext):
            operator.writing = None
        self.check()

    def new_version(self) -> int:
        self.version += self.rng.random() < 0.5
        return self.version

    def campaign(self, operator: Operator) -> None:
        """Somebody writes: mostly under a new term, sometimes under one that is, or was, another's."""
        if not operator.is_up:
            return
        if self.rng.random() < 0.8:
            self.term += 1
        operator.begin(max(1, self.term - (self.rng.randrange(3) if self.rng.random() < 0.3 else 0)))

    def deliver(self) -> None:
        """Take any message: it is lost, or arrives, and may arrive again."""
        place = self.rng.randrange(len(self.messages))
        sender, receiver, content = self.messages[place]
        if self.rng.random() > 0.1:
            self.messages[place] = self.messages[-1]
            self.messages.pop()
        operator = self.operators[receiver]
        if not operator.is_up or (sender, receiver) in self.cut or self.rng.random() < self.loss:
            return
        if len(self.messages) > 400:
            del self.messages[: len(self.messages) - 400]
        try:
            operator.on(sender, *content)
        except RemoteFault:
            assert self.has_liar
        except Crash:
            operator.crash()

    def go_on(self, up: Sequence[int], rounds: int = 3, most_steps: int = 40_000) -> None:
        """With these operators up, one of them writing, and every message arriving in the end, commit more rounds."""
        self.crash_rate, self.loss, self.cut = 0.0, 0.0, set()
        for operator in self.operators:
            operator.crash()
            operator.is_up = operator.place in up
        self.messages.clear()
        self.term += 1
        writer = self.operators[self.rng.choice([place for place in up if self.operators[place].disk.newcomer is None])]
        writer.begin(max(self.term, writer.disk.memory.promised.term + 1, *(one.disk.memory.promised.term + 1 for one in self.operators)))
        goal = len(self.tables(self.published)) + rounds
        for step in range(most_steps):
            if self.messages:
                self.deliver()
            if step % 10 == 0:
                for operator in self.operators:
                    if operator.is_up:
                        operator.step()
                writer.hand_in(self.rng.randrange(4), self.version + step)
                writer.close_round()
            self.check()
            if len(self.tables(self.published)) >= goal:
                return
        raise AssertionError(f"no {rounds} rounds more within {most_steps} steps: {writer.writing}")


def run(seed: int, *, n: int, quorum: int, steps: int = 2500, liars: int = 0, loses_disks: bool = False) -> World:
    """Return a world after so many things happened in it."""
    rates = {"crash": (0.0, 0.002, 0.02)[seed % 3], "loss": (0.02, 0.2)[seed % 2]}
    world = World(seed, n=n, quorum=quorum, liars=liars, **rates, loses_disks=loses_disks)
    for _ in range(steps):
        world.act()
    return world
