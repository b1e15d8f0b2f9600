"""The recursive reduce: one algorithm at every level (members of a cohort, then cohorts), and the same bytes at every peer.

At a level the members cut the range that they hold into pieces; each piece has an owner, who gets it from the others and averages it
by the weights of the table. Above the lowest level the "members" are the owners of one piece in the sibling groups: the owner takes
its average up, and what comes back down from the top is final bytes, encoded once, that everybody decodes. Between cohorts, each cohort
so sends and receives the vector about once, however many members it has.

Every weight comes from the table, never from a message. A member that fails or falls silent fails the attempt.
"""

import asyncio
import itertools
import math
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from protocol.encoding import pack, unpack
from protocol.errors import AttemptFailed, EncodingError, MantaError
from protocol.signing import PublicKey
from swarm import codec
from swarm.mean import Mean
from swarm.rpc import Endpoint, Refused
from swarm.tasks import together

PART_BYTES = 1024 * 1024  # of a piece in one message
MAX_PIECES = 60  # of one level; beyond, pieces are not quite equal and nothing else changes
_PARTS_IN_FLIGHT = 4  # to one peer
_HEADER_LENGTH_BYTES = 2
_MAX_HEADER_BYTES = 256
_CALL_TIMEOUT_S = 60.0
_UP, _DOWN = 0, 1


@dataclass(frozen=True, slots=True)
class Leaf:
    """A peer with its weight: the samples of its claim, capped by the manifest."""

    key: PublicKey
    weight: int


@dataclass(frozen=True, slots=True)
class Branch:
    """Peers that reduce together first: a cohort, or the swarm of cohorts. All leaves are equally deep."""

    children: tuple["Branch | Leaf", ...]


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands before the bytes of a part: a piece on its way up to its owner or down from it."""

    attempt: bytes
    direction: int
    path: tuple[int, ...]  # the piece: its index at each level, lowest first
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """A message: some bytes of one piece. It travels as the header's length (2 bytes, big-endian), the header, the bytes as they are."""

    header: _Header
    data: memoryview

    @property
    def attempt(self) -> bytes:
        """The attempt that it belongs to."""
        return self.header.attempt

    def pack(self) -> bytes:
        """Return the message."""
        header = pack(self.header)
        return b"".join((len(header).to_bytes(_HEADER_LENGTH_BYTES, "big"), header, self.data))

    @classmethod
    def open(cls, message: bytes) -> "Part":
        """Return the part in ``message``.

        Raises:
            EncodingError: there is none.
        """
        start = _HEADER_LENGTH_BYTES + int.from_bytes(message[:_HEADER_LENGTH_BYTES], "big")
        if len(message) < start:
            raise EncodingError("a part without its header")
        return cls(unpack(_Header, message[_HEADER_LENGTH_BYTES:start], max_bytes=_MAX_HEADER_BYTES), memoryview(message)[start:])


@dataclass(frozen=True, slots=True)
class _Final:
    """A piece of the mean: the bytes that its owner encoded once, and what everybody decodes from them."""

    data: bytes | memoryview
    values: Tensor


_Tag = tuple[int, tuple[int, ...], PublicKey]  # direction, path, sender


@dataclass(slots=True)
class _Arrival:
    """Bytes of one piece from one sender, as they come in."""

    buffer: bytearray
    missing: int
    seen: set[int] = field(default_factory=set)
    done: asyncio.Event = field(default_factory=asyncio.Event)


def _weight(node: Branch | Leaf) -> int:
    return node.weight if isinstance(node, Leaf) else sum(_weight(child) for child in node.children)


def _levels(root: Branch) -> list[list[Branch]]:
    """Return the groups of each level, lowest first."""
    levels = [[root]]
    while isinstance(levels[0][0].children[0], Branch):
        levels.insert(0, [child for group in levels[0] for child in group.children if isinstance(child, Branch)])
    return levels


def _piece_count(groups: Sequence[Branch]) -> int:
    """Return into how many pieces every group of a level cuts its range: the same everywhere, shared out evenly in each."""
    return min(math.lcm(*(len(group.children) for group in groups)), MAX_PIECES)


def owner(node: Branch | Leaf, path: tuple[int, ...]) -> PublicKey:
    """Return the peer inside ``node`` that owns the piece ``path``."""
    if isinstance(node, Leaf):
        return node.key
    return owner(node.children[path[-1] % len(node.children)], path[:-1])


def _bounds(start: int, stop: int, pieces: int) -> list[tuple[int, int]]:
    cuts = [start + (stop - start) * i // pieces for i in range(pieces + 1)]
    return list(itertools.pairwise(cuts))


def leaves(node: Branch | Leaf) -> list[Leaf]:
    """Return the peers of a tree in its order."""
    return [node] if isinstance(node, Leaf) else [leaf for child in node.children for leaf in leaves(child)]


class Reduction:
    """One peer's part in one attempt's reduce. ``receive`` is fed with messages while ``run`` is under way."""

    def __init__(self, endpoint: Endpoint, attempt: bytes, root: Branch, codecs: Sequence[str], vector: Tensor) -> None:
        """Prepare to average ``vector`` (float32, one dimension, left as it is) with the peers of ``root``.

        Args:
            codecs: one for each level, lowest first; the last one also encodes the mean.
        """
        self._endpoint = endpoint
        self._attempt = attempt
        self._levels = _levels(root)
        self._codecs = codecs
        self._vector = vector
        self._pieces = [_piece_count(groups) for groups in self._levels]
        self._own_groups = [
            next(group for group in groups if any(leaf.key == endpoint.key for leaf in leaves(group))) for groups in self._levels
        ]
        self._arrivals: dict[_Tag, _Arrival] = {}
        self._in_flight: dict[PublicKey, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_PARTS_IN_FLIGHT))
        self.sent_bytes = 0
        self._expect(0, (), 0, vector.numel())

    async def run(self) -> Mean:
        """Return the mean.

        Raises:
            AttemptFailed: a member could not be reached, refused, or sent what does not decode; or the own vector is not to be sent.
        """
        codec.check(self._vector)
        pieces = await self._reduce(0, (), 0, self._vector.numel(), self._vector)
        return Mean.join(self._codecs[-1], [piece.data for piece in pieces], [piece.values for piece in pieces])

    def receive(self, sender: PublicKey, part: Part) -> None:
        """Take a message of a member.

        Raises:
            EncodingError: nothing of the kind is expected from this sender; it changes nothing.
        """
        offset = part.header.offset
        arrival = self._arrivals.get((part.header.direction, part.header.path, sender))
        if arrival is None or offset % PART_BYTES != 0 or not 0 <= offset < len(arrival.buffer):
            raise EncodingError("a part that nobody waits for")
        if len(part.data) != min(PART_BYTES, len(arrival.buffer) - offset):
            raise EncodingError("a part of the wrong length")
        if offset in arrival.seen:
            return
        arrival.seen.add(offset)
        arrival.buffer[offset : offset + len(part.data)] = part.data
        arrival.missing -= len(part.data)
        if arrival.missing == 0:
            arrival.done.set()

    def waiting_for(self) -> set[PublicKey]:
        """Return the members whose bytes are missing at the earliest step; those of later steps may wait for them as well."""
        missing = [tag for tag, arrival in self._arrivals.items() if not arrival.done.is_set()]
        # The order of the steps: up, level after level, then down again from the top.
        steps = {tag: (direction, len(path) if direction == _UP else -len(path)) for tag in missing for direction, path, _ in [tag]}
        first = min(steps.values(), default=None)
        return {tag[2] for tag, step in steps.items() if step == first}

    def _participants(self, level: int, path: tuple[int, ...]) -> list[PublicKey]:
        return [owner(child, path) for child in self._own_groups[level].children]

    def _expect(self, level: int, path: tuple[int, ...], start: int, stop: int) -> None:
        """Announce every message that will come to this peer for the range of ``path``, at this level and those above."""
        participants = self._participants(level, path)
        others = [key for key in participants if key != self._endpoint.key]
        for i, (lo, hi) in enumerate(_bounds(start, stop, self._pieces[level])):
            piece = (*path, i)
            piece_owner = participants[i % len(participants)]
            if piece_owner != self._endpoint.key:
                self._add_arrival(_DOWN, piece, piece_owner, self._final_size(level + 1, lo, hi))
                continue
            for key in others:
                self._add_arrival(_UP, piece, key, codec.encoded_size(self._codecs[level], hi - lo))
            if level + 1 < len(self._levels):
                self._expect(level + 1, piece, lo, hi)

    def _add_arrival(self, direction: int, path: tuple[int, ...], sender: PublicKey, size: int) -> None:
        arrival = _Arrival(bytearray(size), size)
        if size == 0:
            arrival.done.set()
        self._arrivals[direction, path, sender] = arrival

    def _final_counts(self, level: int, start: int, stop: int) -> list[int]:
        """Return the sizes (in values) of the final pieces into which the levels from ``level`` up cut a range."""
        if level == len(self._levels):
            return [stop - start]
        return [n for lo, hi in _bounds(start, stop, self._pieces[level]) for n in self._final_counts(level + 1, lo, hi)]

    def _final_size(self, level: int, start: int, stop: int) -> int:
        return sum(codec.encoded_size(self._codecs[-1], count) for count in self._final_counts(level, start, stop))

    async def _reduce(self, level: int, path: tuple[int, ...], start: int, stop: int, values: Tensor) -> list[_Final]:
        """Return the final pieces of the range [start, stop); ``values`` is what this peer brings for it."""
        participants = self._participants(level, path)
        sending: list[Coroutine[Any, Any, Any]] = []
        finishing: list[Coroutine[Any, Any, Any]] = []  # the first results: lists of final pieces
        for i, (lo, hi) in enumerate(_bounds(start, stop, self._pieces[level])):
            piece, piece_owner = (*path, i), participants[i % len(participants)]
            mine = values[lo - start : hi - start]
            if piece_owner == self._endpoint.key:
                finishing.append(self._own(level, piece, lo, hi, mine))
            else:
                sending.append(self._send(piece_owner, _UP, piece, memoryview(codec.encode(self._codecs[level], mine))))
                finishing.append(self._receive_final(level, piece, piece_owner, lo, hi))
        finals: list[list[_Final]] = (await together(*finishing, *sending))[: len(finishing)]
        return [final for each in finals for final in each]

    async def _own(self, level: int, piece: tuple[int, ...], lo: int, hi: int, mine: Tensor) -> list[_Final]:
        """Average one piece by the table's weights, take it up where there is a level above, and hand down the final bytes."""
        group, participants = self._own_groups[level], self._participants(level, piece[:-1])
        average = torch.zeros(hi - lo, dtype=torch.float32)
        for child, key in zip(group.children, participants, strict=True):
            if key == self._endpoint.key:
                average += mine * float(_weight(child))
            else:
                data = await self._arrived(_UP, piece, key)
                average += _decoded(self._codecs[level], data, hi - lo, key).mul_(float(_weight(child)))
        average.div_(float(_weight(group))).clamp_(-codec.MAX_ABS, codec.MAX_ABS)  # rounding may lead a little beyond
        if level + 1 < len(self._levels):
            finals = await self._reduce(level + 1, piece, lo, hi, average)
        else:
            encoded = codec.encode(self._codecs[-1], average)
            finals = [_Final(encoded, codec.decode(self._codecs[-1], encoded, hi - lo))]
        data = memoryview(b"".join(final.data for final in finals))
        await together(*(self._send(key, _DOWN, piece, data) for key in participants if key != self._endpoint.key))
        return finals

    async def _receive_final(self, level: int, piece: tuple[int, ...], piece_owner: PublicKey, lo: int, hi: int) -> list[_Final]:
        data = await self._arrived(_DOWN, piece, piece_owner)
        finals, at = [], 0
        for count in self._final_counts(level + 1, lo, hi):
            encoded = data[at : at + codec.encoded_size(self._codecs[-1], count)]
            finals.append(_Final(encoded, _decoded(self._codecs[-1], encoded, count, piece_owner)))
            at += len(encoded)
        return finals

    async def _arrived(self, direction: int, path: tuple[int, ...], sender: PublicKey) -> memoryview:
        arrival = self._arrivals[direction, path, sender]
        await arrival.done.wait()  # the attempt's deadline, held by the caller, bounds this
        return memoryview(arrival.buffer)

    async def _send(self, to: PublicKey, direction: int, path: tuple[int, ...], data: memoryview) -> None:
        async def send_part(offset: int) -> None:
            async with self._in_flight[to]:
                part = Part(_Header(self._attempt, direction, path, offset), data[offset : offset + PART_BYTES]).pack()
                self.sent_bytes += len(part)
                await self._call(to, part)

        await together(*(send_part(offset) for offset in range(0, len(data), PART_BYTES)))

    async def _call(self, to: PublicKey, part: bytes) -> None:
        try:
            await self._endpoint.call(to, "part", part, timeout_s=_CALL_TIMEOUT_S)
        except Refused as error:
            # As if it gave up: most likely the attempt failed there first, for a reason that is another member.
            raise AttemptFailed(str(error)) from error
        except MantaError as error:
            raise AttemptFailed(str(error), frozenset({to})) from error


def _decoded(codec_name: str, data: memoryview, count: int, sender: PublicKey) -> Tensor:
    try:
        return codec.decode(codec_name, data, count)
    except EncodingError as error:
        raise AttemptFailed(f"a member sent {error}", frozenset({sender})) from error
