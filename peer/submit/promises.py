"""What the log promised: a contribution with a ticket is looked for in the table of its round, until it is proven to be there.

So is what this peer gave up, but gave to a founder before, who may hand it in later.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from manta_swarm.network import waits
from manta_swarm.network.log_client import Counted
from manta_swarm.protocol.errors import RemoteFault, Unreachable
from manta_swarm.protocol.exchange import MAX_AGE
from manta_swarm.protocol.rounds import Sealed

_ASKED_BEFORE_BELIEVED = 3  # times that the log answers neither with a contribution nor that there is none: its ticket is its word
_REMEMBERED = 64

logger = logging.getLogger("manta.peer")


class Promises:
    """Contributions that have to be in tables, by round, until that is known."""

    def __init__(
        self,
        counted: Callable[[int], Awaitable[Counted | None]],
        on_kept: Callable[[int, Sealed, Counted | None], None],
        on_broken: Callable[[int, Sealed], None],
        on_after_all: Callable[[int, Sealed, Counted], None],
        on_instead: Callable[[Sealed], None],
    ) -> None:
        """Expect nothing yet.

        Args:
            counted: asks the log for the contribution of a round that has this peer's claim; None: the log says that it has none.
            on_kept: is told of each contribution that is in its table, or whose claim is there in the cohort's; with that one, or None
                where the log shows no table any more and its ticket is believed.
            on_broken: is told of each that is not.
            on_after_all: is told of what was given up and is in a table.
            on_instead: is told of what has no ticket and is in no table, since other work of this peer on the same base is.
        """
        self._counted = counted
        self._on_kept = on_kept
        self._on_broken = on_broken
        self._on_after_all = on_after_all
        self._on_instead = on_instead
        self._expected: dict[int, Sealed] = {}
        self._unpromised: set[int] = set()  # rounds of these that have no ticket: the log says that some work of this peer is listed
        self._given_up: dict[bytes, Sealed] = {}  # by claim
        self._given: dict[bytes, int] = {}  # rounds of work that is not sealed, of which a founder has some steps, by the base's commit
        self._wondered: set[int] = set()  # rounds whose tables may have some of that
        self._looking: dict[int, asyncio.Task[None]] = {}
        self._found: deque[bytes] = deque(maxlen=_REMEMBERED)  # claims that were in their tables

    def expect(self, round_: int, sealed: Sealed, *, is_promised: bool = True) -> None:
        """The round is committed, and the log said that ``sealed`` is in its table: perhaps twice, by a listing and a late ticket.

        Not ``is_promised``: that some work of this peer on that base is.
        """
        if sealed.claim not in self._found:
            if is_promised:
                self._unpromised.discard(round_)
            elif round_ not in self._expected:
                self._unpromised.add(round_)
            self._expected[round_] = sealed

    def give_up(self, sealed: Sealed, newest: int) -> None:
        """This peer hands it in no more; others may have it, so it is looked for as long as it may count. ``newest``: the newest round."""
        self._given_up[sealed.claim] = sealed
        self._wondered.update(range(sealed.opened.round, min(newest, sealed.opened.round + MAX_AGE) + 1))

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

    @property
    def is_waiting(self) -> bool:
        """Whether it is not known of some contribution whether it is in its table."""
        return bool(self._expected)

    def is_looking_for(self, base: bytes) -> bool:
        """Whether a round that was not seen yet may have work of this peer on a base, the digest of its commit."""
        is_wondered = base in self._given or any(one.opened.base == base for one in self._given_up.values())
        return any(one.opened.base == base for one in self._expected.values()) or (is_wondered and bool(self._wondered))

    def see(self, round_: int, found: Counted) -> None:
        """Take note of a contribution that a round is proven to have counted."""
        sealed = self._expected.get(round_)
        if sealed is not None and sealed.claim in found.contribution.claims:
            self._keep(round_, found)
        for claim in self._given_up.keys() & set(found.contribution.claims):
            self._found.append(claim)
            self._on_after_all(round_, self._given_up.pop(claim), found)

    def _keep(self, round_: int, found: Counted | None) -> None:
        sealed = self._expected.pop(round_)
        self._unpromised.discard(round_)
        self._found.append(sealed.claim)
        self._on_kept(round_, sealed, found)

    def _miss(self, round_: int, *, is_counted: bool) -> None:
        sealed, has_ticket = self._expected.pop(round_), round_ not in self._unpromised
        self._unpromised.discard(round_)
        if is_counted and not has_ticket:
            self._on_instead(sealed)
        else:
            self._on_broken(round_, sealed)

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
            await asyncio.wait(self._looking.values(), timeout=waits.LAST_ROUND_S)

    async def close(self) -> None:
        """Look no longer."""
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    async def _look_for(self, round_: int) -> None:
        faults, pause_s = 0, waits.LOG_AGAIN_S[0]
        while round_ in self._expected or round_ in self._wondered:
            try:
                found = await self._counted(round_)
            except Unreachable as error:
                logger.info("listing not seen round=%d reason=%s", round_, error)
            except RemoteFault as error:
                logger.info("listing not shown round=%d reason=%s", round_, error)
                faults += 1
                if faults >= _ASKED_BEFORE_BELIEVED:
                    self._wondered.discard(round_)
                    if round_ in self._expected:
                        self._keep(round_, None)
                    return
            else:
                self._wondered.discard(round_)
                if found is not None:
                    self.see(round_, found)
                if round_ in self._expected:
                    self._miss(round_, is_counted=found is not None)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, waits.LOG_AGAIN_S[1])
