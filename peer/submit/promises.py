"""What the log promised: a contribution with an inclusion promise is looked for in the table of its round, until it is proven to be there.

Work that this peer gave up, but gave to a founder before, is looked for as well: the founder may hand it in later.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from manta_swarm.network import timeouts
from manta_swarm.network.log_client import ProvenContribution
from manta_swarm.protocol.errors import RemoteFault, Unreachable
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.rounds import PeerStage, RoundMachine, SignedWork

_ASKED_BEFORE_BELIEVED = (
    3  # times that the log answers neither with a contribution nor that there is none: its inclusion promise is its word
)
_REMEMBERED = 64

logger = logging.getLogger("manta.peer")


class CountedContributions(Protocol):
    """Knows what rounds counted (``network.log_client.LogClient``)."""

    async def counted(self, round: int) -> ProvenContribution | None:
        """Return the contribution of a committed round that has this peer's claim; None: the log says that it has none."""


class ContributionFate(Enum):
    """What became of a contribution."""

    COUNTED = "counted"  # it is in its table, or its claim is there in the cohort's
    COUNTED_AFTER_ALL = "counted after all"  # this peer had given it up
    BROKEN = "broken"  # the log said that it is in a table, and it is not
    REPLACED = "replaced"  # it had no inclusion promise, and other work of this peer on the same base is in the table


@dataclass(frozen=True, slots=True)
class FateKnown:
    """A contribution of this peer, and what became of it."""

    fate: ContributionFate
    round: int
    signed: SignedWork
    found: ProvenContribution | None = (
        None  # as the log proved it; None with COUNTED: the log shows that table no more, its inclusion promise is believed
    )

    @property
    def is_counted(self) -> bool:
        """Whether a table has it."""
        return self.fate in (ContributionFate.COUNTED, ContributionFate.COUNTED_AFTER_ALL)


@dataclass(frozen=True, slots=True)
class ClaimListed:
    """A round's table has a contribution with a claim of this peer, whoever handed it in."""

    round: int
    contribution: bytes  # Signed[Contribution].digest
    base: bytes  # digest of the commit that it stands on


PromiseEvent = ClaimListed | FateKnown


@dataclass(frozen=True, slots=True)
class NewCommit:
    """The news that a commit is the newest one."""

    entry: Round
    is_counted: bool  # its table has this peer, as far as is known already
    samples_lost: int  # that no round can take any more


@dataclass(frozen=True, slots=True)
class KnownFates:
    """What this peer knows by now of its contributions' fate, for the choice of its residual."""

    listed: tuple[bytes, int] | None  # the newest one with this peer's claim that came to be known to be in a table, and its round
    dropped: tuple[bytes, ...]  # those that came to nothing
    is_all: bool  # no other one is looked for


@dataclass(frozen=True, slots=True)
class _Expected:
    """A contribution that has to be in a table."""

    signed: SignedWork
    has_inclusion_promise: bool  # else the log says that some work of this peer is listed


class Promises:
    """Looks for this peer's contributions in the tables that must have them, until each one's fate is known. All methods run in one event
    loop.
    """

    def __init__(self, log: CountedContributions) -> None:
        """Expect nothing yet; ``log`` is asked for what its news do not bring."""
        self._log = log
        self._expected: dict[int, _Expected] = {}
        self._given_up: dict[bytes, SignedWork] = {}  # by claim
        self._given: dict[bytes, int] = {}  # rounds of work that is not signed, of which a founder has some steps, by the base's commit
        self._wondered: set[int] = set()  # rounds whose tables may have some of that
        self._looking: dict[int, asyncio.Task[None]] = {}
        self._claims: deque[bytes] = deque(maxlen=_REMEMBERED)  # claims that were in their tables
        self._events: deque[PromiseEvent] = deque()  # that asking brought
        self._has_events = asyncio.Event()
        self.listed_in = 0  # the newest round whose table is known to have this peer
        self._listed: tuple[bytes, int] | None = None  # as in ``KnownFates``, since ``take_known``
        self._dropped: deque[bytes] = deque(maxlen=_REMEMBERED)  # as there

    # What was found out.

    def take_events(self) -> list[PromiseEvent]:
        """Return what asking the log brought since this or ``next_event`` returned it, the oldest first."""
        events = list(self._events)
        self._events.clear()
        return events

    async def next_event(self) -> PromiseEvent:
        """Return the next thing that asking the log brings, once there is one."""
        while not self._events:
            self._has_events.clear()
            await self._has_events.wait()
        return self._events.popleft()

    def take_known(self) -> KnownFates:
        """Return what came to be known since this was called last."""
        known = KnownFates(self._listed, tuple(self._dropped), not self._expected)
        self._listed = None
        self._dropped.clear()
        return known

    # What happened.

    def take(self, machine: RoundMachine, entry: Round, counted: ProvenContribution | None) -> tuple[NewCommit | None, list[PromiseEvent]]:
        """Take note of a commit of the log, and of the contribution in its table with this peer's claim, if that is proven with it.

        Returns:
            What the commit means for this peer, None: it is no news; and what was found out.

        Raises:
            LedgerError: it contradicts a commit that ``machine`` knows.
        """
        signed = machine.signed
        if counted is not None and machine.stage is PeerStage.SIGNED and signed is not None and signed.claim in counted.contribution.claims:
            machine.listed()  # the commit came before the inclusion promise
            self.expect(entry.round, signed)
        commit = machine.committed(entry)
        if commit.promised is not None:
            assert commit.inclusion_promise is not None
            self.expect(commit.inclusion_promise.round, commit.promised)
        events = [] if counted is None else self.see(entry.round, counted)
        if not commit.is_news:
            return None, events
        self.committed(entry.round)
        is_counted = commit.promised is not None or counted is not None  # perhaps before this start
        return NewCommit(entry, is_counted, commit.samples_lost), events

    def expect(self, round_: int, signed: SignedWork, *, is_promised: bool = True) -> None:
        """The round is committed, and the log said that ``signed`` is in its table: perhaps twice, by a listing and a late promise.

        Not ``is_promised``: that some work of this peer on that base is.
        """
        if signed.claim not in self._claims:
            before = self._expected.get(round_)
            self._expected[round_] = _Expected(signed, is_promised or (before is not None and before.has_inclusion_promise))

    def see(self, round_: int, found: ProvenContribution) -> list[PromiseEvent]:
        """Take note of a contribution with this peer's claim that a round is proven to have counted; return what that is."""
        events: list[PromiseEvent] = [ClaimListed(round_, found.digest, found.contribution.base)]
        claims, expected = set(found.contribution.claims), self._expected.get(round_)
        if expected is not None and expected.signed.claim in claims:
            del self._expected[round_]
            events.append(self._counted(FateKnown(ContributionFate.COUNTED, round_, expected.signed, found)))
        for claim in self._given_up.keys() & claims:
            events.append(self._counted(FateKnown(ContributionFate.COUNTED_AFTER_ALL, round_, self._given_up.pop(claim), found)))
        return events

    def _counted(self, event: FateKnown) -> FateKnown:
        """Remember a contribution that counts, and which one leaves the residual."""
        signed, found = event.signed, event.found
        self._claims.append(signed.claim)
        if event.round >= self.listed_in:  # else a later one has left its residual already
            self.listed_in = event.round
            self._listed = signed.handed_in.digest if found is None else found.digest, event.round
        return event

    def give_up(self, signed: SignedWork, newest: int) -> None:
        """This peer hands it in no more; others may have it, so it is looked for as long as it may count. ``newest``: the newest round."""
        self._given_up[signed.claim] = signed
        self._wondered.update(range(signed.opened.round, min(newest, signed.opened.round + MAX_AGE) + 1))

    def wonder(self, round_: int, base: bytes, newest: int) -> None:
        """A founder has steps of this peer's work for a round on a base, which came to nothing here: it may list them."""
        self._given[base] = round_
        self._wondered.update(range(round_, min(newest, round_ + MAX_AGE) + 1))

    def committed(self, round_: int) -> None:
        """The log has a new round."""
        self._given = {base: of_it for base, of_it in self._given.items() if round_ <= of_it + MAX_AGE + _REMEMBERED}
        self._given_up = {claim: one for claim, one in self._given_up.items() if round_ <= one.opened.round + MAX_AGE + _REMEMBERED}
        if any(
            first <= round_ <= first + MAX_AGE for first in (*(one.opened.round for one in self._given_up.values()), *self._given.values())
        ):
            self._wondered.add(round_)

    def is_looking_for(self, base: bytes) -> bool:
        """Whether a round may have work of this peer on a base, the digest of its commit, that nobody was told of: it was not seen yet, or
        what was found of it was not taken.
        """
        is_wondered = base in self._given or any(one.opened.base == base for one in self._given_up.values())
        is_expected = any(one.signed.opened.base == base for one in self._expected.values())
        is_found = any(isinstance(event, ClaimListed) and event.base == base for event in self._events)
        return is_expected or is_found or (is_wondered and bool(self._wondered))

    # Asking.

    def look(self) -> None:
        """Ask the log for the listings that its news did not bring."""
        if not self._given_up and not self._given:
            self._wondered.clear()
        for round_ in (self._expected.keys() | self._wondered) - self._looking.keys():
            self._looking[round_] = task = asyncio.create_task(self._look_for(round_))
            task.add_done_callback(lambda _, round_=round_: self._looking.pop(round_))  # type: ignore[misc]

    async def settle(self) -> None:
        """Look for what is still expected, but not for long."""
        self.look()
        if self._looking:
            await asyncio.wait(self._looking.values(), timeout=timeouts.LAST_ROUND_S)

    async def close(self) -> None:
        """Stop looking for what became of contributions."""
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    async def _look_for(self, round_: int) -> None:
        faults, pause_s = 0, timeouts.LOG_AGAIN_S[0]
        while round_ in self._expected or round_ in self._wondered:
            try:
                found = await self._log.counted(round_)
            except Unreachable as error:
                logger.info("listing not seen round=%d reason=%s", round_, error)
            except RemoteFault as error:
                logger.info("listing not shown round=%d reason=%s", round_, error)
                faults += 1
                if faults >= _ASKED_BEFORE_BELIEVED:
                    return self._tell(round_, self._believed(round_))
            else:
                events = [] if found is None else self.see(round_, found)
                return self._tell(round_, [*events, *self._missed(round_, is_counted=found is not None)])
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, timeouts.LOG_AGAIN_S[1])

    def _tell(self, round_: int, events: Sequence[PromiseEvent]) -> None:
        """A round is looked for no more."""
        self._wondered.discard(round_)
        self._events.extend(events)
        self._has_events.set()

    def _believed(self, round_: int) -> Sequence[PromiseEvent]:
        """Return what is found of a round that the log does not show: what has its inclusion promise is in it."""
        if (expected := self._expected.pop(round_, None)) is None:
            return ()
        signed = expected.signed
        return ClaimListed(round_, signed.handed_in.digest, signed.opened.base), self._counted(
            FateKnown(ContributionFate.COUNTED, round_, signed)
        )

    def _missed(self, round_: int, *, is_counted: bool) -> Sequence[PromiseEvent]:
        """Return what is found of a round that has not what was expected of it; ``is_counted``: it has other work of this peer."""
        if (expected := self._expected.pop(round_, None)) is None:
            return ()
        fate = ContributionFate.REPLACED if is_counted and not expected.has_inclusion_promise else ContributionFate.BROKEN
        if fate is ContributionFate.BROKEN:
            self._dropped += {expected.signed.header.contribution.digest, expected.signed.handed_in.digest}
        return (FateKnown(fate, round_, expected.signed),)
