"""The calls of one fetch: who is asked for which piece, and when another is asked beside them; see ``network.fetching`` for the rules.

Knows no hashes: whoever has pieces gathered says of each answer whether it is right.
"""

import asyncio
import heapq
import random
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from manta_swarm.network import timeouts
from manta_swarm.network.blobs import BUSY, HASHES, METHOD, NOT_YET, AskPiece
from manta_swarm.network.rpc import LARGE_BYTES, Endpoint, Refused
from manta_swarm.network.sources import GAVE, NOT_ASKED, Source, SourceCall, Sources
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault, Unreachable
from manta_swarm.protocol.signing import Digest, PublicKey

PIECES_AT_ONCE = 8
EXTRA_CALLS = 2  # asked beside another source, and not overdue themselves: where the own line is slow, more of them would not help it

# How long a piece may take before another source is asked too: four times what pieces took so far, in the middle.
_OVERDUE_FACTOR = 4
_MIN_TIMEOUT_S = 0.5
_FIRST_TIMEOUT_S, _FIRST_BYTES_PER_S = 1.0, 256 * 1024  # before any piece has come
_TIMEOUT_SHARE = 0.25  # of the deadline, at most
_TIMES_KEPT = 32


class Judge(Protocol):
    """Hears of sources that lie."""

    def distrust(self, key: PublicKey, reason: str) -> None:
        """A source sent bytes that cannot be right: it is not asked any more for this blob."""
        ...


class Taker(Protocol):
    """Takes what is gathered."""

    def take(self, place: int, data: bytes) -> None:
        """Take an answer.

        Raises:
            EncodingError: the bytes are wrong; somebody else is asked.
        """
        ...


class FetchCalls:
    """The calls of one fetch, and what they taught of its sources. Times are the event loop's."""

    def __init__(
        self,
        endpoint: Endpoint,
        root: Digest,
        sources: Sources,
        deadline_s: float,
        tries: int | None,
        judge: Judge | None,
        rng: random.Random,
    ) -> None:
        self.root = root
        self.rng = rng
        self._endpoint = endpoint
        self._known = sources
        self._sources: list[Source] = []
        self._deadline_s = deadline_s
        self._tries = tries
        self._judge = judge
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + deadline_s
        self._calls: dict[asyncio.Task[bytes], SourceCall] = {}
        self._open: dict[int, list[SourceCall]] = {}  # by place, those in flight, the oldest first
        self._at_once = PIECES_AT_ONCE
        self._waiting: list[int] = []  # places that nobody is being asked for
        self._sizes: Mapping[int, int] = {}
        self._times: deque[float] = deque(maxlen=_TIMES_KEPT)  # of pieces that came
        self._alarms: list[float] = []  # a heap: when a call is overdue or a rest over
        self._num_told = 0  # of what the sources told
        self._enlist()

    def _enlist(self) -> None:
        """Know the sources that came to be known since the last time, and who of the others has the blob now."""
        self._num_told, told = self._known.since(self._num_told)
        for each in told:
            if each.key == self._endpoint.key:
                continue
            source = next((known for known in self._sources if known.key == each.key), None)
            if source is None:
                self._sources.append(source := Source(each.key, each.is_spare))
            source.is_spare, source.times_without = each.is_spare, 0
            source.rests.clear()
            if each.rest_s > 0:
                source.rests[None] = 0, self._loop.time() + each.rest_s
                heapq.heappush(self._alarms, source.rests[None][1])

    async def gather(self, sizes: Mapping[int, int], taker: Taker) -> None:
        """Ask for the places of ``sizes``, each of at most so many bytes, until an answer was taken for every one.

        Raises:
            Unreachable: there is nobody left to ask.
        """
        self._sizes, self._waiting = sizes, list(sizes)
        while self._waiting or self._open:
            self._enlist()
            now = self._loop.time()
            if self._is_hopeless(now):
                raise Unreachable(self.story("and nobody is left who could"))
            self._ask_beside(now)
            self._ask_more(now)
            for task in await self._next(now):
                self._settle(task, taker)

    async def cancel(self) -> None:
        """End what is still in flight."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def story(self, why: str) -> str:
        """Return a line for people: what is missing, and what each source did."""
        now = self._loop.time()
        answers = "; ".join(f"{each.key.hex()[:8]}: {'does not answer' if each.is_slow(now) else each.said}" for each in self._sources)
        missing = f"{len(self._waiting) + len(self._open)} of {len(self._sizes)}"
        return f"nobody gave {self.root.hex()[:16]}... {why}: {missing} pieces are missing ({answers or 'nobody to ask'})"

    def _is_hopeless(self, now: float) -> bool:
        """Whether nobody is left to ask, nor to be waited for: whoever does not answer at all is not, but for the decisive source."""
        if self._known.may_grow and not any(source.is_spare for source in self._sources):
            return False
        if any(call.due > now for call in self._calls.values()):
            return False
        return all(source.is_wrong or self._is_given_up(source) or self._is_mute(source, now) for source in self._sources)

    def _is_mute(self, source: Source, now: float) -> bool:
        return self._tries is not None and source is not self._decisive and source.is_slow(now)

    def _is_given_up(self, source: Source) -> bool:
        return self._tries is not None and source.times_without >= self._tries

    @property
    def _decisive(self) -> Source:
        """Whose word that there is nothing counts for all."""
        return next((source for source in self._sources if source.is_spare), self._sources[0])

    def _ask_beside(self, now: float) -> None:
        """Ask others for what is overdue."""
        for place, calls in self._open.items():
            if calls[-1].due <= now:
                extra = sum(call.due > now for each in self._open.values() for call in each[1:])
                if extra >= EXTRA_CALLS:
                    return
                self._ask_for(place, self._sources, now, is_overdue=True)

    def _ask_more(self, now: float) -> None:
        free = [source for source in self._sources if source.is_free(None, now)]
        if free:
            self._waiting = [place for place in self._waiting if len(self._open) >= self._at_once or not self._ask_for(place, free, now)]

    def _ask_for(self, place: int, sources: Sequence[Source], now: float, *, is_overdue: bool = False) -> bool:
        """Ask the best of ``sources`` for a piece; whether there is one.

        For what is overdue a spare source is asked before one that has given nothing yet: else a few who never answer, one after the other,
        would keep what it has from coming.
        """
        calls = self._open.get(place, [])
        free = [source for source in sources if source.is_free(place, now) and all(call.source is not source for call in calls)]
        if not is_overdue and any(source.is_ready(place, now) for source in self._sources if not source.is_spare):
            free = [source for source in free if not source.is_spare]
        if not free:
            return False

        def rank(source: Source) -> tuple[bool, bool, int]:
            is_unknown = is_overdue and not source.is_spare and source.said != GAVE
            return source.is_doubtful or source.is_slow(now), is_unknown, len(source.calls)

        source = min(free, key=rank)  # of equal ones the first
        call = SourceCall(place, source, now, now + self._timeout_s(place) * 2 ** len(calls))
        request = pack(AskPiece(self.root, place))
        timeout_s = max(min(timeouts.PIECE_S, self._ends - now), 0.001)
        is_large = self._sizes[place] >= LARGE_BYTES
        asking = self._endpoint.call(source.key, METHOD, request, timeout_s=timeout_s, large_answer=is_large)
        self._calls[asyncio.create_task(asking)] = call
        source.calls.append(call)
        source.said = "has not answered yet" if source.said == NOT_ASKED else source.said
        self._open.setdefault(place, []).append(call)
        heapq.heappush(self._alarms, call.due)
        return True

    def _timeout_s(self, place: int) -> float:
        if self._times:
            timeout_s = max(_OVERDUE_FACTOR * statistics.median(self._times), _MIN_TIMEOUT_S)
        else:
            timeout_s = _FIRST_TIMEOUT_S + self._sizes[place] / _FIRST_BYTES_PER_S
        return min(timeout_s, _TIMEOUT_SHARE * self._deadline_s)

    async def _next(self, now: float) -> list[asyncio.Task[bytes]]:
        """Wait for answers, or for a moment after ``now`` at which more can be asked; return the calls that are over."""
        while self._alarms and self._alarms[0] <= now:
            heapq.heappop(self._alarms)
        timeout_s = max(self._alarms[0] - self._loop.time(), 0.0) if self._alarms else None
        awaited: set[asyncio.Future[Any]] = {*self._calls, self._known.changed}
        done, _ = await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return [task for task in self._calls if task in done]

    def _settle(self, task: asyncio.Task[bytes], taker: Taker) -> None:
        """Take what a call gave, or see to it that its piece is asked for elsewhere."""
        call = self._calls.pop(task)
        source, place = call.source, call.place
        source.calls.remove(call)
        if call not in self._open.get(place, []):  # another's answer was first, or this source's is not wanted any more
            _ = task.cancelled() or task.exception()
            return
        try:
            if task.cancelled():
                raise Unreachable("the call was cut off")
            data = task.result()
            taker.take(place, data)
        except Refused as error:
            if str(error) in (NOT_YET, BUSY):
                source.times_without = 0
            else:
                self._note_without(source, is_away=False)
            self._rest(source, place if str(error) == NOT_YET else None, timeouts.PIECE_AGAIN_S[0], str(error))
            self._give_up(call)
        except RemoteFault as error:
            self._give_up(call)
            self._condemn(source, str(error))
        except Unreachable as error:
            source.is_doubtful = True
            self._note_without(source, is_away=True)
            if self._loop.time() - call.started >= 0.99 * timeouts.PIECE_S:
                self._at_once = max(self._at_once - 1, 1)  # it may be the own line that cannot bring so many in time
            self._rest(source, None, timeouts.AWAY_S, str(error))
            self._give_up(call)
        else:
            source.said, source.is_doubtful, source.times_without = GAVE, False, 0
            source.rests.pop(None, None)
            self._at_once = min(self._at_once + 1, PIECES_AT_ONCE)
            self._close(place)
            if place != HASHES and 2 * len(data) >= max(self._sizes.values()):
                self._times.append(self._loop.time() - call.started)

    def _note_without(self, source: Source, *, is_away: bool) -> None:
        """Count that a source has nothing, or is away; calls that fail together say so once."""
        if source.is_rested(self._loop.time()) and not (is_away and source is self._decisive):
            source.times_without += 1

    def _close(self, place: int) -> None:
        """Ask nobody any more for a piece that is here."""
        rivals = self._open.pop(place)
        for task, call in self._calls.items():
            if call in rivals:
                task.cancel()
                call.source.is_doubtful = call.source.is_doubtful or call.due <= self._loop.time()

    def _condemn(self, source: Source, reason: str) -> None:
        """Ask a source for nothing any more."""
        source.is_wrong, source.said = True, f"sent {reason}"
        for task, call in self._calls.items():
            if call.source is source:
                task.cancel()
                self._give_up(call)
        if self._judge is not None:
            self._judge.distrust(source.key, reason)

    def _give_up(self, call: SourceCall) -> None:
        """Expect nothing of a call; if no other is in flight for its piece, the piece waits to be asked for."""
        rivals = self._open.get(call.place, [])
        if call in rivals:
            rivals.remove(call)
            if not rivals:
                del self._open[call.place]
                self._waiting.insert(0, call.place)

    def _rest(self, source: Source, place: int | None, first_s: float, said: str) -> None:
        """Let a source rest: twice as long each time until it gives something, times 0.5 to 1.5 at random."""
        times = source.rests[place][0] if place in source.rests else 0
        rest_s = min(first_s * 2 ** min(times, 10), timeouts.PIECE_AGAIN_S[1]) * (0.5 + self.rng.random())
        source.rests[place] = (times + 1, self._loop.time() + rest_s)
        source.said = said
        heapq.heappush(self._alarms, source.rests[place][1])
