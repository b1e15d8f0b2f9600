"""Who is a cohort peer: peers that prove to each other that they hold the cohort's token, and tell each other how to be linked."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.network import near_cohort_peers
from manta_swarm.network.links import Greeting, Links
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.near_cohort_peers import CohortPeers, Hello
from manta_swarm.network.rpc import LIBP2P, UNIX, Refused
from manta_swarm.protocol.cohorts import cohort_peer_proof
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import Clock
from tests.network.members import PEERS, settle
from tests.network.virtual_time import LOOP_CLOCK

TOKEN, RUN = b"t" * 32, b"r" * 32
ANNA, BOB, CAROL = (peer.public_key for peer in PEERS[:3])
DEADLINE_S = 60.0
PERIOD_S = 10.0
GREETING = Greeting(b"certificate", ())
pytestmark = pytest.mark.virtual_time


class Club:
    """Anna, Bob and Carol, and who of them has which token."""

    def __init__(self, tokens: dict[PublicKey, bytes], clock: Clock = LOOP_CLOCK) -> None:
        self.network = MemoryNetwork()
        self.cohort_peers: dict[PublicKey, CohortPeers] = {}
        self.links: dict[PublicKey, Links] = {}
        for key, token in tokens.items():
            endpoint = self.network.endpoint(key)
            self.links[key] = Links(endpoint, RUN)
            self.cohort_peers[key] = CohortPeers(endpoint, self.links[key], RUN, "here", token, clock)

    async def __aenter__(self) -> "Club":
        for key in self.cohort_peers:
            await self.links[key].start()
            await self.cohort_peers[key].start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for key in self.cohort_peers:
            await self.links[key].close()
            await self.cohort_peers[key].close()
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def club() -> Club:
    return Club({ANNA: TOKEN, BOB: TOKEN})


@pytest.fixture
def three() -> Club:
    return Club({ANNA: TOKEN, BOB: TOKEN, CAROL: TOKEN})


async def test_one_hello_makes_both_cohort_peers(club: Club) -> None:
    await club.cohort_peers[ANNA].meet([BOB], PERIOD_S)
    assert club.cohort_peers[ANNA].fresh() == (BOB,)
    assert club.cohort_peers[BOB].fresh() == (ANNA,)


async def test_who_has_another_token_is_no_cohort_peer() -> None:
    async with Club({ANNA: TOKEN, BOB: TOKEN, CAROL: b"x" * 32}) as club:
        await club.cohort_peers[CAROL].meet([ANNA, BOB], PERIOD_S)
        await club.cohort_peers[ANNA].meet([BOB, CAROL], PERIOD_S)
        await settle()
        assert club.cohort_peers[ANNA].fresh() == (BOB,)
        assert club.cohort_peers[CAROL].fresh() == ()
        assert not club.cohort_peers[ANNA].knows(CAROL)
        assert club.cohort_peers[ANNA].refused > 0


async def test_a_proof_that_was_overheard_is_of_no_use(club: Club) -> None:
    await club.cohort_peers[ANNA].meet([BOB], PERIOD_S)
    carol = club.network.endpoint(CAROL)
    for overheard in ((ANNA, BOB), (BOB, ANNA)):
        request = pack(Hello(cohort_peer_proof(TOKEN, RUN, "here", *overheard), GREETING))
        for callee in (ANNA, BOB):
            with pytest.raises(Refused, match="no proof"):
                await carol.call(callee, near_cohort_peers.METHOD, request, timeout_s=1.0)
    assert not club.cohort_peers[BOB].knows(CAROL)


async def test_a_stranger_that_throws_the_proof_back_is_no_cohort_peer(club: Club) -> None:
    async def echo(_caller: PublicKey, request: bytes) -> bytes:
        return pack(Hello(unpack(Hello, request, max_bytes=4000).proof, GREETING))

    carol = club.network.endpoint(CAROL)
    await carol.serve(near_cohort_peers.METHOD, echo)
    await club.cohort_peers[ANNA].meet([CAROL], PERIOD_S)
    assert club.cohort_peers[ANNA].fresh() == ()


async def test_a_cohort_peer_that_is_silent_is_forgotten_after_a_while(club: Club) -> None:
    await club.cohort_peers[ANNA].meet([BOB], PERIOD_S)
    del club.network.endpoints[BOB]
    for _ in range(5):
        await asyncio.sleep(10)
        await club.cohort_peers[ANNA].meet([], PERIOD_S)
    assert club.cohort_peers[ANNA].knows(BOB)
    await asyncio.sleep(11)
    assert not club.cohort_peers[ANNA].knows(BOB)
    assert club.cohort_peers[ANNA].fresh() == ()


async def test_who_says_goodbye_is_no_cohort_peer_any_more_and_may_come_back(three: Club) -> None:
    await three.cohort_peers[ANNA].meet([BOB, CAROL], PERIOD_S)
    del three.network.endpoints[CAROL]  # who is gone already is no harm
    await three.cohort_peers[ANNA].leave()
    assert three.cohort_peers[BOB].fresh() == ()
    await three.cohort_peers[ANNA].meet([BOB], PERIOD_S)
    assert three.cohort_peers[BOB].fresh() == (ANNA,)


async def test_a_cohort_peer_is_met_again_without_being_announced(club: Club) -> None:
    await club.cohort_peers[ANNA].meet([BOB], PERIOD_S)
    for _ in range(20):
        await asyncio.sleep(10)
        await club.cohort_peers[ANNA].meet([], PERIOD_S)
    assert club.cohort_peers[ANNA].knows(BOB)
    assert club.cohort_peers[BOB].knows(ANNA)


@pytest.mark.parametrize("answer", [b"", b"\x80", b"x" * 10_000, pack(Hello(b"p" * 32, GREETING))])
async def test_an_answer_that_is_no_proof_is_nobody_s_harm(answer: bytes, club: Club) -> None:
    async def nonsense(_caller: PublicKey, _request: bytes) -> bytes:
        return answer

    await club.network.endpoint(CAROL).serve(near_cohort_peers.METHOD, nonsense)
    await club.cohort_peers[ANNA].meet([CAROL, BOB], PERIOD_S)
    assert club.cohort_peers[ANNA].fresh() == (BOB,)


async def test_there_is_no_end_of_room_for_cohort_peers(three: Club, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_cohort_peers, "MAX_COHORT_PEERS", 1)
    await three.cohort_peers[ANNA].meet([BOB], PERIOD_S)
    await three.cohort_peers[CAROL].meet([ANNA], PERIOD_S)
    assert three.cohort_peers[ANNA].fresh() == (BOB,)


# Real nodes.


async def echo(caller: PublicKey, request: bytes) -> bytes:
    return caller + request


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_cohort_peers_meet_over_real_connections_and_are_linked_on_their_host(tmp_path: Path) -> None:
    from manta_swarm.network.node import Node
    from tests.network.nodes import until, with_nodes

    async def work(first: Node, second: Node) -> None:
        both = []
        for node in (first, second):
            links = Links(node, RUN)
            cohort_peers = CohortPeers(node, links, RUN, "here", TOKEN)
            await links.start()
            await cohort_peers.start()
            both.append((links, cohort_peers))
        await both[0][1].meet([second.key], PERIOD_S)
        await both[1][1].meet([first.key], PERIOD_S)
        assert both[0][1].fresh() == (second.key,)
        await until(lambda: LIBP2P not in (both[0][0].way(second.key), both[1][0].way(first.key)))
        assert both[0][0].way(second.key) == both[1][0].way(first.key) == UNIX
        await both[1][0].serve("echo", echo)
        assert await both[0][0].call(second.key, "echo", b"hello", timeout_s=DEADLINE_S) == first.key + b"hello"
        for links, cohort_peers in both:
            await links.close()
            await cohort_peers.close()

    with_nodes(tmp_path, 2, work)
