"""The round as one peer sees it: a pure state machine.

The caller says what happened (a lot trained, a table settled, a vote or a commit received), the answer says what it means. No
I/O, no clock, no tensors, no private key: the caller keeps the gradient, the copy and the state, signs, and sends.

    BEHIND ──caught_up──> TRAINING ──freeze, restore──> CLOSED ──settle──> REDUCING ──agree──> PROPOSED
                                                          ^──────────── fail ─────┴──────────────┘
    committed, in any phase: the own copy is the committed state: TRAINING of the next round; it is not: BEHIND
    FINISHED: the state of the last round is held

What holds at every moment, whatever is lost, late, doubled or false: ``state`` is one that the log has (or the first one); a claim
once frozen stays the same bytes until its round is over; its lots go into that round or into none.

Two things remain the caller's duty. A frozen claim and its lots are stored durably *before* the claim is first sent, and come
back through ``restore``. And a ``Round`` given to ``committed`` has been checked against the log (receipt, quorum, signatures).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from protocol.errors import AttemptFailed, LedgerError, RemoteFault, SignatureError
from protocol.records import Claim, Manifest, Proposal, Round, SignedClaim, Statement, Vote, check_vote, commit_digest, quorum, round_entry
from protocol.table import Table


class VoteError(RemoteFault):
    """A vote from outside the table, or one that is not on the own statement."""


class Phase(Enum):
    """Where a peer's round is; see the module's drawing."""

    BEHIND = "behind"  # the log has a commit whose state is not held yet: fetch the mean or the state
    TRAINING = "training"
    CLOSED = "closed"  # the claim is frozen
    REDUCING = "reducing"  # a table is settled
    PROPOSED = "proposed"  # the own statement is made
    FINISHED = "finished"  # the last round's state is held


class CommitKind(Enum):
    """What a peer has to do with a commit."""

    APPLY = "apply"  # the own copy is the committed state: assign it
    FETCH = "fetch"  # drop the copy, if any; see ``RoundMachine.missing``
    STALE = "stale"  # known already: nothing changed


@dataclass(frozen=True, slots=True)
class Standing:
    """A commit that a peer can stand on: the state after ``round``."""

    round: int
    commit: bytes  # the run's id before the first round
    mean: bytes | None  # digest of the mean that leads here from the state of the round before; None before the first round
    state: bytes  # digest

    @classmethod
    def start(cls, manifest: Manifest, run: bytes) -> "Standing":
        """Return where a run begins."""
        return cls(0, run, None, manifest.initial_state)

    @classmethod
    def after(cls, round_: Round) -> "Standing":
        """Return where a committed round leads."""
        statement = round_.statement
        return cls(statement.round, commit_digest(round_entry(round_)), statement.mean, statement.state)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit means for this peer."""

    kind: CommitKind
    standing: Standing
    counted: bool | None  # is the own claim in it; None: it skips the own claim's round, ask the log
    samples_lost: int  # trained for a round that is now over, and not in it


class RoundMachine:
    """One peer's view of its run, round after round.

    Methods that only ask may be called in any phase. What the caller may get wrong alone raises RuntimeError or ValueError; what only
    came too late (a commit overtook it) is an answer, not an error.
    """

    def __init__(self, manifest: Manifest, run: bytes, key: bytes, held: Standing | None = None) -> None:
        """Stand on ``held``, whose state the caller holds; with None it holds no state yet and is BEHIND the run's start."""
        self._manifest = manifest
        self._run = run
        self._key = key
        self._held = held
        self._missing: tuple[Standing, ...] = () if held else (Standing.start(manifest, run),)
        self._samples = 0
        self._claim: SignedClaim | None = None  # the newest this key ever made, also when its round is over
        self._own: Claim | None = None  # the same, opened
        self._lots_kept = False
        self._table: Table | None = None
        self._statement: Statement | None = None
        self._votes: dict[bytes, Vote] = {}  # by key of the table; not judged until there is a statement
        self._proposed = False
        self.attempts_dropped: Counter[str] = Counter()  # by reason, over the whole life
        self.votes_refused: Counter[str] = Counter()  # by reason, over the whole life

    # What is.

    @property
    def phase(self) -> Phase:
        """Where the round is."""
        if self._missing:
            return Phase.BEHIND
        if self.round > self._manifest.num_rounds:
            return Phase.FINISHED
        if self._statement is not None:
            return Phase.PROPOSED
        if self._table is not None:
            return Phase.REDUCING
        if self._current is not None:
            return Phase.CLOSED
        return Phase.TRAINING

    @property
    def round(self) -> int:
        """The round after the newest commit known."""
        return self._newest.round + 1

    @property
    def last_commit(self) -> bytes:
        """Digest of the newest commit known; the run's id before the first."""
        return self._newest.commit

    @property
    def held(self) -> Standing | None:
        """Where the state that the caller holds stands; None while it holds none."""
        return self._held

    @property
    def state(self) -> bytes | None:
        """Digest of the state that the caller holds."""
        return self._held.state if self._held else None

    @property
    def missing(self) -> tuple[Standing, ...]:
        """The commits after ``held``, oldest first: to be reached by ``caught_up``, each in turn by its mean, or any by its state.

        A mean leads on only from the round just before it; where rounds are skipped, a state is needed.
        """
        return self._missing

    @property
    def samples(self) -> int:
        """Samples that this peer has for ``round``: trained so far, or frozen; 0 if the lots of its claim are gone."""
        if self._current is None:
            return self._samples
        return self._current.samples if self._has_lots else 0

    @property
    def claim(self) -> SignedClaim | None:
        """The claim frozen for ``round``."""
        return self._claim if self._current is not None else None

    @property
    def can_join(self) -> bool:
        """May it look for a group: CLOSED, with the lots of its claim."""
        return self.phase is Phase.CLOSED and self._has_lots

    @property
    def attempt(self) -> bytes | None:
        """The id of the attempt under way."""
        return self._table.attempt if self._table else None

    @property
    def table(self) -> Table | None:
        """The table of the attempt under way."""
        return self._table

    @property
    def statement(self) -> Statement | None:
        """The own statement: only when PROPOSED."""
        return self._statement

    @property
    def proposal(self) -> Proposal | None:
        """The proposal with the votes so far; None without a quorum. To be offered again while no log answers."""
        if self._statement is None or self._table is None or len(self._votes) < quorum(len(self._table.claims)):
            return None
        return Proposal(self._statement, self._table.claims, tuple(vote for _, vote in sorted(self._votes.items())))

    # Lots and claim.

    def lot_trained(self, round: int, samples: int) -> bool:
        """Count a lot of ``round``; False: it came after its round was closed, and its gradient must be dropped. Any phase.

        Raises:
            ValueError: no samples, or a round that has not begun.
        """
        if samples < 1 or round > self.round:
            raise ValueError(f"a lot of {samples} samples for round {round} while round {self.round} is open")
        if self.phase is not Phase.TRAINING or round != self.round:
            return False
        self._samples += samples
        return True

    def should_close(self, swarm_samples: int, now_ms: int, opened_ms: int) -> bool:
        """Is it time to freeze: TRAINING, something trained, and the target is reached, or the deadline.

        ``swarm_samples`` is the sum over all peers, the own included, of each one's samples after the manifest's cap (as in tables);
        ``opened_ms`` is the time of the commit before.
        """
        return self._may_claim() and self._samples > 0 and self._is_due(swarm_samples, now_ms, opened_ms)

    def freeze(self, claim: SignedClaim) -> bool:
        """TRAINING -> CLOSED. False: the claim's round was committed meanwhile, its lots are stale and already reported as lost.

        From here on the claim's lots are untouchable. Store the two durably before the claim is sent.

        Raises:
            RuntimeError: not TRAINING, this key has claimed this round before, or the claim is not of exactly the lots trained.
        """
        opened = claim.open()
        if opened.round < self.round:
            return False
        if not self._may_claim():
            raise RuntimeError(f"a claim for round {opened.round} cannot be frozen while {self.phase.value}")
        if (opened.run, opened.round, opened.last_commit, opened.key) != (self._run, self.round, self.last_commit, self._key):
            raise RuntimeError("the claim is not this peer's for this round")
        if opened.samples != self._samples:
            raise RuntimeError(f"the claim says {opened.samples} samples, trained were {self._samples}")
        self._claim, self._own, self._lots_kept, self._samples = claim, opened, True, 0
        return True

    def restore(self, claim: SignedClaim, *, lots_kept: bool) -> None:
        """After a restart: the newest claim of the store, whatever its round. Before any lot is trained, or BEHIND.

        Of the current round: CLOSED, as it was. Of a later one (the state held is older): CLOSED when that round is reached, and no other
        claim until then. Of a past one: without effect. Without its lots (``lots_kept=False``) the peer joins no group until they are
        ``retrained``, or the round is over: a second, different claim for one round counts as fraud.

        Raises:
            RuntimeError: another run's or peer's claim, or lots have been trained or claimed since.
        """
        opened = claim.open()
        if (opened.run, opened.key) != (self._run, self._key):
            raise RuntimeError("the stored claim is another run's or another peer's")
        if self._own is not None or self._samples:
            raise RuntimeError("a claim is restored before lots are trained")
        self._claim, self._own = claim, opened
        self._lots_kept = lots_kept

    def retrained(self) -> None:
        """CLOSED, the lots of the restored claim gone: the caller has trained them anew. The claim stays as it is.

        That is possible because a lot follows from the run's seed, the round, the cohort, the key and its index, and an audit allows
        for the last bits. Without it a swarm that lost all its lots at once would never end its round.

        Raises:
            RuntimeError: there is no such claim.
        """
        if self.phase is not Phase.CLOSED or self._lots_kept:
            raise RuntimeError(f"no lots to train anew while {self.phase.value}")
        self._lots_kept = True

    # An attempt.

    def settled_table(self, attempt: bytes, claims: Sequence[SignedClaim]) -> Table:
        """Return ``Table.settle`` for the current round; the own claim is not required yet. Any phase.

        Raises:
            RemoteFault: as ``Table.settle``.
        """
        return Table.settle(attempt, claims, manifest=self._manifest, run=self._run, round=self.round, last_commit=self.last_commit)

    def may_start(self, table: Table, now_ms: int, opened_ms: int) -> bool:
        """May ``settle(table)`` follow: CLOSED, the own claim at the table, and its samples reach the target, or the deadline."""
        return self._fits(table) and self._is_due(table.samples, now_ms, opened_ms)

    def settle(self, table: Table) -> None:
        """CLOSED -> REDUCING. The caller averages a copy of the frozen lots.

        Raises:
            RuntimeError: not CLOSED, the lots are gone, or the table is of another round or without the own claim.
        """
        if not self._fits(table):
            raise RuntimeError(f"this table cannot be settled while {self.phase.value} in round {self.round}")
        self._table = table

    def agree(self, attempt: bytes, mean: bytes, state: bytes) -> Statement:
        """REDUCING -> PROPOSED; returns what to sign. The own vote then goes to the group and through ``receive_vote``.

        Args:
            mean: digest of the mean that the group reduced.
            state: digest of the own copy, the held state updated by that mean.

        Raises:
            AttemptFailed: the attempt is not under way any more (dropped, or overtaken by a commit): drop the copy.
            RuntimeError: a statement has been made in this attempt before.
        """
        if self._table is None or attempt != self._table.attempt:
            raise AttemptFailed("the attempt was dropped or overtaken before its end")
        if self._statement is not None:
            raise RuntimeError("one attempt, one statement")
        self._statement = Statement(self._run, self.round, self.last_commit, self._table.digest, mean, state)
        early, self._votes = self._votes, {}
        for vote in early.values():
            self._judge(self._statement, vote)
        return self._statement

    def receive_vote(self, attempt: bytes, vote: Vote) -> Proposal | None:
        """Count a vote, the own one included; returns the proposal with the first vote that finds a quorum, once. Any phase.

        The caller makes sure that the sender *is* ``vote.key``: before the own statement one vote a member is kept unjudged, and
        ``agree`` then counts or drops it. A vote for no attempt under way (late, or far too early) and a repeated one are only tallied.

        Raises:
            VoteError: the sender is not at the table, or did not sign the own statement.
        """
        if self._table is None or attempt != self._table.attempt:
            self.votes_refused["late"] += 1
            return None
        if vote.key not in self._table.keys:
            self.votes_refused["stranger"] += 1
            raise VoteError("a vote from outside the table")
        if vote.key in self._votes:
            self.votes_refused["twice"] += 1
            return None
        if self._statement is None:
            self._votes[vote.key] = vote
            return None
        if not self._judge(self._statement, vote):
            raise VoteError("a vote on another statement than ours")
        if self._proposed:
            return None
        proposal = self.proposal
        self._proposed = proposal is not None
        return proposal

    def fail(self, attempt: bytes, reason: str) -> bool:
        """REDUCING, PROPOSED -> CLOSED: the attempt is dropped whole, the claim stays. False: it was not under way any more. Any phase."""
        if self._table is None or attempt != self._table.attempt:
            return False
        self.attempts_dropped[reason] += 1
        self._clear_attempt()
        return True

    # The log.

    def committed(self, round_: Round) -> Commit:
        """Take note that the log has ``round_``. Any phase.

        Raises:
            LedgerError: it contradicts a commit known before, is of another run, or beyond the last round. Nothing changed.
        """
        standing = Standing.after(round_)
        self._check_history(round_, standing)
        if standing.round < self.round:
            return Commit(CommitKind.STALE, standing, False, 0)
        counted, lost = self._account(standing.round, round_.claims)
        mine, theirs = self._statement, round_.statement
        if mine is not None and (mine.round, mine.state) == (theirs.round, theirs.state):
            self._held, kind = standing, CommitKind.APPLY
        else:
            self._missing, kind = (*self._missing, standing), CommitKind.FETCH
            if self._table is not None:
                self.attempts_dropped["disagreed" if mine is not None and mine.table == theirs.table else "overtaken"] += 1
        self._samples = 0
        self._clear_attempt()
        return Commit(kind, standing, counted, lost)

    def caught_up(self, state: bytes) -> None:
        """BEHIND: the caller now holds ``state``, that of one of ``missing``. If it is the newest the round goes on, else still BEHIND.

        Raises:
            RuntimeError: no missing commit has this state.
        """
        states = [standing.state for standing in self._missing]
        if state not in states:
            raise RuntimeError("no missing commit has this state")
        place = states.index(state)
        self._held, self._missing = self._missing[place], self._missing[place + 1 :]

    # What the methods above share.

    @property
    def _newest(self) -> Standing:
        newest = self._missing[-1] if self._missing else self._held
        assert newest is not None  # from the constructor on there is one or the other
        return newest

    @property
    def _current(self) -> Claim | None:
        """The own claim, if it is for the current round."""
        return self._own if self._own is not None and self._own.round == self.round else None

    @property
    def _has_lots(self) -> bool:
        """Are the lots of the current claim here, and of use: a stored claim may stand on a commit that the log never kept."""
        return self._current is not None and self._lots_kept and self._current.last_commit == self.last_commit

    def _may_claim(self) -> bool:
        return self.phase is Phase.TRAINING and (self._own is None or self._own.round < self.round)

    def _is_due(self, samples: int, now_ms: int, opened_ms: int) -> bool:
        return samples >= self._manifest.target_batch or now_ms - opened_ms >= self._manifest.round_deadline_ms

    def _fits(self, table: Table) -> bool:
        return self.can_join and self._claim in table.claims  # a table is of one round: the own claim's

    def _judge(self, statement: Statement, vote: Vote) -> bool:
        try:
            check_vote(statement, vote)
        except SignatureError:
            self.votes_refused["other statement"] += 1
            return False
        self._votes[vote.key] = vote
        return True

    def _clear_attempt(self) -> None:
        self._table, self._statement, self._votes, self._proposed = None, None, {}, False

    def _check_history(self, round_: Round, standing: Standing) -> None:
        if round_.statement.run != self._run:
            raise LedgerError("a commit of another run")
        if standing.round > self._manifest.num_rounds:
            raise LedgerError(f"a commit of round {standing.round} in a run of {self._manifest.num_rounds}")
        known = (*self._missing, *((self._held,) if self._held else ()))
        if any(standing.round == one.round and standing.commit != one.commit for one in known):
            raise LedgerError(f"two commits of round {standing.round}")
        if any(standing.round == one.round + 1 and round_.statement.last_commit != one.commit for one in known):
            raise LedgerError(f"the commit of round {standing.round} does not follow the one known before it")

    def _account(self, round: int, claims: tuple[bytes, ...]) -> tuple[bool | None, int]:
        """Return whether the own claim is in the commit of ``round``, and how many of this peer's samples are now lost."""
        if self._claim is None or self._own is None or self._own.round < self.round or self._own.round > round:
            return False, self._samples
        if self._own.round < round:
            return None, self._samples
        if self._claim.digest in claims:
            return True, self._samples
        return False, self._samples + self._own.samples
