"""A model of what audits cost and what they take from whom: the rules of pay, weight and proof in virtual rounds, without a network.

It answers which parameters make lying a loss, and what honest peers lose by them. A contribution lists claims, one a key. A contribution
that the beacon draws has to be *shown* (its steps' means, each claim's residual, and, where a step fails, each claim's own vectors) until
``kept_rounds`` have passed, and a named auditor computes all of it. What comes out:

    all fits                                        every claim is good, and counts towards its key being proven
    own vector does not fit                         that claim is void, its key guilty
    own vectors fit, mean or body does not follow   the founder's claim is void and its key guilty; the others' are good
    no mean shown                                   no claim is paid, all keys are demoted
    a residual not shown                            no claim is paid, its key and the founder are demoted
    own vector of a failed step not shown           that claim is unpaid and its key demoted; the others by their own vectors
    not computed in time, or auditors disagree      not judged: proven keys are paid, unproven ones are not

``good`` is the word of one named auditor, the one that the beacon draws; everything else needs a quorum, each of which computed it. Pay is
shared ``pending_rounds`` later among the claims of keys that were proven when they handed in and neither demoted nor guilty since, and
the claims found good.

Rounds are of equal length, contributions of equal samples. Run it for the table: ``python -m tests.protocol.audit_model``.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

Key = str
POOL = 1.0  # what a round pays
ROUNDS_A_DAY = 1440  # of a minute each


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of a run."""

    audit_percent: float = 5.0  # of the contributions with a proven key, that are drawn
    newcomer_percent: float = 10.0  # of the samples of those with a proven key, that draws of those without one may cost
    known_percent: float = 50.0  # of that, for contributions of keys that were found good before
    unproven_percent: float = 20.0  # of the table's weight, that claims of unproven keys have at most
    proven_after: int = 20  # contributions found good since the key was last demoted
    kept_rounds: int = 60  # until what is drawn has to be shown
    judged_rounds: int = 30  # more, until it is judged or counts as not judged
    pending_rounds: int = 120  # until a round is paid
    auditors: int = 1  # named
    quorum: int = 1  # of them
    capacity_percent: float = 25.0  # of the table's samples, that each named auditor can compute in a round
    again_percent: float = 25.0  # of what a volunteer found good, that the named auditor computes again

    def __post_init__(self) -> None:
        if self.pending_rounds < self.kept_rounds + self.judged_rounds:
            raise ValueError("what is paid has to be judged before")


@dataclass(frozen=True, slots=True)
class Claim:
    """One key's part of a contribution."""

    key: Key
    is_trained: bool = True  # its vectors are what its samples give


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a cohort hands in; its first claim is the founder's."""

    claims: tuple[Claim, ...]
    follows: bool = True  # its means and its body are what the members' vectors give
    friends: frozenset[int] = frozenset()  # the named auditors that lie for it

    @property
    def fits(self) -> bool:
        """Whether an honest auditor finds it good."""
        return self.follows and all(claim.is_trained for claim in self.claims)


@dataclass(frozen=True, slots=True)
class Shown:
    """What those who handed in a contribution show of it by now."""

    means: bool = True
    residuals: bool = True  # of all claims; an absent one is the last claim's
    vectors: bool = True  # of all claims that an honest auditor finds untrue


NOTHING = Shown(False, False, False)
HandsIn = Callable[["Economy", int, random.Random], Iterable[Contribution]]
Shows = Callable[[Contribution, int, int], Shown]


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody with one key or many: what it hands in at a round, and what it shows of a contribution of one round at a later one."""

    name: str
    hands_in: HandsIn
    shows: Shows = lambda contribution, handed_in, now: Shown()
    proven: frozenset[Key] = frozenset()  # of its keys, from the start


class Outcome(Enum):
    """What an audit came to for one claim."""

    GOOD = "good"
    VOID = "void"
    UNPAID = "unpaid"
    NOT_JUDGED = "not judged"


@dataclass(slots=True)
class _Key:
    good: int = 0  # contributions, since it was last demoted
    is_named: bool = False  # proven by the manifest
    guilty_at: int | None = None
    lost_at: int = -1  # the newest round in which it was demoted or found guilty


@dataclass(slots=True)
class _Handed:
    actor: Actor
    contribution: Contribution
    round: int
    was_proven: tuple[bool, ...]  # by claim
    outcomes: dict[Key, Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class Account:
    """What became of one actor."""

    pay: float = 0.0
    trained: int = 0  # claims that it worked for
    claims: int = 0
    weight: float = 0.0  # the sum over rounds of its part of the table's weight
    demoted: int = 0
    guilty: int = 0
    first_guilty: int | None = None  # the round
    first_proven: int | None = None

    @property
    def pay_a_trained(self) -> float:
        """What it was paid for each claim that it worked for."""
        return self.pay / max(1, self.trained)


@dataclass(slots=True)
class Economy:
    """One run of the model."""

    rules: Rules
    actors: Sequence[Actor]
    seed: int = 0
    liars: dict[int, str] = field(default_factory=dict)  # by named auditor: "good" of everything, or "guilty" of everybody
    yes_percent: float = 0.0  # of the drawn contributions, that a volunteer gets who says yes to all
    accounts: dict[str, Account] = field(default_factory=dict)
    audited: int = 0  # contributions computed by named auditors, again ones too
    handed_in: int = 0
    drawn: int = 0
    unjudged: int = 0
    _keys: dict[Key, _Key] = field(default_factory=dict)
    _waiting: list[_Handed] = field(default_factory=list)  # drawn, and not judged
    _pending: list[list[_Handed]] = field(default_factory=list)  # by round

    def run(self, rounds: int) -> "Economy":
        """Play so many rounds, and what is pending after them."""
        rng = random.Random(f"audits:{self.seed}")
        self.accounts = {actor.name: Account() for actor in self.actors}
        for key in chain.from_iterable(actor.proven for actor in self.actors):
            self._keys[key] = _Key(is_named=True)
        for now in range(rounds + self.rules.pending_rounds):
            table = self._table(now, rng) if now < rounds else []
            self._pending.append(table)
            if now >= 1:
                self._draw(self._pending[now - 1], rng)
            self._judge(now, max(len(table), len(self._pending[max(0, now - 1)])), rng)
            if now >= self.rules.pending_rounds:
                self._pay(self._pending[now - self.rules.pending_rounds])
        return self

    def is_guilty(self, key: Key) -> bool:
        """Return whether a key was found guilty."""
        return self._keys.setdefault(key, _Key()).guilty_at is not None

    def is_proven(self, key: Key) -> bool:
        """Return whether a key is proven now."""
        known = self._keys.setdefault(key, _Key())
        return known.guilty_at is None and (known.is_named or known.good >= self.rules.proven_after)

    def _table(self, now: int, rng: random.Random) -> list[_Handed]:
        table: list[_Handed] = []
        for actor in self.actors:
            for contribution in actor.hands_in(self, now, rng):
                account = self.accounts[actor.name]
                if any(self.is_guilty(claim.key) for claim in contribution.claims):
                    continue  # the log takes no header with a guilty key
                account.claims += len(contribution.claims)
                account.trained += sum(claim.is_trained for claim in contribution.claims)
                table.append(_Handed(actor, contribution, now, tuple(self.is_proven(claim.key) for claim in contribution.claims)))
                if account.first_proven is None and any(table[-1].was_proven):
                    account.first_proven = now
        self.handed_in += len(table)
        self._weigh(table)
        return table

    def _weigh(self, table: Sequence[_Handed]) -> None:
        proven = sum(sum(handed.was_proven) for handed in table)
        unproven = sum(len(handed.was_proven) for handed in table) - proven
        most = proven * self.rules.unproven_percent / (100 - self.rules.unproven_percent)
        part = 1.0 if proven == 0 else min(1.0, most / max(1, unproven))
        for handed in table:
            own = sum(1.0 if was_proven else part for was_proven in handed.was_proven)
            self.accounts[handed.actor.name].weight += own / (proven + part * unproven)

    def _draw(self, table: Sequence[_Handed], rng: random.Random) -> None:
        """Draw, in an order that nobody knew: of the proven their part, of the others what the budget for newcomers pays.

        Half of that budget is for keys that were found good before: else a crowd of keys that never work would keep the one that
        does from being looked at again.
        """
        proven = [handed for handed in table if any(handed.was_proven)]
        others = [handed for handed in table if not any(handed.was_proven)]
        drawn = [handed for handed in proven if rng.random() * 100 < self.rules.audit_percent]
        budget = self.rules.newcomer_percent / 100 * _claims(proven or others)
        known = [handed for handed in others if all(self._keys[claim.key].good for claim in handed.contribution.claims)]
        drawn += _paid_by(budget * self.rules.known_percent / 100, known, rng)
        rest = [handed for handed in others if handed not in drawn]
        drawn += _paid_by(budget - _claims(handed for handed in drawn if handed in known), rest, rng)
        self.drawn += len(drawn)
        self._waiting += drawn

    def _judge(self, now: int, size: int, rng: random.Random) -> None:
        """Judge what is shown, as far as the auditors can compute it; what is not shown in time has lost."""
        capacity = self.rules.auditors * self.rules.capacity_percent / 100 * size
        still: list[_Handed] = []
        for handed in self._waiting:
            shown, age = handed.actor.shows(handed.contribution, handed.round, now), now - handed.round
            is_shown = shown.means and shown.residuals and (shown.vectors or all(claim.is_trained for claim in handed.contribution.claims))
            if not is_shown and age < self.rules.kept_rounds:
                still.append(handed)
            elif not is_shown:
                self._not_shown(handed, shown, now)
            elif capacity >= 1:
                capacity -= self._look(handed, now, rng)
            elif age < self.rules.kept_rounds + self.rules.judged_rounds:
                still.append(handed)
            else:
                self._not_judged(handed)
        self._waiting = still

    def _look(self, handed: _Handed, now: int, rng: random.Random) -> int:
        """Have a contribution computed; return by how many named auditors."""
        drawn = rng.randrange(self.rules.auditors)
        lie = "good" if drawn in handed.contribution.friends else self.liars.get(drawn)
        is_yes = rng.random() * 100 < self.yes_percent
        if lie == "good" or (lie is None and is_yes and rng.random() * 100 >= self.rules.again_percent):
            self._good(handed)
            return 0 if is_yes else 1
        self.audited += 1
        if lie is None and handed.contribution.fits:
            self._good(handed)
            return 1
        honest = sum(each not in self.liars and each not in handed.contribution.friends for each in range(self.rules.auditors))
        self.audited += self.rules.auditors - 1  # everybody computes what takes something away
        if handed.contribution.fits or honest < self.rules.quorum:
            self._not_judged(handed)
        else:
            self._against(handed, now)
        return self.rules.auditors

    def _good(self, handed: _Handed) -> None:
        for claim in handed.contribution.claims:
            handed.outcomes[claim.key] = Outcome.GOOD
            self._keys[claim.key].good += 1

    def _against(self, handed: _Handed, now: int) -> None:
        claims = handed.contribution.claims
        false = [claim for claim in claims if not claim.is_trained] or [claims[0]]
        for claim in claims:
            if claim in false:
                self._lose(handed, claim.key, Outcome.VOID, now, is_guilty=True)
            else:
                handed.outcomes[claim.key] = Outcome.GOOD
                self._keys[claim.key].good += 1

    def _not_shown(self, handed: _Handed, shown: Shown, now: int) -> None:
        claims = handed.contribution.claims
        losers = list(claims)
        if shown.means and not shown.residuals:
            losers = [claims[0], claims[-1]]
        elif shown.means:
            losers = [claim for claim in claims if not claim.is_trained]
        for claim in claims:
            handed.outcomes[claim.key] = Outcome.UNPAID if not shown.means or not shown.residuals else Outcome.GOOD
        for claim in losers:
            self._lose(handed, claim.key, Outcome.UNPAID, now, is_guilty=False)

    def _lose(self, handed: _Handed, key: Key, outcome: Outcome, now: int, *, is_guilty: bool) -> None:
        handed.outcomes[key] = outcome
        known, account = self._keys[key], self.accounts[handed.actor.name]
        if known.guilty_at is not None:
            return
        known.good, known.is_named, known.lost_at = 0, False, now
        if is_guilty:
            known.guilty_at = now
            account.guilty += 1
            account.first_guilty = now if account.first_guilty is None else account.first_guilty
        else:
            account.demoted += 1

    def _not_judged(self, handed: _Handed) -> None:
        self.unjudged += 1
        for claim in handed.contribution.claims:
            handed.outcomes[claim.key] = Outcome.NOT_JUDGED

    def _pay(self, table: Sequence[_Handed]) -> None:
        paid = Counter[str]()
        for handed in table:
            for claim, was_proven in zip(handed.contribution.claims, handed.was_proven, strict=True):
                outcome = handed.outcomes.get(claim.key, Outcome.NOT_JUDGED)
                is_clean = was_proven and self._keys[claim.key].lost_at < handed.round
                paid[handed.actor.name] += outcome is Outcome.GOOD or (outcome is Outcome.NOT_JUDGED and is_clean)
        for name, claims in paid.items():
            self.accounts[name].pay += POOL * claims / max(1, paid.total())


def _claims(table: Iterable[_Handed]) -> int:
    return sum(len(handed.was_proven) for handed in table)


def _paid_by(budget: float, table: Sequence[_Handed], rng: random.Random) -> list[_Handed]:
    """Return so many of these, in random order, as the budget pays; one that it pays in part is drawn as often."""
    drawn = []
    for handed in rng.sample(table, len(table)):
        if rng.random() * len(handed.was_proven) < budget:
            drawn.append(handed)
        budget -= len(handed.was_proven)
        if budget <= 0:
            break
    return drawn


def gain(rules: Rules, part: float) -> float:
    """Return what somebody gains who leaves out the work of this part of its contributions, in contributions until it is found.

    T rounds until it is found are geometric: each is the last one with probability q = part * audit. What was handed in more than
    ``pending_rounds`` before is paid, though it did not work for that part; what came later is not paid, though it worked for the rest,
    unless that was drawn and found good.
    """
    audit, pending = rules.audit_percent / 100, rules.pending_rounds
    found = audit * part
    undetected = (1 - found) ** pending  # the probability of a life that long
    return (part * undetected - (1 - part) * (1 - audit) * (1 - undetected)) / found


# Who takes part.


def honest(name: str, *, proven: bool = True, joins: int = 0, is_there: Callable[[int], bool] = lambda now: True) -> Actor:
    """Return a peer that trains whenever it is there, from one round on, and shows what it is asked for while it is there."""

    def hands_in(economy: Economy, now: int, rng: random.Random) -> Iterable[Contribution]:
        del economy, rng
        return [Contribution((Claim(name),))] if now >= joins and is_there(now) else []

    def shows(contribution: Contribution, handed_in: int, now: int) -> Shown:
        del contribution, handed_in
        return Shown() if is_there(now) else NOTHING

    return Actor(name, hands_in, shows, frozenset([name]) if proven else frozenset())


def is_laptop_open(now: int) -> bool:
    """Return whether a laptop is open that is closed at night, for eight hours, and for an hour at noon."""
    minute = now % ROUNDS_A_DAY
    return minute >= 480 and not 720 <= minute < 780


def faker(name: str, percent: float, *, proven: bool = True, when_proven: bool = True) -> Actor:
    """Return somebody who leaves out the work of so many of its contributions, and begins anew under another key once it is found guilty.

    A new key works honestly until it is proven, if it fakes only ``when_proven``.
    """
    generation = 0

    def hands_in(economy: Economy, now: int, rng: random.Random) -> Iterable[Contribution]:
        nonlocal generation
        del now
        generation += economy.is_guilty(f"{name}/{generation}")
        key = f"{name}/{generation}"
        fakes = rng.random() * 100 < percent and (economy.is_proven(key) or not when_proven)
        return [Contribution((Claim(key, is_trained=not fakes),))]

    return Actor(name, hands_in, proven=frozenset([f"{name}/0"]) if proven else frozenset())


def free_keys(name: str, count: int, *, claims: int = 1) -> Actor:
    """Return somebody who hands in so many contributions a round of keys that never worked, with so many claims each."""

    def hands_in(economy: Economy, now: int, rng: random.Random) -> Iterable[Contribution]:
        del economy, rng  # new keys each round: they cost nothing
        return [
            Contribution(tuple(Claim(f"{name}/{now}/{each}/{claim}", is_trained=False) for claim in range(claims))) for each in range(count)
        ]

    return Actor(name, hands_in)


def ghost_cohort_peer(name: str, *, shows_vectors: bool) -> Actor:
    """Return an honest founder with one more claim of a new key, which never worked."""

    def hands_in(economy: Economy, now: int, rng: random.Random) -> Iterable[Contribution]:
        del economy, rng
        return [Contribution((Claim(name), Claim(f"{name}/{now}", is_trained=False)))]

    return Actor(name, hands_in, lambda contribution, handed_in, now: Shown(vectors=shows_vectors), frozenset([name]))


def withholder(name: str, *, cohort_peers: int = 1) -> Actor:
    """Return keys that work for nothing, and show nothing of what is asked."""
    keys = [f"{name}/{number}" for number in range(cohort_peers)]

    def hands_in(economy: Economy, now: int, rng: random.Random) -> Iterable[Contribution]:
        del economy, now, rng
        return [Contribution(tuple(Claim(key, is_trained=False) for key in keys))]

    return Actor(name, hands_in, lambda contribution, handed_in, now: NOTHING, frozenset(keys))


def poisoner(name: str) -> Actor:
    """Return a founder that trains, and hands in a body that does not follow; its honest cohort peer is another's key each round."""

    def hands_in(economy: Economy, now: int, rng: random.Random) -> Iterable[Contribution]:
        del economy, now, rng
        return [Contribution((Claim(name),), follows=False)]

    return Actor(name, hands_in, proven=frozenset([name]))


def crowd(count: int) -> list[Actor]:
    """Return so many honest, proven peers."""
    return [honest(f"honest-{number}") for number in range(count)]


def _table(rules: Rules, rounds: int) -> Iterable[str]:
    """Yield a line for each of those who don't only do their work, beside twelve who do."""
    yield f"{'':24}{'pay':>8}{'weight':>8}{'found':>7}{'guilty':>8}{'demoted':>9}{'proven':>8}{'audited':>9}"
    scenes: list[tuple[Actor, dict[int, str], float]] = [
        (honest("newcomer", proven=False), {}, 0),
        (honest("laptop", is_there=is_laptop_open), {}, 0),
        *((faker(f"fakes {percent} %", percent), {}, 0) for percent in (1, 5, 25, 100)),
        (faker("fakes 25 %, a liar", 25), {0: "good"}, 0),
        (faker("fakes 25 %, yes-sayers", 25), {}, 50),
        (ghost_cohort_peer("ghost cohort peer", shows_vectors=True), {}, 0),
        (ghost_cohort_peer("ghost cohort peer, hidden", shows_vectors=False), {}, 0),
        (withholder("withholds", cohort_peers=2), {}, 0),
        (poisoner("poisons"), {}, 0),
        (free_keys("100 free keys", 100), {}, 0),
        (free_keys("2 of 32 free keys", 2, claims=32), {}, 0),
    ]
    for actor, liars, yes_percent in scenes:
        economy = Economy(rules, [*crowd(12), actor], liars=liars, yes_percent=yes_percent).run(rounds)
        account, usual = economy.accounts[actor.name], economy.accounts["honest-0"]
        pay = account.pay_a_trained / usual.pay_a_trained
        guilty, demoted = account.guilty, account.demoted
        found, proven = ("" if each is None else str(each) for each in (account.first_guilty, account.first_proven))
        audited = 100 * economy.audited / economy.handed_in
        yield f"{actor.name:24}{pay:8.3f}{account.weight / rounds:8.3f}{found:>7}{guilty:>8}{demoted:>9}{proven:>8}{audited:8.1f}%"


def main() -> None:
    """Print what comes of whom, for one named auditor and for four."""
    for rules in (Rules(), Rules(auditors=4, quorum=3)):
        print(f"{rules.auditors} named, {rules.quorum} agree; pay for work done (an honest peer's is 1), two days of rounds of a minute")
        print("\n".join(_table(rules, 2 * ROUNDS_A_DAY)), end="\n\n")
    print("what leaving out work gains in a life, in contributions, by the part that is left out")
    parts = (0.001, 0.01, 0.05, 0.25, 0.5, 1.0)
    print(f"{'audit %, pending':24}" + "".join(f"{part:>9}" for part in parts))
    for percent in (2, 5, 10):
        for pending in (90, 120, 240):
            rules = Rules(audit_percent=percent, pending_rounds=pending)
            print(f"{percent:>10} %, {pending:>10}" + "".join(f"{gain(rules, part):9.1f}" for part in parts))


if __name__ == "__main__":
    main()
