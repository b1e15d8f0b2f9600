"""What a valid next entry is: the pure fold over a run's entries, from its signed manifest on.

Between two round entries stand the admissions of keys that came in since, and what was taken back; then verdicts, sorted by digest;
then the round's contributions, sorted by founder, each with the claims that it lists: ``(admission | revocation)* verdict* contribution+
round``. After the last round of an audited run stands ``verdict* settlement``. Who is admitted is in at once; verdicts take effect with
the round's entry, or with the settlement. A key's work on one base counts once, and a key stands once in a round. Where local steps are
audited a member's claim whose key may not stand there, or has work on that base elsewhere, is listed unpaid: its vectors are in its
cohort's means, and the others could not know. A claim names the founder of its cohort, and stands in that founder's contribution or alone
in one of its own key: a claim's bytes don't say how it is handed in.

Storage, the Merkle tree, and whether the digests of a round's weights, mean and state, its thresholds and its min exponent are *true* are
the caller's (``aggregator.states.replay`` computes them again). How long a round is open is its leader's word: no time is in the log.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from manta_swarm.protocol.admission import PROVEN, Admission, Revocation
from manta_swarm.protocol.admitted import Admitted
from manta_swarm.protocol.errors import ClaimError, LedgerError
from manta_swarm.protocol.exchange import MAX_AGE, codec_named
from manta_swarm.protocol.listed import (
    NO_RESIDUALS,
    Listed,
    RoundContents,
    Settled,
    Step,
    TakenRound,
    check_list,
    check_steps,
    listed_in,
    paid_once,
    work_fault,
)
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.records import Claim, Contribution, Header, Round, Threshold, commit_digest
from manta_swarm.protocol.reputation import Pools, Reputation
from manta_swarm.protocol.rewards import TrainingSpec, shares_of
from manta_swarm.protocol.signed import Signed, is_signed
from manta_swarm.protocol.signing import Digest
from manta_swarm.protocol.verdicts import Settlement, Verdict
from manta_swarm.protocol.verified import Verified

KEPT_TABLES = 8  # newest tables that are kept whole
MAX_VERDICTS = 2048  # before the contributions of one round

_COPIED = (
    "_commits",
    "_min_exponents",
    "_states",
    "_indices",
    "_contents",
    "_keys",
    "_tables",
    "reputation",
    "admitted",
)


class Ledger:
    """The state that a log's entries add up to. ``append`` either takes an entry or raises and changes nothing."""

    def __init__(self, signed: SignedManifest, training_spec: TrainingSpec, verified: Verified | None = None) -> None:
        """Start the run of ``signed``, which trains by ``training_spec``; ``verified`` may be shared with whoever checks signatures before.

        Raises:
            EncodingError, SignatureError: as ``SignedManifest.open``.
        """
        self.manifest: Manifest = signed.open()
        self.run: Digest = signed.run
        self.training_spec = training_spec
        self.verified = verified or Verified()
        self._size = 0
        self._settlement: int | None = None  # the place of its entry in the log
        self._newest: Round | None = None
        self._commits: list[Digest] = [self.run]  # [r] is the digest of the commit of round r
        self._min_exponents: list[int] = [self.manifest.exchange.first_min_exponent]  # [r] is the min exponent of bodies on that commit
        self._states: list[bytes] = [self.manifest.initial_state]
        self._indices: list[int] = [-1]  # [r] is the place of the round's entry in the log
        self._contents = RoundContents()
        self._keys: deque[frozenset[tuple[bytes, int]]] = deque(maxlen=MAX_AGE + 1)  # (key, round of its base + 1) of the newest tables
        self._tables: deque[tuple[Listed, ...]] = deque(maxlen=KEPT_TABLES)
        pools = Pools(self.manifest.work_pool, self.manifest.audit_pool, self.manifest.credit_cap)
        self.reputation = Reputation(self.manifest.audit_rules, pools)  # who is proven, and what all have earned; to be read only
        self.admitted = Admitted(self.manifest, self.run)

    def copy(self) -> "Ledger":
        """Return a ledger in the same state that can go another way."""
        other = Ledger.__new__(Ledger)
        other.__dict__.update(self.__dict__)
        for name in _COPIED:
            setattr(other, name, getattr(self, name).copy())
        return other

    @property
    def size(self) -> int:
        """The number of entries."""
        return self._size

    @property
    def round(self) -> int:
        """The last committed round; 0 before the first."""
        return len(self._commits) - 1

    @property
    def newest(self) -> Round | None:
        """The newest round entry; None before the first."""
        return self._newest

    @property
    def last_commit(self) -> Digest:
        """The digest of the newest round entry; the run's id before the first."""
        return self._commits[-1]

    @property
    def state(self) -> Digest:
        """The digest of the state that the run stands on."""
        return Digest(self._states[-1])

    @property
    def open_ms(self) -> int:
        """How long the next round is open."""
        return self._newest.open_ms if self._newest else self.manifest.exchange.first_open_ms

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        """What the next table is clipped by."""
        return self._newest.thresholds if self._newest else ()

    @property
    def finished(self) -> bool:
        """Whether the last round of the manifest is committed."""
        return self.round == self.manifest.num_rounds

    @property
    def settled(self) -> bool:
        """Whether all is paid: after the last round, and where contributions are audited, after the settlement."""
        return self.finished if self.reputation.rules is None else self._settlement is not None

    @property
    def settlement(self) -> int | None:
        """The place in the log of the settlement that ends an audited run; None: it is not there."""
        return self._settlement

    @property
    def last_keys(self) -> frozenset[bytes]:
        """The keys of the claims of the last table."""
        return frozenset(key for one in self._tables[-1] for key in one.keys) if self._tables else frozenset()

    @property
    def is_between_rounds(self) -> bool:
        """Whether the newest entry is a round, or there is none."""
        return not self._contents.verdicts and not self._contents.listed

    def commit_at(self, round: int) -> Digest | None:
        """Return the digest of the commit of ``round``, of round 0 the run's id; None if it has not happened."""
        return self._commits[round] if 0 <= round <= self.round else None

    def min_exponent_at(self, round: int) -> int:
        """Return the min exponent of bodies whose base is the commit of ``round``."""
        return self._min_exponents[round]

    def state_at(self, round: int) -> Digest:
        """Return the digest of the state after ``round``."""
        return Digest(self._states[round])

    def index_at(self, round: int) -> int | None:
        """Return the place in the log of a committed round's entry."""
        return self._indices[round] if 1 <= round <= self.round else None

    def table_at(self, round: int) -> tuple[Listed, ...] | None:
        """Return the table of one of the newest committed rounds; None where it is not kept any more, or is not there yet."""
        place = round - 1 - self.round
        return self._tables[place] if -len(self._tables) <= place < 0 else None

    def claim_listed(self, key: bytes, round: int) -> int | None:
        """Return the committed round whose table has a key's work on the base before ``round``; None: no table that is kept has it."""
        for place, table in enumerate(self._tables):
            if any(one.round == round and key in one.keys for one in table):
                return self.round - len(self._tables) + 1 + place
        return None

    def has_earned(self, key: bytes) -> bool:
        """Return whether a committed table has a claim of ``key``."""
        return key in self.reputation.payouts

    def credits(self) -> dict[bytes, int]:
        """Return payout account -> what was paid to it; accounts in order, who has nothing is not in it."""
        return self.reputation.credits()

    def shares(self, listed: Sequence[Listed]) -> dict[bytes, int]:
        """Return key -> what a round of these pays it where nothing is audited."""
        return shares_of(self.manifest, dict(pair for one in listed for pair in zip(one.keys, one.weights, strict=True)))

    def listed(self, header: Header, round: int) -> Listed:
        """Return what the header's contribution would be in the table of ``round``, the next one or the one after it.

        Nothing is said about the other contributions of that table.

        Raises:
            EncodingError, SignatureError: a record in it is malformed, or its signature does not hold.
            ClaimError: some of its claims may not stand there.
            LedgerError: it may not, whichever claims it lists.
        """
        contribution = self.verified.contribution(header.contribution)
        claims = [(signed.digest, self.verified.claim(signed)) for signed in header.claims]
        self._check_base(contribution, round)
        self._check_list(contribution, claims)
        opened = [claim for _, claim in claims]
        unpaid = self._unpaid(contribution, opened, round)
        faults = [(claim.key, fault) for claim in opened if (fault := self._fault_of(claim, round, is_unpaid=claim.key in unpaid))]
        if faults:
            raise ClaimError(faults[0][1], tuple(key for key, _ in faults))
        check_steps(self.manifest, contribution, opened)
        digest = header.contribution.digest
        proven = [self.reputation.is_proven(claim.key) for claim in opened]
        return listed_in(self.manifest, self.training_spec, proven, digest, contribution, opened, round, unpaid)

    def check_verdict(self, signed: Signed[Verdict]) -> None:
        """Check that a verdict may stand before the next round's contributions, or before the settlement, whatever else stands there.

        Raises:
            EncodingError, SignatureError: it is malformed, or its signature does not hold.
            LedgerError: it may not.
        """
        verdict = self.verified.verdict(signed)
        if verdict.run != self.run:
            raise LedgerError("of another run")
        if self._settlement is not None:
            raise LedgerError("the run is settled")
        self.reputation.check(verdict)

    def append(self, entry: bytes) -> Step | None:
        """Take ``entry`` as the next one. On any error the state stays as it was.

        Returns:
            What ``follow`` takes in its place, and in that of the entries before it; None for one in the middle of a round.

        Raises:
            EncodingError: it is no entry, or not the canonical bytes of one.
            SignatureError: a signature in it does not hold.
            LedgerError: it may not follow this log.
        """
        record = self.verified.entry(entry)
        if self.settled or (self.finished and not (is_signed(record, Verdict) or isinstance(record, Settlement))):
            raise LedgerError(f"the run is finished: it has {self.manifest.num_rounds} rounds")
        step: Step | None = None
        if is_signed(record, Verdict):
            self._take_verdict(record)
        elif isinstance(record, Header):
            self._take_contribution(record)
        elif isinstance(record, Round):
            self._take_round(step := self._checked_round(record, entry))
        elif isinstance(record, Settlement):
            self._settle(step := self._checked_settlement(record))
        else:
            self._take_word(step := record)
        self._size += 1
        return step

    def follow(self, step: Step) -> None:
        """Go on as another ledger did, which stood where this one stands when it took what ``step`` came from."""
        if isinstance(step, TakenRound):
            self._take_round(step)
            self._size = step.index + 1
        elif isinstance(step, Settled):
            self._settle(step)
            self._size = step.index + 1
        else:
            self._take_word(step)
            self._size += 1

    def _take_word(self, signed: Signed[Admission] | Signed[Revocation]) -> None:
        if not self.is_between_rounds:
            raise LedgerError("an admission, or a revocation, in the middle of a table")
        if is_signed(signed, Revocation):
            self.admitted.revoke(signed, self.round + 1)
            return
        admission, invitation = self.admitted.take(signed, self.round + 1)
        if invitation.access == PROVEN:
            self.reputation.admit(admission.key)

    def _take_verdict(self, signed: Signed[Verdict]) -> None:
        self.check_verdict(signed)
        contents, digest = self._contents, signed.digest
        if contents.listed:
            raise LedgerError("a verdict after the contributions of a round")
        if contents.verdicts and contents.verdicts[-1][0] >= digest:
            raise LedgerError("the verdicts before a round are sorted by digest")
        if len(contents.verdicts) >= MAX_VERDICTS:
            raise LedgerError(f"a round has at most {MAX_VERDICTS} verdicts before it")
        contents.verdicts.append((digest, self.verified.verdict(signed)))

    def _checked_settlement(self, settlement: Settlement) -> Settled:
        if not self.finished:
            raise LedgerError("a settlement before the last round")
        if (settlement.run, settlement.commit) != (self.run, self.last_commit):
            raise LedgerError("a settlement of another run, or of another last round")
        return Settled(settlement, self._size, [verdict for _, verdict in self._contents.verdicts])

    def _settle(self, step: Settled) -> None:
        self.reputation.settle(step.verdicts)
        self._settlement = step.index
        self._contents = RoundContents()

    def _take_contribution(self, header: Header) -> None:
        contents, max_rows = self._contents, self.manifest.exchange.max_rows
        if len(contents.listed) >= max_rows:
            raise LedgerError(f"a table has at most {max_rows} contributions")
        listed = self.listed(header, self.round + 1)
        twice = tuple(key for key in listed.keys if key in contents.keys)
        if twice and not self.manifest.audits_steps:  # there it is paid once
            raise ClaimError("a key stands twice in one table", twice)
        if contents.listed and contents.listed[-1].founder >= listed.founder:
            raise LedgerError("the contributions of a table are sorted by founder")
        contents.listed.append(listed)
        contents.keys.update(listed.keys)

    def _checked_round(self, round_: Round, entry: bytes) -> TakenRound:
        """Return what the round of this entry comes to, if it may follow.

        Raises:
            LedgerError: it may not.
        """
        listed = self._contents.listed
        if not listed:
            raise LedgerError("a round without contributions")
        if (round_.run, round_.round, round_.base) != (self.run, self.round + 1, self.last_commit):
            raise LedgerError(f"round {round_.round} does not follow round {self.round} of this log")
        if (round_.first, round_.contributions) != (self._size - len(listed), len(listed)):
            raise LedgerError("the round is about other contributions than those before it")
        exchange = self.manifest.exchange
        if not exchange.min_open_ms <= round_.open_ms <= exchange.max_open_ms:
            raise LedgerError(f"a round is open for {exchange.min_open_ms} to {exchange.max_open_ms} ms")
        if abs(round_.min_exponent - self._min_exponents[-1]) > 1:
            raise LedgerError("the min exponent moves by more than one exponent")
        return TakenRound(round_, commit_digest(entry), self._size, replace(self._contents, listed=paid_once(listed)))

    def _take_round(self, taken: TakenRound) -> None:
        round_, listed = taken.entry, taken.contents.listed
        self.reputation.turn(round_.round, taken.commit, taken.verdicts, [one.work for one in listed])
        self._keys.append(frozenset((key, one.round) for one in listed for key in one.keys))
        self._tables.append(tuple(listed))
        self._commits.append(taken.commit)
        self._min_exponents.append(round_.min_exponent)
        self._states.append(round_.state)
        self._indices.append(taken.index)
        self._newest = round_
        self._contents = RoundContents()

    def _unpaid(self, contribution: Contribution, claims: Sequence[Claim], round: int) -> frozenset[bytes]:
        """Return the keys of those whose claims are listed unpaid in the table of ``round``.

        Where local steps are audited a contribution lists whoever is in one of their means. Of a member that was taken back meanwhile, or
        has handed in elsewhere, the others could not know: it costs them nothing.
        """
        if not self.manifest.audits_steps:
            return frozenset()
        members = [claim for claim in claims if claim.key != contribution.founder]
        return frozenset(claim.key for claim in members if claim.key in self.reputation.guilty or self._key_fault(claim, round) is not None)

    def _fault_of(self, claim: Claim, round: int, *, is_unpaid: bool = False) -> str | None:
        """Return why a claim on a base that fits may not stand in the table of ``round``, paid or ``is_unpaid``; None: it may."""
        fault = None if is_unpaid else self._key_fault(claim, round)
        return fault or work_fault(self.manifest, self.training_spec, claim)

    def _key_fault(self, claim: Claim, round: int) -> str | None:
        """Return why nothing may count of a key on a base, whatever its claim says; None: it may."""
        if (fault := self.admitted.fault_of(claim.key, round)) is not None:
            return fault
        if any((claim.key, claim.round) in keys for keys in self._keys):
            return "this key's work on this base is in the log already"
        return None

    def _check_base(self, record: Claim | Contribution, round: int) -> None:
        if record.run != self.run:
            raise LedgerError("of another run")
        if round > self.manifest.num_rounds:
            raise LedgerError("the run has no round left for it")
        if record.round > self.round + 1 or self._commits[record.round - 1] != record.base:
            raise LedgerError(f"for round {record.round} on another base than this log's")
        if round - record.round > MAX_AGE:
            raise LedgerError(f"its base is {round - record.round} commits old, {MAX_AGE} at most are taken")
        if any(self.training_spec.sorts_after(between) for between in range(record.round, round)):
            raise LedgerError("the weights were put in another order since its base")

    def _check_list(self, contribution: Contribution, claims: Sequence[tuple[bytes, Claim]]) -> None:
        """Check that a contribution may list just these claims, whatever each of them says of its work."""
        check_list(contribution, claims)
        if contribution.residual and not codec_named(self.manifest.exchange.codec).is_sparse:
            raise LedgerError(NO_RESIDUALS)
