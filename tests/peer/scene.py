"""Peers of one run in one event loop: the loop, store and status of the program, a log and a network in memory, a worker that is quick."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manta_swarm.automl.training.microbatches import Microbatch, MicrobatchResult
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.cohort.cohort_membership import Choice, FirstCohort
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.audit.evidence import Evidence
from manta_swarm.peer.features.evaluation.plugin import Evaluation
from manta_swarm.peer.features.feature import Feature, Features
from manta_swarm.peer.features.gateway.plugin import Gateway
from manta_swarm.peer.features.gateway.service import GatewayService
from manta_swarm.peer.features.private.noise import Noise
from manta_swarm.peer.features.private.plugin import NoisyVectors
from manta_swarm.peer.limits.limited import LimitedPeer
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.session import Session
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.train.data import HeldData
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.peer.workers.devices import DeviceChoice
from manta_swarm.peer.workers.pool import InProcess, ThrottledPool
from manta_swarm.protocol.rounds import PeerStage
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.memory_log import DEADLINE_S, PEERS, MemoryLog, until
from tests.peer.contexts import context_of, progress_in


class QuickWorker:
    """Stands for ``automl.training.microbatches.Worker``: gradients are random numbers that follow from the microbatch."""

    def __init__(self, num_weights: int) -> None:
        self.num_weights = num_weights
        self.loaded: Tensor | None = None
        self.teacher: Tensor | None = None
        self.microbatches: list[Microbatch] = []
        self.takes_s = 0.0  # for a microbatch
        self.makes_no_sense = False  # gradients that are not finite
        self.adds = 0.0  # to one value of each gradient
        self.scale = 1.0  # of each gradient
        self.may_go_on = threading.Event()  # a microbatch under way waits for it
        self.may_go_on.set()

    def load(self, parameters: Tensor) -> None:
        self.loaded = parameters

    def teach(self, parameters: Tensor | None) -> None:
        self.teacher = parameters

    def train(self, microbatch: Microbatch) -> MicrobatchResult:
        self.microbatches.append(microbatch)
        assert self.may_go_on.wait(DEADLINE_S)
        time.sleep(self.takes_s)
        seed = int.from_bytes(sha256(microbatch.base + microbatch.key + bytes([microbatch.index]))[:4], "big")
        gradient = torch.randn(self.num_weights, generator=torch.Generator().manual_seed(seed)) / 100 * self.scale
        gradient[7] += self.adds
        if self.makes_no_sense:
            gradient[7] = torch.inf
        return MicrobatchResult(gradient, 2.0, microbatch.samples)


@dataclass
class Member:
    """One peer, running."""

    identity: Identity
    endpoint: MemoryEndpoint
    store: PeerStore
    live_status: LiveStatus
    worker: QuickWorker
    loop: Session
    limited: LimitedPeer
    task: "asyncio.Task[None]" = field(init=False)

    @property
    def key(self) -> PublicKey:
        return self.endpoint.key

    @property
    def status(self) -> PeerStatus:
        return self.live_status.status

    @property
    def evidence(self) -> Evidence | None:
        """What this peer keeps for audits; None: nothing is audited."""
        return next((one for one in self.loop.features if isinstance(one, Evidence)), None)

    @property
    def stage(self) -> PeerStage:
        return self.loop.machine.stage

    async def reaches(self, round_: int) -> None:
        """Return once this peer holds the state of a round."""
        await until(lambda: self.status.round >= round_ and self.stage is not PeerStage.BEHIND)

    async def leaves(self) -> None:
        """Return once it has left, as a person asks it to."""
        self.loop.leave()
        await self.ends()

    async def stops(self) -> None:
        """Have it stop wherever it is, and return once it writes no file any more: a thread that it began goes on for a moment."""
        self.task.cancel()
        await until(self.task.done)
        threads = min(32, (os.cpu_count() or 1) + 4)  # of asyncio.to_thread at most; each has to be free to come to the barrier
        barrier = threading.Barrier(threads)
        await asyncio.gather(*(asyncio.to_thread(barrier.wait, DEADLINE_S) for _ in range(threads)))

    async def ends(self) -> None:
        """Return once it has ended by itself."""
        async with asyncio.timeout(DEADLINE_S):
            await self.task


class Scene:
    """A log, and peers that join it."""

    def __init__(self, directory: Path, network: MemoryNetwork, log: MemoryLog) -> None:
        self.directory = directory
        self.network = network
        self.log = log
        self.members: list[Member] = []

    def join(
        self,
        number: int,
        *,
        prepare: Callable[[Member], None] = lambda _: None,
        token: bytes | None = None,
        noise: Noise | None = None,
        gateway: GatewayService | None = None,
        sizing: Sizing | None = None,
        payout: bytes | None = None,
        trains: bool = True,
        is_plain: bool = False,
    ) -> Member:
        """Start a peer, or start it again; ``prepare`` changes it before it begins, with a ``token`` it has cohort peers. Its claims name
        ``payout``; None: its own key. ``is_plain``: it has no features.
        """
        identity, signed = PEERS[number], self.log.signed
        store = PeerStore(self.directory / f"peer-{number}")
        status = PeerStatus(f"peer-{number}", identity.public_key.hex(), signed.run.hex(), "test", "here", "cpu", num_rounds=100)
        live_status, endpoint = LiveStatus(store, status), self.network.endpoint(identity.public_key)
        worker: Any = QuickWorker(self.log.num_weights)
        compute, blob_store = ComputeThread(), BlobStore(max_bytes=2**28)
        pool = ThrottledPool(InProcess(worker, compute), thread=compute)
        context = context_of(
            endpoint,
            identity,
            signed,
            live_status,
            compute,
            store=store,
            blob_store=blob_store,
            num_weights=worker.num_weights,
            payout=payout,
        )
        progress, held, rules = progress_in(context), HeldData(blob_store, None), context.manifest.audit_rules
        features: list[Feature] = [Evaluation(PeerConfig(dir=store.directory), context, progress, held)]
        if rules is not None:
            features.append(Evidence(context, progress, rules, has_light=gateway is not None))
        if noise is not None:
            features.append(NoisyVectors(context, noise))
        if gateway is not None:
            features.append(Gateway(context, progress, gateway))
        first_cohort = FirstCohort(Choice.LABEL, "here", token)
        session = Session(context, progress, pool, first_cohort, Features(() if is_plain else features), sizing, trains=trains)
        limited = LimitedPeer(session, pool, None, Traffic(), Limits(), DeviceChoice("none", None, 1))
        member = Member(identity, endpoint, store, live_status, worker, session, limited)
        prepare(member)
        member.task = asyncio.create_task(session.run())
        self.members.append(member)
        return member

    async def rounds(self, count: int, contributions: int = 1, *followers: Member) -> None:
        """Commit so many rounds, each once it has so many contributions, and ``followers`` hold the state of the one before.

        Who learns of the run's last commit before the answer to its hand-in would say that its work is lost: followers have it by then.
        """
        for _ in range(count):
            await self.log.wait_for(contributions)
            await until(lambda: all(member.stage is not PeerStage.SIGNED for member in followers))
            self.log.commit()
            for member in followers:
                await member.reaches(self.log.ledger.round)

    async def held(self, number: int) -> Member:
        """Start a peer; return it in the middle of its first microbatch, which goes on when its worker may."""
        member = self.join(number, prepare=lambda member: member.worker.may_go_on.clear())
        await until(lambda: len(member.worker.microbatches) == 1)
        return member

    async def end(self) -> None:
        """End everybody at once, as a second Ctrl-C does."""
        for member in self.members:
            member.worker.may_go_on.set()
            member.task.cancel()
        await asyncio.gather(*(member.task for member in self.members), return_exceptions=True)


@asynccontextmanager
async def scene_in(directory: Path, **changes: Any) -> AsyncIterator[Scene]:
    """Yield a scene with changes to the run's manifest; at its end nothing runs any more that the peers began."""
    network = MemoryNetwork()
    scene = Scene(directory, network, await MemoryLog(network, directory=directory / "log", **changes).start())
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield scene
    finally:
        await scene.end()
    for _ in range(10):  # answers that nobody waits for any more
        await asyncio.sleep(0)
    for key in scene.log.endpoints:
        scene.log.go_away(key)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await until(lambda: all(task.done() for task in others))


def play(directory: Path, story: Callable[[Scene], Awaitable[None]], **changes: Any) -> None:
    """Run ``story`` in a scene, one that may take minutes."""

    async def whole() -> None:
        async with scene_in(directory, **changes) as scene:
            await story(scene)

    asyncio.run(whole())
