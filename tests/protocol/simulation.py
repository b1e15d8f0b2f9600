"""The log and the peers of a run in memory, for rounds under chance: real keys, signatures and ledger, and an abstract gradient.

A microbatch is a number of its own, a body, a residual and a state are digests of what they came from. ``Peer`` and ``Log`` do what the
real programs do, and no more; what becomes durable where is said there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from manta_swarm.protocol.closing import Closing, NotTaken
from manta_swarm.protocol.errors import ClaimError, LedgerError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import open_ms_after, weighed_in
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Claim, Contribution, Header, InclusionPromise, Round, entry_of
from manta_swarm.protocol.rounds import CommitRef, PeerStage, RoundMachine, SignedWork
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Digest, Identity, sha256
from manta_swarm.protocol.table import weights, weights_root
from manta_swarm.protocol.verified import Verified
from tests.claim_steps import all_of, means_of, steps_of
from tests.runs import EXCHANGE, FixedTrainingSpec, manifest_of

OPERATOR = Identity(sha256(b"operator"))
IDENTITIES = [Identity(sha256(b"peer %d" % i)) for i in range(6)]
CHEAT = Identity(sha256(b"cheat"))
_MANIFEST = manifest_of(OPERATOR, num_rounds=1_000, exchange=replace(EXCHANGE, codec="topk-256-4"))
SIGNED_MANIFEST = SignedManifest.sign(_MANIFEST, OPERATOR)
MANIFEST, RUN = SIGNED_MANIFEST.open(), SIGNED_MANIFEST.run
TRAINING_SPEC = FixedTrainingSpec(sorts=frozenset(range(9, 1_000, 10)))
VERIFIED = Verified()


def opened(header: Header) -> Contribution:
    """The contribution of a header, its signature checked once."""
    return VERIFIED.contribution(header.contribution)


def claims_in(header: Header) -> list[Claim]:
    """Its claims, their signatures checked once."""
    return [VERIFIED.claim(signed) for signed in header.claims]


def next_state(state: bytes, table: bytes) -> Digest:
    """The abstract state after a round."""
    return sha256(state + table)


def body_of(work: bytes) -> bytes:
    """The abstract body that comes of some work."""
    return b"body" + work


def claim_of(
    identity: Identity, base: CommitRef, microbatches: int, *, founder: bytes | None = None, residual: bytes = b""
) -> Signed[Claim]:
    """A claim of some microbatches on ``base``; ``founder``: whom it names, else itself."""
    root, key = sha256(b"microbatches %d" % microbatches), identity.public_key
    steps = steps_of((microbatches, 0), base.commit, key)
    claim = Claim(RUN, base.round + 1, base.commit, key, key, founder or key, "home", steps, (microbatches, 0), root, residual, 10)
    return Signed.sign(claim, identity)


def listing(claims: Iterable[Signed[Claim]], founder: Identity, body: bytes) -> Header:
    """What a founder hands in of claims on one base."""
    ordered = sorted(claims, key=lambda signed: VERIFIED.claim(signed).key)
    first, digests = VERIFIED.claim(ordered[0]), tuple(signed.digest for signed in ordered)
    included, steps = all_of(ordered), means_of([VERIFIED.claim(signed) for signed in ordered])
    contribution = Contribution(
        RUN, first.round, first.base, founder.public_key, digests, included, steps, sha256(body), sha256(b"left" + body)
    )
    return Header(Signed.sign(contribution, founder), tuple(ordered))


@dataclass
class Answer:
    """What the log says to a header or a body."""

    contribution: bytes
    inclusion_promise: InclusionPromise | None = None
    wants_body: bool = False
    listed_in: int | None = None
    without: tuple[bytes, ...] = ()  # whose claims are to be left out
    refused: str = ""  # for good; all else may be tried again


@dataclass
class Kept:
    """A contribution as the log stores it."""

    round: int
    header: Header
    body: bytes


@dataclass
class LogRecord:
    """The test's own record of what the log did over all its lives; the log never looks at it."""

    inclusion_promises: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))  # contribution -> rounds
    headers: dict[bytes, Header] = field(default_factory=dict)  # of those


class Log:
    """Intake and commits of the one log. What it keeps in memory dies with a crash; ``entries``, ``rounds`` and ``stored`` do not."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.rounds: list[Round] = []
        self.tables: list[dict[bytes, Header]] = []  # by contribution
        self.stored: list[Kept] = []
        self.record = LogRecord()
        self.now = 1_000
        self.start()

    def start(self) -> None:
        self.alive = True
        self.ledger = Ledger(SIGNED_MANIFEST, TRAINING_SPEC, VERIFIED)
        for entry in self.entries:
            self.ledger.append(entry)
        self.closing = Closing(MANIFEST.exchange.max_rows)
        self.handed: dict[bytes, Kept] = {}  # with its body once that came
        self.checking: list[bytes] = []
        self.unsynced: list[bytes] = []
        self.closed: tuple[bytes, ...] | None = None
        self.open()
        for kept in self.stored:
            if kept.round > self.ledger.round:
                digest, listed = kept.header.contribution.digest, self.ledger.listed(kept.header, kept.round)
                self.handed[digest] = kept
                self.closing.restore(listed.founder, listed.by_key, listed.round, digest, kept.round, self.now)

    def crash(self) -> None:
        self.alive = False

    def open(self) -> None:
        round_ = self.ledger.round + 1
        self.closing.open(round_, self.ledger.open_ms, self.ledger.last_keys, self.now if round_ > 1 else None)

    def take_header(self, header: Header, sender: bytes) -> Answer:
        digest, claims = header.contribution.digest, claims_in(header)
        listed_in = self.ledger.claim_listed(sender, claims[0].round)
        if listed_in is not None:
            return Answer(digest, listed_in=listed_in)
        round_ = self.closing.round_for_header(digest, self.now)
        try:
            listed = self.ledger.listed(header, round_)
        except ClaimError as error:
            return Answer(digest, without=error.keys) if len(claims) > 1 else Answer(digest, refused=str(error))
        except LedgerError as error:
            return Answer(digest, refused=str(error))
        try:
            taken_for = self.closing.header(listed.founder, listed.by_key, listed.round, digest, self.now, sender)
            assert taken_for == round_  # for which it was checked
        except NotTaken as error:
            return Answer(digest, without=() if sender in error.keys else error.keys)
        if self.closing.is_good(digest) and digest not in self.unsynced:
            return self.inclusion_promise(digest)
        if digest not in self.handed or not self.handed[digest].body:
            self.handed[digest] = Kept(round_, header, b"")
        return Answer(digest, wants_body=True)

    def take_body(self, digest: bytes, body: bytes) -> Answer:
        kept = self.handed.get(digest)
        if kept is None:
            return Answer(digest)
        try:
            self.closing.arrived(digest, self.now)
        except NotTaken:
            return Answer(digest)
        if not kept.body:
            kept.body = body
            self.checking.append(digest)
        return Answer(digest)  # the inclusion promise follows after the sync

    def check(self, place: int) -> None:
        """A body's check is over."""
        digest = self.checking.pop(place)
        kept = self.handed[digest]
        if sha256(kept.body) == opened(kept.header).body:
            self.closing.good(digest)
            self.unsynced.append(digest)
        else:
            self.closing.bad(digest)
            del self.handed[digest]

    def sync(self) -> list[bytes]:
        """A sync is over: what waited is durable from here on, and has an inclusion promise."""
        synced, self.unsynced = self.unsynced, []
        for digest in synced:
            round_ = self.closing.round_of(digest)
            assert round_ is not None
            self.handed[digest].round = round_
            self.stored.append(self.handed[digest])
        return synced

    def inclusion_promise(self, digest: bytes) -> Answer:
        round_ = self.closing.round_of(digest)
        assert round_ is not None
        self.record.inclusion_promises[digest].add(round_)
        self.record.headers[digest] = self.handed[digest].header
        return Answer(digest, InclusionPromise(RUN, round_, digest))

    def tick(self) -> None:
        closed = self.closing.tick(self.now)
        assert closed is None or self.closed is None
        self.closed = closed or self.closed

    def commit(self) -> Round:
        """The transaction of a closed round; the ledger takes all of it, whatever the contributions are."""
        assert self.closed is not None
        headers = [self.handed[digest].header for digest in self.closed]
        listed = [self.ledger.listed(header, self.ledger.round + 1) for header in headers]
        found = weights([one.weighing for one in listed])
        table = weights_root(weighed_in(listed, found, found))
        round_ = Round(
            run=RUN,
            round=self.ledger.round + 1,
            base=self.ledger.last_commit,
            first=self.ledger.size,
            contributions=len(listed),
            weights=table,
            mean=table,
            state=next_state(self.ledger.state, table),
            thresholds=(),
            min_exponent=self.ledger.min_exponent_at(self.ledger.round),
            open_ms=open_ms_after(MANIFEST.exchange, self.ledger.open_ms, listed),
        )
        entries, ledger = [*map(entry_of, headers), entry_of(round_)], self.ledger.copy()
        for entry in entries:
            ledger.append(entry)
        self.entries += entries
        self.rounds.append(round_)
        self.tables.append(dict(zip(self.closed, headers, strict=True)))
        self.ledger, self.closed = ledger, None
        return round_

    def after_commit(self) -> None:
        self.open()
        for digest in [digest for digest in self.handed if self.closing.round_of(digest) is None]:
            del self.handed[digest]

    def commit_ref(self, round: int) -> CommitRef:
        return CommitRef.after(self.rounds[round - 1]) if round else CommitRef.start(MANIFEST, RUN)

    def row_with(self, claim: bytes, round: int) -> Header | None:
        """The contribution in a round's table that lists a claim."""
        return next((header for header in self.tables[round - 1].values() if claim in opened(header).claims), None)


@dataclass
class History:
    """The test's own record of a peer, over all its lives; the peer never looks at it."""

    states: set[bytes] = field(default_factory=set)
    stored: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))  # contributions by the round of their base
    refused: set[bytes] = field(default_factory=set)


class Peer:
    """A peer's loop. What it keeps in memory dies with a crash; ``kept``, ``left`` and ``snapshots`` do not."""

    def __init__(self, identity: Identity, steps: int) -> None:
        self.identity, self.key = identity, identity.public_key
        self.steps = steps  # microbatches that it needs at least before it signs
        self.names = self.key  # the founder whom its next claim names
        self.kept: tuple[Header, bytes] | None = None  # its contribution, with the body
        self.left: tuple[bytes, int] | None = None  # the residual of its last contribution, and the round that listed it; None: not known
        self.snapshots = [CommitRef.start(MANIFEST, RUN)]
        self.history = History()
        self.num_microbatches = self.life = 0
        self.start(self.snapshots[0])

    def start(self, held: CommitRef | None) -> None:
        self.alive = True
        self.life += 1
        self.machine = RoundMachine(MANIFEST, RUN, self.key, TRAINING_SPEC, held)
        self.state = held.state if held else None  # stands for the weights themselves
        self.microbatches: list[int] = []  # trained, not signed
        self.microbatch: CommitRef | None = None  # what the microbatch under way is trained on
        self.offered: dict[bytes, dict[bytes, Signed[Claim]]] = defaultdict(dict)  # claims that name it as their founder: by base, by key
        self.together: dict[bytes, tuple[Header, bytes]] = {}  # its cohorts' contributions, with their bodies
        self.has_tried_cohort = False
        if self.kept is not None:
            self.machine.restore(self.kept[0])

    def crash(self) -> None:
        self.alive = False

    # Microbatches.

    @property
    def may_begin_microbatch(self) -> bool:
        machine = self.machine
        may = machine.stage is PeerStage.WORKING and not machine.is_overdue
        return self.microbatch is None and (may or machine.may_work_ahead or self.has_to_finish)

    @property
    def has_to_finish(self) -> bool:
        return 0 < len(self.microbatches) < self.steps

    def begin_microbatch(self) -> None:
        self.microbatch = self.machine.microbatch_started(to_finish=self.has_to_finish)
        assert self.microbatches or self.microbatch.state == self.state
        assert not self.microbatches or self.microbatch == self.machine.base

    def end_microbatch(self, is_done: bool = True) -> None:
        self.microbatch = None
        self.num_microbatches += 1
        if self.machine.microbatch_trained(MANIFEST.microbatch_samples if is_done else 0):
            self.microbatches.append(self.num_microbatches)

    # What is signed.

    @property
    def may_sign(self) -> bool:
        return self.microbatch is None and self.machine.stage is PeerStage.WORKING and len(self.microbatches) >= self.steps

    def draft(self) -> tuple[Header, bytes]:
        base = self.machine.base
        assert base is not None
        body = body_of(self.key + repr(self.microbatches).encode())
        claim = claim_of(self.identity, base, len(self.microbatches), founder=self.names, residual=self.residual(base))
        return listing([claim], self.identity, body), body

    def residual(self, base: CommitRef) -> bytes:
        """What its last contribution left, if that is known, and nothing was sorted since."""
        if self.left is None or any(TRAINING_SPEC.sorts_after(number) for number in range(self.left[1], base.round + 1)):
            return b""
        return self.left[0]

    def sign(self, draft: tuple[Header, bytes], *, may_store: bool = True) -> None:
        """Sign a draft; a crash before it is stored loses it."""
        if not self.machine.sign(draft[0]):
            assert not self.microbatches
            return
        self.microbatches, self.has_tried_cohort = [], False
        if may_store:
            self.kept, self.left = draft, None  # durable from here on: whether this one will be listed is not known
            self.history.stored[opened(draft[0]).round].add(draft[0].contribution.digest)
        else:
            self.crash()

    @property
    def handing_in(self) -> bytes | None:
        signed = self.machine.signed
        return signed.header.contribution.digest if signed else None

    # Its cohort.

    @property
    def claim(self) -> Signed[Claim]:
        """The signed one."""
        assert self.machine.signed is not None
        return self.machine.signed.header.claims[0]

    def take_claim(self, signed: Signed[Claim]) -> None:
        claim = VERIFIED.claim(signed)
        if claim.founder == self.key:
            self.offered[claim.base][claim.key] = signed

    def make_together(self) -> bytes | None:
        """Founder: make what the cohort hands in; None: nobody consented to it on this base."""
        own = VERIFIED.claim(self.claim)
        others = [signed for key, signed in self.offered[own.base].items() if key != self.key]
        if own.founder != self.key or not others:
            return None
        body = body_of(b"".join(signed.digest for signed in [self.claim, *others]))
        header = listing([self.claim, *others], self.identity, body)
        self.together[header.contribution.digest] = header, body
        return header.contribution.digest

    def leave_out(self, base: bytes, keys: Iterable[bytes]) -> bool:
        """Founder: forget the claims of these; whether anybody was left out."""
        out = [self.offered[base].pop(key, None) for key in keys]
        return any(out)

    def take_together(self, header: Header, body: bytes) -> None:
        """Member: what the founder handed in, which any member may bring."""
        if self.machine.signed is not None and self.claim.digest in opened(header).claims:
            self.together[header.contribution.digest] = header, body

    # The log's answers.

    def hear(self, answer: Answer, log: Log, then: Callable[[], None] | None = None) -> None:
        """Take the log's answer; ``then`` if it wants the body."""
        signed, of_cohort = self.machine.signed, self.together.get(answer.contribution)
        if signed is None or (of_cohort is None and answer.contribution != self.handing_in):
            return  # of something that is settled
        if of_cohort is not None and signed.claim not in opened(of_cohort[0]).claims:
            return
        if answer.inclusion_promise is not None and of_cohort is not None:
            self.machine.accepted(of_cohort[0].contribution, answer.inclusion_promise)
        elif answer.inclusion_promise is not None:
            self.machine.promised(answer.inclusion_promise)
        elif answer.listed_in is not None:
            self.settle(signed, answer.listed_in, log)
            self.machine.listed()
        elif answer.refused and of_cohort is None and self.machine.inclusion_promise is None:
            self.history.refused.add(answer.contribution)
            assert "commits old" in answer.refused or "another order" in answer.refused
            self.machine.refused(answer.refused)
        if answer.wants_body and then is not None:
            then()

    def settle(self, signed: SignedWork, round: int, log: Log) -> None:
        """Its claim is in a table: what that contribution left is its residual now."""
        row = log.row_with(signed.claim, round)
        assert row is not None
        self.left = opened(row).residual, round

    def learn(self, round_: Round, log: Log) -> None:
        """Take a commit that was checked against the log."""
        samples, inclusion_promise, signed = self.machine.samples, self.machine.inclusion_promise, self.machine.signed
        commit = self.machine.committed(round_)
        if not commit.is_news:
            return
        assert self.machine.newest == log.commit_ref(round_.round)
        if commit.promised is not None:
            assert inclusion_promise is not None
            assert (commit.promised, commit.inclusion_promise) == (signed, inclusion_promise)
            self.settle(commit.promised, inclusion_promise.round, log)
        if inclusion_promise is not None:
            assert commit.promised is not None or self.machine.inclusion_promise == inclusion_promise
            assert commit.samples_lost <= samples
        if not self.machine.samples:
            self.microbatches = []

    # States.

    def catch_up(self, log: Log) -> None:
        """Compute the next state, or fetch it where more than a round is missing."""
        held, missing = self.machine.held, self.machine.missing
        assert missing is not None
        state = missing.state
        if held is not None and held.round + 1 == missing.round and self.state is not None:
            state = next_state(self.state, log.rounds[missing.round - 1].weights)
        self.hold(state, missing)

    def fetched(self, commit_ref: CommitRef, *, took_long: bool) -> None:
        """Take a state that was the newest one's when it was asked for."""
        held = self.machine.held
        if held is None or held.round < commit_ref.round:
            self.hold(commit_ref.state, commit_ref, took_long=took_long)

    def hold(self, state: bytes, commit_ref: CommitRef, *, took_long: bool = False) -> None:
        self.machine.caught_up(state, took_long=took_long)
        self.state = state
        self.snapshots.append(commit_ref)
        self.history.states.add(state)
