"""Gets shards of a run's data set from peers and operators that hold them: each piece is checked, each file appears once it is whole.

A download goes on where it was left, whatever ended it: whole files are there, and of the one under way the right pieces are found again.
"""

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from manta_swarm.automl.data.shards.layout import LIST_NAME, ShardList, parse_list, shard_name
from manta_swarm.automl.files import read_bounded, write_whole
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob, BlobStore, sizes_of
from manta_swarm.network.fetching import fetch, fetch_file
from manta_swarm.network.file_blobs import FileBlob, FileName
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.peer_status import FETCHING
from manta_swarm.network.rpc import Endpoint
from manta_swarm.network.sources import Sources
from manta_swarm.peer.status import LiveStatus
from manta_swarm.protocol.errors import EncodingError, MantaError, Unreachable, UserError
from manta_swarm.protocol.footprint import in_words
from manta_swarm.protocol.manifest import MAX_LIST_BYTES, PIECE_BYTES, Manifest
from manta_swarm.protocol.signing import Digest, PublicKey, sha256
from manta_swarm.runtime.console import Console

logger = logging.getLogger("manta.peer")

_SAID_EVERY_S = 10.0

Got = TypeVar("Got")


class Holders:
    """The peers and operators that are known to hand out shards."""

    def __init__(self, node: Endpoint, run: bytes, operators: Sequence[bytes], console: Console) -> None:
        """Know the operators, who have all; ``console`` says who is not asked any more."""
        self._node = node
        self._operators = [PublicKey(key) for key in operators]
        self._console = console
        self._neighbours = Neighbours(node, sha256(b"manta/shards/v1\n" + run))
        self._wrong: set[PublicKey] = set()
        self._sources = Sources()

    def sources(self) -> Sources:
        """Return whom to ask now: others first, and the operators for what none of them gives; who comes to be known is added."""
        others = [key for key in self._neighbours.some(len(self._neighbours.members())) if self._may_be_asked(key)]
        spare = [key for key in self._operators if self._may_be_asked(key)]
        self._sources = Sources(others, spare=spare, may_grow=True)
        return self._sources

    def distrust(self, key: PublicKey, reason: str) -> None:
        """A node sent bytes that are not the data set's: never ask it again."""
        if key not in self._wrong:
            self._wrong.add(key)
            who = "the operator's node" if key in self._operators else f"peer {key.hex()[:8]}"
            self._console.say(f"{who} sent damaged data ({reason}): it is not asked for shards any more, others are")

    async def meet(self) -> None:
        """Say again and again that this peer hands out shards, and look for others that do; ends when it is cancelled."""
        pause_s = timeouts.FIRST_LOOKS_S
        while True:
            with contextlib.suppress(MantaError):  # they are looked for again
                await self.look()
            pause_s = min(2 * pause_s, self._neighbours.period_s)
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Look for others that hand out shards, and say that this peer does."""
        await self._neighbours.look()
        known = set(self._sources)
        for key in self._neighbours.members():
            if key not in known and self._may_be_asked(key):
                self._sources.add(key)
        # A cohort of its own: those who stand where a cohort meets are all read, and here that would be everybody.
        await self._neighbours.announce(cohort=f"shards-{self._node.key.hex()[:32]}", round_=0)

    async def withdraw(self) -> None:
        """Say that this peer leaves; what cannot be said in a moment expires."""
        with contextlib.suppress(MantaError, TimeoutError):
            async with asyncio.timeout(timeouts.LEAVE_S):
                await self._neighbours.withdraw()

    def _may_be_asked(self, key: PublicKey) -> bool:
        return key not in self._wrong and key != self._node.key


class Download:
    """Gets the shards of one run into a folder."""

    def __init__(
        self, node: Endpoint, manifest: Manifest, folder: Path, holders: Holders, blob_store: BlobStore, live_status: LiveStatus
    ) -> None:
        """Prepare.

        Args:
            node: this peer's.
            manifest: the run's, whose shards travel.
            folder: where they are to lie.
            holders: who may have them.
            blob_store: from which this peer hands out what it has.
            live_status: shows how far it is.
        """
        self._node = node
        self._manifest = manifest
        self._folder = folder
        self._holders = holders
        self._blob_store = blob_store
        self._live_status = live_status
        self._done_bytes = 0  # of whole shards that are here
        self._coming_bytes = 0  # of the one under way
        self._size_bytes = 0  # of all that are wanted
        self._came_bytes = 0  # since the start
        self._since_s = self._said_s = time.monotonic()
        live_status.update(stage=FETCHING, name=manifest.name, num_rounds=manifest.num_rounds)

    async def list(self) -> ShardList:
        """Return the list of the shards, which is in the folder then.

        Raises:
            UserError: the folder has something else, or the manifest does not fit the list.
        """
        path, travelling = self._folder / LIST_NAME, self._manifest.shards[0]
        is_here = path.exists()
        if is_here:
            data = read_bounded(path, MAX_LIST_BYTES)
        else:
            if any(not name.startswith(LIST_NAME) for name in os.listdir(self._folder)):
                raise self._other_set()
            data = await self._fetch_list(travelling.list_root, travelling.list_bytes)
        try:
            list_ = parse_list(data)
        except EncodingError as error:
            raise self._other_set() if is_here else _contradiction() from error
        if list_.digest != self._manifest.data_digest:
            raise self._other_set() if is_here else _contradiction()
        if (list_.num_train_shards, list_.size_bytes) != (travelling.train_shards, travelling.size_bytes):
            raise _contradiction()
        if not is_here:
            write_whole(path, data)
        self._blob_store.pin(Blob.cut(data, PIECE_BYTES))
        return list_

    async def shards(self, list_: ShardList, numbers: Sequence[int]) -> None:
        """Get these shards, as far as they are not here; each that is here is handed out to others.

        Raises:
            StorageError: the disk refuses.
        """
        names = {number: self.name_of(list_, number) for number in numbers}
        missing = [number for number in numbers if not names[number].is_here]
        for number in set(numbers) - set(missing):
            self._have(names[number])
        self._size_bytes = sum(name.size_bytes for name in names.values())
        self._show()
        if missing:
            here = f", of which {in_words(self._done_bytes)} are here" if self._done_bytes else ""
            self._live_status.say(
                f"gets {in_words(self._size_bytes)} of {self._manifest.dataset} in {len(numbers)} shards to {self._folder}{here}"
            )
        random.shuffle(missing)  # those who begin at the same time soon have different ones for each other
        self._since_s = self._said_s = time.monotonic()
        for number in missing:
            await self._get(names[number])
        if missing:
            took_s = max(time.monotonic() - self._since_s, 0.001)
            rate = in_words(round(self._came_bytes / took_s))
            self._live_status.say(
                f"{self._manifest.dataset} is here, each piece checked: {in_words(self._came_bytes)} came in {took_s:.0f} s, {rate}/s"
            )

    def name_of(self, list_: ShardList, number: int) -> FileName:
        """Return what the file of a shard has to be."""
        shard = list_.shards[number]
        return FileName(self._folder / shard_name(number), Digest(shard.pieces), shard.size_bytes, PIECE_BYTES)

    async def _fetch_list(self, root: bytes, list_bytes: int) -> bytes:
        async def attempt() -> Blob:
            sizes = sizes_of(list_bytes, PIECE_BYTES)
            return await fetch(self._node, root, sizes, self._holders.sources(), deadline_s=timeouts.FETCH_S, judge=self._holders)

        return (await self._insist(attempt)).join()

    async def _get(self, name: FileName) -> None:
        """Bring one shard here."""

        async def attempt() -> None:
            sources, progress = self._holders.sources(), _Shard(self, name)
            await fetch_file(self._node, name, sources, deadline_s=timeouts.FETCH_S, judge=self._holders, progress=progress)

        await self._insist(attempt)
        self._coming_bytes = 0
        self._have(name)

    def came(self, name: FileName, here: int, new: int) -> None:
        """Count the pieces of a shard that are here, and the new ones among them."""
        self._came_bytes += min(new * name.piece_bytes, name.size_bytes)
        self._coming_bytes = min(here * name.piece_bytes, name.size_bytes)
        self._show()
        self._tell()

    async def _insist(self, attempt: Callable[[], Awaitable[Got]]) -> Got:
        """Return what an attempt gives, however many it takes."""
        pause_s, is_said = timeouts.RUN_AGAIN_S[0], False
        while True:
            try:
                return await attempt()
            except Unreachable as error:
                if not is_said:
                    self._live_status.say(f"{error}; it is tried again until somebody gives it (Ctrl-C ends that, and what is here stays)")
                is_said = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, timeouts.RUN_AGAIN_S[1])

    def _have(self, name: FileName) -> None:
        self._done_bytes += name.size_bytes
        self._blob_store.lend(name.root, FileBlob(name))
        self._show()

    def _show(self) -> None:
        self._live_status.update(data_bytes=self._done_bytes + self._coming_bytes, data_size_bytes=self._size_bytes)

    def _tell(self) -> None:
        """Say now and then how far the download is."""
        now_s = time.monotonic()
        if now_s - self._said_s < _SAID_EVERY_S:
            return
        self._said_s = now_s
        done = self._done_bytes + self._coming_bytes
        rate = max(self._came_bytes / (now_s - self._since_s), 1.0)
        left_min = (self._size_bytes - done) / rate / 60
        share = done / self._size_bytes
        far = f"{share:.0%}, {in_words(done)} of {in_words(self._size_bytes)}"
        self._live_status.say(f"{self._manifest.dataset}: {far}, {in_words(round(rate))}/s, about {left_min:.0f} min left")

    def _other_set(self) -> UserError:
        return UserError(
            f"{self._folder} holds something else than the run's data set {self._manifest.dataset}: "
            "move it away, or name another folder with --data-root"
        )


def _contradiction() -> UserError:
    return UserError("the run's manifest says something else of its shards than their list: ask the operator to mend it")


class _Shard:
    """One shard that is being fetched. Implements ``network.fetching.FetchProgress``."""

    def __init__(self, download: Download, name: FileName) -> None:
        self._download = download
        self._name = name
        self._here: int | None = None  # pieces; at first those that an earlier try left

    def arrived(self, count: int) -> None:
        new = 0 if self._here is None else count - self._here
        self._here = count
        self._download.came(self._name, count, new)
