"""What liars say to a real log, and to real peers: it is refused and counted by key, or it weighs no more than it may. The honest go on.

All of it happens to one swarm, one lie after the other; whatever was said, its log holds in the end and its honest peers have lost nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import p2pd_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time

from manta_swarm.aggregator.intake.bodies import Bodies
from manta_swarm.aggregator.log.contents import BODIES
from manta_swarm.aggregator.states.replay import RoundToReplay
from manta_swarm.codec.coding import Body, body_num_bytes, encode, parse
from manta_swarm.codec.mean import table_mean
from manta_swarm.codec.vectors import vector_group_sizes
from manta_swarm.network.blobs import METHOD
from manta_swarm.network.daemon import ask
from manta_swarm.network.fetching import fetch
from manta_swarm.network.log_client import BodyPart, HandIn
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Refused
from manta_swarm.network.streams import MAX_STREAMS
from manta_swarm.network.validator import OwnedRecords
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.exchange import CLIP, GREATEST_MIN_EXPONENT, MAX_AGE, WINDOW
from manta_swarm.protocol.records import Announcement, Claim
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, peer_id, sha256
from manta_swarm.protocol.table import limit_square, weights
from tests.contributions import with_contribution
from tests.faults.liar import Liar, Made, liars
from tests.faults.scene import Scene, quick_run
from tests.network.processes import DEADLINE_S

# hivemind finds its daemon with importlib.resources.path, which Python 3.11 and 3.12 call deprecated.
pytestmark = [pytest.mark.swarm, pytest.mark.faults, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]

HONEST = ("one", "two")
LIMIT = 32_767  # of int16


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A swarm of honest programs; at its end its log holds, can be computed again, and the honest have lost nothing."""
    with Scene(tmp_path_factory.mktemp("lies"), quick_run(min_open_s=1.0)) as scene:
        scene.start_aggregator()
        for name in HONEST:
            scene.start_peer(name)
        scene.wait_for_round(MAX_AGE + 2)
        yield scene
        scene.end(*HONEST)
        scene.assert_all_agree(*HONEST)


@contextlib.contextmanager
def while_honest_go_on(scene: Scene) -> Iterator[None]:
    """Check that after what is done inside rounds are committed, and that all honest peers count in them and have lost nothing."""
    yield
    scene.rounds_go_on()
    for name in HONEST:
        scene.counts_again(name)
        status = scene.status(name)
        assert (name, status["samples_lost"], status["dropped"], status["promises_broken"]) == (name, 0, {}, 0)


def play(scene: Scene, story: Callable[..., Awaitable[None]], count: int = 1) -> None:
    """Run ``story`` with so many liars, then see that the honest go on."""

    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), liars(scene, count) as found:
            await story(*found)

    with while_honest_go_on(scene):
        asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for is another program's file
        await asyncio.sleep(0.1)


async def next_round(scene: Scene) -> None:
    """Return when a round was committed a moment ago."""
    round_ = scene.status("aggregator")["round"]
    await until(lambda: scene.status("aggregator")["round"] > round_)


async def is_refused(call: Awaitable[object], why: str) -> None:
    """Check that the log says no, and why."""
    with pytest.raises(Refused, match=why):
        await call


async def body_is_refused(liar: Liar, made: Made, why: str, *part: Any) -> None:
    """Check that the log takes a header and not what is sent as a part of its body, and why; again where a round closes in between."""
    while True:
        handed = await liar.bring(made.header)
        if handed.status == HandIn.LATER:
            continue
        assert handed.status == HandIn.SEND_BODY
        with pytest.raises(Refused) as refused:
            await liar.bring_part(made, *part)
        if "hand it in again" not in str(refused.value):
            assert why in str(refused.value)
            return


async def is_counted(liar: Liar, *reasons: str, times: int = 1) -> None:
    """Return once the aggregator's status says so of this liar."""
    await until(lambda: sum(liar.refused().get(reason, 0) for reason in reasons) >= times)


async def hand_in(scene: Scene, liar: Liar, made: Made) -> RoundToReplay:
    """Return the round in whose table a contribution is: the one that its inclusion promise says."""
    handed = await liar.log.hand_in(made.header, made.groups)
    while (inclusion_promise := handed.inclusion_promise) is None:  # it came too late, and is handed in again
        handed = await liar.log.hand_in(made.header, made.groups)
    await until(lambda: scene.status("aggregator")["round"] >= inclusion_promise.round)
    played = scene.tables()[inclusion_promise.round]
    assert made.digest in [one.contribution for one in played.listed]
    return played


def test_false_bytes_and_false_news_from_a_neighbour_are_found_out(scene: Scene) -> None:
    async def story(liar: Liar) -> None:
        asked: list[PublicKey] = []

        async def give_junk(caller: PublicKey, _request: bytes) -> bytes:
            asked.append(caller)
            return bytes(vector_group_sizes(liar.num_weights)[0])

        async def say_junk(_caller: PublicKey, _request: bytes) -> bytes:
            return bytes(100)

        await liar.node.serve(METHOD, give_junk)
        for method in ("commit", "commit-after", "weights", "listing"):
            await liar.node.serve(method, say_junk)
        neighbours = Neighbours(liar.node, liar.run)
        await neighbours.announce(cohort="here", round_=10**9)
        scene.start_strange_peer("newcomer", "late")
        await until(lambda: scene.status("newcomer").get("joined_at_round") is not None)
        newcomer = scene.status("newcomer")
        assert bytes.fromhex(newcomer["key"]) in asked
        assert f"wrong bytes peer={liar.key.hex()[:8]}" in scene.log("newcomer")
        # News that it pushes are believed with their proof only.
        await neighbours.look()
        for key in neighbours.members():
            with pytest.raises(Refused):
                await liar.node.call(key, "commit", bytes(500), timeout_s=20)

    play(scene, story)
    scene.counts_again("newcomer")
    scene.let_leave("newcomer")
    scene.assert_all_agree("newcomer")


class Forger(OwnedRecords):
    """Signs whatever it is told to, and finds everything valid."""

    def validate(self, record: DHTRecord) -> bool:
        """Find every record valid."""
        return True

    def sign_value(self, record: DHTRecord) -> bytes:
        """Sign a record of whoever it is."""
        self._own_subkey = record.subkey
        return super().sign_value(record)


def test_a_dht_full_of_junk_and_a_clock_a_day_off_keep_nobody_from_taking_part(scene: Scene) -> None:
    async def story(liar: Liar) -> None:
        name = DHTID.generate(source=f"manta-{liar.run.hex()}-members")
        operator, until_s = PeerID(peer_id(liar.log.operator)), get_dht_time() + 300
        for start in range(0, 600, 50):
            await store(liar, operator, [junk(liar, name, number, until_s) for number in range(start, start + 50)])
        scene.start_peer("newcomer-2")
        scene.start_strange_peer("tomorrow", "tomorrow")
        for who in ("newcomer-2", "tomorrow"):
            await until(lambda who=who: scene.status(who).get("rounds_counted", 0) >= 2)  # type: ignore[misc]

    play(scene, story)
    scene.let_leave("newcomer-2", "tomorrow")
    scene.assert_all_agree("newcomer-2", "tomorrow")


def junk(liar: Liar, name: DHTID, number: int, until_s: float) -> DHTRecord:
    """Return a record under the members' name: of a key that nobody has, too long, no announcement, or in another's name."""
    key = Identity(sha256(b"junk %d" % number))
    announcement = Announcement(liar.run, key.public_key, "here", 10**9, 2**61)
    value = (pack(announcement), pack(announcement), bytes(4000), b"no announcement")[number % 4]
    subkey = MSGPackSerializer.dumps(peer_id(key.public_key))
    record = DHTRecord(name.to_bytes(), subkey, MSGPackSerializer.dumps(value), until_s)
    signer = key if number % 20 else liar.identity
    return replace(record, value=Forger(signer).sign_value(record))


async def store(liar: Liar, at: PeerID, records: list[DHTRecord]) -> None:
    """Have a node store records."""
    protocol = liar.node.dht.protocol
    await protocol.call_store(
        at,
        [DHTID.from_bytes(record.key) for record in records],
        [record.value for record in records],
        [record.expiration_time for record in records],
        subkeys=[MSGPackSerializer.loads(record.subkey) for record in records],
    )


def test_nobody_brings_what_is_anothers(scene: Scene) -> None:
    async def story(liar: Liar, cohort_peer: Liar) -> None:
        await next_round(scene)
        made = cohort_peer.made()
        await is_refused(liar.bring(made.header), "other keys than the one that brings it")
        assert (await cohort_peer.bring(made.header)).status == HandIn.SEND_BODY
        await is_refused(liar.bring_part(made), "other keys than the one that brings it")
        await hand_in(scene, cohort_peer, made)

        # In the name of an honest peer, under the liar's signature.
        victim = bytes.fromhex(scene.status("one")["key"])
        claim = replace(liar.made().header.claims[0].open(), key=victim, founder=victim)
        signed = Signed(Claim, pack(claim), liar.identity.sign("claim", pack(claim)))
        contribution = with_contribution(liar.made().header, liar.identity, founder=victim, claims=(signed.digest,)).contribution
        await is_refused(liar.bring(replace(liar.made().header, contribution=contribution, claims=(signed,))), "signature")
        # With a true claim of its own, in a contribution that another convened.
        await is_refused(liar.bring(with_contribution(liar.made().header, liar.identity, founder=victim)), "signature|cohort")

        await is_counted(liar, "another's identity", times=2)
        await is_counted(liar, "signature")
        assert set(cohort_peer.refused()) <= {"no body by the deadline"}  # on a busy computer it was late

    play(scene, story, count=2)


def test_claims_for_another_round_base_or_run_and_of_too_much_are_refused(scene: Scene) -> None:
    async def story(liar: Liar) -> None:
        ledger = scene.ledger()
        too_old, far = ledger.round - MAX_AGE, ledger.round + 50
        await is_refused(liar.bring(liar.made(run=sha256(b"another")).header), "run")
        await is_refused(liar.bring(liar.made(base=sha256(b"another")).header), "base")
        await is_refused(liar.bring(liar.made(round=far).header), "base")
        await is_refused(liar.bring(liar.made(round=too_old).header), "commits old")
        await is_refused(liar.bring(with_contribution(liar.made().header, liar.identity, round=too_old)), "base|commits old")
        millions = (1_000_000 // liar.manifest.microbatch_samples, 0, 0, 0)
        await is_refused(liar.bring(liar.made(microbatches=millions).header), "samples where a claim has at most")
        await is_refused(liar.bring(liar.made(microbatches=(1,)).header), "does not ask for")
        await is_counted(liar, "not for this log", times=7)
        # Twice more, and what it says is not looked at for a while, be it true.
        for _ in range(2):
            await is_refused(liar.bring(liar.made(run=sha256(b"another")).header), "run")
        assert (await liar.bring(liar.made().header)).status == HandIn.LATER

    play(scene, story)


def chunk(data: bytes, exponent: int, value: int) -> bytes:
    """Return a body whose first chunk has this exponent and nothing but this value."""
    values = np.full(4096, value, "<i2").tobytes()
    return bytes([exponent]) + values + data[1 + len(values) :]


def test_bodies_that_are_malformed_or_not_those_of_their_headers_are_refused(scene: Scene) -> None:
    async def story(liar: Liar) -> None:
        assert len(liar.made().groups) == 1
        good = liar.body()
        bad = {
            "beyond the window": chunk(good, WINDOW, LIMIT),
            "an exponent of 255 is beyond the window": chunk(good, 255, LIMIT),
            "below -32767": chunk(good, 0, -32_768),
            "larger than it needs": chunk(good, 5, 7),
        }
        for why, body in bad.items():
            await body_is_refused(liar, liar.made(body), why)
        made = liar.made(good)
        for data in (good[:-1], good + b"\0", b""):
            await body_is_refused(liar, made, "another place or size", 0, data)
        await body_is_refused(liar, replace(made, groups=(good, good)), "another place or size", 1)
        await body_is_refused(liar, made, "root", 0, chunk(good, 0, 1))
        await is_counted(liar, "bad body", "malformed", times=len(bad) + 5)

    play(scene, story)


def kept_bodies(scene: Scene, played: RoundToReplay, count: int) -> list[Body]:
    """Return the bodies of a table, of ``count`` values each, from the log's disk."""
    codec = scene.manifest.exchange.codec
    bodies = Bodies(scene.directory / "aggregator" / BODIES, body_bytes=body_num_bytes(codec, count), keep=1)
    found = {one.header.contribution.digest: one.body for one in bodies.read(played.entry.round)}
    return [parse(codec, found[one.contribution], count) for one in played.listed]


def test_the_largest_values_that_can_be_coded_move_the_mean_by_no_more_than_the_clip_allows(scene: Scene) -> None:
    async def in_a_table_with_others(liar: Liar) -> RoundToReplay:
        while True:
            body = liar.body(np.full(liar.num_weights, np.finfo(np.float32).max, np.float32))
            made = liar.made(body, microbatches=(1, 0, 0, 0))
            played = await hand_in(scene, liar, made)
            if len(played.listed) > 1:
                return played
            await asyncio.to_thread(scene.rounds_go_on)  # on a busy computer the honest were late

    async def story(liar: Liar) -> None:
        # There is no body of a NaN or an infinity: its values are integers times powers of two, all of them finite float32.
        count = liar.num_weights
        largest = parse("int16", encode("int16", np.full(count, np.finfo(np.float32).max), 0), count)
        assert largest.max_exponent == WINDOW - 1
        assert np.isfinite(largest.values(GREATEST_MIN_EXPONENT)).all()

        played = await in_a_table_with_others(liar)
        table, bodies = [one.weighing for one in played.listed], kept_bodies(scene, played, count)
        found = table_mean(table, bodies, played.min_exponents, played.thresholds, played.min_exponent, count)
        assert (found.thresholds, found.min_exponent) == (played.entry.thresholds, played.entry.min_exponent)
        place = [one.founder for one in played.listed].index(liar.key)
        assert found.clipped[place] < found.weights[place]
        # Without it, everything else as it was, the mean is another by its clipped norm at most.
        part = weights(table)[place] / sum(weights(table))
        without = [zeros_like(body) if at == place else body for at, body in enumerate(bodies)]
        others = table_mean(table, without, played.min_exponents, played.thresholds, played.min_exponent, count)
        moved = np.linalg.norm(found.mean.astype(np.float64) - others.mean.astype(np.float64))
        square = limit_square(table[place], {one.role: one for one in played.thresholds})
        assert square is not None
        allowed = part * np.sqrt(float(square)) * 2.0**played.min_exponent
        unclipped = part * np.sqrt(float(bodies[place].norm_square)) * 2.0 ** played.min_exponents[place]
        assert moved <= allowed * (1 + 1e-5)
        assert unclipped > 100 * allowed
        # And it does not raise what is usual: that is a median by weight.
        before, after = played.thresholds[0], found.thresholds[0]
        assert after.norm * 2.0**found.min_exponent < CLIP * before.norm * 2.0**played.min_exponent

    play(scene, story)


def zeros_like(body: Body) -> Body:
    """Return a body of zeros, which moves nothing."""
    return parse(body.codec.name, bytes(body_num_bytes(body.codec.name, body.count)), body.count)


def test_who_claims_as_much_as_is_allowed_weighs_no_more_than_the_cap(scene: Scene) -> None:
    async def story(liar: Liar) -> None:
        exchange, microbatch = liar.manifest.exchange, liar.manifest.microbatch_samples
        count = liar.num_architectures(scene.ledger().round + 1)
        each = exchange.max_claim_samples // microbatch // count  # of as many microbatches in a row as a claim may have
        made = liar.made(microbatches=(each,) * count)
        played = await hand_in(scene, liar, made)
        (own,) = [one for one in played.listed if one.founder == liar.key]
        assert own.weighing.samples == exchange.weight_cap < each * count * microbatch
        # Nor does it make the next round shorter by more than a round may change.
        assert sum(one.counted for one in played.listed) >= each * count * microbatch

    play(scene, story)


def test_a_body_that_another_key_hands_in_again_counts_as_any_body_and_all_agree(scene: Scene) -> None:
    async def story(liar: Liar, cohort_peer: Liar) -> None:
        ledger = scene.ledger()
        table = ledger.table_at(ledger.round)
        assert table is not None
        sizes = [len(group) for group in liar.made().groups]
        copied = await fetch(liar.node, table[0].body, sizes, [liar.log.operator], deadline_s=20)
        played = await hand_in(scene, liar, liar.made(copied.join()))
        assert table[0].body in [one.body for one in played.listed]
        # And so do two in one round.
        own = cohort_peer.made()
        twin = liar.made(bytes(own.groups[0]))
        assert twin.header.contribution.open().body == own.header.contribution.open().body
        await next_round(scene)
        for each in await asyncio.gather(hand_in(scene, cohort_peer, own), hand_in(scene, liar, twin)):
            assert own.header.contribution.open().body in [one.body for one in each.listed]

    play(scene, story, count=2)


def test_headers_without_bodies_hold_no_round_up_and_soon_nobody_listens(scene: Scene) -> None:
    async def story(liar: Liar) -> None:
        first = scene.status("aggregator")["round"]
        headers = 0
        while (await liar.bring(liar.made().header)).status != HandIn.LATER:
            headers += 1
            await next_round(scene)
        assert 8 <= headers <= 20
        assert scene.status("aggregator")["round"] >= first + headers  # each of them in a round that was committed without it
        await is_counted(liar, "no body by the deadline", "no body", times=9)
        assert (await liar.bring(liar.made().header)).status == HandIn.LATER

    play(scene, story)


def test_bodies_that_drip_hold_no_round_up_and_one_counts_when_it_is_handed_in_again(scene: Scene) -> None:
    async def story(liar: Liar) -> None:
        made = liar.made()
        assert (await liar.bring(made.header)).status == HandIn.SEND_BODY
        part = BodyPart(made.digest, 0, made.groups[0]).pack()
        opening = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN,
            streamOpen=p2pd_pb2.StreamOpenRequest(peer=peer_id(liar.log.operator), proto=["manta.body.stream"]),
        )
        streams = [await ask(liar.node.p2p, opening) for _ in range(MAX_STREAMS)]
        try:
            _, reader, writer = streams[0]
            for _, _, each in streams:
                each.write(len(part).to_bytes(4, "big") + part[:1000])
            sent, round_ = 1000, scene.status("aggregator")["round"]
            while scene.status("aggregator")["round"] < round_ + 3:
                for _, _, each in streams:
                    each.write(part[sent : sent + 10])
                sent += 10
                await asyncio.sleep(0.1)
            assert sent < len(part)
            writer.write(part[sent:])
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            assert answer[:1] == b"\1", "it came too late"
        finally:
            for _, _, each in streams:
                each.transport.abort()
        assert (await hand_in(scene, liar, made)).entry.round >= round_ + 4

    play(scene, story)
