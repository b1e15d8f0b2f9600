"""A gateway's session in the roster of its light contributors: it hands in what they return, and remembers what became of it.

``peer.submit.submitter`` takes it for a founder's session like any other: a claim of a light contributor names the gateway as its founder.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from manta_swarm.codec.residuals import near_mean
from manta_swarm.peer.cohort.cohort_session import GONE, Accepted, CohortSession, Gathered, Vector, norm_of
from manta_swarm.peer.context import RunContext
from manta_swarm.protocol.leases import Leases
from manta_swarm.protocol.light import LightWord, ReturnFate
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rosters import Durations, outliers
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import off_loop, wait_within

NOT_FINITE, TOO_LARGE = "values that are not finite", "much larger than the others' vectors"
LEFT_OUT = "the log does not take this claim: its key's work on this base is in already, perhaps by another way"
NOT_TAKEN = "the log did not take it together with the gateway's own"

logger = logging.getLogger("manta.gateway")


_REMEMBERED_WORDS, _REMEMBERED_ROSTERS = 4096, 8


class Returns:
    """Remembers what became of what light contributors brought back to this gateway since its start; only the newest."""

    def __init__(self) -> None:
        self.num_taken = 0  # claims that the log has
        self._words: OrderedDict[bytes, LightWord] = OrderedDict()
        self._rosters: OrderedDict[bytes, frozenset[bytes]] = OrderedDict()  # contribution -> keys of its claims

    def word(self, name: bytes) -> LightWord | None:
        """Return what became of a return; None: it is not known here."""
        return self._words.get(name)

    def roster(self, contribution: bytes) -> frozenset[bytes]:
        """Return the keys whose claims one of the newest contributions of this gateway has; none of another one."""
        return self._rosters.get(contribution, frozenset())

    def held(self, name: bytes) -> None:
        """Remember that a return is good, and is handed in with the gateway's own work."""
        self._remember(name, LightWord(int(ReturnFate.HELD), "", (), (), 0))

    def lost(self, reasons: Mapping[bytes, str]) -> None:
        """Remember that returns are not in what the gateway hands in, each for a reason."""
        for name, reason in reasons.items():
            self._remember(name, lost(reason))

    def taken(self, reasons: Mapping[bytes, str], accepted: Accepted, keys: frozenset[bytes]) -> None:
        """The log has the gateway's contribution, which has claims of these keys: all of them but those with a reason."""
        for name, reason in reasons.items():
            if reason:
                self._remember(name, lost(reason))
            else:
                self._remember(name, LightWord(int(ReturnFate.TAKEN), "", (accepted.contribution,), (accepted.inclusion_promise,), 0))
                self.num_taken += 1
        self._rosters[accepted.contribution.digest] = keys
        if len(self._rosters) > _REMEMBERED_ROSTERS:
            self._rosters.popitem(last=False)

    def _remember(self, name: bytes, word: LightWord) -> None:
        self._words.pop(name, None)
        self._words[name] = word
        if len(self._words) > _REMEMBERED_WORDS:
            self._words.popitem(last=False)


def lost(reason: str) -> LightWord:
    """Return what is said of a return that is lost."""
    return LightWord(int(ReturnFate.LOST), reason[:200], (), (), 0)


@dataclass(frozen=True, slots=True)
class Gift:
    """What a light contributor returned for a lease."""

    vector: Vector  # (N,)
    samples: int
    claim: Signed[Claim]
    name: bytes  # of the return


class LeaseSession(CohortSession):
    """The session of a gateway in the roster that it founds for its light contributors."""

    def __init__(
        self,
        context: RunContext,
        base: CommitRef,
        leases: Leases,
        durations: Durations,
        returns: Returns,
        timeout_ms: float,
        *,
        lingers: bool,
    ) -> None:
        """Begin without any.

        Args:
            context: of the run.
            base: the commit.
            leases: what is handed out on it.
            durations: is told how long gathering took.
            returns: is told what became of what came back.
            timeout_ms: how long after all was due what is being looked into is waited for.
            lingers: there are leases until all is due, even if the gateway's own work is over before.
        """
        super().__init__(context.key)
        self.base = base
        self.is_closed = False
        self._leases = leases
        self._durations = durations
        self._returns = returns
        self._clock = context.clock
        self._manifest = context.manifest
        self._timeout_ms = timeout_ms
        self._lingers = lingers
        self._gifts: dict[PublicKey, Gift] = {}
        self._vectors: dict[PublicKey, Vector] = {}  # that are averaged
        self._checking = 0
        self._changed = asyncio.Event()
        self._over_ms: float | None = None

    @property
    def is_alone(self) -> bool:
        """See ``CohortSession``."""
        return self.is_closed or not (self._lingers or self._gifts or self._checking or self._leases.is_awaited(self._clock.now_ms()))

    @property
    def is_founder(self) -> bool:
        """See ``CohortSession``."""
        return True

    @property
    def members(self) -> tuple[PublicKey, ...]:
        """See ``CohortSession``."""
        return tuple(sorted({self.key, *self._gifts}))

    def take(self, key: PublicKey, gift: Gift) -> None:
        """Take what came back of a lease."""
        self._gifts[key] = gift
        self._changed.set()

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """While something that came back is looked into, it is waited for."""
        self._checking += 1
        try:
            yield
        finally:
            self._checking -= 1
            self._changed.set()

    def work_over(self) -> None:
        """See ``CohortSession``."""
        if not self._lingers:
            self.shut()

    def go_on(self, timeout_ms: float, *, lingers: bool) -> None:
        """Begin the same work again, which gave nothing to hand in; what came back of leases stays. The arguments are the constructor's."""
        self._timeout_ms, self._lingers, self._over_ms = timeout_ms, lingers, None

    def nothing_learnt(self) -> None:
        """See ``CohortSession``; what came back is handed in with the next work on this base, if there is any."""
        self.shut()

    def shut(self) -> None:
        """Hand out no more leases; those that are out may come back."""
        self._lingers = False
        self._leases.shut()
        if self._over_ms is None:
            self._over_ms = self._clock.now_ms()
        self._changed.set()

    async def gather(self, claim: Signed[Claim], given: Vector, weight: int) -> Gathered | None:
        """See ``CohortSession``."""
        await self._lingered()
        self.shut()
        await self._all_back()
        self.is_closed = True  # what is still being looked into is too late
        own = Gift(given, weight, claim, b"")
        norms = await off_loop(given.size, lambda: {key: norm_of(gift.vector) for key, gift in [*self._gifts.items(), (self.key, own)]})
        gifts = self._sifted(own, norms)
        assert self._over_ms is not None
        self._durations.gathered(self._clock.now_ms() - self._over_ms)
        if len(gifts) < 2:
            return None
        self._vectors = {key: gift.vector for key, gift in gifts.items()}
        weights = [min(gift.samples, self._manifest.exchange.weight_cap) for gift in gifts.values()]
        try:
            mean = await self.mean_of(tuple(gifts), weights)
        except ValueError as error:  # of finite vectors the mean may not be
            logger.info("nothing gathered round=%d reason=%s", self.base.round + 1, error)
            return None
        return Gathered({key: gift.claim for key, gift in gifts.items()}, weights, mean, self)

    async def mean_of(self, keys: Sequence[PublicKey], weights: Sequence[int]) -> Vector:
        """See ``peer.cohort.cohort_session.Means``."""
        vectors = [self._vectors[key] for key in keys]
        return await off_loop(vectors[0].size, lambda: near_mean(vectors, weights))

    async def first_back(self) -> bool:
        """Return whether anything came back, once something did, or nothing is waited for any more."""
        while not self._gifts and (self._lingers or self._checking) and (left_ms := self._leases.due_ms - self._clock.now_ms()) > 0:
            self._changed.clear()
            await wait_within(self._changed, left_ms / 1000)
        return bool(self._gifts)

    async def _lingered(self) -> None:
        """Wait until all is due, as long as this cohort session lingers."""
        while self._lingers and (left_ms := self._leases.due_ms - self._clock.now_ms()) > 0:
            self._changed.clear()
            await wait_within(self._changed, left_ms / 1000)

    async def _all_back(self) -> None:
        """Wait for all leases that are out, until they were due; for what came back by then a little longer."""
        while self._leases.is_awaited(self._clock.now_ms()) or self._checking:
            left_ms = self._leases.due_ms - self._clock.now_ms() + (self._timeout_ms if self._checking else 0.0)
            if left_ms <= 0:
                return
            self._changed.clear()
            await wait_within(self._changed, left_ms / 1000)

    def _sifted(self, own: Gift, norms: dict[PublicKey, float]) -> dict[PublicKey, Gift]:
        """Return what is averaged, in the order of the keys; the others are lost, and are told so."""
        reasons = {key: NOT_FINITE for key, norm in norms.items() if not isfinite(norm)}
        gifts = {key: gift for key, gift in sorted([*self._gifts.items(), (self.key, own)]) if key not in reasons}
        if self.key in gifts:
            places = outliers([norms[key] for key in gifts], [gift.samples for gift in gifts.values()])
            reasons |= {key: TOO_LARGE for place, key in enumerate(gifts) if place in places}
        if self.key in reasons:
            self._returns.lost({gift.name: NOT_TAKEN for gift in self._gifts.values()})
            self._gifts.clear()
            return {}
        lost = {self._gifts.pop(key).name: reason for key, reason in reasons.items()}
        for key, reason in reasons.items():
            logger.info("left out round=%d peer=%s reason=%s", self.base.round + 1, key.hex()[:8], reason)
        self._returns.lost(lost)
        return {key: gift for key, gift in gifts.items() if key not in reasons}

    async def tell(self, accepted: Accepted | None) -> None:
        """See ``CohortSession``."""
        gifts, self._gifts = self._gifts, {}
        self.is_closed = True
        if accepted is None:
            self._returns.lost({gift.name: NOT_TAKEN for gift in gifts.values()})
            return
        listed = set(accepted.contribution.open().claims)
        fates = {gift.name: "" if gift.claim.digest in listed else LEFT_OUT for gift in gifts.values()}
        keys = frozenset({self.key, *(key for key, gift in gifts.items() if gift.claim.digest in listed)})
        self._returns.taken(fates, accepted, keys)

    def close(self, reason: str = GONE) -> None:
        """See ``CohortSession``."""
        self.shut()
        self.is_closed = True
        gifts, self._gifts = self._gifts, {}
        if gifts:
            self._returns.lost({gift.name: f"lost: {reason}" for gift in gifts.values()})
        self._changed.set()
