"""What a log finds of real lots: honest ones hold, false ones differ, those that nobody shows are withheld. In one process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aggregator.audits.auditor import Auditor
from aggregator.audits.desk import REFUSALS, Audits
from aggregator.audits.jobs import FOLDER as JOBS
from aggregator.audits.jobs import Found, Job, JobFolder
from aggregator.audits.records import FOLDER
from aggregator.rounds.opening import OpenRun
from aggregator.settings.sections import TrustSection
from automl.training.auditing import lot_of
from automl.training.lots import Worker
from automl.training.schedule import Plan, place_of_lot
from protocol.audits import DIFFERS, HOLDS, LOT, SUM, WITHHELD, Finding, SignedFinding
from protocol.encoding import pack
from protocol.errors import LedgerError, StorageError
from protocol.evidence import Records, pages
from protocol.ledger import Ledger
from protocol.merkle import leaf_hash, root
from protocol.records import Claim, LotRecord, SignedClaim
from protocol.signing import Identity, PublicKey
from swarm.memory import MemoryEndpoint, MemoryNetwork
from swarm.records import RecordsFolder, serve_records
from tests.aggregator import real_run
from tests.aggregator.made import Made, made_of
from tests.aggregator.real_run import CONFIG, DATASET, OPERATOR, PEERS

ONE, OTHER, THIRD = PEERS
AUDITED = CONFIG.model_copy(update={"trust": TrustSection(mode="audited", kept_rounds=8, whole_percent=0)})


@dataclass(frozen=True)
class Work:
    """A contribution of lots that were trained, and their records."""

    made: Made
    claim: SignedClaim
    records: Records


def trained(ledger: Ledger, peer: Identity, worker: Worker, *, seed: int | None = None, body: str = "honest") -> Work:
    """Train a lot of each of the next round's architectures; on another seed's images, or for a false body, if that is asked for."""
    manifest, plan, base = ledger.manifest, Plan.of(ledger.manifest), ledger.last_commit
    round_, key = ledger.round + 1, peer.public_key
    asked = plan.architectures(round_, "here")
    blank = [
        LotRecord(0, index, asked[place_of_lot(len(asked), base, key, index)].text, manifest.lot_samples, "1", bytes(32))
        for index in range(4)
    ]
    claim = Claim(ledger.run, round_, base, key, key, "here", 1, (1, 1, 1, 1), bytes(32), b"", bytes(32), b"", 10)
    lots = [lot_of(manifest, plan, claim, record) for record in blank]
    results = [worker.train(lot if seed is None else replace(lot, run_seed=seed)) for lot in lots]
    records = Records(tuple(replace(one, loss=f"{r.loss:.6g}", projection=r.projection) for one, r in zip(blank, results, strict=True)), ())
    mean = torch.stack([result.gradient for result in results]).mean(0).numpy()
    vector = mean if body == "honest" else np.roll(mean, 4096)
    made = made_of(ledger, peer, vector, lots=(1, 1, 1, 1), lots_root=root([leaf_hash(pack(record)) for record in records.lots]))
    return Work(made, made.header.claims[0], records)


class Scene:
    """A log with audits, whose process that computes is here."""

    def __init__(self, directory: Path) -> None:
        self.run: OpenRun = real_run.opened(directory, AUDITED)
        self.network = MemoryNetwork()
        self.folder = RecordsFolder(directory / FOLDER, kept_rounds=14, max_bytes=1 << 24)
        self.jobs = JobFolder(directory)
        self.findings: list[Finding] = []
        self.said: list[str] = []
        self.worker = Worker("classifier-tiny", DATASET)
        self._auditor = Auditor(self.run.log.ledger.manifest, DATASET, directory)
        endpoint = self.network.endpoint(PublicKey(OPERATOR.public_key))
        self.audits = Audits(endpoint, OPERATOR, self.run.log, self.folder, self.jobs, take=self._take, say=self.said.append)

    async def _take(self, signed: SignedFinding) -> None:
        self.run.log.ledger.check_extra(signed)
        self.findings.append(signed.open())

    def train(self, peer: Identity, **changes: object) -> Work:
        assert self.run.follower.state is not None
        self.worker.load(self.run.follower.state.parameters)
        return trained(self.run.log.ledger, peer, self.worker, **changes)  # type: ignore[arg-type]

    def commit(self, works: Sequence[Work]) -> None:
        real_run.commit(self.run, sorted((work.made for work in works), key=lambda made: made.peer.public_key))
        self.audits.committed()

    def give(self, *works: Work) -> None:
        for work in works:
            for page in pages(work.claim, work.records):
                self.folder.keep(page)

    async def until(self, done: "object") -> None:
        """Let the audits go on, and answer what they ask, until that holds."""
        keeping = asyncio.create_task(self.audits.keep())
        try:
            async with asyncio.timeout(120):
                while not done():  # type: ignore[operator]
                    for name in await asyncio.to_thread(self.jobs.open):
                        job = self.jobs.job(name)
                        if isinstance(job, Job):
                            self.jobs.answer(name, await asyncio.to_thread(self._auditor.answer, job))
                    if keeping.done():
                        keeping.result()
                    await asyncio.sleep(0.01)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    def found(self, peer: Identity) -> dict[tuple[str, str], int]:
        """Return how often what was found of a peer's claims, by check and outcome."""
        counts: dict[tuple[str, str], int] = {}
        for finding in self.findings:
            claimed = self.run.log.ledger.standing.claimed(finding.round, finding.claim)
            if claimed is not None and claimed.key == peer.public_key:
                counts[finding.check, finding.outcome] = counts.get((finding.check, finding.outcome), 0) + 1
        return counts


@pytest.fixture
def scene(tmp_path: Path) -> "object":
    scene = Scene(tmp_path / "run")
    with scene.run.log:
        yield scene


def test_honest_lots_hold_and_false_ones_and_a_false_body_differ(scene: Scene) -> None:
    first = [scene.train(ONE), scene.train(OTHER, seed=99), scene.train(THIRD, body="false")]
    scene.give(*first)
    scene.commit(first)
    scene.commit([scene.train(ONE)])
    asyncio.run(scene.until(lambda: len(scene.findings) >= 4))
    assert scene.found(ONE) == {(LOT, HOLDS): 1}
    assert scene.found(OTHER) == {(LOT, DIFFERS): 1}
    assert scene.found(THIRD) == {(LOT, HOLDS): 1, (SUM, DIFFERS): 1}
    assert scene.audits.totals.against == 2
    assert scene.audits.totals.lots == 3
    assert len(scene.said) == 2


def test_a_fault_of_the_disk_under_the_audits_makes_them_pause_and_they_go_on_by_themselves(scene: Scene, tmp_path: Path) -> None:
    first = [scene.train(ONE)]
    scene.give(*first)
    scene.commit(first)
    scene.commit([scene.train(OTHER)])
    broken = tmp_path / "run" / JOBS
    broken.write_text("no folder")
    scene.audits.again_s = 0.01

    async def scenario() -> None:
        await scene.until(lambda: len(scene.said) >= 2)
        assert scene.said[0].startswith("audits pause, the run goes on: ")
        assert not scene.findings
        scene.commit([scene.train(OTHER)])  # the log takes what comes
        broken.unlink()
        await scene.until(lambda: scene.findings)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, HOLDS): 1}


def test_a_fault_of_the_log_s_own_disk_ends_the_audits_as_it_ends_the_run(scene: Scene) -> None:
    scene.commit([scene.train(ONE)])
    scene.commit([scene.train(OTHER)])
    scene.audits.again_s = 0.01
    scene.run.log.close()
    with pytest.raises(StorageError, match="has stopped"):
        asyncio.run(scene.until(lambda: False))
    assert not scene.said


def test_records_that_lack_are_got_from_their_key(scene: Scene, tmp_path: Path) -> None:
    work = scene.train(ONE)
    scene.commit([work])
    scene.commit([scene.train(OTHER)])
    own = RecordsFolder(tmp_path / "own", kept_rounds=8, max_bytes=1 << 20)
    for page in pages(work.claim, work.records):
        own.keep(page)
    at: MemoryEndpoint = scene.network.endpoint(PublicKey(ONE.public_key))

    async def scenario() -> None:
        await serve_records(at, own)
        await scene.until(lambda: scene.findings)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, HOLDS): 1}


def test_whoever_says_again_and_again_that_it_has_no_records_withholds_them(scene: Scene, tmp_path: Path) -> None:
    scene.commit([scene.train(ONE)])
    nothing = RecordsFolder(tmp_path / "own", kept_rounds=8, max_bytes=1 << 20)
    at: MemoryEndpoint = scene.network.endpoint(PublicKey(ONE.public_key))

    async def scenario() -> None:
        await serve_records(at, nothing)
        for _ in range(REFUSALS):
            later = scene.train(OTHER)
            scene.give(later)
            scene.commit([later])
            asked = scene.audits.rounds_asked
            await scene.until(lambda asked=asked: scene.audits.rounds_asked > asked)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, WITHHELD): 1}
    assert scene.found(OTHER).keys() <= {(LOT, HOLDS)}


def test_a_key_that_is_away_is_waited_for_as_long_as_its_records_have_to_be_kept(scene: Scene) -> None:
    scene.commit([scene.train(ONE)])

    async def scenario() -> None:
        kept = scene.run.log.ledger.manifest.trust.kept_rounds
        for _ in range(kept - 1):
            assert not scene.found(ONE)
            later = scene.train(OTHER)
            scene.give(later)
            scene.commit([later])
            asked = scene.audits.rounds_asked
            await scene.until(lambda asked=asked: scene.audits.rounds_asked > asked)

    asyncio.run(scenario())
    assert scene.found(ONE) == {(LOT, WITHHELD): 1}


def test_a_finding_that_the_log_refuses_is_no_fault_of_anybodys(scene: Scene) -> None:
    async def refuse(_signed: SignedFinding) -> None:
        raise LedgerError("decided already")

    scene.audits._take = refuse
    work = scene.train(ONE, seed=99)
    scene.give(work)
    scene.commit([work])
    scene.commit([scene.train(OTHER)])
    asyncio.run(scene.until(lambda: scene.audits.totals.lots > 0))
    assert (scene.audits.totals.against, scene.said) == (0, [])


def test_an_answer_about_a_claim_that_was_given_up_meanwhile_is_passed_over(scene: Scene) -> None:
    job = Job(claim=scene.train(ONE).claim, check=LOT, lot=0, round=1, contribution=bytes(32), floor=0, state=bytes(32))
    asyncio.run(scene.audits._settle(job.name, Found(DIFFERS, b"", "", 1, 1)))
    assert not scene.found(ONE)
    assert scene.audits.totals.lots == 0
