"""Whole claims of lots that were really trained, computed again by peers that volunteer: at a log's own desks, over a network in memory."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from aggregator.rounds.news import NewsDesk
from aggregator.settings.config import RunConfig
from automl.training.update import State, state_digest
from peer.audits.auditor import Rest
from peer.audits.desk import AuditDesk
from peer.audits.messages import WORKING, Ask, Found
from peer.audits.needs import Known, most_bytes
from peer.audits.process import Bench
from peer.status import PeerStatus, StatusBoard
from peer.store import PeerStore
from protocol.audits import DIFFERS, HOLDS, LOT, WHOLE, SignedFinding
from protocol.receipts import ProvenRound
from protocol.records import entry_of, open_entry
from protocol.signing import Identity, PublicKey, peer_name
from swarm.blobs import Blob
from swarm.log_client import LogClient
from swarm.records import serve_records
from swarm.rpc import Busy
from swarm.vectors import VectorsFolder
from swarm.voice import Voice
from tests.aggregator import real_run
from tests.aggregator.audits.real_lots import AUDITED, ONE, OTHER, THIRD, WORKER, hidden
from tests.aggregator.audits.vector_lots import Change, Together
from tests.aggregator.audits.vector_scene import STEPPED, VectorScene
from tests.aggregator.real_run import OPERATOR

FOURTH, FIFTH = (Identity(bytes([seed]) * 32) for seed in (91, 92))  # who audit, and train nothing
OPERATORS = PublicKey(OPERATOR.public_key)


class Never(random.Random):
    """The operator looks at nothing itself that was left to others."""

    def random(self) -> float:
        return 1.0


class InHere:
    """What computes, in a thread in the place of a process."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.asked: list[str] = []
        self.rests = 0

    def load(self, weights: torch.Tensor, teacher: torch.Tensor | None) -> None:
        self._bench.teach(bytearray() if teacher is None else bytearray(teacher.numpy().tobytes()))
        self._bench.load(bytearray(weights.numpy().tobytes()))

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        self.asked.append(ask.check)
        loop = asyncio.get_running_loop()

        def resting(found: Found) -> None:
            assert found.outcome == WORKING
            self.rests += 1
            asyncio.run_coroutine_threadsafe(rest(found.cpu_ms / 1000), loop).result()

        return await asyncio.to_thread(self._bench.answer, ask, resting)

    async def close(self) -> None:
        pass


class Volunteer:
    """A proven peer that audits."""

    def __init__(self, scene: "Volunteers", identity: Identity, directory: Path) -> None:
        run = scene.run
        manifest, endpoint = run.log.ledger.manifest, scene.network.endpoint(PublicKey(identity.public_key))
        self.log = LogClient(endpoint, manifest, run.log.ledger.run)
        self.commits: dict[int, ProvenRound] = {}
        self.voice, folder = Voice(), directory / "fetched"
        self.fetched = VectorsFolder(folder, kept_rounds=8, max_bytes=most_bytes(manifest, WORKER.num_weights))
        self.auditor = InHere(Bench(run.signed, folder, None))
        self.board = StatusBoard(PeerStore(directory), PeerStatus("12D", "k", "r", "n", "c", "cpu", 9), self.voice)
        known = Known(lambda: max(self.commits), self.commits.get, scene.weights, self.log.counted, scene.body)
        self.desk = AuditDesk(
            endpoint,
            self.log.line,
            identity,
            manifest,
            run.log.ledger.run,
            known,
            self._start,
            self.board,
            self.fetched,
            WORKER.num_weights,
        )
        self.desk.limit(100, 100)

    async def hear(self) -> None:
        """Take note of the newest commit."""
        told = await self.log.news(OPERATORS, max(self.commits, default=0), left_ms=None)
        assert told.commitment is not None
        self.commits[told.commitment.proven.round.round] = told.commitment.proven
        self.desk.committed()

    async def _start(self) -> InHere:
        return self.auditor


class Volunteers(VectorScene):
    """A log that leaves what it may to two volunteers."""

    def __init__(self, directory: Path, config: RunConfig) -> None:
        trust = {"whole_percent": 100, "proven": tuple(peer_name(each.public_key) for each in (FOURTH, FIFTH))}
        super().__init__(directory / "run", config.model_copy(update={"trust": config.trust.model_copy(update=trust)}), Never())
        self.directory = directory
        self.states: dict[bytes, State] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.handed_in: list[SignedFinding] = []
        self.volunteers = [Volunteer(self, each, directory / each.public_key.hex()) for each in (FOURTH, FIFTH)]

    async def weights(self, digest: bytes) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.states[digest].parameters, None

    async def body(self, root: bytes) -> bytes:
        return self.bodies[root]

    async def serve(self, *works: Together) -> None:
        """Be the log, and the peers that made these, to whoever calls."""
        log = self.network.endpoint(OPERATORS)
        await self.audits.serve(log)
        await serve_records(log, self.folder)
        await log.serve("extra", self._on_extra)

        async def weights_of_rows(_round: int) -> Sequence[int]:
            raise Busy("nobody asks for these")

        self.news = NewsDesk(log, self.run.log, lambda _now: 0, weights_of_rows)
        await self.news.start()
        await self.show(self.directory / "peers", *works)

    async def _on_extra(self, _caller: PublicKey, request: bytes) -> bytes:
        signed = open_entry(request)
        assert isinstance(signed, SignedFinding)
        self.run.log.ledger.check_extra(signed)
        if signed not in self.handed_in:
            self.handed_in.append(signed)
        return b""

    async def next(self, *works: Together, extras: Sequence[SignedFinding] = ()) -> None:
        """Commit a round of these, or of somebody whose records nobody has, and tell everybody."""
        assert self.run.follower.state is not None
        self.states[state_digest(self.run.follower.state)] = self.run.follower.state
        made = sorted((work.made for work in works), key=lambda each: each.peer.public_key)
        for each in made:
            self.bodies[Blob.of(each.groups).root] = each.body
        entries = [entry_of(each) for each in sorted(extras, key=lambda each: each.digest)]
        real_run.commit(self.run, made or [real_run.made(self.run.log.ledger, THIRD, cohort="here")], extras=entries)
        self.audits.committed()
        self.news.committed()
        for volunteer in self.volunteers:
            await volunteer.hear()

    def told_of(self, peer: Identity) -> dict[tuple[str, str], int]:
        """Return how often what volunteers said of a peer's claims, by check and outcome."""
        counts: dict[tuple[str, str], int] = {}
        for finding in (signed.open() for signed in self.handed_in):
            claimed = self.run.log.ledger.standing.claimed(finding.round, finding.claim)
            if claimed is not None and claimed.key == peer.public_key:
                counts[finding.check, finding.outcome] = counts.get((finding.check, finding.outcome), 0) + 1
        return counts


def audited(directory: Path, config: RunConfig, peers: Sequence[Identity], of_body: Change | None = None) -> Volunteers:
    """Have the peers, a cohort, or one alone, in a table, and what volunteers find of it in the next but one."""
    scene = Volunteers(directory, config)

    async def story() -> None:
        assert scene.run.follower.state is not None
        work = scene.work(*peers, of_body=of_body)
        scene.give_all(work)
        await scene.serve(work)
        async with scene.at_work():
            await scene.next(work)
            for volunteer in scene.volunteers:  # it has to ask once, to be counted on
                await volunteer.desk._duties()
            await scene.next()
            await scene.wait(lambda: scene.audits.totals.left)
            keeping = [asyncio.create_task(volunteer.desk.keep()) for volunteer in scene.volunteers]
            found = 2 * 2 * len(peers)  # a lot and all lots of each claim, by both
            await scene.wait(lambda: len(scene.handed_in) >= found or any(task.done() for task in keeping))
            asked = scene.audits.rounds_asked
            await scene.next(extras=scene.handed_in)
            if of_body is None:
                await scene.wait(lambda: scene.audits.rounds_asked > asked)
            else:
                await scene.wait(lambda: scene.audits._doubts)  # the operator looks, and says it with the next round
                await scene.next()
                await scene.wait(scene.against)
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    with scene.run.log:
        asyncio.run(story())
    return scene


SPARSE_OF_ONE = AUDITED.model_copy(update={"exchange": AUDITED.exchange.model_copy(update={"codec": "topk-512-4"})})


@pytest.mark.parametrize(
    ("config", "peers", "num_lots"),
    [
        pytest.param(AUDITED, (ONE,), 2, id="one step, dense, alone"),
        pytest.param(STEPPED, (ONE,), 4, id="local steps, sparse, alone"),
        pytest.param(AUDITED, (ONE, OTHER), 2, id="one step, dense, two together"),
        pytest.param(STEPPED, (ONE, OTHER), 4, id="local steps, sparse, two together"),
        pytest.param(SPARSE_OF_ONE, (ONE,), 2, id="one step, sparse, alone"),
    ],
)
def test_honest_whole_claims_hold(tmp_path: Path, config: RunConfig, peers: Sequence[Identity], num_lots: int) -> None:
    scene = audited(tmp_path, config, peers)
    standing = scene.run.log.ledger.standing
    for peer in peers:
        assert scene.told_of(peer) == {(LOT, HOLDS): 2, (WHOLE, HOLDS): 2}
        assert standing.samples[peer.public_key] == num_lots * 32
    assert scene.audits.totals.lots == 0  # the operator computed none: they were left to these
    assert not scene.against()
    assert not standing.guilty
    for volunteer in scene.volunteers:
        assert volunteer.auditor.asked == sorted(volunteer.auditor.asked, key=lambda check: check != LOT)
        assert volunteer.auditor.rests == num_lots * len(peers)
        assert volunteer.board.status.whole_audits == len(peers)
        assert volunteer.fetched.claims == {}
    assert all(standing.account(each.public_key).pending for each in (FOURTH, FIFTH))


def test_a_body_that_only_all_lots_show_to_be_false_is_accused_by_volunteers(tmp_path: Path) -> None:
    scene = audited(tmp_path, AUDITED, (ONE,), of_body=hidden)
    assert scene.told_of(ONE) == {(LOT, HOLDS): 2, (WHOLE, DIFFERS): 2}
    assert scene.against() == {ONE.public_key: {(WHOLE, DIFFERS)}}  # the operator looked since they accuse; its sum says nothing
    assert any(line.startswith("audit: a whole claim of") for line in scene.volunteers[0].voice.last())
