"""The round as one peer sees it: a pure state machine.

The caller says what happened (a microbatch trained, a contribution signed, an inclusion promise or a commit received), the answer says what
it means. No I/O, no clock, no tensors, no private key: the caller keeps vector, body and state, signs, and sends.

    BEHIND ──caught_up──> WORKING ──sign, restore──> SIGNED ──promised, accepted──> PROMISED ──committed──> BEHIND of the next round
    FINISHED: the state of the last round is held

A commit that comes while there is work that has no inclusion promise takes nothing away: the work stays what it is, on its old base, and is
handed in for a later round, until it is too old. So a slow peer's microbatches count too.

What is signed is this peer's contribution alone, which nobody else is needed for. Its claim may stand in the cohort's as well, whatever the
cohort does with it: the inclusion promise of either is a promise that the claim is in a table, once (``accepted``).

What holds at every moment, whatever is lost, late, doubled or false: ``held`` is a commit of the log (or the run's start); a signed
contribution stays the same bytes until its claim is in the log or too old; no second one is made on its base, unless the log refused it for
good, or it may not be handed in alone and its cohort fell apart: if both come to the log, one of them counts.

Two things remain the caller's duty. A signed contribution and its body are stored durably *before* its header or its claim is first sent,
and come back through ``restore``. And a ``Round`` given to ``committed`` has been checked against the log (receipt).
"""

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Contribution, Header, InclusionPromise, Round, commit_digest, entry_of
from manta_swarm.protocol.rewards import TrainingSpec
from manta_swarm.protocol.signed import Signed

_MAX_MISSING = 1024  # commits after the one held that are remembered: so many may come while a state is being fetched


class PeerStage(Enum):
    """Where a peer's round is; see the module's drawing."""

    BEHIND = "behind"  # the log has a commit whose state is not held yet: fetch what leads there
    WORKING = "working"
    SIGNED = "signed"  # a contribution is ready and has no inclusion promise: hand it in
    PROMISED = "promised"  # it has one, or is in a table already: wait for the commit
    FINISHED = "finished"  # the last round's state is held


@dataclass(frozen=True, slots=True)
class CommitRef:
    """What a base is known by: a commit, or the start of the run, and the state after it."""

    round: int
    commit: bytes  # the run's id before the first round
    state: bytes  # digest
    min_exponent: int  # of the exponents of bodies on this base
    entry: Round | None  # None at the run's start

    @classmethod
    def start(cls, manifest: Manifest, run: bytes) -> "CommitRef":
        """Return where a run begins."""
        return cls(0, run, manifest.initial_state, manifest.exchange.first_min_exponent, None)

    @classmethod
    def after(cls, round_: Round) -> "CommitRef":
        """Return where a committed round leads."""
        return cls(round_.round, commit_digest(entry_of(round_)), round_.state, round_.min_exponent, round_)


@dataclass(frozen=True, slots=True)
class SignedWork:
    """A peer's work on one base that is not in the log yet, as far as the peer knows."""

    header: Header  # of this peer alone
    opened: Contribution  # the header's
    claim: bytes  # digest of the one claim in it: whatever contribution lists that one counts this work
    samples: int
    accepted: Signed[Contribution] | None = None  # its cohort's, if that has the inclusion promise

    @property
    def handed_in(self) -> Signed[Contribution]:
        """The contribution that has the inclusion promise, as far as this peer knows."""
        return self.accepted or self.header.contribution


@dataclass(frozen=True, slots=True)
class CommitEffect:
    """What a commit means for this peer."""

    is_news: bool  # else nothing changed
    commit_ref: CommitRef
    promised: SignedWork | None  # its inclusion promise was for this round or one before: its claim has to be in the log
    samples_lost: int  # of contributions and microbatches that no round can take any more
    inclusion_promise: InclusionPromise | None = None  # of what was promised


class RoundMachine:
    """One peer's view of its run, round after round.

    Methods that only ask may be called in any stage. What the caller may get wrong alone raises RuntimeError or ValueError; what only came
    too late is an answer, not an error.
    """

    def __init__(self, manifest: Manifest, run: bytes, key: bytes, training_spec: TrainingSpec, held: CommitRef | None = None) -> None:
        """Stand on ``held``, whose state the caller holds; with None it holds no state yet and is BEHIND the run's start."""
        self._manifest = manifest
        self._run = run
        self._key = key
        self._training_spec = training_spec
        self._held = held
        self._missing: tuple[CommitRef, ...] = () if held else (CommitRef.start(manifest, run),)  # commits after ``held``, oldest first
        self._base: CommitRef | None = held  # of the work under way
        self._samples = 0
        self._under_way = 0  # microbatches that were started and have not come back
        self._begun_at = 0  # the newest round when that work began
        self._fetch_took_long = False  # so long that there are newer commits than the one held: work on that one before the next fetch
        self._least_base = 0  # the round of a commit that the next contribution may stand on
        self._signed: SignedWork | None = None
        self._inclusion_promise: InclusionPromise | None = None
        self.dropped: Counter[str] = Counter()  # contributions that came to nothing, by reason, over the whole life

    # What is.

    @property
    def stage(self) -> PeerStage:
        """What there is to do, the most urgent first."""
        if self._signed is not None and self._inclusion_promise is None:
            return PeerStage.SIGNED
        if self._signed is None and (self.is_overdue or self._works_behind):
            return PeerStage.WORKING
        if self._missing or self._held is None:
            return PeerStage.BEHIND
        if self._is_over:
            return PeerStage.FINISHED
        if self._signed is not None or self._held.round < self._least_base:
            return PeerStage.PROMISED
        return PeerStage.WORKING

    @property
    def newest(self) -> CommitRef:
        """The newest commit known."""
        newest = self._missing[-1] if self._missing else self._held
        assert newest is not None  # from the constructor on there is one or the other
        return newest

    @property
    def round(self) -> int:
        """The round after the newest commit known."""
        return self.newest.round + 1

    @property
    def held(self) -> CommitRef | None:
        """Where the state that the caller holds stands; None while it holds none."""
        return self._held

    @property
    def missing(self) -> CommitRef | None:
        """The newest commit, while its state is not held: to be reached by ``caught_up``."""
        return self._missing[-1] if self._missing else None

    @property
    def path(self) -> tuple[CommitRef, ...]:
        """The commits after the one held, as far as they are known, oldest first: the last one is ``missing``."""
        return self._missing

    @property
    def samples(self) -> int:
        """Samples trained and not signed yet."""
        return self._samples

    @property
    def base(self) -> CommitRef | None:
        """What the work under way stands on: older than the newest commit while the work is overdue, or was begun behind."""
        return self._base

    @property
    def is_overdue(self) -> bool:
        """Whether there is work from before the newest commit, or a microbatch of it on its way."""
        return self._begun_at < self.newest.round and (self._samples > 0 or self._under_way > 0)

    @property
    def signed(self) -> SignedWork | None:
        """The contribution that waits for its inclusion promise or its commit."""
        return self._signed

    @property
    def inclusion_promise(self) -> InclusionPromise | None:
        """The inclusion promise of the signed contribution."""
        return self._inclusion_promise

    @property
    def may_work_ahead(self) -> bool:
        """Whether work on the newest base may begin while a contribution on an older base has a promise and waits for its commit."""
        is_aged = self._signed is not None and self._signed.opened.round < self.round
        return self.stage is PeerStage.PROMISED and is_aged and not self.is_overdue

    # Microbatches and contributions.

    def microbatch_started(self, *, to_finish: bool = False) -> CommitRef:
        """WORKING, or working ahead: return the commit whose state the microbatch is to be trained on, or the first local step was.

        Several may be under way, of the same work.

        Args:
            to_finish: work is under way that is not whole without this microbatch, for each local step has one: it may be started in any
                stage.

        Raises:
            RuntimeError: another stage, or work that is overdue would have to wait for this microbatch.
        """
        may_begin = (self.stage is PeerStage.WORKING or self.may_work_ahead) and not self.is_overdue
        if not may_begin and not (to_finish and self._samples > 0):
            raise RuntimeError(f"no microbatch is to be started while {self.stage.value}")
        if self._samples == 0 and self._under_way == 0:
            self._base, self._begun_at = self._held, self.newest.round
        self._under_way += 1
        assert self._base is not None
        return self._base

    def microbatch_trained(self, samples: int) -> bool:
        """Count a microbatch that was started; False: its base is too old by now, and its gradient must be dropped.

        ``samples`` 0: it failed.
        """
        self._under_way = max(0, self._under_way - 1)
        if self._base is None or (self._samples == 0 and not self._fits(self._base.round + 1)):
            return False
        self._samples += samples
        return samples > 0

    def discard(self) -> int:
        """Forget the work that is not signed; return its samples."""
        lost, self._samples = self._samples, 0
        self._fetch_took_long = False
        return lost

    def sign(self, header: Header) -> bool:
        """WORKING -> SIGNED, with the microbatches trained so far. False: they are too old by now, and already reported as lost.

        From here on they are untouchable. Store the contribution durably before its header is sent.

        Raises:
            RuntimeError: there is another one that waits, a microbatch is under way, or the header is not of exactly the microbatches
                trained, alone.
        """
        signed = self._of(header)
        if self._signed is not None:
            raise RuntimeError("a contribution waits already")
        if self._under_way:
            raise RuntimeError("a microbatch is under way")
        if self._base is None or self._samples == 0:
            return False
        base = (signed.opened.round, signed.opened.base)
        if base != (self._base.round + 1, self._base.commit) or signed.samples != self._samples:
            raise RuntimeError("the contribution is not of the microbatches that were trained")
        self._signed, self._inclusion_promise, self._samples = signed, None, 0
        self._least_base = self._base.round
        self._fetch_took_long = False
        return True

    def restore(self, header: Header) -> None:
        """After a restart: the contribution of the store, which may be in the log, be promised there, or be unknown to it.

        One that no round can take any more, as far as is known, changes nothing.

        Raises:
            RuntimeError: another run's or peer's, not alone, or something has been trained or signed since.
        """
        signed = self._of(header)
        if self._signed is not None or self._samples:
            raise RuntimeError("a contribution is restored before microbatches are trained")
        if self._fits(signed.opened.round):
            self._signed, self._inclusion_promise = signed, None
        self._least_base = signed.opened.round - 1  # those on commits before it were made, and stand on the history that it stands on

    def promised(self, inclusion_promise: InclusionPromise) -> None:
        """SIGNED -> PROMISED: the log has it on its disk. An inclusion promise for something else, or a late one, changes nothing."""
        signed = self._signed.header.contribution.digest if self._signed is not None else None
        if (
            (inclusion_promise.run, inclusion_promise.contribution) == (self._run, signed)
            and inclusion_promise.round >= self.round
            and self._inclusion_promise is None
        ):
            self._inclusion_promise = inclusion_promise

    def accepted(self, contribution: Signed[Contribution], inclusion_promise: InclusionPromise) -> None:
        """SIGNED -> PROMISED: the log has the cohort's contribution on its disk, which lists the signed claim.

        One that does not list it, or an inclusion promise for something else or a late one, changes nothing; nor does any once there is an
        inclusion promise.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``.
        """
        signed, opened = self._signed, contribution.open()
        if signed is None or self._inclusion_promise is not None or opened.run != self._run or signed.claim not in opened.claims:
            return
        if (inclusion_promise.run, inclusion_promise.contribution) == (
            self._run,
            contribution.digest,
        ) and inclusion_promise.round >= self.round:
            self._signed, self._inclusion_promise = replace(signed, accepted=contribution), inclusion_promise

    def listed(self) -> int:
        """The log says that the signed claim is in a table already; return its samples. Its commit may still have to come."""
        if self._signed is not None:
            self._least_base = self._signed.opened.round
        return self._drop()

    def refused(self, reason: str) -> int:
        """The log will never take the signed contribution: drop it, return the samples lost."""
        lost = self._drop()
        if lost:
            self.dropped[reason] += 1
        return lost

    # The log.

    def committed(self, round_: Round) -> CommitEffect:
        """Take note that the log has ``round_``. Any stage.

        Raises:
            LedgerError: it contradicts a commit known before, is of another run, or beyond the last round. Nothing changed.
        """
        commit_ref = CommitRef.after(round_)
        self._check_history(round_, commit_ref)
        if commit_ref.round <= self.newest.round:
            return CommitEffect(False, commit_ref, None, 0)
        self._missing = (*self._missing, commit_ref)[-_MAX_MISSING:]
        promised, inclusion_promise, lost = None, None, 0
        if self._signed is not None:
            if self._inclusion_promise is not None and self._inclusion_promise.round <= commit_ref.round:
                promised, inclusion_promise = self._signed, self._inclusion_promise
                self.listed()
            elif self._is_over:
                lost += self.refused("the run was over")
            elif self._inclusion_promise is None and not self._fits(self._signed.opened.round):
                lost += self.refused("too old")
        if self._samples and self._base is not None and not self._fits(self._base.round + 1):
            lost += self.discard()
        return CommitEffect(True, commit_ref, promised, lost, inclusion_promise)

    def caught_up(self, state: bytes, *, took_long: bool = False) -> None:
        """BEHIND: the caller now holds ``state``, that of ``missing`` as it was when the caller began: the log may be further by now.

        Args:
            state: its digest.
            took_long: fetching it took about as long as a round. A peer that always fetched the newest state before it works would then
                never work. So if the log is further by now, it is WORKING first, on what it just reached: what it signs counts with its
                age. Without this, or once that is too old, it is BEHIND again.

        Raises:
            RuntimeError: no commit after the one held has this state.
        """
        states = [commit_ref.state for commit_ref in self._missing]
        if state not in states:
            raise RuntimeError("no commit after the one held has this state")
        place = states.index(state)
        self._held, self._missing = self._missing[place], self._missing[place + 1 :]
        self._fetch_took_long = took_long

    # What the methods above share.

    @property
    def _is_over(self) -> bool:
        return self.newest.round >= self._manifest.num_rounds

    @property
    def _works_behind(self) -> bool:
        """Is there to be worked on the commit held, though it is not the newest one."""
        held = self._held
        return self._fetch_took_long and held is not None and self._least_base <= held.round and self._fits(held.round + 1)

    def _fits(self, round: int) -> bool:
        """May a contribution for ``round`` still count, in the round after the newest commit."""
        if self._is_over or self.round - round > MAX_AGE:
            return False
        return not any(self._training_spec.sorts_after(between) for between in range(round, self.round))

    def _drop(self) -> int:
        samples = self._signed.samples if self._signed else 0
        self._signed, self._inclusion_promise = None, None
        return samples

    def _of(self, header: Header) -> SignedWork:
        opened, claims = header.contribution.open(), [signed.open() for signed in header.claims]
        if opened.run != self._run or opened.founder != self._key or [claim.key for claim in claims] != [self._key]:
            raise RuntimeError("the contribution is another run's or another peer's, or not of this peer alone")
        return SignedWork(header, opened, header.claims[0].digest, claims[0].microbatches * self._manifest.microbatch_samples)

    def _check_history(self, round_: Round, commit_ref: CommitRef) -> None:
        if round_.run != self._run:
            raise LedgerError("a commit of another run")
        if commit_ref.round > self._manifest.num_rounds:
            raise LedgerError(f"a commit of round {commit_ref.round} in a run of {self._manifest.num_rounds}")
        for known in (self._held, *self._missing):
            if known is not None and commit_ref.round == known.round and commit_ref.commit != known.commit:
                raise LedgerError(f"two commits of round {commit_ref.round}")
            if known is not None and commit_ref.round == known.round + 1 and round_.base != known.commit:
                raise LedgerError(f"the commit of round {commit_ref.round} does not follow the one known before it")
