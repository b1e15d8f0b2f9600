"""How several operators agree on what a log says next, whoever of them dies: what each must remember, and what a leader may propose.

One operator writes at a time, under a *ballot*: a term, which only grows, and the leader's key. Before it writes it has the *promise* of a
quorum that no older ballot is listened to any more; each promises with what it has accepted and kept so far. A *batch* of entries is
decided once a quorum has accepted it under one ballot; their signatures are its *certificate*, and only who holds one signs the root after
the batch. Once a quorum has signed, that head counts, and the batch is in the log. (Single-decree Paxos for each place in the log,
Lamport, "Paxos Made Simple", 2001; the quorum is the manifest's.)

Why nothing is lost: any two quorums have an operator in common. So a new leader hears of every batch that may have been decided, and
proposes it again; and of every contribution that has an inclusion promise, for a quorum *keeps* each before its inclusion promise is given.
A contribution is kept by a leader only once nothing was left to be proposed again: what was accepted under an older ballot than that can't
have been decided.

Nothing here believes a clock, or a lease. That one operator signs no two roots of a size holds by itself (``aggregator.log``).
No I/O: a method returns what has to be on the disk before its answer is given.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, ProofError, RemoteFault
from manta_swarm.protocol.fields import MAX_ROUND, check_digest
from manta_swarm.protocol.manifest import MAX_OPERATORS
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.signing import Identity, verify

MAX_TERM = 2**62
MAX_KEPT = 4096  # contributions that one operator keeps for the rounds that are open: two tables, and what was superseded in them
_KIND = "acceptance"


class Outdated(RemoteFault):
    """A leader's ballot is older than one that was promised; ``promised`` is that one's term."""

    def __init__(self, promised: int) -> None:
        super().__init__(f"a leader of a later term, {promised}, was promised to be listened to")
        self.promised = promised


class NotNext(RemoteFault):
    """A batch does not begin where this operator's log ends; ``size`` is where that is."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the batch does not begin where this log ends, at {size} entries")
        self.size = size


class Forked(RemoteFault):
    """A root was signed for which there is another history: some operator does not keep to the rules. A person has to decide."""


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """A leader's right to write, for one term; of two ballots the greater one counts."""

    term: int
    leader: bytes  # its key; empty: none

    def __post_init__(self) -> None:
        if not 0 <= self.term < MAX_TERM or len(self.leader) not in (0, 32):
            raise ValueError("no ballot of a leader")


NOBODY = Ballot(0, b"")


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Entries that come after the first ``first`` of a log."""

    first: int
    entries: tuple[bytes, ...]
    root: bytes  # of the tree with them

    def __post_init__(self) -> None:
        check_digest(self.root, "root")
        if not self.entries or not 0 <= self.first <= MAX_SIZE - len(self.entries):
            raise ValueError("a batch without entries, or out of range")

    @property
    def size(self) -> int:
        """The size of the log with the batch."""
        return self.first + len(self.entries)


@dataclass(frozen=True, slots=True)
class Vote:
    """An operator's signature of an acceptance."""

    key: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class _Acceptance:
    run: bytes
    term: int
    leader: bytes
    size: int
    root: bytes


def accept(run: bytes, ballot: Ballot, size: int, root: bytes, operator: Identity) -> Vote:
    """Return an operator's word that it has accepted a log of ``size`` entries with ``root`` under ``ballot``; it must remember that."""
    return Vote(operator.public_key, operator.sign(_KIND, _payload(run, ballot, size, root)))


def check_vote(vote: Vote, run: bytes, ballot: Ballot, size: int, root: bytes) -> None:
    """Check such a word.

    Raises:
        SignatureError: it does not hold.
    """
    verify(_KIND, vote.key, _payload(run, ballot, size, root), vote.signature)


def _payload(run: bytes, ballot: Ballot, size: int, root: bytes) -> bytes:
    return pack(_Acceptance(run, ballot.term, ballot.leader, size, root))


@dataclass(frozen=True, slots=True)
class Certificate:
    """The proof that a quorum has accepted a log of ``size`` entries with ``root`` under one ballot: it is decided."""

    ballot: Ballot
    size: int
    root: bytes
    votes: tuple[Vote, ...]

    def __post_init__(self) -> None:
        check_digest(self.root, "root")
        if not 0 < self.size <= MAX_SIZE or len(self.votes) > MAX_OPERATORS:
            raise ValueError("a certificate of no log, or of more operators than a run has")

    def check(self, run: bytes, operators: Collection[bytes], quorum: int) -> None:
        """Check that so many of the operators accepted it.

        Raises:
            ProofError: fewer did.
            SignatureError: a signature does not hold.
        """
        if len({vote.key for vote in self.votes if vote.key in operators}) < quorum:
            raise ProofError(f"a batch that fewer than {quorum} operators accepted")
        for vote in self.votes:
            check_vote(vote, run, self.ballot, self.size, self.root)


@dataclass(frozen=True, slots=True)
class AcceptedBatch:
    """A batch, and under which ballot it was accepted."""

    ballot: Ballot
    batch: EntryBatch


@dataclass(frozen=True, slots=True)
class KeptUnderBallot:
    """A contribution that is on an operator's disk: the round that it counts in, and under which ballot it was kept.

    ``since`` is how long the log was when that ballot's leader had proposed again all that may have been decided: of what was accepted
    from there on under an older ballot nothing was decided, or ever is.
    """

    ballot: Ballot
    since: int
    round: int
    contribution: bytes

    def __post_init__(self) -> None:
        check_digest(self.contribution, "contribution")
        if not 0 <= self.since <= MAX_SIZE or not 0 < self.round <= MAX_ROUND:
            raise ValueError("kept for no round, or since no size of a log")


@dataclass(frozen=True, slots=True)
class OperatorMemory:
    """What an operator may never forget, beside its log and the contributions that it keeps."""

    promised: Ballot = NOBODY
    accepted: tuple[AcceptedBatch, ...] = ()  # at most one
    certificate: tuple[Certificate, ...] = ()  # at most one: of the last root that it signed, or was about to

    def __post_init__(self) -> None:
        if max(len(self.accepted), len(self.certificate)) > 1:
            raise ValueError("more than one batch at a time")

    def listening_to(self, ballot: Ballot) -> "OperatorMemory":
        """Return the memory with the promise to listen to no older ballot.

        Raises:
            Outdated: a later one was promised.
        """
        if ballot < self.promised:
            raise Outdated(self.promised.term)
        return self if ballot == self.promised else replace(self, promised=ballot)

    def accepting(self, ballot: Ballot, batch: EntryBatch, size: int) -> "OperatorMemory":
        """Return the memory with a batch accepted that was found good; ``size`` is that of the operator's log.

        Raises:
            Outdated: a later ballot was promised.
            NotNext: the batch does not begin at ``size``.
            EncodingError: another batch was accepted under this ballot, which nobody proposes who keeps to the rules.
        """
        listening = self.listening_to(ballot)
        if batch.first != size:
            raise NotNext(size)
        for before in self.accepted:
            if (before.ballot, before.batch.first) == (ballot, batch.first) and before.batch != batch:
                raise EncodingError("a second batch for the same place under one ballot")
        return replace(listening, accepted=(AcceptedBatch(ballot, batch),))

    def signing(self, certificate: Certificate, size: int) -> "OperatorMemory":
        """Return the memory with the root signed that a checked certificate is about; ``size`` is that of the operator's log.

        Raises:
            Forked: it has signed another root, which its log does not go on from yet.
        """
        for signed in self.certificate:
            if signed.size > size and (signed.size, signed.root) != (certificate.size, certificate.root):
                raise Forked(f"another root was signed before, for {signed.size} entries; an operator of this run lies")
        return replace(self, certificate=(certificate,))

    def accepted_at(self, size: int) -> AcceptedBatch | None:
        """Return the batch that was accepted after ``size`` entries."""
        return next((each for each in self.accepted if each.batch.first == size), None)


@dataclass(frozen=True, slots=True)
class Promise:
    """What an operator says when it promises: how long its log is, what it has accepted after that, and what it keeps."""

    size: int  # of its log, whose head counts: that is for the caller to check
    accepted: tuple[AcceptedBatch, ...]  # at most one
    kept: tuple[KeptUnderBallot, ...]  # for the rounds that its log does not have

    def __post_init__(self) -> None:
        if not 0 <= self.size <= MAX_SIZE or len(self.accepted) > 1 or len(self.kept) > MAX_KEPT:
            raise ValueError("a promise about more than one batch, or with more contributions than an operator keeps")


class Takeover:
    """What a new leader finds out before it writes: collects the promises of a quorum, its own among them."""

    def __init__(self, ballot: Ballot, num_operators: int, quorum: int) -> None:
        """Have nobody's yet."""
        self.ballot = ballot
        self._num_operators = num_operators
        self._quorum = quorum
        self._promises: dict[bytes, Promise] = {}

    def add(self, key: bytes, promise: Promise) -> None:
        """Take the checked promise of the operator ``key``; the first that it gave counts."""
        self._promises.setdefault(key, promise)

    @property
    def is_ready(self) -> bool:
        """Whether a quorum has promised."""
        return len(self._promises) >= self._quorum

    def longest(self) -> tuple[bytes, Promise]:
        """Return whose log is the longest, and its promise: the new leader needs what that one has."""
        return max(self._promises.items(), key=lambda each: each[1].size)

    def to_propose(self) -> EntryBatch | None:
        """Return the batch after the longest log that may have been decided, and so has to be proposed again; None: there is none."""
        _, longest = self.longest()
        promises = self._promises.values()
        found = [each for promise in promises for each in promise.accepted if each.batch.first == longest.size]
        newest = max(found, key=lambda each: each.ballot, default=None)
        # Proposing what was accepted before somebody wrote here would leave out of its round what that leader gave inclusion promises for.
        kept = [kept for promise in promises for kept in promise.kept if kept.since <= longest.size]
        since = max((each.ballot for each in kept), default=NOBODY)
        return None if newest is None or newest.ballot < since else newest.batch

    def may_have_inclusion_promise(self, holders: Collection[bytes]) -> bool:
        """Return whether a contribution that these of the operators that promised keep may be kept by a quorum."""
        return len(holders) + self._num_operators - len(self._promises) >= self._quorum

    def kept(self) -> list[tuple[KeptUnderBallot, tuple[bytes, ...]]]:
        """Return all contributions that are kept, by the newest ballot first, each with the operators that have it for its round.

        Of two that exclude each other the one that comes first may have an inclusion promise. One that leaders kept for several rounds
        comes once, as its newest ballot has it: had an older leader's an inclusion promise, the newer leader had taken that up. Old rounds
        may be among it.
        """
        newest: dict[bytes, KeptUnderBallot] = {}
        having: dict[tuple[int, bytes], list[bytes]] = {}
        for key, promise in sorted(self._promises.items()):
            for kept in promise.kept:
                known = newest.get(kept.contribution, kept)
                newest[kept.contribution] = max(known, kept, key=lambda each: (each.ballot, each.round))
                having.setdefault((kept.round, kept.contribution), []).append(key)
        found = sorted(newest.values(), key=lambda each: (each.ballot, each.round, each.contribution), reverse=True)
        return [(each, tuple(having[each.round, each.contribution])) for each in found]


class Voting:
    """Collects the votes for a batch."""

    def __init__(self, run: bytes, ballot: Ballot, batch: EntryBatch, operators: Sequence[bytes], quorum: int) -> None:
        """Have none yet."""
        self._run = run
        self._ballot = ballot
        self._batch = batch
        self._operators = frozenset(operators)
        self._quorum = quorum
        self._votes: dict[bytes, Vote] = {}

    def add(self, vote: Vote) -> None:
        """Take an operator's vote.

        Raises:
            SignatureError: it is none for this batch.
            ProofError: it is of nobody who may vote.
        """
        if vote.key not in self._operators:
            raise ProofError("the vote of no operator of the run")
        check_vote(vote, self._run, self._ballot, self._batch.size, self._batch.root)
        self._votes[vote.key] = vote

    @property
    def voters(self) -> frozenset[bytes]:
        """The operators that have voted."""
        return frozenset(self._votes)

    @property
    def certificate(self) -> Certificate | None:
        """The certificate, once a quorum has voted."""
        if len(self._votes) < self._quorum:
            return None
        votes = tuple(self._votes[key] for key in sorted(self._votes))
        return Certificate(self._ballot, self._batch.size, self._batch.root, votes)
