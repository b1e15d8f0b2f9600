"""A log with audits of real lots, and the process that computes them again here: for tests, in one process."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aggregator.audits.auditor import Auditor
from aggregator.audits.desk import Audits
from aggregator.audits.jobs import VECTORS, Job, JobFolder
from aggregator.audits.records import FOLDER
from aggregator.audits.shown import Shown
from aggregator.rounds.opening import OpenRun
from aggregator.settings.config import RunConfig
from aggregator.settings.sections import TrustSection
from automl.training.auditing import lot_of
from automl.training.lots import Lot, LotResult, Worker
from automl.training.schedule import Plan
from automl.training.update import State
from protocol.audits import DIFFERS, LOT, Finding, SignedFinding
from protocol.encoding import pack
from protocol.evidence import Records, pages
from protocol.ledger import Ledger
from protocol.lots import place_of_lot
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, LotRecord, SignedClaim
from protocol.signing import Identity, PublicKey
from swarm.memory import MemoryNetwork
from swarm.records import RecordsFolder
from swarm.vectors import VectorsFolder
from tests.aggregator import real_run
from tests.aggregator.made import Made, made_of
from tests.aggregator.real_run import CONFIG, DATASET, OPERATOR, PEERS
from tests.claim_steps import steps_of

ONE, OTHER, THIRD = PEERS
AUDITED = CONFIG.model_copy(update={"trust": TrustSection(mode="audited", kept_rounds=8, whole_percent=0)})


@dataclass(frozen=True)
class Work:
    """A contribution of lots that were trained, and their records."""

    made: Made
    claim: SignedClaim
    records: Records


WORKER = Worker("classifier-tiny", DATASET)
_results: dict[Lot, LotResult] = {}  # of lots that were trained here: which weights one is of, its base says


def result_of(lot: Lot, state: State) -> LotResult:
    """Return what a lot gives on the state of its base; several tests begin with the same."""
    if lot not in _results:
        WORKER.load(state.parameters)
        _results[lot] = WORKER.train(lot)
    return _results[lot]


def hidden(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return another vector of the same projections: of two weights with the same signs one has more, and the other as much less."""
    kinds = np.frombuffer(hashlib.shake_256(b"manta/projection/v1").digest(len(vector)), np.uint8)
    (first, second, *_), false = np.flatnonzero(kinds == kinds[0]), vector.copy()
    false[first] += np.linalg.norm(vector)
    false[second] -= np.linalg.norm(vector)
    return false


def trained(ledger: Ledger, peer: Identity, state: State, *, seed: int | None = None, body: str = "honest") -> Work:
    """Train a lot of each of the next round's architectures; on another seed's images, or for a false body, if that is asked for."""
    manifest, plan, base = ledger.manifest, Plan.of(ledger.manifest), ledger.last_commit
    round_, key = ledger.round + 1, peer.public_key
    asked = plan.architectures(round_, "here")
    blank = [
        LotRecord(0, index, asked[place_of_lot(len(asked), base, key, index)].text, manifest.lot_samples, "1", bytes(32))
        for index in range(4)
    ]
    claim = Claim(
        ledger.run, round_, base, key, key, key, "here", steps_of((1, 1, 1, 1), base, key), (1, 1, 1, 1), bytes(32), b"", bytes(32), b"", 10
    )
    lots = [lot_of(manifest, plan, claim, record) for record in blank]
    results = [result_of(lot if seed is None else replace(lot, run_seed=seed), state) for lot in lots]
    records = Records(tuple(replace(one, loss=f"{r.loss:.6g}", projection=r.projection) for one, r in zip(blank, results, strict=True)), ())
    mean = torch.stack([result.gradient for result in results]).mean(0).numpy()
    vector = {"honest": mean, "false": np.roll(mean, 4096), "hidden": hidden(mean)}[body]
    made = made_of(ledger, peer, vector, lots=(1, 1, 1, 1), lots_root=root([leaf_hash(pack(record)) for record in records.lots]))
    return Work(made, made.header.claims[0], records)


class Scene:
    """A log with audits, whose process that computes is here."""

    def __init__(self, directory: Path, config: RunConfig = AUDITED, rng: random.Random | None = None) -> None:
        self.run: OpenRun = real_run.opened(directory, config)
        self.network = MemoryNetwork()
        self.folder = RecordsFolder(directory / FOLDER, kept_rounds=14, max_bytes=1 << 24)
        self.jobs = JobFolder(directory)
        self.findings: list[Finding] = []
        self.signed: list[SignedFinding] = []  # the same
        self.said: list[str] = []
        self._working: asyncio.Future[object] | None = None
        self.errs = 0  # lots that the process will compute wrongly
        self._auditor = Auditor(self.run.log.ledger.manifest, DATASET, directory)
        endpoint = self.network.endpoint(PublicKey(OPERATOR.public_key))
        self.vectors = VectorsFolder(directory / VECTORS, kept_rounds=14, max_bytes=1 << 30)
        manifest = self.run.log.ledger.manifest
        shown = Shown(endpoint, manifest, self.folder, self.vectors, WORKER.num_weights)
        self.audits = Audits(OPERATOR, self.run.log, shown, self.jobs, take=self._take, say=self.said.append, rng=rng)

    async def _take(self, signed: SignedFinding) -> None:
        self.run.log.ledger.check_extra(signed)
        self.findings.append(signed.open())
        self.signed.append(signed)

    def train(self, peer: Identity, **changes: object) -> Work:
        assert self.run.follower.state is not None
        return trained(self.run.log.ledger, peer, self.run.follower.state, **changes)  # type: ignore[arg-type]

    def commit(self, works: Sequence[Work], extras: Sequence[bytes] = ()) -> None:
        real_run.commit(self.run, sorted((work.made for work in works), key=lambda made: made.peer.public_key), extras=extras)
        self.audits.committed()

    def give(self, *works: Work) -> None:
        for work in works:
            for page in pages(work.claim, work.records):
                self.folder.keep(page)

    async def until(self, done: Callable[[], object]) -> None:
        """Let the audits go on, and answer what they ask, until that holds."""
        async with self.at_work():
            await self.wait(done)

    async def wait(self, done: Callable[[], object]) -> None:
        """Wait until that holds, while the audits go on."""
        async with asyncio.timeout(120):
            while not done():
                if self._working is not None and self._working.done():
                    self._working.result()
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Let the audits go on, and answer what they ask."""
        keeping, answering = asyncio.create_task(self.audits.keep()), asyncio.create_task(self._answer())
        self._working = asyncio.ensure_future(asyncio.gather(keeping, answering))
        try:
            yield
        finally:
            for task in (keeping, answering):
                task.cancel()
            await asyncio.gather(keeping, answering, self._working, return_exceptions=True)

    async def _answer(self) -> None:
        while True:
            for name in await asyncio.to_thread(self.jobs.open):
                job = self.jobs.job(name)
                if isinstance(job, Job):
                    found = await asyncio.to_thread(self._auditor.answer, job)
                    if self.errs and job.check == LOT:
                        self.errs -= 1
                        found = replace(found, outcome=DIFFERS)
                    self.jobs.answer(name, found)
            await asyncio.sleep(0.01)

    def found(self, peer: Identity) -> dict[tuple[str, str], int]:
        """Return how often what was found of a peer's claims, by check and outcome."""
        counts: dict[tuple[str, str], int] = {}
        for finding in self.findings:
            claimed = self.run.log.ledger.standing.claimed(finding.round, finding.claim)
            if claimed is not None and claimed.key == peer.public_key:
                counts[finding.check, finding.outcome] = counts.get((finding.check, finding.outcome), 0) + 1
        return counts
