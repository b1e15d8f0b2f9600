"""docs/verifier.py and ``protocol.ledger`` take the same entries and come to the same: random open and audited runs, most of which hold."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from manta_swarm.protocol.admission import ACCESSES, INVITED, AdmissionRule
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.records import Header, entry_of
from manta_swarm.protocol.reputation import Audit
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import Outcome, Verdict
from tests.claim_steps import steps_of
from tests.contributions import PEERS, claim_of, listing, round_of
from tests.docs.ledgers import RULES
from tests.docs.logs import AUDITORS, OPERATOR, SECRET, STRANGER, WIDE, in_digest_order, log_of
from tests.docs.verifiers import fault_of, verifier

WHO = [*PEERS[:5], AUDITORS[0]]
KEYS = [each.public_key for each in (*PEERS, *AUDITORS, OPERATOR, STRANGER)]
THREE_AUDITORS = replace(RULES, named=tuple(each.public_key for each in AUDITORS), audit_percent=100)
TRUSTING = replace(THREE_AUDITORS, proven=tuple(sorted(each.public_key for each in WHO[3:])))
RUNS: dict[str, dict[str, Any]] = {
    "dense": {"exchange": replace(WIDE, max_rows=3, weight_cap=100, max_claim_samples=200)},
    "sparse": {"algorithm": "model-parallel", "exchange": replace(WIDE, codec="topk-256-4", local_steps=2)},
    "shrinking": {"schedule": "shrinking", "num_rounds": 8},
    "invited": {"admission": AdmissionRule("invitation")},
    "audited by one": {"audits": (RULES,), "num_rounds": 9},
    "audited by three": {"audits": (TRUSTING,), "num_rounds": 10},
    "audited steps": {
        "audits": (THREE_AUDITORS,),
        "exchange": replace(WIDE, local_steps=2),
        "num_rounds": 8,
        "admission": AdmissionRule("invitation"),
    },
}
LIES: list[dict[str, Any]] = [
    {"cohort": "there"},
    {"founder": PEERS[0].public_key},
    {"shards": 3},
    {"residual": sha256(b"left"), "given": sha256(b"given")},
    {"given": b""},
    {"partner": PEERS[6].public_key},
    {"microbatches": (1,) * 9},
    {"base": sha256(b"")},
]


class Both:
    """One log in two ledgers. ``rng`` says what comes next."""

    def __init__(self, changes: dict[str, Any], rng: random.Random) -> None:
        self.log = log_of(**changes)
        self.ours, self.rng = self.log.ledger, rng
        self.theirs = verifier.Ledger(*verifier.open_manifest(pack(self.log.signed)))
        self.harshness = rng.choice((0.0, 0.1, 0.3))  # how much of the work is found false

    def once_in(self, count: int) -> bool:
        return self.rng.randrange(count) == 0

    def is_taken(self, entry: bytes) -> bool:
        """Append an entry to both ledgers."""
        faults = fault_of(lambda: self.ours.append(entry), RemoteFault), fault_of(lambda: self.theirs.append(entry), verifier.Refused)
        assert (faults[0] is None) == (faults[1] is None), faults
        self.check()
        return faults[0] is None

    def check(self) -> None:
        """Check that both have come to the same."""
        ours, theirs = self.ours, self.theirs
        assert (ours.round, ours.last_commit, ours.is_between_rounds) == (theirs.round, theirs.rounds[-1].commit, theirs.is_between_rounds)
        assert ours.credits() == dict(theirs.credits)
        assert +ours.reputation.earned == theirs.earned
        assert [ours.reputation.is_proven(key) for key in KEYS] == [theirs.is_proven(key) for key in KEYS]
        judged = {each: (audit.auditor, audit.outcomes or (None,) * len(audit.work.keys)) for each, audit in ours.reputation.audits.items()}
        assert judged == {each: (audit.auditor, audit.outcomes) for each, audit in theirs.audits.items()}
        assert ours.settled == (theirs.is_settled if theirs.rules else ours.finished)

    def admissions(self) -> None:
        """Let keys in and take some back, where that can be."""
        if self.ours.manifest.admission.how == "invitation" and not self.ours.round:
            for each in WHO[:4]:
                self.is_taken(self.log.admission(each))
        while self.once_in(3):
            who, secret = self.rng.choice([*WHO, STRANGER]), self.rng.choice((SECRET, STRANGER))
            invitation: dict[str, Any] = {
                "access": self.rng.choice(ACCESSES),
                "keys": self.rng.randint(1, 4),
                "until_round": self.rng.randint(1, 9),
            }
            entries = (
                self.log.admission(who, secret=secret, **invitation),
                self.log.admission(who, secret=secret),
                self.log.revocation(who),
                self.log.revocation(secret, INVITED),
            )
            self.is_taken(self.rng.choice(entries))

    def outcomes(self, audit: Audit, auditor: Identity) -> tuple[int, ...]:
        """Return what an auditor says; what is false is so to most of them."""
        seen = random.Random(audit.work.contribution if self.rng.random() < 0.8 else audit.work.contribution + auditor.public_key)
        is_late = self.ours.round >= audit.round + RULES.kept_rounds
        bad = (Outcome.UNPAID, Outcome.DEMOTED, Outcome.VOID) if is_late else (Outcome.VOID,)
        said = [int(seen.choice(bad)) if seen.random() < self.harshness else 0 for _ in audit.work.keys]
        if self.once_in(15):
            said = [self.rng.randrange(4) for _ in said]
        return tuple(said[:-1] or [0] if self.once_in(30) else said)

    def verdicts(self) -> None:
        """Judge some of what was drawn."""
        said = list[Signed[Verdict]]()
        for audit in self.ours.reputation.audits.values():
            for auditor in self.rng.choices(AUDITORS, k=self.rng.choice((0, 0, 1, 2))):
                outcomes = self.outcomes(audit, auditor)
                by = auditor if any(outcomes) or self.once_in(2) else self.rng.choice(WHO)
                round_ = audit.round + self.once_in(30)
                verdict = Verdict(self.ours.run, auditor.public_key, round_, audit.work.contribution, outcomes, by.public_key)
                said.append(Signed.sign(verdict, auditor))
        entries = in_digest_order(said)
        for entry in entries[::-1] if self.once_in(10) else entries:
            self.is_taken(entry)

    def claim(self, member: Identity, said: dict[str, Any], *, may_drop_out: bool) -> Any:
        """Return a claim, most often one that may count."""
        asked, steps = min(said["round"], self.ours.manifest.num_rounds), self.ours.manifest.exchange.local_steps
        count = len(self.ours.training_spec.costs(asked, said["cohort"]))
        microbatches = tuple(self.rng.randint(0, 3) for _ in range(count))
        own = (
            said
            | {"microbatches": microbatches if sum(microbatches) >= steps else (2,) * count}
            | (self.rng.choice(LIES) if self.once_in(20) else {})
        )
        if steps > 1 and may_drop_out and self.once_in(3):
            base = self.ours.commit_at(own["round"] - 1) or self.ours.run
            own |= {"steps": steps_of(own["microbatches"], base, member.public_key, steps=1), "residual": b""}
        return claim_of(self.ours, member, **own)

    def header(self, who: Sequence[Identity]) -> Header:
        """Return a contribution for the next round that most often may count; the first one is its founder."""
        newest = min(self.ours.round + 1, self.ours.manifest.num_rounds)
        founder = PEERS[5] if self.once_in(40) else who[0]
        said: dict[str, Any] = {
            "round": max(1, newest - self.rng.choice((0, 0, 0, 0, 0, 0, 1, 4, 5, -1))),
            "cohort": self.rng.choice(["here", "here.size-1"]),
            "founder": founder.public_key,
            "payout": self.rng.choice([STRANGER, *who]).public_key,
            "microbatch_ms": self.rng.randint(1, 3),
        }
        claims = [self.claim(member, said, may_drop_out=member is not who[0]) for member in who]
        header = listing(claims, founder, left=sha256(b"left") if self.once_in(20) else b"")
        return replace(header, claims=header.claims[::-1]) if self.once_in(40) else header

    def contributions(self) -> list[Header]:
        """Append some contributions; return those that were taken."""
        who, table = self.rng.sample(WHO, len(WHO)), list[Header]()
        for _ in range(self.rng.randint(1, 4)):
            count = self.rng.randint(1, 3)
            members, who = who[:count], who[0 if self.once_in(10) else count :]
            table += [self.header(members)] if members else []
        if not self.once_in(15):
            table.sort(key=lambda header: header.contribution.open().founder)
        return [header for header in table if self.is_taken(entry_of(header))]

    def round(self) -> None:
        """Go on by a round, if anything is taken."""
        self.admissions()
        self.verdicts()
        taken = self.contributions()
        if not taken:
            return
        first = self.ours.size - len(taken)
        told = round_of(self.ours, [self.ours.listed(header, self.ours.round + 1) for header in taken], first=first)
        lies: list[dict[str, Any]] = [{"min_exponent": told.min_exponent + 2}, {"open_ms": 1}, {"round": 3}, {"first": first + 1}]
        if self.once_in(10):
            self.is_taken(entry_of(replace(told, **self.rng.choice(lies))))
        self.is_taken(entry_of(told))

    def end(self) -> None:
        """Settle, if that may be."""
        self.verdicts()
        for commit in (sha256(b"another"), self.ours.last_commit, self.ours.last_commit):
            self.is_taken(self.log.settlement(commit=commit))
        self.verdicts()


@pytest.mark.parametrize("name", RUNS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rng=st.randoms(use_true_random=True))
def test_both_take_the_same_entries_and_come_to_the_same(name: str, rng: random.Random) -> None:
    both = Both(RUNS[name], rng)
    for _ in range(both.ours.manifest.num_rounds + rng.randint(-3, 4)):
        both.round()
    both.end()
    reputation = both.ours.reputation
    event(f"settled: {both.ours.settled}; guilty: {bool(reputation.guilty)}; lost: {bool(reputation.lost)}; {both.ours.round // 4}")
