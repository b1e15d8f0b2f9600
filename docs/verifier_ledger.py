"""The fold over a log's entries, for docs/verifier.py: what the log takes (§6 of docs/protocol.md), and what it pays (§7).

Imports nothing of Manta's. An entry that breaks a rule is Refused.
"""

from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

from verifier_records import (
    ADMISSION,
    CLAIM,
    CONTRIBUTION,
    ENTRY,
    HEADER,
    INVITATION,
    MAX_ENTRY,
    REVOCATION,
    ROUND_ENTRY,
    SETTLEMENT,
    SIGNED,
    VERDICT,
    about,
    digest_of,
    encode,
    hold,
    opened,
    sha256,
    unpack,
)
from verifier_values import Codec, TrainingSpec

# §6 What the log takes, and what it adds up to. §7 Pay

GOOD, UNPAID, DEMOTED, VOID = range(4)


@dataclass(frozen=True)
class Listed:
    """A contribution in a round; what is said of its claims is in their order."""

    digest: bytes
    founder: bytes
    round: int  # the one after its base
    age: int
    role: int
    cohort: str
    body: bytes
    keys: tuple[bytes, ...]
    payouts: tuple[bytes, ...]
    counted: int  # samples, uncapped
    samples: tuple[int, ...]  # of each claim, capped; 0: it is unpaid
    weights: tuple[int, ...]  # in the pay; 0: it is unpaid
    proven: tuple[bool, ...]  # the keys, when it was listed

    def without_pay(self, keys: set[bytes]) -> "Listed":
        """The same, where the claims of these keys are unpaid."""
        samples, weights = (tuple(0 if key in keys else each for key, each in zip(self.keys, of, strict=True))
                            for of in (self.samples, self.weights))  # fmt: skip
        return replace(self, samples=samples, weights=weights)


def paid_once(rows: list[Listed]) -> tuple[Listed, ...]:
    """A round's contributions with each key paid in one of them: in that which it founds, else in the first."""
    founders, before, found = {row.founder for row in rows}, set(), []
    for row in rows:
        found.append(row.without_pay({key for key in row.keys if key != row.founder and (key in founders or key in before)}))
        before |= set(row.keys)
    return tuple(found)


@dataclass(frozen=True)
class Committed:
    """A round of the log; round 0 is what the run begins with."""

    commit: bytes
    state: bytes
    min_exponent: int
    thresholds: tuple = ()
    entry: SimpleNamespace | None = None
    listed: tuple[Listed, ...] = ()


@dataclass
class Audit:
    """A contribution that was drawn."""

    round: int
    row: Listed
    auditor: bytes  # whose word that it is good counts
    verdicts: dict[bytes, SimpleNamespace]  # by auditor
    outcomes: tuple[int | None, ...]  # what it comes to so far, by claim


def work_of(claim: SimpleNamespace) -> tuple[int, ...]:
    """§4, §14: how many microbatches of each architecture the indices of a claim's steps are."""
    count, work, before = len(claim.work), [0] * len(claim.work), -1
    for step in claim.steps:
        trained = range(step.first, step.last + 1, step.every)
        in_order = before < step.first <= step.last and step.last in trained and step.every in (1, count)
        hold("E20", in_order and list(step.skipped) == sorted(set(step.skipped)), "indices")
        hold("E20", all(index in trained[1:-1] for index in step.skipped), "skipped indices")
        for number in range(min(len(trained), count)):
            work[(claim.base[0] + claim.key[0] + trained[number]) % count] += (len(trained) - number - 1) // count + 1
        for index in step.skipped:
            work[(claim.base[0] + claim.key[0] + index) % count] -= 1
        before = step.last
    return tuple(work)


def number(what: str, beacon: bytes, contribution: bytes) -> int:
    return int.from_bytes(sha256(encode((what, beacon, contribution)))[:8], "big")


def drawn(rules: SimpleNamespace, beacon: bytes, rows, good: Counter) -> set[bytes]:
    """§6, draw: the digests of the contributions that are audited."""
    proven = [row for row in rows if any(row.proven)]
    others = sorted((row for row in rows if not any(row.proven)), key=lambda row: number("order", beacon, row.digest))
    found = {row.digest for row in proven if number("audit", beacon, row.digest) % 100 < rules.audit_percent}
    budget = rules.newcomer_percent * sum(row.counted for row in proven or others)
    for known in (True, False):
        part = budget // 2 if known else budget
        for row in others:
            if part > 0 and row.digest not in found and (not known or all(good[key] for key in row.keys)):
                if number("part", beacon, row.digest) % (100 * row.counted) < part:
                    found.add(row.digest)
                    budget -= 100 * row.counted if known else 0
                part -= 100 * row.counted
    return found


def share_out(pool: int, weights: dict[bytes, int], cap: int) -> dict[bytes, int]:
    """§7: a pool in shares, by largest remainder."""
    total = sum(weights.values())
    shares = {key: pool * weight // total for key, weight in weights.items() if total}
    for key in sorted(shares, key=lambda key: (-(pool * weights[key] % total), key))[: pool - sum(shares.values())]:
        shares[key] += 1
    return {key: min(share, cap) for key, share in shares.items()}


class Ledger:
    """The fold over a log's entries."""

    def __init__(self, run: bytes, m: SimpleNamespace) -> None:
        self.run, self.m, self.codec, self.training_spec, self.size = run, m, Codec(m.exchange.codec), TrainingSpec(m), 0
        self.rules, self.audits_steps = m.audits[0] if m.audits else None, bool(m.audits) and m.exchange.local_steps > 1
        self.rounds, self.is_settled = [Committed(run, m.initial_state, m.exchange.first_min_exponent)], False
        self.kinds: Counter[str] = Counter()  # entries of each
        self.signatures = 0  # that held
        self.verdicts: dict[bytes, SimpleNamespace] = {}  # by digest; with `listed` what stands after the newest round's entry
        self.listed: list[Listed] = []
        always = (*m.operators, *m.admission.keys, *(key for rules in m.audits for key in (*rules.named, *rules.proven)))
        self.admitted, self.guests, self.out, self.revoked, self.used = set(always), set(), {}, set(), Counter()
        self.given = {key for rules in m.audits for key in rules.proven}
        self.good: Counter[bytes] = Counter()
        self.lost: dict[bytes, int] = {}
        self.guilty: set[bytes] = set()
        self.audits: dict[bytes, Audit] = {}
        self.pending: dict[int, tuple[Listed, ...]] = {}
        self.payouts: dict[bytes, bytes] = {}  # by key: the account that its newest claim names
        self.credits: Counter[bytes] = Counter()  # by account
        self.earned: Counter[bytes] = Counter()  # by key
        self.paid: dict[int, dict[bytes, int]] = {}  # by round and key, for claims

    @property
    def round(self) -> int:
        return len(self.rounds) - 1

    @property
    def is_between_rounds(self) -> bool:
        return not self.verdicts and not self.listed

    def is_proven(self, key: bytes) -> bool:
        return not self.rules or (key not in self.guilty and (key in self.given or self.good[key] >= self.rules.proven_after))

    def append(self, data: bytes) -> None:
        """Take the next entry."""
        entry = unpack(ENTRY, data, MAX_ENTRY)
        forms = {"contribution": HEADER, "round": ROUND_ENTRY, "settlement": SETTLEMENT}
        forms |= dict.fromkeys(("admission", "revocation", "verdict"), SIGNED)
        hold("E1", entry.kind in forms, entry.kind)
        is_over = self.round == self.m.num_rounds
        hold("E2", not self.is_settled and (not is_over or (self.rules and entry.kind in ("verdict", "settlement"))), "the run is over")
        body = unpack(forms[entry.kind], entry.body, MAX_ENTRY)
        if entry.kind == "round":
            self.take_round(body, sha256(data))
        else:
            getattr(self, f"take_{entry.kind}")(body)
        self.size += 1
        self.kinds[entry.kind] += 1
        self.signatures += {"admission": 2, "contribution": 1 + len(getattr(body, "claims", ()))}.get(
            entry.kind, int(forms[entry.kind] == SIGNED)
        )

    def size_after(self, round: int) -> int:
        """How many entries the log has with the entry of a round."""
        entry = self.rounds[round].entry
        return entry.first + entry.contributions + 1 if entry else 0

    def take_admission(self, signed: SimpleNamespace) -> None:
        hold("E2", self.is_between_rounds)
        said = unpack(ADMISSION, signed.payload)
        invitation = opened("invitation", INVITATION, "operator", said.invitation)
        opened("admission", ADMISSION, "key", signed, invitation.key)
        hold("E3", self.m.admission.how == "invitation")
        hold("E1", invitation.run == self.run, "an invitation to another run")
        hold("E4", invitation.operator in self.m.operators, "it is no operator's")
        hold("E5", said.key not in self.admitted and said.key not in self.out)
        hold("E4", invitation.key not in self.revoked, "it was taken back")
        hold("E4", self.round + 1 <= invitation.until_round, "it has ended")
        hold("E4", self.used[invitation.key] < invitation.keys, "it is used up")
        self.used[invitation.key] += 1
        self.admitted.add(said.key)
        self.guests |= {said.key} if invitation.access == "guest" else set()
        self.given |= {said.key} if invitation.access == "proven" else set()

    def take_revocation(self, signed: SimpleNamespace) -> None:
        hold("E2", self.is_between_rounds)
        said = opened("revocation", REVOCATION, "operator", signed)
        hold("E1", said.run == self.run)
        hold("E6", said.operator in self.m.operators, "not an operator's")
        hold("E3", self.m.admission.how != "open")
        if said.what == "peer":
            hold("E6", said.target in self.admitted and said.target not in self.m.operators, "not of a key that is in")
            self.admitted.discard(said.target)
            self.out[said.target] = self.round + 1
        else:
            hold("E3", self.m.admission.how == "invitation")
            hold("E6", said.target not in self.revoked, "not of an invitation that stands")
            self.revoked.add(said.target)

    def take_verdict(self, signed: SimpleNamespace) -> None:
        said, digest = opened("verdict", VERDICT, "auditor", signed), digest_of(signed)
        hold("E1", said.run == self.run)
        hold("E7", self.rules and said.auditor in self.rules.named)
        audit = self.audits.get(said.contribution)
        hold("E8", audit and audit.round == said.round)
        hold("E9", said.auditor not in audit.verdicts)
        hold("E10", len(said.outcomes) == len(audit.row.keys))
        is_late = self.round >= said.round + self.rules.kept_rounds
        hold("E11", is_late or (DEMOTED not in said.outcomes and (UNPAID not in said.outcomes or VOID in said.outcomes)))
        is_own, is_good = said.by == said.auditor, set(said.outcomes) == {GOOD}
        hold("E12", said.by not in audit.row.keys and (is_own or (is_good and self.is_proven(said.by))))
        hold("E2", not self.listed, "a verdict after a contribution")
        hold("E9", len(self.verdicts) < 2048 and (not self.verdicts or max(self.verdicts) < digest), "unsorted, or too many")
        self.verdicts[digest] = said

    def check_base(self, record: SimpleNamespace) -> None:
        hold("E1", record.run == self.run, "of another run")
        hold("E13", record.round <= self.round + 1 and record.base == self.rounds[record.round - 1].commit, "not a commit of this log")
        hold("E13", self.round + 1 - record.round <= 4, "too old")
        hold("E14", not any(self.training_spec.sorts_after(each) for each in range(record.round, self.round + 1)))

    def take_contribution(self, header: SimpleNamespace) -> None:
        said, m, cap = opened("contribution", CONTRIBUTION, "founder", header.contribution), self.m, self.m.exchange.weight_cap
        claims = [opened("claim", CLAIM, "key", signed) for signed in header.claims]
        hold("E25", len(self.listed) < m.exchange.max_rows, "too many")
        self.check_base(said)
        hold("E15", said.claims == tuple(map(digest_of, header.claims)))
        keys = tuple(claim.key for claim in claims)
        hold("E16", list(keys) == sorted(set(keys)) and said.founder in keys)
        cohort = claims[keys.index(said.founder)].cohort
        for claim in claims:
            same = (claim.run, claim.round, claim.base, claim.cohort) == (said.run, said.round, said.base, cohort)
            hold("E17", same and (claim.founder == said.founder or len(claims) == 1), claim.key.hex()[:16])
            self.check_claim(claim)
        unpaid = self.unpaid_in(said, claims)
        self.check_steps(said, claims)
        hold("E22", self.codec.is_sparse or not any(each.residual for each in (said, *claims)))
        hold("E25", not self.listed or self.listed[-1].founder < said.founder, "unsorted")
        samples, weights, costs = [], [], self.costs(said.round, cohort)
        for claim in claims:
            s = sum(claim.work) * m.microbatch_samples
            w = sum(microbatches * cost for microbatches, cost in zip(claim.work, costs, strict=True)) * m.microbatch_samples
            samples.append(min(s, cap))
            weights.append(w if s <= cap else w * cap // s)
        of_work = self.round + 1 - said.round, self.training_spec.role(said.round, cohort), cohort, said.body, keys
        payouts, counted = tuple(claim.payout for claim in claims), sum(sum(claim.work) for claim in claims) * m.microbatch_samples
        of_pay = payouts, counted, tuple(samples), tuple(weights), tuple(map(self.is_proven, keys))
        listed = Listed(digest_of(header.contribution), said.founder, said.round, *of_work, *of_pay)
        self.listed.append(listed.without_pay(unpaid))

    def check_claim(self, claim: SimpleNamespace) -> None:
        m, h = self.m, self.m.exchange.local_steps
        may_drop_out, is_whole = bool(m.audits) and claim.founder != claim.key, len(claim.steps) == h
        hold("E19", len(claim.steps) <= h and (is_whole or may_drop_out), "local steps")
        hold("E19", is_whole if claim.given else may_drop_out and not claim.residual, "what it gives")
        hold("E20", len(claim.work) == len(self.costs(claim.round, claim.cohort)), "architectures")
        hold("E20", claim.work == work_of(claim), "microbatches of other architectures than its indices are of")
        hold("E21", claim.shards == 0 or (m.shards and claim.shards < m.shards[0].train_shards), "shards")
        hold("E21", not claim.partner or (m.task == "stereo" and claim.partner != claim.key), "a partner")
        hold("E21", sum(claim.work) * m.microbatch_samples <= m.exchange.max_claim_samples, "samples")

    def unpaid_in(self, said: SimpleNamespace, claims: list[SimpleNamespace]) -> set[bytes]:
        """The keys whose claims stand unpaid: of members, where several local steps are audited."""
        newest, unpaid = [row for round in self.rounds[-5:] for row in round.listed if row.round == said.round], set()
        for claim in claims:
            key, may_be_unpaid = claim.key, self.audits_steps and claim.key != said.founder
            is_in = self.m.admission.how == "open" or key in self.admitted or self.round <= self.out.get(key, -1)
            is_in, is_new = is_in and key not in self.guests, not any(key in row.keys for row in newest)
            hold("E18", is_in or may_be_unpaid, key.hex()[:16])
            hold("E23", is_new or may_be_unpaid, "its work on this base is in the log")
            hold("E23", self.audits_steps or not any(key in row.keys for row in self.listed), "it stands twice in this round")
            unpaid |= {key} if may_be_unpaid and not (is_in and is_new and key not in self.guilty) else set()
        return unpaid

    def check_steps(self, said: SimpleNamespace, claims: list[SimpleNamespace]) -> None:
        h, bits = self.m.exchange.local_steps, [1 << place for place in range(len(claims))]
        own, giving = (sum(bit for bit, claim in zip(bits, claims, strict=True) if is_so(claim))
                       for is_so in (lambda claim: claim.key == said.founder, lambda claim: claim.given))  # fmt: skip
        have = [sum(bit for bit, claim in zip(bits, claims, strict=True) if len(claim.steps) > step) for step in range(h)]
        hold("E24", [step.included for step in said.steps] == have, "who counted in a step")
        hold("E24", own & said.included and not said.included & ~giving, "who is in the body")
        hold("E24", said.included == sum(bits) or self.audits_steps, "a claim that is not in the body")

    def costs(self, round: int, cohort: str) -> tuple[int, ...]:
        with about("", "E31"):
            return self.training_spec.costs(round, cohort)

    def take_round(self, said: SimpleNamespace, commit: bytes) -> None:
        before, x, listed = self.rounds[-1], self.m.exchange, paid_once(self.listed)
        hold("E2", listed, "a round without contributions")
        hold("E1", said.run == self.run)
        hold("E26", said.round == self.round + 1 and said.base == before.commit)
        hold("E27", (said.first, said.contributions) == (self.size - len(listed), len(listed)))
        hold("E28", abs(said.min_exponent - before.min_exponent) <= 1)
        hold("E29", x.min_open_ms <= said.open_ms <= x.max_open_ms)
        roles = [each.role for each in said.thresholds]
        hold("B3", roles == sorted(set(roles)), "thresholds are sorted by role")
        self.rounds.append(Committed(commit, said.state, said.min_exponent, said.thresholds, said, listed))
        self.turn(commit, listed)

    def take_settlement(self, said: SimpleNamespace) -> None:
        hold("E2", self.round == self.m.num_rounds, "before the last round")
        hold("E1", said.run == self.run)
        hold("E30", said.commit == self.rounds[-1].commit)
        self.judge()
        for round in list(self.pending):
            self.pay(round)
        self.is_settled = True

    def turn(self, commit: bytes, listed: tuple[Listed, ...]) -> None:
        """What a round's entry does: it takes the verdicts before it, pays, and draws."""
        self.judge()
        self.pending[self.round], self.listed = listed, []
        self.payouts |= {key: payout for row in listed for key, payout in zip(row.keys, row.payouts, strict=True)}
        for round in [each for each in self.pending if each <= self.round - (self.rules.pending_rounds if self.rules else 0)]:
            self.pay(round)
        rows = self.pending.get(self.round - 1, ()) if self.rules else ()
        chosen = drawn(self.rules, commit, rows, self.good) if rows else ()
        for row in rows:
            others = [key for key in self.rules.named if key not in row.keys]
            if row.digest in chosen and others:
                auditor = others[number("auditor", commit, row.digest) % len(others)]
                self.audits[row.digest] = Audit(self.round - 1, row, auditor, {}, (None,) * len(row.keys))

    def judge(self) -> None:
        """Take the verdicts, of two by one auditor on one contribution the first."""
        for said in self.verdicts.values():
            audit = self.audits[said.contribution]
            if said.auditor not in audit.verdicts:
                audit.verdicts[said.auditor] = said
                before, audit.outcomes = audit.outcomes, tuple(self.outcome(audit, place) for place in range(len(audit.row.keys)))
                for key, weight, was, now in zip(audit.row.keys, audit.row.weights, before, audit.outcomes, strict=True):
                    if now is not None and now != was:
                        self.decide(key, was, now, weight)
        self.verdicts = {}

    def outcome(self, audit: Audit, place: int) -> int | None:
        """What a claim comes to: what more than half of the named auditors say at least, else good by the word of the one drawn."""
        said, quorum = sorted(verdict.outcomes[place] for verdict in audit.verdicts.values()), len(self.rules.named) // 2 + 1
        worst = said[-quorum] if len(said) >= quorum else GOOD
        own = audit.verdicts.get(audit.auditor)
        return worst if worst != GOOD else GOOD if own and own.outcomes[place] == GOOD else None

    def decide(self, key: bytes, was: int | None, now: int, weight: int) -> None:
        self.good[key] = max(0, self.good[key] + ((now == GOOD) - (was == GOOD) if weight else 0))
        if now >= DEMOTED:
            self.good[key], self.lost[key] = 0, self.round
            self.given.discard(key)
        self.guilty |= {key} if now == VOID else set()

    def pay(self, round: int) -> None:
        """§7: pay a round, once."""
        m, work, audited, accounts = self.m, {}, Counter(), {}
        for row in self.pending.pop(round):
            audit = self.audits.pop(row.digest, None) or Audit(round, row, b"", {}, (None,) * len(row.keys))
            accounts |= dict(zip(row.keys, row.payouts, strict=True))
            for key, weight, proven, outcome in zip(row.keys, row.weights, row.proven, audit.outcomes, strict=True):
                if weight and (outcome == GOOD or (outcome is None and proven and self.lost.get(key, -1) < round)):
                    work[key] = weight
            for said in audit.verdicts.values():
                audited[said.by] += row.counted if said.outcomes == audit.outcomes else 0
        for_audits = m.reward_pool * self.rules.pool_percent // 100 if self.rules else 0
        cap = -(-m.reward_pool * m.private[0].credit_percent // 100) if m.private else m.reward_pool
        self.paid[round] = share_out(m.reward_pool - for_audits, work, cap)
        for shares, paid in (
            (self.paid[round], accounts),
            (share_out(for_audits, audited, for_audits), self.payouts),
        ):
            for key, amount in shares.items():
                if amount:
                    self.earned[key] += amount
                    self.credits[paid.get(key, key)] += amount
