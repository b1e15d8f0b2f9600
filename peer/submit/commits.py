"""What follows from each commit for a peer: the round that opens, its own contribution's fate, and the residual that holds from then on."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from manta_swarm.network.log_client import Commitment, Counted, LogClient, Told
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.submit.promises import Promises
from manta_swarm.peer.submit.residuals import Residuals
from manta_swarm.peer.sync.spread import Spread
from manta_swarm.peer.train.work import Lap, now_ms
from manta_swarm.protocol.exchange import MAX_AGE, codec_named
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.records import Claim, Round
from manta_swarm.protocol.rounds import Phase, RoundMachine, Sealed
from manta_swarm.protocol.signed import Signed

_KEPT = MAX_AGE + 32  # commits: back to the oldest base of a table, and some that may come while a state is fetched over a slow line

logger = logging.getLogger("manta.peer")


class NewestCommits:
    """The newest commits of the log, with what proves them, and the exponent floors that they set."""

    def __init__(self, manifest: Manifest) -> None:
        """Know of none but the floor at the run's start."""
        self._commitments: dict[int, Commitment] = {}  # by round
        self._floors: dict[int, int] = {0: manifest.exchange.first_floor}  # by round

    def add(self, commitment: Commitment) -> None:
        """Remember a commit that is newer than all others; the oldest go."""
        entry = commitment.proven.round
        self._commitments[entry.round] = commitment
        self._commitments = {round_: each for round_, each in self._commitments.items() if round_ > entry.round - _KEPT}
        self._floors[entry.round] = entry.floor
        self._floors = {round_: floor for round_, floor in self._floors.items() if round_ > entry.round - _KEPT}

    @property
    def floors(self) -> Mapping[int, int]:
        """The exponent floors by round."""
        return self._floors

    def commitment(self, round_: int) -> Commitment | None:
        """Return one of the newest commits with what proves it."""
        return self._commitments.get(round_)


class Commits:
    """The newest commits as this peer knows them, and what was promised to it."""

    def __init__(
        self,
        manifest: Manifest,
        newest: NewestCommits,
        log: LogClient,
        machine: RoundMachine,
        pace: Pace,
        spread: Spread,
        residuals: Residuals,
        board: StatusBoard,
        lap: Lap,
        *,
        on_news: Callable[[Round], None],
        on_counted: Callable[[int, Signed[Claim], Counted | None], None] = lambda *_: None,
        on_listed: Callable[[int, bytes, bytes], None] = lambda *_: None,
    ) -> None:
        """Know of none. ``on_news`` is called with each that becomes the newest one, ``on_counted`` with each whose table has this peer,
        the claim, and its contribution as the log proved it, if it did; ``on_listed`` with the round and the digests of a contribution,
        and of the commit that it stands on, that has any work of this peer.
        """
        self._codec = codec_named(manifest.exchange.codec)
        self._machine = machine
        self._pace = pace
        self._spread = spread
        self._residuals = residuals
        self._board = board
        self._lap = lap
        self._on_news = on_news
        self._on_counted = on_counted
        self._on_listed = on_listed
        self._log = log
        self.promises = Promises(self._asked, self._kept, self._broken, self._after_all, self._instead)
        self.listed_in = 0  # the newest round whose table is known to have this peer
        self._listed: tuple[bytes, int] | None = None  # contribution and round, until the residual is the one that it leaves
        self._newest = newest
        self._closing: asyncio.TimerHandle | None = None  # of the open round's headers

    def take(self, told: Told) -> None:
        """Take note of what the log, or a neighbour, says of where the run stands."""
        if told.commitment is not None:
            self._take_commit(told, told.commitment, told.commitment.proven.round)
        elif told.left_ms:
            self._opened(told.left_ms)
        if told.is_from_log:
            self.promises.look()

    async def settle_residual(self) -> None:
        """Find out which residual holds: that depends on whether the contribution before is in its table."""
        if not self._codec.is_sparse:
            return
        await self.promises.settle()
        is_listed = self._listed is not None
        if not await self.take_residual() and not is_listed:
            await self._residuals.forget()

    async def take_residual(self) -> bool:
        """Let the residual hold that the newest contribution known to be listed left; False: a later one may have left another."""
        listed, self._listed = self._listed, None  # another may come to be known meanwhile
        if listed is not None:
            await self._residuals.listed(*listed)
        return not self.promises.is_waiting

    async def close(self) -> None:
        """Wait for nothing any more."""
        if self._closing is not None:
            self._closing.cancel()
        await self.promises.close()

    def _take_commit(self, told: Told, commitment: Commitment, entry: Round) -> None:
        listed = self._listed_without_ticket(told.counted)
        commit = self._machine.committed(entry)
        if told.left_ms and entry.round == self._machine.newest.round:
            self._opened(told.left_ms)
        if commit.promised is not None:
            assert commit.ticket is not None
            self.promises.expect(commit.ticket.round, commit.promised)
        if listed is not None:
            self.promises.expect(entry.round, listed)
        if told.counted is not None:
            self._on_listed(entry.round, told.counted.digest, told.counted.contribution.base)
            self.promises.see(entry.round, told.counted)
        if not commit.is_news:
            return
        self.promises.committed(entry.round)
        self._newest.add(commitment)
        self._spread.committed(entry)
        if not told.left_ms and not told.is_from_log:
            self._opened(entry.open_ms)  # a neighbour told: it came a moment ago
        self._board.add(samples_lost=commit.samples_lost)
        self._lap.mark("wait")
        logger.info("round over round=%d %s", entry.round, self._lap.line())
        counted = commit.promised is not None or listed is not None or told.counted is not None  # the last: counted before this start
        self._board.committed(
            round_=entry.round,
            state=entry.state,
            contributions=entry.contributions,
            counted=counted,
            lost=commit.samples_lost,
        )
        self._board.update(dropped=dict(self._machine.dropped), waiting_for="")
        self._on_news(entry)

    def _listed_without_ticket(self, found: Counted | None) -> Sealed | None:
        """Return what was sealed, if it is proven to be in a table: the ticket for it was overtaken by the commit."""
        sealed = self._machine.sealed
        if found is None or sealed is None or self._machine.phase is not Phase.SEALED or sealed.claim not in found.contribution.claims:
            return None
        self._machine.listed()
        return sealed

    def _opened(self, left_ms: int) -> None:
        """Headers for the round after the newest commit have so much time from now on; then bodies may be shown to others."""
        self._pace.opened(now_ms(), left_ms)
        if self._closing is not None:
            self._closing.cancel()
        round_ = self._machine.newest.round + 1
        self._closing = asyncio.get_running_loop().call_later(left_ms / 1000, self._spread.headers_closed, round_)

    async def _asked(self, round_: int) -> Counted | None:
        """See ``LogClient.counted``."""
        found = await self._log.counted(round_)
        if found is not None:
            self._on_listed(round_, found.digest, found.contribution.base)
        return found

    def _kept(self, round_: int, sealed: Sealed, found: Counted | None) -> None:
        """A table has this peer's claim; ``found`` None: as its ticket says, for the log does not show the table any more."""
        if found is None:
            self._on_listed(round_, (sealed.accepted or sealed.header.contribution).digest, sealed.opened.base)
        if round_ >= self.listed_in:  # else a later one has left its residual already
            promised = sealed.accepted or sealed.header.contribution
            self.listed_in, self._listed = round_, (promised.digest if found is None else found.digest, round_)
        self._board.counted(round_, sealed.samples)
        self._on_counted(round_, sealed.header.claims[0], found)

    def _broken(self, round_: int, sealed: Sealed) -> None:
        self._residuals.dropped()
        self._board.add(promises_broken=1)
        self._board.say(f"the log gave a ticket for round {round_} and did not keep it: {sealed.samples} samples are not in its table")

    def _after_all(self, round_: int, sealed: Sealed, found: Counted) -> None:
        self._board.add(samples_lost=-sealed.samples)
        self._board.say(f"{sealed.samples} samples do count after all: the cohort handed them in, for round {round_}")
        self._kept(round_, sealed, found)

    def _instead(self, sealed: Sealed) -> None:
        self._board.add(samples_lost=sealed.samples)
        self._board.say(
            f"{sealed.samples} samples do not count: other work of this peer on the same state does, which its cohort handed in"
        )
