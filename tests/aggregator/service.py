"""The log's intake over an in-memory network, with a ledger of a fixed training spec and a disk in a folder.

For the tests of this folder.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from manta_swarm.aggregator.commit.deciding import LoneDecider
from manta_swarm.aggregator.intake.bodies import Bodies, StoredContribution
from manta_swarm.aggregator.intake.intake import Intake
from manta_swarm.aggregator.worker import Broken
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.network.log_client import MAX_ANSWER_BYTES, BodyPart, HandIn, HeaderAnswer, LogClient
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.exchange import GROUP_VALUES
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.records import InclusionPromise
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from tests import contributions
from tests.aggregator.contexts import Anywhere
from tests.aggregator.made import CODEC, Clock, Made, made_of, made_of_cohort, values_of
from tests.audited import RULES
from tests.runs import EXCHANGE, FixedTrainingSpec, manifest_of

OPERATOR = Identity(b"\x01" * 32)
PEERS = contributions.PEERS
NUM_WEIGHTS = GROUP_VALUES + 5_000  # two groups
OPEN_MS, GRACE_MS = 10_000, 1_000
MAX_ROWS = 4
NUM_ROUNDS = 12
TRAINING_SPEC = FixedTrainingSpec()


class CountedEvent(asyncio.Event):
    """An event that counts how often it is set."""

    def __init__(self, service: Any) -> None:
        super().__init__()
        self._service = service

    def set(self) -> None:
        self._service.changes += 1
        super().set()


@dataclass
class Service:
    """A log's intake, and everybody who might call it."""

    directory: Path
    clock: Clock
    training_spec: FixedTrainingSpec = TRAINING_SPEC
    ledger: Ledger = field(init=False)
    network: MemoryNetwork = field(init=False)
    closing: Closing = field(init=False)
    bodies: Bodies = field(init=False)
    intake: Intake = field(init=False)
    changes: int = 0
    news: asyncio.Event = field(init=False)  # set at each change
    is_open: bool = True  # whether a start opens the next round
    audits_steps: bool = False  # whether several local steps are audited

    def __post_init__(self) -> None:
        exchange = replace(EXCHANGE, max_rows=MAX_ROWS, first_open_ms=OPEN_MS, min_open_ms=OPEN_MS, max_open_ms=OPEN_MS)
        if self.audits_steps:
            exchange = replace(exchange, local_steps=2)
        audits = (RULES,) if self.audits_steps else ()
        manifest = manifest_of(OPERATOR, exchange=exchange, num_rounds=NUM_ROUNDS, audits=audits)
        self.ledger = Ledger(SignedManifest.sign(manifest, OPERATOR), self.training_spec)

    async def start(self) -> None:
        """Begin, as a log does after a start on its directory."""
        self.network = MemoryNetwork()
        self.closing = Closing(MAX_ROWS, shares_keys=self.audits_steps)
        self.bodies = Bodies(self.directory, body_bytes=body_num_bytes(CODEC, NUM_WEIGHTS), keep=4)
        endpoint = self.network.endpoint(OPERATOR.public_key)
        self.decider = LoneDecider(self, self.bodies)  # type: ignore[arg-type]
        self.broken = Broken()
        self.changes, self.news = 0, CountedEvent(self)
        self.intake = Intake(self.context(endpoint), self.closing, self.news, self.decider)
        if self.is_open:
            self._open()
        for round_ in (self.ledger.round + 1, self.ledger.round + 2):
            self.intake.restore(self.bodies.read(round_, mend=True), round_)
        await self.intake.start()

    async def __aenter__(self) -> "Service":
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.intake.close()
        self.decider.close()
        assert not self.intake._tasks

    def context(self, endpoint: Any) -> Any:
        """Return what an operator's parts share; it has nothing but what the intake needs."""
        service = self

        class Context:
            identity, bodies, num_weights, broken, clock = OPERATOR, service.bodies, NUM_WEIGHTS, service.broken, service.clock
            callers = Anywhere()

            @property
            def ledger(self) -> Ledger:
                return service.ledger

            @property
            def manifest(self) -> Manifest:
                return service.ledger.manifest

        context: Any = Context()
        context.endpoint = endpoint
        return context

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the intake has brought that about."""
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def _open(self) -> None:
        self.closing.open(self.ledger.round + 1, OPEN_MS, self.ledger.last_keys, self.clock() if self.ledger.round else None)

    def vector(self, peer: Identity, seed: int = 0) -> NDArray[np.float32]:
        """Return what ``peer`` learnt in the next round."""
        return values_of(NUM_WEIGHTS, 1_000 * seed + self.ledger.round + int.from_bytes(peer.public_key[:4], "big"))

    def made(self, peer: Identity, *, seed: int = 0, of: Identity | None = None) -> Made:
        """Return what a peer hands in alone for the next round; another seed makes another body, the claim may be ``of`` a founder."""
        return made_of(self.ledger, peer, self.vector(peer, seed), founder=(of or peer).public_key)

    def made_together(self, *members: Identity, seed: int = 0, **changes: Any) -> Made:
        """Return what the first of the members hands in for all of them; see ``made_of_cohort``."""
        return made_of_cohort(self.ledger, members, self.vector(members[0], 100 + seed), **changes)

    def client(self, peer: Identity) -> LogClient:
        """Return the line of a peer to this log."""
        return LogClient(self.network.endpoint(peer.public_key), self.ledger.manifest, self.ledger.run)

    async def call(self, peer: Identity, method: str, request: bytes) -> bytes:
        """Return the log's answer to a peer."""
        return await self.network.endpoint(peer.public_key).call(PublicKey(OPERATOR.public_key), method, request, timeout_s=20)

    async def header(self, made: Made, *, by: Identity | None = None) -> HeaderAnswer:
        """Return the log's answer to a header."""
        return unpack(HeaderAnswer, await self.call(by or made.peer, "header", pack(made.header)), max_bytes=MAX_ANSWER_BYTES)

    async def part(self, made: Made, place: int, data: bytes | memoryview | None = None, *, by: Identity | None = None) -> bytes:
        """Return the log's answer to a group of a body."""
        data = made.groups[place] if data is None else data
        return await self.call(by or made.peer, "body", BodyPart(made.digest, place, data).pack())

    async def body(self, made: Made) -> InclusionPromise:
        """Return the inclusion promise for a body whose header was taken."""
        assert await self.part(made, 0) == b""
        return self.opened(await self.part(made, 1))

    async def hand_in(self, made: Made) -> InclusionPromise:
        """Return the inclusion promise for header and body."""
        answer = await self.header(made)
        assert answer.status == HandIn.SEND_BODY, answer
        return await self.body(made)

    async def restart(self) -> None:
        """Kill this program and start it again on the same directory."""
        await self.intake.close()
        self.decider.close()
        await self.start()

    def opened(self, packed: bytes) -> InclusionPromise:
        """Return the inclusion promise in an answer, signed by the operator."""
        return unpack(Signed[InclusionPromise], packed, max_bytes=MAX_ANSWER_BYTES).open_by([OPERATOR.public_key])

    def commit(self) -> tuple[bytes, ...]:
        """Let the round close now, commit it and open the next one; return what was in it."""
        self.clock.now += OPEN_MS + GRACE_MS
        closed = self.closing.tick(self.clock.now)
        assert closed is not None
        contributions.commit(self.ledger, [self.intake.handed(one).header for one in closed])
        if not self.ledger.finished:
            self._open()
        self.intake.committed(self.ledger.round)
        return closed

    async def round(self, *peers: Identity) -> None:
        """Have a round committed in which these peers worked, each alone."""
        for peer in peers:
            await self.hand_in(self.made(peer))
        self.commit()

    async def begin(self, made: Made, *, by: Identity | None = None) -> None:
        """Bring the header and the first group of a body."""
        await self.header(made, by=by)
        await self.part(made, 0, by=by)

    def refused(self, peer: Identity) -> dict[str, int]:
        """Return what was refused of a peer, by reason."""
        return self.intake.faults.by_key().get(peer.public_key, {})


class SlowDisk:
    """Takes the place of ``Bodies.append``: each call waits until it is let through, and is remembered."""

    def __init__(self, service: Service, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[int] = []  # contributions in each
        self._waiting: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        loop, append = asyncio.get_running_loop(), service.bodies.append

        def slowly(kept: Sequence[tuple[int, StoredContribution]]) -> None:
            self.calls.append(len(kept))
            asyncio.run_coroutine_threadsafe(self._wait(), loop).result(timeout=60)
            append(kept)

        patch.setattr(service.bodies, "append", slowly)

    async def _wait(self) -> None:
        turn = asyncio.Event()
        await self._waiting.put(turn)
        await turn.wait()

    async def next(self) -> asyncio.Event:
        """Return once the disk has something to do; who sets the event lets it."""
        return await self._waiting.get()


async def says_no(call: Awaitable[object], reason: str) -> None:
    """Check that the log refuses a call, and says why."""
    with pytest.raises(Refused, match=reason):
        await call


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Service:
    """An intake, for a test that is a coroutine; what it is made with may be the fixture's parameter."""
    return Service(tmp_path / "bodies", Clock(), **getattr(request, "param", {}))
