"""Keys cost nothing: a hundred that hand in junk, or well-formed poison, against a real log with its intake, over an in-memory network."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from manta_swarm.aggregator.commit.deciding import LoneDecider
from manta_swarm.aggregator.commit.feed import FeedService, TableWeights
from manta_swarm.aggregator.commit.writing import Leading
from manta_swarm.aggregator.intake.intake import Intake
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import ExchangeSection, RoundSection, RunSection, TrustSection
from manta_swarm.aggregator.states.opening import OpenedRun, open_run
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.automl.data.catalog import digits
from manta_swarm.codec.coding import body_groups, encode, parse
from manta_swarm.network.blobs import Blob
from manta_swarm.network.log_client import BodyPart, LogClient
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rates import FAULTS_FORGIVEN, MAX_KEYS
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name, sha256
from tests.aggregator.contexts import context_of
from tests.contributions import header_of

OPERATOR = Identity(sha256(b"operator"))
HONEST = [Identity(sha256(b"honest %d" % number)) for number in range(3)]
JUNK = [Identity(sha256(b"junk %d" % number)) for number in range(100)]
MAX_ROWS = 16
ROUNDS, FEW_ROUNDS = 6, 4
ROUND_MS = 500
CONFIG = RunConfig(
    run=RunSection(name="many", rounds=ROUNDS),
    round=RoundSection(
        target_batch=192,
        microbatch_samples=16,
        weight_cap=96,
        max_claim_samples=640,
        first_open_s=ROUND_MS / 1000,
        min_open_s=ROUND_MS / 1000,
    ),
    exchange=ExchangeSection(max_rows=MAX_ROWS),
)


@dataclass
class Scene:
    """A log at work, and what everybody knows of it."""

    ledger: Callable[[], Ledger]
    network: MemoryNetwork
    intake: Intake
    num_weights: int
    run: OpenedRun
    weights: TableWeights

    def endpoint(self, identity: Identity) -> MemoryEndpoint:
        return self.network.endpoints.get(identity.public_key) or self.network.endpoint(identity.public_key)

    def client(self, identity: Identity) -> LogClient:
        return LogClient(self.endpoint(identity), self.ledger().manifest, self.ledger().run)

    def body(self, seed: int) -> bytes:
        ledger = self.ledger()
        values = np.random.default_rng(seed).standard_normal(self.num_weights).astype(np.float32) / 1000
        return encode("int16", values, ledger.min_exponent_at(ledger.round))


def in_scene(directory: Path, story: Callable[[Scene], Awaitable[None]], config: RunConfig = CONFIG) -> None:
    """Run ``story`` beside a log that commits rounds."""

    async def play() -> None:
        run = open_run(config, directory, OPERATOR, digits())
        network = MemoryNetwork()
        endpoint, closing = network.endpoint(OPERATOR.public_key), Closing(config.exchange.max_rows)
        with run.log as log:
            context = context_of(run, directory, endpoint, OPERATOR)
            news = FeedService(endpoint, log, closing, context.weights)
            writing = Leading(context, closing, LoneDecider(log, run.bodies))
            await writing.begin()
            await news.start()

            async def commit() -> None:
                async for _ in writing.commits.rounds():
                    news.committed()

            committing = asyncio.create_task(commit())
            try:
                async with asyncio.timeout(120):
                    await story(Scene(lambda: log.ledger, network, writing.intake, run.state_keeper.num_weights, run, context.weights))
            finally:
                committing.cancel()
                await asyncio.wait([committing])
                await writing.close()

    asyncio.run(play())


async def take_part(scene: Scene, identity: Identity) -> None:
    """Hand in an honest contribution on each base until the run is over."""
    client, told = scene.client(identity), 0
    while not scene.ledger().finished:
        ledger = scene.ledger()
        body = scene.body(int.from_bytes(sha256(identity.public_key + bytes(ledger.last_commit))[:4], "big"))
        groups = body_groups("int16", body, scene.num_weights)
        header = header_of(ledger, identity, microbatches=(1, 1, 1, 1), body=Blob.of(groups).root)
        handed = await client.hand_in(header, groups)
        while handed.inclusion_promise is None:
            await asyncio.sleep(0.02)
            handed = await client.hand_in(header, groups)
        while told < handed.inclusion_promise.round:
            found = await client.next_update(client.operator, told, left_ms=ROUND_MS)
            told = found.proven_commit.proven.round.round if found.proven_commit is not None else told


async def hand_in_junk(scene: Scene, identity: Identity) -> None:
    """Hand in something else that is wrong again and again."""
    rng = random.Random(identity.public_key)
    endpoint, operator = scene.endpoint(identity), PublicKey(OPERATOR.public_key)
    while not scene.ledger().finished:
        ledger, body = scene.ledger(), bytes(1 + rng.randrange(100)) if rng.random() < 0.5 else rng.randbytes(100)
        header = header_of(ledger, identity, microbatches=(1, 1, 1, 1), body=sha256(rng.randbytes(8)))
        whose = rng.choice(HONEST)
        tries = (
            ("header", rng.randbytes(rng.randrange(3000))),
            ("header", pack(header)),  # and no body
            ("header", pack(header_of(ledger, whose, microbatches=(1, 1, 1, 1)))),  # well signed, as if the honest one's key were known
            ("header", pack(header_of(ledger, identity, microbatches=(10**5,) * 4))),
            ("body", BodyPart(header.contribution.digest, 0, body).pack()),
            ("body", rng.randbytes(rng.randrange(300))),
        )
        for method, request in rng.sample(tries, len(tries)):
            try:
                await endpoint.call(operator, method, request, timeout_s=20)
            except MantaError:
                pass
        await asyncio.sleep(0.05)


def test_a_hundred_keys_with_junk_push_nobody_out_who_took_part_before(tmp_path: Path) -> None:
    counted: Counter[bytes] = Counter()
    held: list[int] = []

    async def story(scene: Scene) -> None:
        honest = [asyncio.create_task(take_part(scene, identity)) for identity in HONEST]
        while scene.ledger().round < 1:  # noqa: ASYNC110 - the log itself, in this loop
            await asyncio.sleep(0.02)
        junk = [asyncio.create_task(hand_in_junk(scene, identity)) for identity in JUNK]
        while not scene.ledger().finished:
            held.append(len(scene.intake._uploads))
            await asyncio.sleep(0.05)
        await asyncio.gather(*honest, *junk)
        for listed in (scene.ledger().table_at(round_) or () for round_ in range(1, ROUNDS + 1)):
            counted.update(one.founder for one in listed)
        faults = scene.intake.faults
        assert set(faults.by_reason) >= {"malformed", "not for this log", "another's identity"}
        refused = faults.by_key()
        assert len(refused) <= MAX_KEYS
        for identity in JUNK:
            assert sum(refused[identity.public_key].values()) > FAULTS_FORGIVEN
        assert not any(identity.public_key in refused for identity in HONEST)

    in_scene(tmp_path / "aggregator", story)
    assert counted.keys() == {identity.public_key for identity in HONEST}
    assert min(counted.values()) >= ROUNDS - 1  # one header may have come late: the rounds are short, and all of this is one loop
    assert max(held) <= 2 * MAX_ROWS
    assert replay_directory(tmp_path / "aggregator").rounds == ROUNDS


async def hand_in_poison(scene: Scene, identity: Identity, direction: NDArray[np.float32]) -> None:
    """Hand in a well-formed contribution on each base: the same direction as all others, a little noise, and records of nothing."""
    client, place = scene.client(identity), JUNK.index(identity)
    handed_in = -1
    while not scene.ledger().finished:
        ledger = scene.ledger()
        if ledger.round == handed_in:
            await asyncio.sleep(0.02)
            continue
        noise = np.roll(direction, 1 + place + len(JUNK) * ledger.round) / 100
        groups = body_groups("int16", encode("int16", direction + noise, ledger.min_exponent_at(ledger.round)), scene.num_weights)
        try:
            await client.hand_in(header_of(ledger, identity, microbatches=(1, 1, 1, 1), body=Blob.of(groups).root), groups)
        except MantaError:
            pass  # that round is over
        handed_in = ledger.round


def test_a_hundred_free_keys_take_no_pay_and_move_the_mean_by_no_more_than_a_fifth_of_what_they_say(tmp_path: Path) -> None:
    proven = tuple(peer_name(identity.public_key) for identity in HONEST)
    trust = TrustSection(mode="audited", proven=proven, audit_percent=100, newcomer_percent=100, kept_rounds=3, pending_rounds=6)
    few = CONFIG.run.model_copy(update={"rounds": FEW_ROUNDS})
    config = CONFIG.model_copy(update={"run": few, "exchange": ExchangeSection(max_rows=128), "trust": trust})
    shares: list[float] = []
    crowds: list[int] = []
    paid: dict[bytes, int] = {}
    pool: list[int] = []

    async def story(scene: Scene) -> None:
        direction = np.random.default_rng(9).standard_normal(scene.num_weights).astype(np.float32) / 1000
        free = [asyncio.create_task(hand_in_poison(scene, identity, direction)) for identity in JUNK]
        await asyncio.gather(*(take_part(scene, identity) for identity in HONEST))
        await asyncio.gather(*free)
        while not scene.ledger().settled:  # noqa: ASYNC110 - the log itself, in this loop
            await asyncio.sleep(0.02)
        ledger = scene.ledger()
        paid.update(ledger.credits())
        pool.append(ledger.manifest.work_pool)
        for round_ in range(1, FEW_ROUNDS + 1):
            table, weighed = ledger.table_at(round_) or (), await scene.weights.of(round_)
            bodies = {kept.header.contribution.digest: kept.body for kept in scene.run.bodies.read(round_)}
            mean = np.zeros(scene.num_weights)
            for one, its in zip(table, weighed, strict=True):
                body = parse("int16", bodies[one.contribution], scene.num_weights)
                mean += its.clipped * body.values(ledger.min_exponent_at(round_ - 1 - one.weighing.age)).astype(np.float64)
            mean /= sum(its.weight for its in weighed)
            if any(one.weighing.unproven < one.weighing.samples for one in table):  # else nobody proven came in time: then all weigh
                shares.append(float(mean @ direction / np.square(direction, dtype=np.float64).sum()))
                crowds.append(sum(one.weighing.unproven > 0 for one in table))

    in_scene(tmp_path / "aggregator", story, config)
    print(f"free keys in a table: {crowds}; parts of what they say that are in the mean: {[round(share, 3) for share in shares]}")
    assert max(crowds) > 50
    assert all(share < 0.21 for share in shares)
    assert paid.keys() == {identity.public_key for identity in HONEST}
    assert sum(paid.values()) == pool[0] * len(shares)  # a round without anybody proven pays nobody
    assert replay_directory(tmp_path / "aggregator").rounds == FEW_ROUNDS
