"""One peer's side of adding the vectors of a roster: it sends each owner its part, adds the parts that it owns itself, and gets the sums.

What each member's parts are is known before they travel, by digests; so an owner's word can be checked, and every peer ends with the bytes
whose digests the founder names, or with none. Who takes part, who owns what and who counts, the founder says (``peer.cohort.founder``).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from manta_swarm.codec.residuals import DIGEST_BYTES, PART_VALUES, near_mean, part_digests
from manta_swarm.network import timeouts
from manta_swarm.network.link import CHUNK_VALUES, TAG_BYTES
from manta_swarm.network.links import Links
from manta_swarm.peer.cohort.messages import NORM_BYTES, Add, PartReport, Plan, VectorSummary
from manta_swarm.protocol.errors import EncodingError, MantaError, RemoteFault, Unreachable
from manta_swarm.protocol.signing import PublicKey, sha256
from manta_swarm.runtime.tasks import off_loop, wait_within

Vector = NDArray[np.float32]
AskPart = Callable[[int], Awaitable[bytes]]  # asks the founder for a part of the mean

_KEPT_TURNS = 2  # of sums


def num_parts(num_values: int) -> int:
    """Return how many parts a vector of so many values has."""
    return max(1, -(-num_values // PART_VALUES))


def owned(num_values: int, owners: Sequence[bytes], owner: bytes) -> slice:
    """Return the values that one of the owners adds: whole parts, as many as each of the others, or one more."""
    parts, place = num_parts(num_values), list(owners).index(owner)
    first, last = parts * place // len(owners), parts * (place + 1) // len(owners)
    return slice(min(first * PART_VALUES, num_values), min(last * PART_VALUES, num_values))


def squared_norms(vector: Vector) -> bytes:
    """Return the square of the norm of each part (binary64); not finite where a value is not, or its square is none."""
    norms = np.empty(num_parts(vector.size), "<f8")
    with np.errstate(over="ignore", invalid="ignore"):
        for place in range(len(norms)):
            part = vector[place * PART_VALUES : (place + 1) * PART_VALUES]
            norms[place] = float(np.dot(part, part))
    return norms.tobytes()


async def described(vector: Vector, linked: tuple[PublicKey, ...], digests: bytes | None = None) -> VectorSummary:
    """Return what a member says of its vector; ``digests``: of its parts, where they are known."""
    return await off_loop(vector.size, lambda: VectorSummary(vector.size, digests or part_digests(vector), squared_norms(vector), linked))


class _Filling:
    """A vector, or a part of one, that comes in chunks."""

    def __init__(self, first: int, last: int) -> None:
        self.values = np.empty(last - first, "<f4")
        self._first = first
        self._has = np.zeros(-(-(last - first) // CHUNK_VALUES), bool)
        self._under_way = self._has.copy()

    @property
    def is_whole(self) -> bool:
        return bool(self._has.all())

    def buffer(self, first: int, num_bytes: int, last: int) -> memoryview:
        """Return the memory for a chunk of values that end before ``last`` at most.

        Raises:
            EncodingError: it has another place or size than a chunk, or came before.
        """
        start, count = first - self._first, num_bytes // 4
        if start < 0 or start % CHUNK_VALUES or first + count > last or (count % CHUNK_VALUES and first + count != last):
            raise EncodingError(f"a chunk of {count} values in a place where none is expected")
        units = slice(start // CHUNK_VALUES, -(-(start + count) // CHUNK_VALUES))
        if self._under_way[units].any():
            raise EncodingError("a chunk that came before")
        self._under_way[units] = True
        return self.values[start : start + count].data.cast("B")

    def filled(self, first: int, num_bytes: int) -> None:
        start = first - self._first
        self._has[start // CHUNK_VALUES : -(-(start + num_bytes // 4) // CHUNK_VALUES)] = True

    def take(self, first: int, values: Vector) -> None:
        """Take values that did not have to travel."""
        start = first - self._first
        self.values[start : start + values.size] = values
        units = slice(start // CHUNK_VALUES, -(-(start + values.size) // CHUNK_VALUES))
        self._has[units] = self._under_way[units] = True

    def has(self, part: int) -> bool:
        units = PART_VALUES // CHUNK_VALUES
        return bool(self._has[part * units : (part + 1) * units].all())


@dataclass
class _Attempt:
    """What is under way by one plan."""

    plan: Plan
    tag: bytes
    until_s: float
    parts: dict[bytes, _Filling] = field(default_factory=dict)  # of the members' vectors, where this peer is an owner
    reports: dict[bytes, "asyncio.Task[PartReport]"] = field(default_factory=dict)
    sums: dict[int, _Filling] = field(default_factory=dict)  # by turn, the newest last
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)


class Lacking(Unreachable):
    """Parts of a mean are not here, or have other bytes than were told."""

    def __init__(self, parts: Sequence[int]) -> None:
        super().__init__(f"{len(parts)} parts of a mean are not here, or have other bytes than were told")
        self.parts = tuple(parts)


class AllReduce:
    """One peer's side of one step, or of the end. All methods run in one event loop."""

    def __init__(self, links: Links, founder: PublicKey, base: bytes, step: int, vector: Vector, *, is_audited: bool) -> None:
        """Prepare; nobody may change ``vector`` (N,) from here on.

        Args:
            links: this peer's.
            founder: of the roster.
            base: the commit that it works on.
            step: H for the end.
            vector: this peer's own.
            is_audited: whether audits look at what was added: then the digests of all parts are compared, else their norms.
        """
        self._links = links
        self._founder = founder
        self._base = base
        self._step = step
        self._is_audited = is_audited
        self._vector = np.ascontiguousarray(vector, dtype="<f4")
        self._attempt: _Attempt | None = None
        self._changed = asyncio.Event()
        self._means: dict[int, Vector] = {}  # by turn: whole, and as the founder said

    def close(self) -> None:
        """Give up what is under way."""
        self._end_attempt()
        self._means.clear()

    def _end_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            for task in (*attempt.tasks, *attempt.reports.values()):
                task.cancel()
            self._links.receive_no_more(attempt.tag)
        self._changed.set()

    # What the founder says.

    async def follow(self, plan: Plan) -> tuple[PartReport, ...]:
        """Send this peer's vector to the owners; return what came to this one, if it is an owner.

        Raises:
            EncodingError: there is no such plan.
        """
        if self._attempt is not None and plan.attempt <= self._attempt.plan.attempt:
            raise EncodingError("a plan that is older than the one before")
        if self._links.key not in plan.members:
            raise EncodingError("a plan without whom it is told")
        self._end_attempt()
        head = b"manta/near/v1" + self._founder + self._base + self._step.to_bytes(4, "big") + plan.attempt.to_bytes(4, "big")
        loop = asyncio.get_running_loop()
        attempt = self._attempt = _Attempt(plan, sha256(head)[:TAG_BYTES], loop.time() + plan.left_ms / 1000)
        own = self._owned(plan, self._links.key)
        if own is not None:
            for key in plan.members:
                if key != self._links.key:
                    attempt.parts[key] = _Filling(own.start, own.stop)
        self._links.receive(attempt.tag, self)
        sending = [loop.create_task(self._send(attempt, owner)) for owner in plan.owners if owner != self._links.key]
        attempt.tasks.update(sending)
        if own is None:
            if sending:
                await asyncio.wait(sending)
            return ()
        while self._attempt is attempt and len(attempt.reports) < len(attempt.parts) and (left_s := attempt.until_s - loop.time()) > 0:
            self._changed.clear()
            await wait_within(self._changed, left_s)
        if self._attempt is not attempt:
            raise EncodingError("a plan that is over")
        return tuple(sorted([await task for task in list(attempt.reports.values())], key=lambda report: report.key))

    async def add(self, add: Add) -> bytes:
        """Add the parts of these members, and send the sums to who reads them; return their digests, nothing where they are not finite.

        Raises:
            EncodingError: this peer does not have them.
        """
        attempt = self._attempt
        own = None if attempt is None else self._owned(attempt.plan, self._links.key)
        if attempt is None or own is None or add.attempt != attempt.plan.attempt:
            raise EncodingError("no parts to be added")
        parts = {key: filling.values for key, filling in attempt.parts.items() if filling.is_whole}
        parts[self._links.key] = self._vector[own]
        if not set(add.keys) <= parts.keys():
            raise EncodingError("not all of these parts are here")
        vectors = [parts[key] for key in add.keys]
        try:
            sums = await off_loop(len(vectors) * vectors[0].size, lambda: near_mean(vectors, add.weights))
        except ValueError:  # of finite vectors the mean may not be
            return b""
        for reader in add.readers:
            if reader == self._links.key:
                self._sums(attempt, add.turn).take(own.start, sums)
                self._changed.set()
            else:
                attempt.tasks.add(asyncio.create_task(self._send_sums(attempt, add.turn, PublicKey(reader), own.start, sums)))
        return await off_loop(sums.size, lambda: part_digests(sums))

    async def mean(self, turn: int, digests: bytes, timeout_s: float, ask: AskPart | None = None) -> Vector:
        """Return the mean (N,) whose parts have these digests, as the owners send it; what they did not send is asked for.

        Raises:
            Lacking: it is not all here in time, and nobody is asked.
            Unreachable: it cannot be had.
            EncodingError: it has other bytes.
        """
        attempt, parts = self._attempt, num_parts(self._vector.size)
        if attempt is None or len(digests) != parts * DIGEST_BYTES:
            raise EncodingError("no mean of such a vector")
        sums, loop = self._sums(attempt, turn), asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while not sums.is_whole and self._attempt is attempt and (left_s := until_s - loop.time()) > 0:
            self._changed.clear()
            await wait_within(self._changed, left_s)
        wrong = await off_loop(sums.values.size, lambda: self._wrong(sums, digests))
        if wrong and ask is None:
            raise Lacking(wrong)
        for part in wrong:
            assert ask is not None
            data = await ask(part)
            values = np.frombuffer(data, "<f4")
            place = slice(part * PART_VALUES, min((part + 1) * PART_VALUES, sums.values.size))
            if values.size != place.stop - place.start or sha256(data) != digests[part * DIGEST_BYTES : (part + 1) * DIGEST_BYTES]:
                raise EncodingError("a part of a mean has other bytes than its founder named")
            sums.take(place.start, values)
        mean = self._means[turn] = sums.values.astype(np.float32, copy=False)
        return mean

    @property
    def num_parts(self) -> int:
        """How many parts the vectors have."""
        return num_parts(self._vector.size)

    @property
    def timeout_s(self) -> float:
        """How long parts, and then sums, may take by the newest plan; 0: there is none."""
        return 0.0 if self._attempt is None else self._attempt.plan.left_ms / 1000

    def owned(self, plan: Plan, owner: bytes) -> slice:
        """Return the parts (not values) that an owner adds."""
        values = owned(self._vector.size, plan.owners, owner)
        return slice(values.start // PART_VALUES, -(-values.stop // PART_VALUES))

    def lack(self, key: bytes) -> None:
        """Wait for the vector of this member no longer."""
        if self._attempt is not None and key not in self._attempt.reports:
            self._attempt.parts.pop(key, None)
            self._changed.set()

    @staticmethod
    def _wrong(sums: _Filling, digests: bytes) -> list[int]:
        found = part_digests(sums.values)
        places = range(0, len(digests), DIGEST_BYTES)
        same = [found[at : at + DIGEST_BYTES] == digests[at : at + DIGEST_BYTES] for at in places]
        return [part for part, is_same in enumerate(same) if not is_same or not sums.has(part)]

    def part_of_mean(self, turn: int, part: int) -> bytes:
        """Return a part of the mean that this founder has.

        Raises:
            Unreachable: it has none, or none any more.
        """
        mean = self._means.get(turn)
        if mean is None or part >= num_parts(mean.size):
            raise Unreachable("no such mean is here")
        return mean[part * PART_VALUES : (part + 1) * PART_VALUES].astype("<f4", copy=False).tobytes()

    def _owned(self, plan: Plan, key: bytes) -> slice | None:
        return owned(self._vector.size, plan.owners, key) if key in plan.owners else None

    def _sums(self, attempt: _Attempt, turn: int) -> _Filling:
        if turn not in attempt.sums:
            attempt.sums[turn] = _Filling(0, self._vector.size)
            while len(attempt.sums) > _KEPT_TURNS:
                del attempt.sums[min(attempt.sums)]
        return attempt.sums.get(turn) or _Filling(0, self._vector.size)

    async def _send(self, attempt: _Attempt, owner: bytes) -> None:
        await self._send_values(attempt, PublicKey(owner), 0, owned(self._vector.size, attempt.plan.owners, owner), self._vector)

    async def _send_sums(self, attempt: _Attempt, turn: int, reader: PublicKey, first: int, sums: Vector) -> None:
        await self._send_values(attempt, reader, turn, slice(first, first + sums.size), sums, first)

    async def _send_values(self, attempt: _Attempt, to: PublicKey, turn: int, place: slice, values: Vector, offset: int = 0) -> None:
        """Send some values; where that fails, the other end finds that they are not there."""
        data = values[place.start - offset : place.stop - offset].data.cast("B")
        timeout_s = attempt.plan.left_ms / 1000 + timeouts.NEAR_S
        with contextlib.suppress(MantaError):
            await self._links.send(to, attempt.tag, turn, place.start, data, timeout_s=timeout_s)

    # What the others send (``network.link.Receiver``).

    def buffer(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> memoryview | None:
        """See ``network.link.Receiver``."""
        attempt = self._attempt
        if attempt is None:
            return None
        filling, place = self._place_of(attempt, sender, turn)
        if not place.start <= first < place.stop:
            raise EncodingError("a chunk of values that are not its sender's to send")
        return filling.buffer(first, num_bytes, place.stop)

    def _place_of(self, attempt: _Attempt, sender: bytes, turn: int) -> tuple[_Filling, slice]:
        own = self._owned(attempt.plan, self._links.key)
        if turn == 0:
            filling = attempt.parts.get(sender)
            if filling is None or own is None:
                raise EncodingError("a part of a vector from nobody in the roster, or for nobody who adds it")
            return filling, own
        if sender not in attempt.plan.owners:
            raise EncodingError("a sum from nobody who adds")
        return self._sums(attempt, turn), owned(self._vector.size, attempt.plan.owners, sender)

    def received(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> None:
        """See ``network.link.Receiver``."""
        attempt = self._attempt
        if attempt is None:
            return
        with contextlib.suppress(RemoteFault):
            filling, _ = self._place_of(attempt, sender, turn)
            filling.filled(first, num_bytes)
            if filling.is_whole:
                if turn == 0 and sender not in attempt.reports:
                    attempt.reports[sender] = asyncio.create_task(self._report(sender, filling.values))
                self._changed.set()

    async def _report(self, sender: bytes, values: Vector) -> PartReport:
        digests = part_digests if self._is_audited else lambda _: b""
        return await off_loop(values.size, lambda: PartReport(sender, digests(values), squared_norms(values)))


def norm_of(vector: VectorSummary) -> float:
    """Return the length of a vector, as its member says."""
    norms = np.frombuffer(vector.norms, "<f8")
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(norms.sum()))


def is_same(report: PartReport, vector: VectorSummary, first_part: int, *, is_audited: bool) -> bool:
    """Return whether an owner got what the member said that it has, from that part on; see ``AllReduce``."""
    count = len(report.norms) // NORM_BYTES
    digests = vector.digests[first_part * DIGEST_BYTES : (first_part + count) * DIGEST_BYTES] if is_audited else b""
    norms = vector.norms[first_part * NORM_BYTES : (first_part + count) * NORM_BYTES]
    said, got = np.frombuffer(norms, "<f8"), np.frombuffer(report.norms, "<f8")
    return report.digests == digests and said.shape == got.shape and bool(np.allclose(said, got, rtol=1e-3, atol=0, equal_nan=True))
