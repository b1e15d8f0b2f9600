"""Who may have a blob that is being fetched, and what is known of each: its calls in flight, its rests, what it said last."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from manta_swarm.protocol.signing import PublicKey

CALLS_A_SOURCE = 4
NOT_ASKED, GAVE = "not asked", "gave pieces"


@dataclass(frozen=True, slots=True)
class ToldSource:
    """Somebody who may have a blob."""

    key: PublicKey
    is_spare: bool
    rest_s: float  # before it is asked
    number: int  # of all that was told


class Sources:
    """Who may have a blob, those to be asked first in front; more may come to be known while it is fetched.

    A *spare* source is asked only for what no other is ready to give: the others are away, slow, busy, or have nothing of it.
    """

    def __init__(
        self, keys: Iterable[PublicKey] = (), *, spare: Iterable[PublicKey] = (), timeout_s: float = 0.0, may_grow: bool = False
    ) -> None:
        """Know these sources.

        Args:
            spare: further ones, that are spare.
            timeout_s: nobody spare is asked before this has passed.
            may_grow: somebody may be added yet: where nobody is left to ask, that is waited for.
        """
        self.may_grow = may_grow
        self._known: dict[PublicKey, ToldSource] = {}
        self._num_told = 0
        self._changed: asyncio.Future[None] | None = None
        for key in keys:
            self.add(key)
        for key in spare:
            self.add(key, is_spare=True, rest_s=timeout_s)

    def __iter__(self) -> Iterator[PublicKey]:
        return iter(self._known)

    def add(self, key: PublicKey, *, is_spare: bool = False, rest_s: float = 0.0) -> None:
        """Know one more source, or hear of one that is known that it has the blob now; it is not asked before ``rest_s`` has passed."""
        if key in self._known and is_spare:
            return
        self._num_told += 1
        self._known[key] = ToldSource(key, is_spare, rest_s, self._num_told)
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def since(self, number: int) -> tuple[int, Sequence[ToldSource]]:
        """Return how much was told, and of that what was told after the first ``number``, the newest of each."""
        return self._num_told, [told for told in self._known.values() if told.number > number]

    @property
    def changed(self) -> "asyncio.Future[None]":
        """A future that is done once another source is added."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed


@dataclass(eq=False, slots=True)
class Source:
    key: PublicKey
    is_spare: bool = False
    calls: "list[SourceCall]" = field(default_factory=list)  # in flight
    rests: dict[int | None, tuple[int, float]] = field(default_factory=dict)  # by place, None is all: how many in a row, and until when
    is_doubtful: bool = False  # it was away, or too slow, when it was asked last
    is_wrong: bool = False
    times_without: int = 0  # in a row that it had nothing of the blob, or was away
    said: str = NOT_ASKED

    def is_free(self, place: int | None, now: float) -> bool:
        """Whether the source may be asked for a piece; None: for any."""
        return not self.is_wrong and len(self.calls) < CALLS_A_SOURCE and self._rests_until(None) <= now and self._rests_until(place) <= now

    def is_ready(self, place: int, now: float) -> bool:
        """Whether it may give a piece before long, as far as its last answers say."""
        rests = max(self._rests_until(None), self._rests_until(place)) > now
        return not (self.is_wrong or rests or self.is_doubtful or self.times_without or self.is_slow(now))

    def is_slow(self, now: float) -> bool:
        """Whether a call to it is overdue."""
        return any(call.due <= now for call in self.calls)

    def is_rested(self, now: float) -> bool:
        """Whether it may be asked for pieces at all, as far as its last answers say."""
        return self._rests_until(None) <= now

    def _rests_until(self, place: int | None) -> float:
        return self.rests[place][1] if place in self.rests else 0.0


@dataclass(eq=False, slots=True)
class SourceCall:
    place: int
    source: Source
    started: float
    due: float  # when another source may be asked too
