"""When an audited run is settled: once all that was drawn is decided, or a while after the last round."""

from collections.abc import Sequence

from manta_swarm.aggregator.intake.waiting import Ledgers
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.signed import is_signed
from manta_swarm.protocol.verdicts import Settlement, Verdict
from manta_swarm.runtime.clock import SYSTEM_CLOCK, Clock


class Settling:
    """Decides when an audited run is settled. The time of the last round is not in the log: after a restart the wait begins anew."""

    def __init__(self, log: Ledgers, settle_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """Prepare.

        Args:
            log: the run's.
            settle_s: how long verdicts are waited for after the last round.
            clock: by which they are.
        """
        self._log = log
        self._settle_s = settle_s
        self._clock = clock
        self._since_s: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether the settlement is what the run still lacks."""
        ledger = self._log.ledger
        return ledger.finished and not ledger.settled

    def look(self) -> None:
        """Note the time if the settlement is due from now on."""
        if self._since_s is None and self.is_due:
            self._since_s = self._clock.now_s()

    def check(self, entries: Sequence[bytes]) -> None:
        """Check that a batch that may follow the log does not settle the run before its time.

        Raises:
            NotTaken: it does: verdicts are waited for here.
        """
        ledger = self._log.ledger
        if not self.is_due or not isinstance(ledger.verified.entry(entries[-1]), Settlement):
            return
        signed = [record for record in map(ledger.verified.entry, entries) if is_signed(record, Verdict)]
        left_s = self.left_s([ledger.verified.verdict(each) for each in signed])
        if left_s:
            raise NotTaken(f"verdicts are waited for, for {left_s:.0f} s more: settle the run later")

    def left_s(self, verdicts: Sequence[Verdict]) -> float:
        """Return how long verdicts are waited for, where these wait before the settlement that is due; 0: it may come now."""
        self.look()
        assert self._since_s is not None
        if self._log.ledger.reputation.decides_all(verdicts):
            return 0
        return max(0.0, self._since_s + self._settle_s - self._clock.now_s())
