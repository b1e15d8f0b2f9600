"""Samples of a sharded data set, read when they are asked for, side by side in threads; each is checked against its digests.

So all see the same pixels or none. A shard's head is checked at its first use, a sample's bytes before they are decoded, at each use, and
then what they decode to: JPEG decoders differ. What does not hold is named and not used, nor is anything else of that shard.
"""

import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from manta_swarm.automl.data.scaling import Pixels
from manta_swarm.automl.data.shards.layout import (
    IMAGES,
    LIST_NAME,
    LayoutError,
    Rows,
    ShardList,
    head_bytes,
    pair_in,
    parse_head,
    parse_list,
    picture_in,
    shard_name,
)
from manta_swarm.automl.data.views import Pair
from manta_swarm.automl.files import read_bounded
from manta_swarm.protocol.errors import EncodingError, SamplesMissing, UserError
from manta_swarm.protocol.manifest import MAX_LIST_BYTES

_MAX_THREADS = 8

Kept = TypeVar("Kept")
Item = TypeVar("Item")
Result = TypeVar("Result")

_HEADS_BYTES = 32 << 20


class Recent(Generic[Kept]):
    """A cache of things by number: it keeps those asked for last, up to a limit of bytes. For any number of threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[int, tuple[Kept, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, number: int) -> Kept | None:
        """Return the thing, if it is kept."""
        with self._lock:
            found = self._kept.get(number)
            if found is None:
                return None
            self._kept.move_to_end(number)
            return found[0]

    def put(self, number: int, thing: Kept, size_bytes: int) -> None:
        """Keep a thing, as long as there is room."""
        with self._lock:
            if number in self._kept or size_bytes > self._max_bytes:
                return
            self._kept[number] = (thing, size_bytes)
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes:
                self._size_bytes -= self._kept.popitem(last=False)[1][1]


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield what ``work`` makes of each item, in order, in as many threads as torch computes with; few results are made ahead.

    The items are taken by the thread that asks for the results.
    """
    threads = min(torch.get_num_threads(), _MAX_THREADS, len(items))
    if threads < 2:
        yield from (work(items[place]) for place in range(len(items)))
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="samples") as pool:
        try:
            for place in range(len(items)):
                waiting.append(pool.submit(work, items[place]))
                if len(waiting) == 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, the next one of which is made in a thread while the one before is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def open_shards(folder: Path) -> "Shards":
    """Return the shards in a folder; only their list is read.

    Raises:
        UserError: there is no list, or it is none.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: put the shards there, or make them with manta-search data NAME --shard {folder}")
    try:
        return Shards(folder, parse_list(read_bounded(folder / LIST_NAME, MAX_LIST_BYTES)))
    except EncodingError as error:
        raise UserError(f"{folder / LIST_NAME} is not the list of a sharded data set ({error}): copy it again") from error


class Shards:
    """The samples of a sharded set, by their place in it: first those to train with, then those held out."""

    def __init__(self, folder: Path, list_: ShardList) -> None:
        """Use ``open_shards``."""
        self.folder = folder
        self.list = list_
        self._ends = np.cumsum([shard.samples for shard in list_.shards])
        self._heads: Recent[Rows] = Recent(_HEADS_BYTES)
        self._bad: dict[int, str] = {}  # shards that are not used any more, and why

    def path(self, number: int) -> Path:
        """Return the file of a shard."""
        return self.folder / shard_name(number)

    def missing(self) -> Sequence[Path]:
        """Return the shards to train with that are not here, or have another size than they should: without reading them."""
        return self._missing(range(self.list.num_train_shards))

    def missing_held_out(self) -> Sequence[Path]:
        """Return the same of the shards that are held out."""
        return self._missing(range(self.list.num_train_shards, len(self.list.shards)))

    def damaged(self) -> Iterator[tuple[Path, SamplesMissing | None]]:
        """Read everything; yield each shard, and what is wrong with it."""
        for number, shard in enumerate(self.list.shards):
            first = self._first(number)
            try:
                for _ in in_threads(self.sample, range(first, first + shard.samples)):
                    pass
            except SamplesMissing as error:
                yield self.path(number), error
            else:
                yield self.path(number), None

    def labels(self, places: range) -> npt.NDArray[np.int64]:
        """Return the labels of some samples.

        Raises:
            SamplesMissing: a shard with some of them is not as it should be.
        """
        numbers = range(self.number_of(places.start), self.number_of(places.stop - 1) + 1)
        labels = np.concatenate([self._head(number)["label"] for number in numbers]).astype(np.int64)
        first = self._first(numbers.start)
        return labels[places.start - first : places.stop - first]

    def need(self, places: Sequence[int]) -> None:
        """Refuse samples of which it is known that they are not here, before any work goes into the others.

        Raises:
            SamplesMissing: a shard with some of them is not as it should be.
        """
        for number in sorted(set(map(self.number_of, places))):
            self._head(number)

    def sample(self, place: int) -> Pixels | Pair:
        """Return a sample: a picture (H, W), if it is grey, or (H, W, 3); or a pair.

        Raises:
            SamplesMissing: its shard is not as it should be.
        """
        number = self.number_of(place)
        rows, index = self._head(number), place - self._first(number)
        row = rows[index]
        start = head_bytes(len(rows)) + int(rows["sizes"][:index].sum())
        data = self._bytes(number, start, int(row["sizes"].sum()))
        if hashlib.sha256(data).digest() != row["bytes"].tobytes():
            raise self._spoilt(number, "is damaged: copy it again")
        where = f"sample {index} of {self.path(number)}"
        try:
            return picture_in(data, row, where) if self.list.kind == IMAGES else pair_in(data, row, where)
        except (UserError, LayoutError) as error:
            raise self._spoilt(number, f"is not used: {error}") from error

    def label(self, place: int) -> int:
        """Return a sample's label; raises as ``labels``."""
        number = self.number_of(place)
        return int(self._head(number)["label"][place - self._first(number)])

    def number_of(self, place: int) -> int:
        """Return the shard that has the sample at a place."""
        return int(np.searchsorted(self._ends, place, "right"))

    def _first(self, number: int) -> int:
        """Return the place of a shard's first sample."""
        return int(self._ends[number]) - self.list.shards[number].samples

    def _missing(self, numbers: range) -> Sequence[Path]:
        return [self.path(number) for number in numbers if not _is_of_size(self.path(number), self.list.shards[number].size_bytes)]

    def _head(self, number: int) -> Rows:
        if number in self._bad:
            raise SamplesMissing(self._bad[number])
        rows = self._heads.get(number)
        if rows is not None:
            return rows
        shard = self.list.shards[number]
        path = self.path(number)
        if path.exists() and not _is_of_size(path, shard.size_bytes):
            raise self._spoilt(number, "is cut or too long: copy it again")
        data = self._bytes(number, 0, head_bytes(shard.samples))
        if hashlib.sha256(data).digest() != shard.head:
            raise self._spoilt(number, "is damaged, or a shard of another data set: copy it again")
        try:
            rows = parse_head(data, shard, self.list)
        except LayoutError as error:
            raise self._spoilt(number, f"cannot be used: {error}") from error
        self._heads.put(number, rows, len(data))
        return rows

    def _bytes(self, number: int, start: int, count: int) -> bytes:
        try:
            with self.path(number).open("rb") as file:
                file.seek(start)
                return file.read(count)
        except FileNotFoundError as error:
            raise self._spoilt(number, "is missing: copy it there") from error
        except OSError as error:
            raise self._spoilt(number, f"cannot be read ({error.strerror}): copy it again") from error

    def _spoilt(self, number: int, what: str) -> SamplesMissing:
        """Remember that a shard is not used any more, and return why."""
        return SamplesMissing(self._bad.setdefault(number, f"the shard {self.path(number)} {what}"))


def _is_of_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False
