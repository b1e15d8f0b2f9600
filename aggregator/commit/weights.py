"""What each contribution of the newest rounds weighs in the mean: known from the commit on, computed again from the bodies after a start.

The log has only the root over it, for whoever computes one group of a mean again without the norms of whole bodies.
"""

import asyncio
import logging
from collections.abc import Sequence

from manta_swarm.aggregator.follow.replay import parsed_bodies
from manta_swarm.aggregator.intake.bodies import Bodies
from manta_swarm.aggregator.log.log import Log
from manta_swarm.codec.outcome import outcome
from manta_swarm.network.operator_line import lacking
from manta_swarm.protocol.errors import StorageError, Unreachable
from manta_swarm.protocol.ledger import KEPT_TABLES, Ledger
from manta_swarm.protocol.listed import weighed_in
from manta_swarm.protocol.records import Round, Threshold, open_entry
from manta_swarm.protocol.table import Weighed, weights_root

logger = logging.getLogger("manta.weights")


class Weights:
    """The weights of the tables that a log keeps whole."""

    def __init__(self, log: Log, bodies: Bodies, num_weights: int) -> None:
        """Know none yet."""
        self._log = log
        self._bodies = bodies
        self._num_weights = num_weights
        self._known: dict[int, tuple[Weighed, ...]] = {}
        self._computing = asyncio.Lock()  # one table at a time, and each once

    def remember(self, round_: int, weighed: Sequence[Weighed]) -> None:
        """Know those of a round that was committed."""
        self._known = {each: known for each, known in self._known.items() if each > round_ - KEPT_TABLES}
        self._known[round_] = tuple(weighed)

    async def of(self, round_: int) -> tuple[Weighed, ...]:
        """Return those of a round's table, in its order.

        Raises:
            Unreachable, AskAnother: that table, or a body of it, is not kept here.
        """
        async with self._computing:
            if round_ not in self._known:
                try:
                    self._known[round_] = await asyncio.to_thread(self._computed, self._log.ledger, round_)
                except StorageError as error:  # it stops nothing: no promise depends on it
                    logger.error("weights not computed round=%d reason=%s", round_, error)
                    raise lacking(self._log.ledger, "that table's weights cannot be computed here any more") from error
            return self._known[round_]

    def _computed(self, ledger: Ledger, round_: int) -> tuple[Weighed, ...]:
        listed = ledger.table_at(round_)
        if listed is None:
            raise Unreachable("that table is not kept here any more, or not made yet")
        codec = ledger.manifest.exchange.codec
        parsed = parsed_bodies(self._bodies, listed, codec, self._num_weights, round_)
        min_exponents = [ledger.min_exponent_at(one.round - 1) for one in listed]
        table, min_exponent = [one.weighing for one in listed], ledger.min_exponent_at(round_ - 1)
        found = outcome(table, parsed, min_exponents, self._thresholds(ledger, round_ - 1), min_exponent, self._num_weights)
        weighed = weighed_in(listed, found.weights, found.clipped)
        if weights_root(weighed) != self._entry(ledger, round_).weights:
            raise StorageError(f"the weights of round {round_} are not those that the log says: the log, or this machine, is wrong")
        return weighed

    def _thresholds(self, ledger: Ledger, round_: int) -> tuple[Threshold, ...]:
        return self._entry(ledger, round_).thresholds if round_ else ()

    def _entry(self, ledger: Ledger, round_: int) -> Round:
        index = ledger.index_at(round_)
        assert index is not None
        entry = open_entry(self._log.entry(index))
        assert isinstance(entry, Round)
        return entry
