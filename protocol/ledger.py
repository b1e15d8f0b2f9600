"""What a valid next entry is: the pure fold over a run's entries, from its signed manifest on.

A claim may be logged for any round up to the next one; a second, different claim of one key for one round is logged as evidence,
and that key then earns nothing in the round. A round entry must be exactly the next round, of claims already logged, under a quorum of
votes. Storage, the Merkle tree and whether the digests of a proposal are *true* are the caller's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from protocol.errors import LedgerError
from protocol.records import (
    Manifest,
    Proposal,
    Round,
    SignedClaim,
    SignedManifest,
    Statement,
    check_vote,
    claim_entry,
    commit_digest,
    open_entry,
    quorum,
    round_entry,
    table_digest,
    table_order,
)
from protocol.rewards import RewardedRound, claim_weight, credits
from protocol.signing import Digest, sha256

MAX_CLAIMS_PER_KEY = 2  # for one round: the claim, and one more as evidence


@dataclass(frozen=True, slots=True)
class _LoggedClaim:
    """A valid claim, without the bytes that nothing asks for again."""

    signed: SignedClaim
    round: int
    last_commit: bytes
    key: bytes
    order: tuple[str, bytes]  # of a table: cohort, key
    weight: int  # in the rewards of its round


class Ledger:
    """The state that a log's entries add up to. ``append`` either takes an entry or raises and changes nothing."""

    def __init__(self, signed: SignedManifest) -> None:
        """Start the run of ``signed``.

        Raises:
            EncodingError, SignatureError: as ``SignedManifest.open``.
        """
        self.manifest: Manifest = signed.open()
        self.run: Digest = signed.run
        self._costs = self.manifest.cost_table()
        self._indices: dict[Digest, int] = {}  # SHA-256 of an entry -> its place in the log
        self._claims: dict[bytes, _LoggedClaim] = {}  # by SignedClaim.digest
        self._by_key: dict[tuple[int, bytes], tuple[_LoggedClaim, ...]] = {}  # (round, key) -> in the order of the log
        self._equivocators: dict[int, frozenset[bytes]] = {}  # by round
        self._rounds: list[Round] = []
        self._commits: list[Digest] = [self.run]  # [r] is the digest of the commit of round r

    @property
    def size(self) -> int:
        """The number of entries."""
        return len(self._indices)

    @property
    def round(self) -> int:
        """The last committed round; 0 before the first."""
        return len(self._rounds)

    @property
    def last_commit(self) -> Digest:
        """The digest of the last round entry; the run's id before the first."""
        return self._commits[-1]

    @property
    def state(self) -> Digest:
        """The digest of the state that the run stands on."""
        return Digest(self._rounds[-1].statement.state if self._rounds else self.manifest.initial_state)

    @property
    def finished(self) -> bool:
        """Whether the last round of the manifest is committed."""
        return self.round == self.manifest.num_rounds

    def entry_index(self, entry: bytes) -> int | None:
        """Return the index of ``entry`` in the log; None if exactly these bytes are not in it."""
        return self._indices.get(sha256(entry))

    def claim_at(self, round: int, key: bytes) -> SignedClaim | None:
        """Return the first claim logged of ``key`` for ``round``."""
        logged = self._by_key.get((round, key))
        return logged[0].signed if logged else None

    def round_at(self, round: int) -> Round | None:
        """Return the entry of a committed round."""
        return self._rounds[round - 1] if 1 <= round <= self.round else None

    def commit_at(self, round: int) -> Digest | None:
        """Return the digest of the commit of ``round``, of round 0 the run's id; None if it has not happened."""
        return self._commits[round] if 0 <= round <= self.round else None

    def equivocators(self, round: int) -> frozenset[bytes]:
        """Return the keys with two different claims for ``round`` in the log."""
        return self._equivocators.get(round, frozenset())

    def credits(self) -> dict[bytes, int]:
        """Return key -> what it has earned over all committed rounds, as of the entries so far."""
        return credits((self._rewarded(round_) for round_ in self._rounds), self.manifest.reward_pool)

    def append(self, entry: bytes) -> None:
        """Take ``entry`` as the next one. On any error the state stays as it was.

        Raises:
            EncodingError: it is no entry, or not the canonical bytes of one.
            SignatureError: a signature in it does not hold.
            LedgerError: it may not follow this log, or is in it already (see ``entry_index``).
        """
        entry_digest = sha256(entry)
        if entry_digest in self._indices:
            raise LedgerError(f"this entry is in the log already, as number {self._indices[entry_digest]}")
        record = open_entry(entry)
        if isinstance(record, SignedClaim):
            self._take_claim(self._checked_claim(record))
        else:
            self._check_round(record, self._claims)
            self._rounds.append(record)
            self._commits.append(commit_digest(entry))
        self._indices[entry_digest] = len(self._indices)

    def proposal_entries(self, proposal: Proposal) -> list[bytes]:
        """Return what to append for ``proposal``: its claims that are not in the log yet, in the table's order, then the round.

        Nothing is appended. Each entry is valid after the ones before it.

        Raises:
            EncodingError, SignatureError, LedgerError: the proposal may not follow this log.
        """
        statement = proposal.statement
        self._check_next(statement)  # before the signatures, which cost more
        known: dict[bytes, _LoggedClaim] = {}
        entries = []
        for signed in proposal.claims:
            digest = signed.digest
            if digest in self._claims:
                known[digest] = self._claims[digest]
            else:
                known[digest] = self._checked_claim(signed)
                entries.append(claim_entry(signed))
        round_ = Round(statement, tuple(signed.digest for signed in proposal.claims), proposal.votes)
        self._check_round(round_, known)
        return [*entries, round_entry(round_)]

    def _checked_claim(self, signed: SignedClaim) -> _LoggedClaim:
        claim = signed.open()
        if claim.run != self.run:
            raise LedgerError("a claim of another run")
        if claim.round > min(self.round + 1, self.manifest.num_rounds):
            raise LedgerError(f"a claim for round {claim.round} while round {self.round} is the last one committed")
        if len(self._by_key.get((claim.round, claim.key), ())) >= MAX_CLAIMS_PER_KEY:
            raise LedgerError(f"more than {MAX_CLAIMS_PER_KEY} claims of one key for round {claim.round}")
        weight = claim_weight(claim.work, self._costs, self.manifest.max_claim_samples)
        return _LoggedClaim(signed, claim.round, claim.last_commit, claim.key, table_order(claim), weight)

    def _take_claim(self, claim: _LoggedClaim) -> None:
        place = (claim.round, claim.key)
        before = self._by_key.get(place, ())
        if before:
            self._equivocators[claim.round] = self.equivocators(claim.round) | {claim.key}
        self._by_key[place] = (*before, claim)
        self._claims[claim.signed.digest] = claim

    def _check_next(self, statement: Statement) -> None:
        if self.finished:
            raise LedgerError(f"the run is finished: it has {self.manifest.num_rounds} rounds")
        if statement.run != self.run:
            raise LedgerError("a round of another run")
        if statement.round != self.round + 1:
            raise LedgerError(f"round {statement.round} cannot follow round {self.round}")
        if statement.last_commit != self.last_commit:
            raise LedgerError(f"round {statement.round} does not stand on the last commit")

    def _check_round(self, round_: Round, claims: Mapping[bytes, _LoggedClaim]) -> None:
        statement = round_.statement
        self._check_next(statement)
        table = []
        for digest in round_.claims:
            claim = claims.get(digest)
            if claim is None:
                raise LedgerError("a round lists a claim that is not in the log")
            if (claim.round, claim.last_commit) != (statement.round, statement.last_commit):
                raise LedgerError(f"a claim for another round or commit than round {statement.round}'s")
            table.append(claim)
        if any(left.order >= right.order for left, right in pairwise(table)) or len({claim.key for claim in table}) != len(table):
            raise LedgerError("the table is not in order, or has a key twice")
        if statement.table != table_digest(round_.claims):
            raise LedgerError("the statement is about another table")
        _check_votes(round_, {claim.key for claim in table})

    def _rewarded(self, round_: Round) -> RewardedRound:
        claims = [self._claims[digest] for digest in round_.claims]
        return RewardedRound(tuple((claim.key, claim.weight) for claim in claims), self.equivocators(round_.statement.round))


def _check_votes(round_: Round, members: set[bytes]) -> None:
    voters = [vote.key for vote in round_.votes]
    if len(voters) < quorum(len(members)):
        raise LedgerError(f"{len(voters)} votes where {len(members)} members need {quorum(len(members))}")
    if any(left >= right for left, right in pairwise(voters)):
        raise LedgerError("the votes are not sorted by key, or a key votes twice")
    if not members.issuperset(voters):
        raise LedgerError("a vote from outside the table")
    for vote in round_.votes:
        check_vote(round_.statement, vote)
