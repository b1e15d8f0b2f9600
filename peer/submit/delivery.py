"""What was trained, on its way to the log: sealed, handed in with the cohort or alone, until it has a ticket or can never have one."""

import asyncio
import logging
from collections.abc import Callable

from manta_swarm.network import waits
from manta_swarm.network.log_client import HandedIn, HandIn
from manta_swarm.network.rpc import Refused
from manta_swarm.peer.cohort.cohort import Seat
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.submit.commits import Commits
from manta_swarm.peer.submit.handing import Handing
from manta_swarm.peer.submit.residuals import Residuals
from manta_swarm.peer.train.work import Lap, Learnt, now_ms
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.rounds import Phase, RoundMachine, Sealed
from manta_swarm.runtime.tasks import within

LAST_PART = 16  # of a round's time is kept by a member of a cohort for handing in alone

_REFUSED_BEFORE_DROPPED = 2  # times that the log says no to a contribution

logger = logging.getLogger("manta.peer")


def open_ms(machine: RoundMachine, manifest: Manifest) -> int:
    """Return how long the round after the newest commit is open."""
    newest = machine.newest.entry
    return newest.open_ms if newest is not None else manifest.exchange.first_open_ms


class Delivery:
    """One peer's contributions, one after the other."""

    def __init__(
        self,
        manifest: Manifest,
        machine: RoundMachine,
        handing: Handing,
        residuals: Residuals,
        commits: Commits,
        pace: Pace,
        board: StatusBoard,
        lap: Lap,
        changed: asyncio.Event,
        leaving: asyncio.Event,
        show_log: Callable[[bool], None],
        on_refused: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            manifest: the run's.
            machine: is told of what becomes of a contribution.
            handing: makes it and sends it.
            residuals: what coding left out.
            commits: what the log has.
            pace: is told how long it took.
            board: shows it.
            lap: counts the time.
            changed: a commit came, or the person wants to leave.
            leaving: the person wants to.
            show_log: shows whether the log is away.
            on_refused: is told that the log refuses what was trained for good.
        """
        self._manifest = manifest
        self._machine = machine
        self._handing = handing
        self._residuals = residuals
        self._commits = commits
        self._pace = pace
        self._board = board
        self._lap = lap
        self._changed = changed
        self._leaving = leaving
        self._show_log = show_log
        self._on_refused = on_refused
        self._sealing_ms: float | None = None  # when that began, until it has a ticket
        self._is_over = False

    def run_is_over(self) -> None:
        """The operator ended the run: a log that is away is no news, and what is left has no next start."""
        self._is_over = True

    async def seal(self, learnt: Learnt, seat: Seat) -> None:
        """Make a contribution of what was learnt; durable when this returns, for nobody may see its header before that."""
        self._sealing_ms = now_ms()
        await self._commits.settle_residual()
        if await self._handing.seal(learnt, seat, lot_ms=self._pace.lot_ms, newest=self._machine.newest.round):
            self._board.update(loss=learnt.pile.loss)
        else:
            self._board.add(samples_lost=self._machine.discard())

    async def hand_in(self) -> bool:
        """Hand the sealed contribution in until it has a ticket, is in a table, or can never be; False: the person leaves without it."""
        if await self._with_cohort():
            return True
        if not self._handing.may_go_alone:
            await self._lose("its cohort fell apart", "the cohort that they were learnt with did not hand them in")
            return True
        pause_s, refused = waits.HAND_IN_AGAIN_S[0], 0
        while (sealed := self._machine.sealed) is not None and self._machine.phase is Phase.SEALED:
            self._changed.clear()
            try:
                answer = await self._handing.alone(self._header_in)
            except Refused as error:
                logger.info("header refused round=%d reason=%s", sealed.opened.round, error)
                refused += 1
                if refused >= _REFUSED_BEFORE_DROPPED:
                    await self._drop(str(error))
                    return True
            except MantaError as error:  # it is away, or says what no log says
                logger.info("not handed in round=%d reason=%s", sealed.opened.round, error)
                if self._is_over:
                    return False
                self._show_log(True)
                if self._leaving.is_set():
                    self._board.say("the log cannot be reached: what is trained is kept, and is handed in at the next start")
                    return False
            else:
                self._show_log(False)
                if answer.status is not HandIn.LATER:
                    self._handed_in(sealed, answer)
                    return True
            await within(self._changed, pause_s)
            pause_s = min(2 * pause_s, waits.HAND_IN_AGAIN_S[1])
        return True

    async def _with_cohort(self) -> bool:
        """Hand in together with the cohort, if this peer has one in this round; False: alone."""
        sealed = self._machine.sealed
        assert sealed is not None
        until_ms = now_ms() + self._pace.left_ms(now_ms()) - open_ms(self._machine, self._manifest) / LAST_PART
        self._changed.clear()
        answer = await self._handing.with_cohort(until_ms, self._changed, self._header_in)
        if answer is None:
            return False
        self._handed_in(sealed, answer)
        return True

    def _handed_in(self, sealed: Sealed, answer: HandedIn) -> None:
        """The log has the contribution: on its disk, or in a table already."""
        if answer.status is HandIn.LISTED:
            self._machine.listed()
            self._commits.promises.expect(answer.round, sealed, is_promised=False)
            self._commits.promises.look()
            return
        ticket = answer.ticket
        assert ticket is not None
        self._board.update(bytes_handed_in=self._handing.bytes_handed_in)
        if self._sealing_ms is not None and ticket.round == sealed.opened.round:  # else it waited for a round, or for the log
            self._pace.ticket_took(now_ms() - self._sealing_ms)
        self._sealing_ms = None
        self._machine.ticketed(ticket)  # where the cohort handed in, the machine knows already
        self._lap.mark("hand_in")

    def _header_in(self) -> None:
        """The log has the header of what is being handed in."""
        sealed = self._machine.sealed
        if self._sealing_ms is not None and sealed is not None and sealed.opened.round == self._machine.round:
            self._pace.header_took(now_ms() - self._sealing_ms)

    async def _drop(self, reason: str) -> None:
        await self._lose("refused by the log", f"the log refuses them ({reason})")
        self._on_refused()

    async def _lose(self, kind: str, why: str) -> None:
        # The log may have this peer's claim in the cohort's contribution, and then another residual holds than the one known here.
        if codec_named(self._manifest.exchange.codec).is_sparse:
            await self._residuals.forget()
        sealed = self._machine.sealed
        if sealed is not None:
            self._commits.promises.give_up(sealed, self._machine.newest.round)
        lost = self._machine.refused(kind)
        self._board.add(samples_lost=lost)
        self._board.update(dropped=dict(self._machine.dropped))
        self._board.say(f"{lost} samples do not count: {why}")
