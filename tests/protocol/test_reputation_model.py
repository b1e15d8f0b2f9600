"""The fold against the model of the audit economy: the same actors, draws and verdicts come to the same proven keys, faults and pay.

The model (``tests.protocol.audit_model``) is written in other terms: floats, actors' names, its own bookkeeping. Here it draws as the
protocol does, and what it judges becomes verdicts, which take effect one round later, as in a log.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.protocol.auditing import AuditCandidate, drawn
from manta_swarm.protocol.reputation import PayableWork, Pools, Reputation
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.protocol.verdicts import AuditRules, Outcome, Verdict
from tests.protocol import audit_model
from tests.protocol.audit_model import (
    Actor,
    Economy,
    Rules,
    Shown,
    crowd,
    faker,
    free_keys,
    ghost_cohort_peer,
    honest,
    is_laptop_open,
    poisoner,
    withholder,
)

POOL = 10**12
RUN = sha256(b"run")
AUDITOR = Identity(sha256(b"auditor")).public_key


def key_of(name: str) -> bytes:
    return sha256(b"key of " + name.encode())


def digest_of(handed: Any) -> bytes:
    return sha256(b"%d " % handed.round + " ".join(claim.key for claim in handed.contribution.claims).encode())


@dataclass(slots=True)
class Paired(Economy):
    """The model, with the protocol's draws, and the fold beside it."""

    fold: Reputation = field(default_factory=lambda: Reputation(None, Pools(POOL)))
    said: list[Verdict] = field(default_factory=list)  # before the next round
    later: list[Callable[[], None]] = field(default_factory=list)  # what the model takes of it then
    chosen: frozenset[bytes] = frozenset()
    earned: Counter[bytes] = field(default_factory=Counter)
    now: int = 0

    def play(self, rounds: int) -> "Paired":
        """Play so many rounds in both, and compare after each."""
        rules = AuditRules(
            (AUDITOR,),
            tuple(sorted(key_of(key) for actor in self.actors for key in actor.proven)),
            self.rules.proven_after,
            int(self.rules.audit_percent),
            int(self.rules.newcomer_percent),
            self.rules.kept_rounds,
            self.rules.pending_rounds,
        )
        self.fold = Reputation(rules, Pools(POOL))
        rng = random.Random(f"paired:{self.seed}")
        self.accounts = {actor.name: audit_model.Account() for actor in self.actors}
        for actor in self.actors:
            for key in actor.proven:
                self._keys[key] = audit_model._Key(is_named=True)
        for now in range(rounds):
            self.now = now
            table = sorted(self._table(now, rng), key=digest_of)
            self._pending.append(table)
            said, later, self.said, self.later = self.said, self.later, [], []
            for effect in later:
                effect()
            if now >= self.rules.pending_rounds:
                self._pay(self._pending[now - self.rules.pending_rounds])
            commit = sha256(b"commit %d" % now)
            if now:
                self._draw_as_protocol(commit, self._pending[now - 1])
            self.fold.turn(now, commit, said, [self._work(handed) for handed in table])
            self._compare()
            self._judge(now, len(table), rng)
        return self

    def _work(self, handed: Any) -> PayableWork:
        keys = tuple(key_of(claim.key) for claim in handed.contribution.claims)
        return PayableWork(digest_of(handed), keys, keys, (1,) * len(keys), len(keys), handed.was_proven)

    def _draw_as_protocol(self, beacon: bytes, table: Sequence[Any]) -> None:
        assert self.fold.rules is not None
        candidates = [
            AuditCandidate(
                digest_of(handed),
                len(handed.was_proven),
                any(handed.was_proven),
                all(self._keys[claim.key].good for claim in handed.contribution.claims),
            )
            for handed in table
        ]
        chosen = drawn(self.fold.rules, beacon, candidates)
        self._waiting += [handed for handed in table if digest_of(handed) in chosen]

    def _compare(self) -> None:
        for key, known in self._keys.items():
            assert self.fold.is_proven(key_of(key)) == self.is_proven(key), (self.now, key)
            assert (key_of(key) in self.fold.guilty) == (known.guilty_at is not None), (self.now, key)
        paid = Counter[str]()
        for key, amount in self.fold.earned.items():
            paid[next((name for name, mine in self._owners().items() if key in mine), "?")] += amount
        for actor in self.actors:
            assert abs(paid[actor.name] / POOL - self.accounts[actor.name].pay) < 1e-6, (self.now, actor.name)

    def _owners(self) -> dict[str, set[bytes]]:
        owners: dict[str, set[bytes]] = {}
        for handed in (each for table in self._pending for each in table):
            owners.setdefault(handed.actor.name, set()).update(key_of(claim.key) for claim in handed.contribution.claims)
        return owners

    # What the model judges becomes a verdict, and takes effect in the model when it does so in the fold.

    def _put(self, handed: Any, outcomes: Sequence[Outcome], effect: Callable[[], None]) -> None:
        verdict = Verdict(RUN, AUDITOR, max(1, handed.round), digest_of(handed), tuple(map(int, outcomes)), AUDITOR)
        self.said.append(verdict)
        self.later.append(effect)

    def _good(self, handed: Any) -> None:
        self._put(handed, [Outcome.GOOD] * len(handed.was_proven), lambda: Economy._good(self, handed))

    def _against(self, handed: Any, now: int) -> None:
        claims = handed.contribution.claims
        false = [claim for claim in claims if not claim.is_trained] or [claims[0]]
        outcomes = [Outcome.VOID if claim in false else Outcome.GOOD for claim in claims]
        self._put(handed, outcomes, lambda: Economy._against(self, handed, now + 1))

    def _not_shown(self, handed: Any, shown: Shown, now: int) -> None:
        claims = handed.contribution.claims
        losers = list(claims)
        others = Outcome.UNPAID
        if shown.means and not shown.residuals:
            losers = [claims[0], claims[-1]]
        elif shown.means:
            losers, others = [claim for claim in claims if not claim.is_trained], Outcome.GOOD
        outcomes = [Outcome.DEMOTED if claim in losers else others for claim in claims]
        self._put(handed, outcomes, lambda: self._unshown(handed, shown, now, others))

    def _unshown(self, handed: Any, shown: Shown, now: int, others: Outcome) -> None:
        Economy._not_shown(self, handed, shown, now + 1)
        if others is Outcome.GOOD:  # the model does not count these towards being proven
            for claim in handed.contribution.claims:
                self._keys[claim.key].good += claim.is_trained


SHORT = Rules(audit_percent=20, newcomer_percent=30, proven_after=3, kept_rounds=4, judged_rounds=3, pending_rounds=10, capacity_percent=60)


def hides_residuals(name: str) -> Actor:
    """Return a cohort of two that shows no residual."""

    def hands_in(economy: Economy, now: int, rng: random.Random) -> list[audit_model.Contribution]:
        del economy, now, rng
        return [audit_model.Contribution((audit_model.Claim(f"{name}/0"), audit_model.Claim(f"{name}/1")))]

    return Actor(name, hands_in, lambda *_: Shown(residuals=False), frozenset([f"{name}/0", f"{name}/1"]))


ACTORS: list[Callable[[], Actor]] = [
    lambda: honest("newcomer", proven=False),
    lambda: honest("laptop", is_there=lambda now: is_laptop_open(60 * now)),
    lambda: faker("fakes a quarter", 25),
    lambda: faker("fakes all", 100, proven=False, when_proven=False),
    lambda: free_keys("free keys", 6),
    lambda: free_keys("free cohorts", 2, claims=4),
    lambda: ghost_cohort_peer("ghost", shows_vectors=True),
    lambda: ghost_cohort_peer("hidden ghost", shows_vectors=False),
    lambda: withholder("withholds", cohort_peers=2),
    lambda: poisoner("poisons"),
    lambda: hides_residuals("hides"),
]


@pytest.mark.parametrize("actor", ACTORS, ids=[make().name for make in ACTORS])
def test_the_fold_comes_to_what_the_model_says(actor: Callable[[], Actor]) -> None:
    Paired(SHORT, [*crowd(4), actor()]).play(60)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(ACTORS), min_size=1, max_size=5, unique=True), st.integers(0, 2**32), st.integers(0, 4))
def test_the_fold_comes_to_what_the_model_says_of_any_company(cohort_membership: list[Callable[[], Actor]], seed: int, others: int) -> None:
    Paired(SHORT, [*crowd(others), *(make() for make in cohort_membership)], seed=seed).play(30)
