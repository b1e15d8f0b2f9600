"""Getting blobs from others: piece by piece, from several sources side by side, each piece believed once it has its hash.

A source that lacks a piece, is busy or is away rests for a moment, then it may be asked again: it may have got the piece meanwhile. One
that sends wrong bytes is not asked again. When a piece takes longer than others took, another source is asked beside the first, and the
first right answer counts; so nobody who stalls holds up the whole. Sources may come to be known meanwhile (``Sources``), and some of
them may be kept for when the others do not do: the log, which everybody could ask.
"""

import asyncio
import heapq
import random
import statistics
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from protocol import merkle
from protocol.encoding import pack
from protocol.errors import EncodingError, RemoteFault, Unreachable
from protocol.signing import Digest, PublicKey
from swarm import waits
from swarm.blobs import BUSY, HASHES, MAX_PIECE_BYTES, MAX_PIECES, METHOD, NOT_YET, Ask, Blob, Growing, ProvenPiece, Shelf
from swarm.rpc import LARGE_BYTES, Endpoint, Refused
from swarm.sources import GAVE, NOT_ASKED, Call, Source, Sources

PIECES_AT_ONCE = 8
EXTRA_CALLS = 2  # asked beside another source, and not overdue themselves: where the own line is slow, more of them would not help it

# How long a piece may take before another source is asked too: four times what pieces took so far, in the middle.
_PATIENCE = 4
_MIN_PATIENCE_S = 0.5
_FIRST_PATIENCE_S, _FIRST_BYTES_PER_S = 1.0, 256 * 1024  # before any piece has come
_PATIENCE_SHARE = 0.25  # of the deadline, at most
_TIMES_KEPT = 32

OnWrong = Callable[[PublicKey, str], None]
_Take = Callable[[int, bytes], None]


async def fetch(
    endpoint: Endpoint,
    root: bytes,
    max_sizes: Sequence[int],
    sources: Iterable[PublicKey] | Sources,
    *,
    deadline_s: float,
    tries: int | None = None,
    shelf: Shelf | None = None,
    kind: str = "fetched",
    on_wrong: OnWrong = lambda _key, _reason: None,
    on_piece: Callable[[int], None] = lambda _arrived: None,
    rng: random.Random | None = None,
) -> Blob:
    """Return the blob with ``root``.

    Args:
        max_sizes: how many bytes each piece can have, and so how many pieces there are.
        sources: who may have it, those to be asked first in front.
        tries: give up before the deadline, where there is another way to what is wanted, once one source said so many times in a row that
            it has nothing of it, and the others said that or nothing: the first spare one, or where there is none the first of all. While
            that one does not answer nothing is given up.
        shelf: where it may be already; pieces are handed out from there as they arrive, and what has arrived by the deadline stays for
            the next try. The whole is put there as ``kind``.
        on_wrong: is told who sent bytes that cannot be right, once for each source, and what was wrong.
        on_piece: is told at each piece that arrives how many there are by now.
        rng: of the order of the pieces, and of rests.

    Raises:
        Unreachable: nobody gave it within ``deadline_s``, or after ``tries``; the message says what each source answered.
    """
    _check_sizes(max_sizes)
    here = shelf.get(root) if shelf is not None else None
    if here is not None:
        return here
    async with _calling(endpoint, root, sources, deadline_s, tries, on_wrong, rng) as calls:
        growing = await _begin(calls, max_sizes, shelf, kind)
        await _take_pieces(calls, growing, max_sizes, growing.missing, on_piece)
    blob = growing.blob()
    if shelf is not None:
        shelf.put(blob, kind)
    return blob


async def fetch_piece(
    endpoint: Endpoint,
    root: bytes,
    max_sizes: Sequence[int],
    place: int,
    sources: Iterable[PublicKey] | Sources,
    *,
    deadline_s: float,
    tries: int | None = None,
    shelf: Shelf | None = None,
    on_wrong: OnWrong = lambda _key, _reason: None,
    rng: random.Random | None = None,
) -> ProvenPiece:
    """Return one piece of the blob with ``root``, with the proof that it is; arguments and failures are those of ``fetch``.

    Nothing is put on the shelf.
    """
    _check_sizes(max_sizes)
    if not 0 <= place < len(max_sizes):
        raise ValueError(f"a blob of {len(max_sizes)} pieces has no piece {place}")
    here = shelf.get(root) if shelf is not None else None
    if here is not None:
        return here.proven(place)
    async with _calling(endpoint, root, sources, deadline_s, tries, on_wrong, rng) as calls:
        growing = await _begin(calls, max_sizes, None, "")
        await _take_pieces(calls, growing, max_sizes, [place], lambda _arrived: None)
    return growing.proven(place)


def _check_sizes(max_sizes: Sequence[int]) -> None:
    if not 1 <= len(max_sizes) <= MAX_PIECES or not 0 <= min(max_sizes) <= max(max_sizes) <= MAX_PIECE_BYTES:
        raise ValueError(f"a blob has 1 to {MAX_PIECES} pieces of at most {MAX_PIECE_BYTES} bytes")


@asynccontextmanager
async def _calling(
    endpoint: Endpoint,
    root: bytes,
    sources: Iterable[PublicKey] | Sources,
    deadline_s: float,
    tries: int | None,
    on_wrong: OnWrong,
    rng: random.Random | None,
) -> "AsyncIterator[_Calls]":
    """Yield what calls the sources, for as long as ``deadline_s``; at the end no call is in flight."""
    known = sources if isinstance(sources, Sources) else Sources(sources)
    calls = _Calls(endpoint, Digest(bytes(root)), known, deadline_s, tries, on_wrong, rng or random.Random())
    try:
        async with asyncio.timeout(deadline_s):
            yield calls
    except TimeoutError:
        raise Unreachable(calls.story(f"within {deadline_s:g} s")) from None
    finally:
        known.untell(calls.enlist)
        await calls.cancel()


async def _begin(calls: "_Calls", max_sizes: Sequence[int], shelf: Shelf | None, kind: str) -> Growing:
    """Return what is here of the blob, at least its hashes."""
    if len(max_sizes) == 1:
        return Growing(calls.root, (calls.root,))
    growing = shelf.growing(calls.root) if shelf is not None else None
    if growing is None:
        growing = Growing(calls.root, await _take_hashes(calls, len(max_sizes)))
        if shelf is not None:
            shelf.grow(growing, kind, sum(max_sizes))
    return growing


async def _take_hashes(calls: "_Calls", num_pieces: int) -> tuple[bytes, ...]:
    hashes: tuple[bytes, ...] = ()

    def take(_place: int, data: bytes) -> None:
        nonlocal hashes
        if len(data) != num_pieces * merkle.HASH_BYTES:
            raise EncodingError(f"{len(data)} bytes are not the hashes of {num_pieces} pieces")
        found = tuple(data[start : start + merkle.HASH_BYTES] for start in range(0, len(data), merkle.HASH_BYTES))
        if merkle.root(found) != calls.root:
            raise EncodingError("hashes that do not have the root")
        hashes = found

    await calls.gather({HASHES: num_pieces * merkle.HASH_BYTES}, take)
    return hashes


async def _take_pieces(
    calls: "_Calls", growing: Growing, max_sizes: Sequence[int], places: Sequence[int], on_piece: Callable[[int], None]
) -> None:
    def take(place: int, data: bytes) -> None:
        if len(data) > max_sizes[place]:
            raise EncodingError(f"{len(data)} bytes for piece {place}, which has at most {max_sizes[place]}")
        if merkle.leaf_hash(data) != growing.hashes[place]:
            raise EncodingError(f"other bytes than those of piece {place}")
        growing.pieces[place] = data
        on_piece(len(max_sizes) - len(growing.missing))

    # In an order of its own: those who fetch the same at the same time have different pieces for each other.
    await calls.gather({place: max_sizes[place] for place in calls.rng.sample(places, len(places))}, take)


class _Calls:
    """The calls of one fetch, and what they taught of its sources. Times are the event loop's."""

    def __init__(
        self,
        endpoint: Endpoint,
        root: Digest,
        sources: Sources,
        deadline_s: float,
        tries: int | None,
        on_wrong: OnWrong,
        rng: random.Random,
    ) -> None:
        self.root = root
        self.rng = rng
        self._endpoint = endpoint
        self._known = sources
        self._sources: list[Source] = []
        self._deadline_s = deadline_s
        self._tries = tries
        self._on_wrong = on_wrong
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + deadline_s
        self._calls: dict[asyncio.Task[bytes], Call] = {}
        self._open: dict[int, list[Call]] = {}  # by place, those in flight, the oldest first
        self._at_once = PIECES_AT_ONCE
        self._waiting: list[int] = []  # places that nobody is being asked for
        self._sizes: Mapping[int, int] = {}
        self._times: deque[float] = deque(maxlen=_TIMES_KEPT)  # of pieces that came
        self._alarms: list[float] = []  # a heap: when a call is overdue or a rest over
        self._enlisted: asyncio.Future[None] = self._loop.create_future()  # done when there is somebody new to ask
        sources.tell(self.enlist)

    def enlist(self, key: PublicKey, is_spare: bool, rest_s: float) -> None:
        """Know one more source, or hear of one that is known that it has the blob now."""
        if key == self._endpoint.key:
            return
        source = next((each for each in self._sources if each.key == key), None)
        if source is None:
            self._sources.append(source := Source(key, is_spare))
        source.is_spare, source.times_without = is_spare, 0
        source.rests.clear()
        if rest_s > 0:
            source.rests[None] = 0, self._loop.time() + rest_s
            heapq.heappush(self._alarms, source.rests[None][1])
        if not self._enlisted.done():
            self._enlisted.set_result(None)

    async def gather(self, sizes: Mapping[int, int], take: _Take) -> None:
        """Ask for the places of ``sizes``, each of at most so many bytes, until ``take`` has accepted an answer for every one;
        it refuses wrong bytes by an EncodingError.

        Raises:
            Unreachable: there is nobody left to ask.
        """
        self._sizes, self._waiting = sizes, list(sizes)
        while self._waiting or self._open:
            now = self._loop.time()
            if self._is_hopeless(now):
                raise Unreachable(self.story("and nobody is left who could"))
            self._ask_beside(now)
            self._ask_more(now)
            for task in await self._next(now):
                self._settle(task, take)

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
        call = Call(place, source, now, now + self._patience_s(place) * 2 ** len(calls))
        request = pack(Ask(self.root, place))
        timeout_s = max(min(waits.PIECE_S, self._ends - now), 0.001)
        is_large = self._sizes[place] >= LARGE_BYTES
        asking = self._endpoint.call(source.key, METHOD, request, timeout_s=timeout_s, large_answer=is_large)
        self._calls[asyncio.create_task(asking)] = call
        source.calls.append(call)
        source.said = "has not answered yet" if source.said == NOT_ASKED else source.said
        self._open.setdefault(place, []).append(call)
        heapq.heappush(self._alarms, call.due)
        return True

    def _patience_s(self, place: int) -> float:
        if self._times:
            patience_s = max(_PATIENCE * statistics.median(self._times), _MIN_PATIENCE_S)
        else:
            patience_s = _FIRST_PATIENCE_S + self._sizes[place] / _FIRST_BYTES_PER_S
        return min(patience_s, _PATIENCE_SHARE * self._deadline_s)

    async def _next(self, now: float) -> list[asyncio.Task[bytes]]:
        """Wait for answers, or for a moment after ``now`` at which more can be asked; return the calls that are over."""
        while self._alarms and self._alarms[0] <= now:
            heapq.heappop(self._alarms)
        timeout_s = max(self._alarms[0] - self._loop.time(), 0.0) if self._alarms else None
        awaited: set[asyncio.Future[Any]] = {*self._calls, self._enlisted}
        done, _ = await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._enlisted in done:
            self._enlisted = self._loop.create_future()
        return [task for task in self._calls if task in done]

    def _settle(self, task: asyncio.Task[bytes], take: _Take) -> None:
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
            take(place, data)
        except Refused as error:
            if str(error) in (NOT_YET, BUSY):
                source.times_without = 0
            else:
                self._note_without(source, is_away=False)
            self._rest(source, place if str(error) == NOT_YET else None, waits.PIECE_AGAIN_S[0], str(error))
            self._give_up(call)
        except RemoteFault as error:
            self._give_up(call)
            self._condemn(source, str(error))
        except Unreachable as error:
            source.is_doubtful = True
            self._note_without(source, is_away=True)
            if self._loop.time() - call.started >= 0.99 * waits.PIECE_S:
                self._at_once = max(self._at_once - 1, 1)  # it may be the own line that cannot bring so many in time
            self._rest(source, None, waits.AWAY_S, str(error))
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
        self._on_wrong(source.key, reason)

    def _give_up(self, call: Call) -> None:
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
        rest_s = min(first_s * 2 ** min(times, 10), waits.PIECE_AGAIN_S[1]) * (0.5 + self.rng.random())
        source.rests[place] = (times + 1, self._loop.time() + rest_s)
        source.said = said
        heapq.heappush(self._alarms, source.rests[place][1])
