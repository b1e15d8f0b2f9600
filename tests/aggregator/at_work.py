"""A whole aggregator over an in-memory network: log, intake, commits, news, on a real directory. For the tests of this folder."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from manta_swarm.aggregator.commit.deciding import LoneDecider
from manta_swarm.aggregator.commit.feed import FeedService
from manta_swarm.aggregator.commit.writing import Leading
from manta_swarm.aggregator.intake.waiting import Settling
from manta_swarm.aggregator.log.storage import TREE_HEAD
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.network.log_client import MAX_ANSWER_BYTES, HandedIn, HeaderAnswer, LogClient
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.records import InclusionPromise
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime.tasks import wait_within
from tests.aggregator.contexts import context_of
from tests.aggregator.made import Clock, Made
from tests.aggregator.real_run import CONFIG, OPERATOR, everybodys, opened

OPEN_MS, GRACE_MS = 10_000, 1_000  # of the first round


class Aggregator:
    """One life of an aggregator's program on a directory."""

    def __init__(self, directory: Path, clock: Clock, network: MemoryNetwork, config: RunConfig = CONFIG) -> None:
        """Open the run in ``directory``, as a start of the program does."""
        self.directory, self.clock, self.network = directory, clock, network
        self.run = opened(directory, config)
        manifest = self.run.log.ledger.manifest
        endpoint = network.endpoint(PublicKey(OPERATOR.public_key))
        settling = Settling(self.run.log, config.trust.settle_s, clock)
        self.context = context_of(self.run, directory, endpoint, OPERATOR, settling=settling, clock=clock)
        self.blob_store, self.waiting, weights = self.context.blob_store, self.context.waiting, self.context.weights
        self.closing = Closing(manifest.exchange.max_rows)
        self.writing = Leading(self.context, self.closing, LoneDecider(self.run.log, self.run.bodies))
        self.commits, self.intake, self.verdicts = self.writing.commits, self.writing.intake, self.writing.verdicts
        self.news = FeedService(endpoint, self.run.log, self.closing, weights, clock)
        self._endpoint = endpoint
        self._told = asyncio.Event()

    async def start(self) -> None:
        """Begin to work."""
        await self.blob_store.serve(self._endpoint)
        await self.writing.begin()
        await self.news.start()
        self.working = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End, as at Ctrl-C."""
        self.working.cancel()
        with contextlib.suppress(asyncio.CancelledError, MantaError):
            await self.working
        await self.writing.close()
        await self.waiting.close()
        self.run.log.close()

    @property
    def ledger(self) -> Ledger:
        """The log's, as it is published."""
        return self.run.log.ledger

    async def _work(self) -> None:
        async for _ in self.commits.rounds():
            self._committed()

    def _committed(self) -> None:
        self.news.committed()
        self._told.set()

    async def call(self, peer: Identity, method: str, request: bytes) -> bytes:
        """Return the log's answer to a peer."""
        return await self.network.endpoint(peer.public_key).call(self._endpoint.key, method, request, timeout_s=30)

    async def header(self, made: Made) -> HeaderAnswer:
        """Return the log's answer to a header."""
        return unpack(HeaderAnswer, await self.call(made.peer, "header", pack(made.header)), max_bytes=MAX_ANSWER_BYTES)

    def client(self, peer: Identity) -> LogClient:
        """Return the line of a peer to this log."""
        return LogClient(self.network.endpoint(peer.public_key), self.ledger.manifest, self.ledger.run)

    async def hand_in(self, made: Made) -> HandedIn:
        """Return what becomes of a contribution that is handed in."""
        return await self.client(made.peer).hand_in(made.header, made.groups)

    async def inclusion_promise(self, made: Made) -> InclusionPromise:
        """Return the inclusion promise for a contribution."""
        inclusion_promise = (await self.hand_in(made)).inclusion_promise
        assert inclusion_promise is not None
        return inclusion_promise

    def pass_time(self, ms: int) -> None:
        """Let so much time go by."""
        self.clock.now += ms
        self.writing.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once that is so."""
        async with asyncio.timeout(60):
            while not condition():
                self._told.clear()
                await wait_within(self._told, 0.01)

    async def round(self, number: int) -> None:
        """Return once a round is committed and told."""
        await self.until(lambda: self.news._round >= number)

    async def everybodys_round(self) -> None:
        """Have a round of everybody's contributions committed."""
        for one in everybodys(self.ledger):
            await self.inclusion_promise(one)
        await self.finish_round()

    async def finish_round(self) -> None:
        """Let the round's time go by; return once it is committed."""
        number = self.ledger.round + 1
        self.pass_time(self.ledger.open_ms + GRACE_MS)
        await self.round(number)


class World:
    """A directory, a network, a clock, and the lives of an aggregator in it."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        """Begin without any."""
        self.directory, self.config = directory, config
        self.clock, self.network = Clock(), MemoryNetwork()
        self.lives: list[Aggregator] = []

    async def start(self, directory: Path | None = None) -> Aggregator:
        """Start the program, if it ran before on another directory on a copy of that; the earlier life is over for everybody else."""
        aggregator = Aggregator(directory or self.directory, self.clock, self.network, self.config)
        self.lives.append(aggregator)
        await aggregator.start()
        return aggregator

    async def restart(self) -> Aggregator:
        """Stop the program and start it again."""
        await self.lives.pop().stop()
        return await self.start()

    def image(self) -> Path:
        """Return a copy of the directory as a kill at this moment would leave it, whatever goes on meanwhile.

        What is copied first is older: a head not ahead of its entries, entries not ahead of the bodies.
        """
        target = self.directory.parent / f"image-{len(list(self.directory.parent.glob('image-*')))}"
        paths = [path for path in self.directory.rglob("*") if path.is_file()]
        for path in sorted(paths, key=lambda path: (path.parent != self.directory, path.name != TREE_HEAD, path.name)):
            copy = target / path.relative_to(self.directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(path, copy)
        return target

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *raised: object) -> None:
        """End all that was started."""
        while self.lives:
            await self.lives.pop().stop()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """The lives of an aggregator, for a test that is a coroutine."""
    return World(tmp_path / "aggregator", CONFIG)
