"""What reading samples side by side needs: work in threads, its results in order and few of them ahead; and what was made of late, kept."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

_MAX_THREADS = 8

Kept = TypeVar("Kept")
Item = TypeVar("Item")
Result = TypeVar("Result")


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
