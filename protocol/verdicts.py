"""What an auditor says of a contribution, the rules by which that counts, and the end of a run's pay.

An audit computes all of a contribution again: every microbatch of every claim, step by step, from the means of its steps to its body.
Verdicts stand in the log before the contributions of a round, and take effect with its entry. What they lead to is in
``protocol.reputation``; which contributions are audited, in ``protocol.auditing``.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.fields import MAX_ROUND, check_digest, check_key, require
from manta_swarm.protocol.signed import Signing

MAX_VERDICT_BYTES = 1024  # of a packed one
MAX_PROVEN = 1024
MAX_AUDITORS = 16
MAX_KEPT_ROUNDS = 1024
LEAST_PENDING = 3  # rounds after ``kept_rounds``, for auditors to judge what was brought late


class Outcome(IntEnum):
    """What an audit came to for one claim; each takes more than the one before."""

    GOOD = 0  # it is paid, and counts towards its key being proven
    UNPAID = 1  # it is not paid, and its key is not at fault
    DEMOTED = 2  # it is not paid, and its key has to be found good from the beginning: something that it had to show was not brought
    VOID = 3  # it is not paid, and its key is guilty for good: what it handed in is not what it says


@dataclass(frozen=True, slots=True)
class AuditRules:
    """Who is trusted from the start, and how much is looked at."""

    named: tuple[bytes, ...]  # the auditors whose verdicts count, sorted
    proven: tuple[bytes, ...] = ()  # keys that are proven from the start, sorted
    proven_after: int = 20  # contributions that were found good, until a key is proven
    audit_percent: int = 5  # of the contributions with a proven key that are audited
    newcomer_percent: int = 10  # of the samples of those, that audits of contributions without a proven key cost at most
    kept_rounds: int = 60  # within which what an audit needs of a contribution has to be brought
    pending_rounds: int = 120  # after which a round is paid
    pool_percent: int = 10  # of the reward pool, for audits

    def __post_init__(self) -> None:
        require(len(self.named) >= 1, "there is a named auditor")
        for what, most in (("named", MAX_AUDITORS), ("proven", MAX_PROVEN)):
            keys: tuple[bytes, ...] = getattr(self, what)
            require(len(keys) <= most and list(keys) == sorted(set(keys)), f"{what}: at most {most} keys, sorted, none twice")
            for key in keys:
                check_key(key, what)
        require(1 <= self.proven_after <= 2**16, "proven_after is between 1 and 65536")
        require(1 <= self.kept_rounds <= MAX_KEPT_ROUNDS, f"kept_rounds is between 1 and {MAX_KEPT_ROUNDS}")
        least = self.kept_rounds + LEAST_PENDING
        require(least <= self.pending_rounds <= 2 * MAX_KEPT_ROUNDS, f"pending_rounds is at least kept_rounds and {LEAST_PENDING} more")
        require(1 <= self.audit_percent <= 100, "audit_percent is between 1 and 100")
        require(1 <= self.newcomer_percent <= 100, "newcomer_percent is between 1 and 100")
        require(0 <= self.pool_percent <= 50, "audits are paid with at most half of the pool")

    @property
    def quorum(self) -> int:
        """How many named auditors it takes to take something away: more than half."""
        return len(self.named) // 2 + 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a named auditor says of one contribution; whoever has the weights, the samples and what was brought can compute it again."""

    signing: ClassVar[Signing] = Signing("verdict", MAX_VERDICT_BYTES, by="auditor")

    run: bytes
    auditor: bytes  # a named one
    round: int  # whose contribution it is
    contribution: bytes  # Signed[Contribution].digest
    outcomes: tuple[int, ...]  # of Outcome, one a claim, in their order
    by: bytes  # who computed it: the auditor itself, or a volunteer whose work it took over

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.contribution, "contribution")
        check_key(self.auditor, "auditor")
        check_key(self.by, "by")
        require(1 <= self.round <= MAX_ROUND, "round out of range")
        require(1 <= len(self.outcomes) <= MAX_COHORT, f"a contribution has 1 to {MAX_COHORT} claims")
        require(all(outcome in tuple(Outcome) for outcome in self.outcomes), "an unknown outcome")
        is_good = all(outcome == Outcome.GOOD for outcome in self.outcomes)
        require(is_good or self.by == self.auditor, "what takes something away its auditor has computed itself")


@dataclass(frozen=True, slots=True)
class Settlement:
    """The last entry of an audited run: all that is not paid yet is paid with it, by the verdicts that are there."""

    run: bytes
    commit: bytes  # digest of the last round's entry

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.commit, "commit")
