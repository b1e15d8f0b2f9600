"""What the log promised: a contribution with a ticket is looked for in the table of its round, until its row is proven to be there."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from protocol.errors import RemoteFault, Unreachable
from protocol.rounds import Sealed
from swarm import waits
from swarm.log_client import OwnRow

_ASKED_BEFORE_BELIEVED = 3  # times that the log answers neither with a row nor that there is none: its ticket is its word
_REMEMBERED = 64

logger = logging.getLogger("manta.peer")


class Promises:
    """Contributions that have to be in tables, by round, until that is known."""

    def __init__(
        self,
        row: Callable[[int], Awaitable[OwnRow | None]],
        on_kept: Callable[[int, Sealed, OwnRow | None], None],
        on_broken: Callable[[int, Sealed], None],
    ) -> None:
        """Expect nothing yet.

        Args:
            row: asks the log for the row of a round that has this peer's claim; None: the log says that its table has none.
            on_kept: is told of each contribution that is in its table, or whose claim is there in the cohort's; with that row, or None
                where the log shows no table any more and its ticket is believed.
            on_broken: is told of each that is not.
        """
        self._row = row
        self._on_kept = on_kept
        self._on_broken = on_broken
        self._expected: dict[int, Sealed] = {}
        self._looking: dict[int, asyncio.Task[None]] = {}
        self._found: deque[bytes] = deque(maxlen=_REMEMBERED)  # claims that were in their tables

    def expect(self, round_: int, sealed: Sealed) -> None:
        """The round is committed, and the log said that ``sealed`` is in its table: perhaps twice, by a row and a late ticket."""
        if sealed.claim not in self._found:
            self._expected[round_] = sealed

    @property
    def is_waiting(self) -> bool:
        """Whether it is not known of some contribution whether it is in its table."""
        return bool(self._expected)

    def see(self, round_: int, row: OwnRow) -> None:
        """Take note of a row that is proven to be in a round's table."""
        sealed = self._expected.get(round_)
        if sealed is not None and sealed.claim in row.contribution.claims:
            self._keep(round_, row)

    def _keep(self, round_: int, row: OwnRow | None) -> None:
        sealed = self._expected.pop(round_)
        self._found.append(sealed.claim)
        self._on_kept(round_, sealed, row)

    def look(self) -> None:
        """Ask the log for the rows that its news did not bring."""
        for round_ in self._expected.keys() - self._looking.keys():
            self._looking[round_] = task = asyncio.create_task(self._look_for(round_))
            task.add_done_callback(lambda _, round_=round_: self._looking.pop(round_))  # type: ignore[misc]

    async def settle(self) -> None:
        """Look for what is still expected, but not for long."""
        self.look()
        if self._looking:
            await asyncio.wait(self._looking.values(), timeout=waits.LAST_ROWS_S)

    async def close(self) -> None:
        """Look no longer."""
        looking = list(self._looking.values())
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    async def _look_for(self, round_: int) -> None:
        faults, pause_s = 0, waits.LOG_AGAIN_S[0]
        while round_ in self._expected:
            try:
                row = await self._row(round_)
            except Unreachable as error:
                logger.info("row not seen round=%d reason=%s", round_, error)
            except RemoteFault as error:
                logger.info("row not shown round=%d reason=%s", round_, error)
                faults += 1
                if faults >= _ASKED_BEFORE_BELIEVED:
                    self._keep(round_, None)
                    return
            else:
                if row is not None:
                    self.see(round_, row)
                if round_ in self._expected:
                    self._on_broken(round_, self._expected.pop(round_))
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, waits.LOG_AGAIN_S[1])
