"""Bodies on their way from node to node over the in-memory network: with nodes that are dead, silent or lie, and strangers who flood."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from manta_swarm.network import timeouts
from manta_swarm.network.blobs import HASHES, METHOD, AskPiece, Blob, BlobStore
from manta_swarm.network.gossip import MAX_REQUEST_BYTES, Gossip, Spare
from manta_swarm.network.gossip import METHOD as OFFERS
from manta_swarm.network.gossip_state import GossipState
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.pushes import BodyOffer, Push, PushAnswer
from manta_swarm.network.rpc import Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import Identity, PublicKey, sha256
from tests.network.test_gossip_state import OPERATOR, RUN, offer_with, push_of
from tests.network.virtual_time import LOOP_CLOCK, now

pytestmark = pytest.mark.virtual_time
PIECES, PIECE_BYTES = 2, 50
SIZES = [PIECE_BYTES] * PIECES
FOUNDERS = [Identity(sha256(b"founder %d" % number)) for number in range(10)]


@dataclass
class Member:
    """One node of a crowd."""

    endpoint: MemoryEndpoint
    cohort: str
    blob_store: BlobStore
    neighbours: Neighbours
    gossip_state: GossipState
    gossip: Gossip
    asked: list[tuple[bytes, PublicKey]] = field(default_factory=list)  # roots of which it was asked for a piece, and by whom

    @property
    def key(self) -> PublicKey:
        return self.endpoint.key


class Crowd:
    """Nodes of one run that know each other, and bodies with offers."""

    def __init__(self, cohorts: Sequence[str], *, near_s: float = 0.001, far_s: float = 0.05) -> None:
        self.cohorts = {PublicKey(sha256(b"node %d" % number)): cohort for number, cohort in enumerate(cohorts)}
        self.network = MemoryNetwork(
            delay_s=lambda sender, receiver, _: near_s if self.cohorts.get(sender) == self.cohorts.get(receiver) else far_s
        )
        self.members: list[Member] = []
        self.boasts: list[asyncio.Task[None]] = []  # of those who lie
        self.blobs = [Blob.cut(random.Random(number).randbytes(PIECES * PIECE_BYTES), PIECE_BYTES) for number in range(len(FOUNDERS))]
        self.offers = [offer_with(blob.root, founder) for blob, founder in zip(self.blobs, FOUNDERS, strict=True)]

    async def start(self) -> "Crowd":
        for number, (key, cohort) in enumerate(self.cohorts.items()):
            endpoint, blob_store, rng = self.network.endpoint(key), BlobStore(max_bytes=10**6), random.Random(number)
            neighbours = Neighbours(endpoint, RUN, LOOP_CLOCK, rng=rng)
            gossip_state = GossipState(
                RUN, [OPERATOR.public_key], neighbours, max_rows=20, body_bytes=sum(SIZES), near_timeout_s=timeouts.NEAR_GETS_S
            )
            gossip_state.budget_bytes = 10**9
            gossip = Gossip(endpoint, gossip_state, blob_store, neighbours, SIZES, clock=LOOP_CLOCK, rng=rng)
            member = Member(endpoint, cohort, blob_store, neighbours, gossip_state, gossip)
            await blob_store.serve(endpoint)
            await gossip.start()
            self._watch(member)
            self.members.append(member)
        for action in ("announce", "look"):
            for member in self.members:
                if action == "announce":
                    await member.neighbours.announce(cohort=member.cohort, round_=0)
                else:
                    await member.neighbours.look()
        return self

    def _watch(self, member: Member) -> None:
        """Note who asks for what."""
        answer = member.endpoint.handlers[METHOD]

        async def noted(caller: PublicKey, request: bytes) -> bytes:
            ask = unpack(AskPiece, request, max_bytes=128)
            if ask.place != HASHES:
                member.asked.append((ask.root, caller))
            return await answer(caller, request)

        member.endpoint.handlers[METHOD] = noted

    def own(self, member: Member, number: int) -> None:
        member.gossip.own(self.offers[number], self.blobs[number])

    def close_headers(self, members: Sequence[Member] | None = None) -> None:
        for member in self.members if members is None else members:
            member.gossip.close_headers(1)

    async def until_all_have(self, count: int, members: Sequence[Member] | None = None) -> None:
        """Return once so many bodies are in the blob stores of all."""
        for member in self.members if members is None else members:
            while member.gossip_state.num_held(1) < count:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        await asyncio.gather(*self.boasts)
        for member in self.members:
            await member.gossip.close()
        await asyncio.sleep(1)  # what nobody waits for any more has ended
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@contextlib.asynccontextmanager
async def crowd_of(cohorts: Sequence[str]) -> AsyncIterator[Crowd]:
    """Yield a crowd; nothing of it goes on at the end."""
    async with asyncio.timeout(300):
        crowd = await Crowd(cohorts).start()
        yield crowd
        await crowd.close()


def alone(count: int) -> list[str]:
    return [f"alone-{number}" for number in range(count)]


def cohorts_of(size: int, count: int) -> list[str]:
    return [f"cohort-{number}" for number in range(count) for _ in range(size)]


@pytest.mark.parametrize(
    "cohorts", [alone(2), alone(5), alone(30), cohorts_of(4, 7), cohorts_of(8, 1)], ids=["2", "5", "30", "7x4", "8 near"]
)
async def test_everybody_gets_every_body_and_hardly_any_twice(cohorts: list[str]) -> None:
    async with crowd_of(cohorts) as crowd:
        count = min(len(FOUNDERS), len(cohorts))
        for number, member in enumerate(crowd.members[:count]):
            crowd.own(member, number)
        crowd.close_headers()
        await crowd.until_all_have(count)
        assert now() < 3
        for blob in crowd.blobs[:count]:
            assert all(member.blob_store.get(blob.root) == blob for member in crowd.members)
        pieces = sum(len(member.asked) for member in crowd.members)
        least = PIECES * count * (len(crowd.members) - 1)
        assert least <= pieces <= 1.02 * least


async def test_nothing_is_shown_before_the_headers_are_closed_here_whoever_asks() -> None:
    async with crowd_of(alone(8)) as crowd:
        early, late, *others = crowd.members
        blob = crowd.blobs[0]
        crowd.own(early, 0)
        crowd.own(late, 1)
        crowd.close_headers([early, *others])
        await crowd.until_all_have(1, [early, *others])
        await asyncio.sleep(60)
        assert late.asked == []
        assert crowd.blobs[1].root not in {root for member in crowd.members for root in member.gossip_state._items if member is not late}
        for place in (HASHES, 0):
            with pytest.raises(Refused, match="not here"):
                await early.endpoint.call(late.key, METHOD, pack(AskPiece(crowd.blobs[1].root, place)), timeout_s=1)
        assert late.blob_store.get(blob.root) is None  # nor does it ask for what is shown to it: by its clock that is too early
        crowd.close_headers([late])
        await crowd.until_all_have(2)


async def test_a_body_with_an_inclusion_promise_that_comes_after_the_headers_closed_is_shown_at_once() -> None:
    async with crowd_of(alone(10)) as crowd:
        crowd.close_headers()
        await asyncio.sleep(1)
        crowd.own(crowd.members[0], 0)
        await crowd.until_all_have(1)


async def test_a_member_without_the_inclusion_promise_hands_the_cohort_s_body_out_once_it_is_told_of() -> None:
    async with crowd_of(["mine", "mine", *alone(6)]) as crowd:
        founder, member, *far = crowd.members
        crowd.own(founder, 0)
        member.gossip.know(crowd.blobs[0])
        crowd.close_headers()
        await crowd.until_all_have(1)
        assert member.key not in {caller for _, caller in founder.asked}
        assert len(founder.asked) + len(member.asked) + sum(len(one.asked) for one in far) == PIECES * len(far)
        assert await member.gossip.get(crowd.blobs[0].root, SIZES, "body") == crowd.blobs[0]


async def test_a_cohort_gets_most_bodies_from_afar_once() -> None:
    async with crowd_of(cohorts_of(4, 7)) as crowd:
        for number in range(len(FOUNDERS)):
            crowd.own(crowd.members[4 * (number % 7)], number)
        crowd.close_headers()
        await crowd.until_all_have(len(FOUNDERS))
        far = [
            (root, crowd.cohorts[caller])
            for member in crowd.members
            for root, caller in member.asked
            if crowd.cohorts[caller] != member.cohort
        ]
        least = PIECES * len(FOUNDERS) * 6
        assert least <= len(far) <= 1.5 * least  # of 4 times as many, if each got its own


def make_dead(crowd: Crowd, member: Member) -> None:
    """Take a member away, and leave its announcement."""
    del crowd.network.endpoints[member.key]


def make_silent(_crowd: Crowd, member: Member) -> None:
    """Have a member listen, and neither tell nor give."""

    async def listen(_caller: PublicKey, _request: bytes) -> bytes:
        return pack(PushAnswer(1))

    async def stall(_caller: PublicKey, _request: bytes) -> bytes:
        await asyncio.sleep(3600)
        return b""

    member.endpoint.handlers[OFFERS], member.endpoint.handlers[METHOD] = listen, stall


def make_boastful(crowd: Crowd, member: Member) -> None:
    """Have a member say that it has everything at once, and give nothing, or wrong bytes."""
    _, number = member, int.from_bytes(member.key[:2], "big")

    async def listen(_caller: PublicKey, _request: bytes) -> bytes:
        return pack(PushAnswer(1))

    async def give(_caller: PublicKey, request: bytes) -> bytes:
        if number % 2:
            raise Unreachable("not here")
        return b"wrong" * (1 + unpack(AskPiece, request, max_bytes=128).place % 3)

    async def boast(key: PublicKey) -> None:
        with contextlib.suppress(Unreachable, Refused):
            await member.endpoint.call(key, OFFERS, pack(push_of(*crowd.offers)), timeout_s=1)

    member.endpoint.handlers[OFFERS], member.endpoint.handlers[METHOD] = listen, give
    crowd.boasts += [asyncio.create_task(boast(key)) for key in crowd.cohorts]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("cohorts", [alone(28), cohorts_of(4, 7)], ids=["alone", "cohorts"])
async def test_with_a_fifth_dead_silent_or_lying_all_others_get_every_body(cohorts: list[str], seed: int) -> None:
    async with crowd_of(cohorts) as crowd:
        rng = random.Random(seed)
        bad = rng.sample(crowd.members, len(crowd.members) // 5)
        good = [member for member in crowd.members if member not in bad]
        for number, member in enumerate(bad):
            (make_dead, make_silent, make_boastful)[number % 3](crowd, member)
        for number, member in enumerate(rng.sample(good, 8)):
            crowd.own(member, number)
        crowd.close_headers(good)
        await crowd.until_all_have(8, good)
        for member in good:
            here = [number for number, blob in enumerate(crowd.blobs) if member.blob_store.get(blob.root) == blob]
            assert here == list(range(8))
        liars = {member.key for member in bad}
        assert all(set(member.gossip._wrong) <= liars for member in good)


async def test_strangers_who_flood_with_junk_are_bounded_and_others_are_served() -> None:
    async with crowd_of(alone(6)) as crowd:
        victim, other, *_ = crowd.members
        stranger = crowd.network.endpoint(PublicKey(sha256(b"stranger")))
        junk = [
            b"\x80" * 400,
            bytes(MAX_REQUEST_BYTES + 1),
            pack(push_of(offer_with(sha256(b"x"), FOUNDERS[0], signer=FOUNDERS[1]))),
            pack(push_of(offer_with(sha256(b"x"), FOUNDERS[0], run=sha256(b"another")))),
        ]
        refused = Counter[str]()
        for number in range(50):
            try:
                await stranger.call(victim.key, OFFERS, junk[number % len(junk)], timeout_s=1)
            except Refused as error:
                refused[str(error)] += 1
        assert refused.total() == 50
        assert refused["too much was wrong"] == 50 - 9
        assert victim.gossip_state._items == {}
        assert stranger.key not in victim.gossip_state.links
        assert victim.gossip.faults.by_key() == {stranger.key: {"EncodingError": 7, "SignatureError": 2}}
        crowd.own(other, 0)
        crowd.close_headers()
        await crowd.until_all_have(1)


async def test_a_flood_of_true_offers_is_bounded_by_the_rows_of_a_table() -> None:
    async with crowd_of(alone(2)) as crowd:
        victim = crowd.members[0]
        crowd.close_headers()
        crowd.network.endpoints.pop(crowd.members[1].key)
        stranger = crowd.network.endpoint(PublicKey(sha256(b"stranger")))
        for first in range(0, 60, 10):
            offers = [offer_with(sha256(b"%d" % number), FOUNDERS[number % 10]) for number in range(first, first + 10)]
            await stranger.call(victim.key, OFFERS, pack(push_of(*offers)), timeout_s=1)
        assert len(victim.gossip_state._items) == 20
        assert victim.gossip_state.outside == {"too many": 40}
        assert len(victim.gossip._getting) <= 6  # of one source


async def test_who_sends_wrong_bytes_is_not_listened_to_for_a_while() -> None:
    async with crowd_of(alone(2)) as crowd:
        victim, honest = crowd.members
        liar = crowd.network.endpoint(PublicKey(sha256(b"liar")))

        async def lie(_caller: PublicKey, _request: bytes) -> bytes:
            return bytes(64)

        await liar.serve(METHOD, lie)
        crowd.own(honest, 0)
        crowd.close_headers([victim])
        request = pack(push_of(crowd.offers[0]))
        await liar.call(victim.key, OFFERS, request, timeout_s=1)
        await asyncio.sleep(1)
        with pytest.raises(Refused, match="too much"):
            await liar.call(victim.key, OFFERS, request, timeout_s=1)
        crowd.close_headers([honest])
        await crowd.until_all_have(1)
        await asyncio.sleep(60)
        await liar.call(victim.key, OFFERS, request, timeout_s=1)


async def test_links_without_room_or_life_are_replaced() -> None:
    async with crowd_of(alone(20)) as crowd:
        one = crowd.members[0]

        async def full(_caller: PublicKey, _request: bytes) -> bytes:
            return pack(PushAnswer(0))

        crowd.own(one, 0)
        one.gossip.close_headers(1)
        first = set(one.gossip_state.links)
        assert len(first) == 3
        asked = set()
        for member in crowd.members[1:]:
            if member.key in first:
                member.endpoint.handlers[OFFERS] = full
            elif len(asked) < 3:
                asked.add(member.key)
                del crowd.network.endpoints[member.key]
        await asyncio.sleep(10)
        links = set(one.gossip_state.links)
        assert len(links) == 3
        assert not links & (first | asked)


async def test_a_round_that_nobody_handed_in_for_costs_no_calls_however_often_its_headers_are_closed() -> None:
    async with crowd_of(alone(12)) as crowd:
        crowd.close_headers()
        await asyncio.sleep(5)
        links, told = [member.gossip_state.links for member in crowd.members], [member.gossip.bytes_out for member in crowd.members]
        for _ in range(5):
            crowd.close_headers()
            await asyncio.sleep(5)
        assert [member.gossip_state.links for member in crowd.members] == links
        assert [member.gossip.bytes_out for member in crowd.members] == told
        crowd.own(crowd.members[0], 0)
        await crowd.until_all_have(1)


async def test_a_blob_of_a_commit_goes_from_link_to_link_and_the_log_is_asked_only_where_nobody_gives_it() -> None:
    """The mean: one has it from the log, the others wait for their turn there, and get it from each other before."""
    async with crowd_of(alone(20)) as crowd:
        mean = Blob.cut(random.Random(1).randbytes(400), 100)
        log, blob_store = crowd.network.endpoint(PublicKey(sha256(b"log"))), BlobStore(max_bytes=10**6)
        blob_store.put(mean, "mean")
        await blob_store.serve(log)
        crowd.close_headers()

        async def get(member: Member, turn_s: float) -> float:
            sizes = [100] * 4
            assert await member.gossip.get(mean.root, sizes, "mean", [Spare(log.key, turn_s, is_last=True)]) == mean
            return now()

        turns = [0.0] + [20.0] * (len(crowd.members) - 1)
        times = await asyncio.gather(*(get(*each) for each in zip(crowd.members, turns, strict=True)))
        assert max(times) < 2
        assert blob_store.bytes_sent == mean.size_bytes + 4 * 32
        for member in crowd.members:
            assert member.blob_store.get(mean.root) == mean


async def test_the_last_resort_is_asked_at_its_turn_when_those_who_said_they_have_it_give_nothing() -> None:
    async with crowd_of(alone(2)) as crowd:
        one, liar = crowd.members
        log, blob_store = crowd.network.endpoint(PublicKey(sha256(b"log"))), BlobStore(max_bytes=10**6)
        blob_store.put(crowd.blobs[0], "body")
        await blob_store.serve(log)
        make_silent(crowd, liar)
        crowd.close_headers()
        await liar.endpoint.call(one.key, OFFERS, pack(push_of(crowd.offers[0])), timeout_s=1)
        began = now()
        assert await one.gossip.get(crowd.blobs[0].root, SIZES, "body", [Spare(log.key, 3.0, is_last=True)]) == crowd.blobs[0]
        assert 3.0 <= now() - began < 4.0
        assert one.gossip_state.num_held(1) == 1


async def test_two_who_want_the_same_blob_get_it_once_and_who_gives_up_ends_what_nobody_wants() -> None:
    async with crowd_of(alone(2)) as crowd:
        one, other = crowd.members
        blob = crowd.blobs[0]
        other.blob_store.put(blob, "mean")
        wants = [asyncio.create_task(one.gossip.get(blob.root, SIZES, "mean", [Spare(other.key, 0.0)])) for _ in range(3)]
        await asyncio.sleep(0.01)
        wants[0].cancel()
        assert await wants[1] == await wants[2] == blob
        assert len(other.asked) == PIECES
        nobody = asyncio.create_task(one.gossip.get(sha256(b"nothing"), SIZES, "mean"))
        await asyncio.sleep(10)
        nobody.cancel()
        await asyncio.sleep(0)
        assert one.gossip._getting == {}
        with pytest.raises(Unreachable, match="nobody is left"):
            await one.gossip.get(sha256(b"nothing"), SIZES, "mean", [Spare(other.key, 0.0, is_last=True)])


async def test_rounds_that_are_over_are_forgotten_with_what_was_on_its_way() -> None:
    async with crowd_of(alone(2)) as crowd:
        one, stalling = crowd.members
        make_silent(crowd, stalling)
        crowd.close_headers()
        await stalling.endpoint.call(one.key, OFFERS, pack(push_of(*crowd.offers)), timeout_s=1)
        assert len(one.gossip._getting) == 6
        one.gossip.commit(2)
        await asyncio.sleep(0.1)
        assert one.gossip._getting == {}
        assert one.gossip_state._items == {}


async def test_bytes_are_counted_at_both_ends() -> None:
    async with crowd_of(alone(8)) as crowd:
        crowd.own(crowd.members[0], 0)
        crowd.close_headers()
        await crowd.until_all_have(1)
        await asyncio.sleep(1)
        received = sum(member.gossip.bytes_in for member in crowd.members)
        sent = sum(member.gossip.bytes_out + member.blob_store.bytes_sent for member in crowd.members)
        assert sent == received + 7 * PIECES * 32  # hashes are no blob
        assert sum((member.gossip_state.hops for member in crowd.members), Counter()).total() == 7


def test_a_push_is_what_it_says(  # the request's bound leaves room for the roots
) -> None:
    longest = Push((), tuple(bytes([place]) * 32 for place in range(128)), tuple(bytes([place]) * 32 for place in range(128, 256)))
    assert len(pack(longest)) < 16 * 1024
    assert isinstance(offer_with(sha256(b"x"), FOUNDERS[0]), BodyOffer)
