"""Has the newest state evaluated on held-out data when the run file says so, and at the run's end; tells of it."""

import asyncio
from collections.abc import Callable

from aggregator.attendants.live import FinalQuality
from aggregator.attendants.onlookers import Onlookers
from aggregator.log.log import Log
from aggregator.rounds.follower import Evaluation, Follower
from aggregator.rounds.measures import own_quality_in_words
from aggregator.status import OperatorStatus, quality_in_words
from protocol.errors import UserError


class Evaluating:
    """One run's."""

    def __init__(
        self,
        log: Log,
        follower: Follower,
        status: OperatorStatus,
        onlookers: Onlookers,
        every: int,
        say: Callable[[str], None],
        write_status: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            log: the run's.
            follower: has the state, and evaluates it.
            status: is given the quality, and written by ``write_status``.
            onlookers: are shown it.
            every: so many rounds; 0: only after the last one.
            say: prints a line for the person.
            write_status: writes the status.
        """
        self._log = log
        self._follower = follower
        self._status = status
        self._onlookers = onlookers
        self._every = every
        self._say = say
        self._write_status = write_status
        self._due = asyncio.Event()

    def look(self) -> None:
        """See whether the newest state is to be evaluated."""
        round_ = self._log.ledger.round
        if self._log.ledger.finished or (self._every and round_ and round_ % self._every == 0):
            self._due.set()

    async def keep(self) -> None:
        """Evaluate what is due, until this is cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                self._show(await asyncio.to_thread(self._follower.evaluate))
            except UserError as error:  # samples are missing or damaged: only figures are lost by it, the log needs none
                self._status.quality, self._status.quality_round = None, self._log.ledger.round
                self._write_status()
                self._say(f"not evaluated round={self._log.ledger.round}: {error}")
                self._say_if_finished()

    def _show(self, evaluation: Evaluation) -> None:
        quality = evaluation.quality
        self._status.quality, self._status.quality_round = quality, evaluation.round
        self._onlookers.final = FinalQuality.of(
            evaluation.round, largest=quality["largest"], smallest=quality["smallest"], random=quality["random"]
        )
        self._write_status()
        self._say(f"evaluated round={evaluation.round} {quality_in_words(evaluation.quality)}")
        if self._status.own_quality is not None:
            self._say(own_quality_in_words(self._status.own_quality))
        self._say_if_finished()

    def settled(self) -> None:
        """All is paid: say so, if nothing else is to come."""
        self._say_if_finished()

    def _say_if_finished(self) -> None:
        if self._status.finished and not self._status.settled:
            self._say("the last round is evaluated; verdicts are waited for, and then all is paid")
        elif self._status.finished:
            self._say("run finished; the aggregator goes on serving its state until it is stopped")
