"""Who is a mate: peers that prove to each other that they hold the cohort's token, and tell each other how to be linked."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.network import near_mates
from manta_swarm.network.links import Greeting, Links
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.near_mates import Hello, Mates
from manta_swarm.network.rpc import LIBP2P, UNIX, Refused
from manta_swarm.protocol.cohorts import mate_proof
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.clock import Clock
from tests.network.members import PEERS, settle
from tests.network.virtual_time import LOOP_CLOCK, run_virtual

TOKEN, RUN = b"t" * 32, b"r" * 32
ANNA, BOB, CAROL = (peer.public_key for peer in PEERS[:3])
DEADLINE_S = 60.0
PERIOD_S = 10.0
GREETING = Greeting(b"certificate", ())


class Club:
    """Anna, Bob and Carol, and who of them has which token."""

    def __init__(self, tokens: dict[PublicKey, bytes], clock: Clock = LOOP_CLOCK) -> None:
        self.network = MemoryNetwork()
        self.mates: dict[PublicKey, Mates] = {}
        self.links: dict[PublicKey, Links] = {}
        for key, token in tokens.items():
            endpoint = self.network.endpoint(key)
            self.links[key] = Links(endpoint, RUN)
            self.mates[key] = Mates(endpoint, self.links[key], RUN, "here", token, clock)

    async def start(self) -> None:
        for key in self.mates:
            await self.links[key].start()
            await self.mates[key].start()

    async def close(self) -> None:
        for key in self.mates:
            await self.links[key].close()
            await self.mates[key].close()


def with_club(story: Callable[[Club], Any], **tokens: bytes) -> None:
    async def whole() -> None:
        names = {"anna": ANNA, "bob": BOB, "carol": CAROL}
        club = Club({names[name]: token for name, token in (tokens or {"anna": TOKEN, "bob": TOKEN}).items()})
        await club.start()
        await story(club)
        await club.close()
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(whole())


def test_one_hello_makes_both_mates() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB], PERIOD_S)
        assert club.mates[ANNA].fresh() == (BOB,)
        assert club.mates[BOB].fresh() == (ANNA,)

    with_club(story)


def test_who_has_another_token_is_no_mate() -> None:
    async def story(club: Club) -> None:
        await club.mates[CAROL].meet([ANNA, BOB], PERIOD_S)
        await club.mates[ANNA].meet([BOB, CAROL], PERIOD_S)
        await settle()
        assert club.mates[ANNA].fresh() == (BOB,)
        assert club.mates[CAROL].fresh() == ()
        assert not club.mates[ANNA].knows(CAROL)
        assert club.mates[ANNA].refused > 0

    with_club(story, anna=TOKEN, bob=TOKEN, carol=b"x" * 32)


def test_a_proof_that_was_overheard_is_of_no_use() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB], PERIOD_S)
        carol = club.network.endpoint(CAROL)
        for overheard in ((ANNA, BOB), (BOB, ANNA)):
            request = pack(Hello(mate_proof(TOKEN, RUN, "here", *overheard), GREETING))
            for callee in (ANNA, BOB):
                with pytest.raises(Refused, match="no proof"):
                    await carol.call(callee, near_mates.METHOD, request, timeout_s=1.0)
        assert not club.mates[BOB].knows(CAROL)

    with_club(story)


def test_a_stranger_that_throws_the_proof_back_is_no_mate() -> None:
    async def story(club: Club) -> None:
        async def echo(_caller: PublicKey, request: bytes) -> bytes:
            return pack(Hello(unpack(Hello, request, max_bytes=4000).proof, GREETING))

        carol = club.network.endpoint(CAROL)
        await carol.serve(near_mates.METHOD, echo)
        await club.mates[ANNA].meet([CAROL], PERIOD_S)
        assert club.mates[ANNA].fresh() == ()

    with_club(story)


def test_a_mate_that_is_silent_is_forgotten_after_a_while() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB], PERIOD_S)
        del club.network.endpoints[BOB]
        for _ in range(5):
            await asyncio.sleep(10)
            await club.mates[ANNA].meet([], PERIOD_S)
        assert club.mates[ANNA].knows(BOB)
        await asyncio.sleep(11)
        assert not club.mates[ANNA].knows(BOB)
        assert club.mates[ANNA].fresh() == ()

    with_club(story)


def test_who_says_goodbye_is_no_mate_any_more_and_may_come_back() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB, CAROL], PERIOD_S)
        del club.network.endpoints[CAROL]  # who is gone already is no harm
        await club.mates[ANNA].leave()
        assert club.mates[BOB].fresh() == ()
        await club.mates[ANNA].meet([BOB], PERIOD_S)
        assert club.mates[BOB].fresh() == (ANNA,)

    with_club(story, anna=TOKEN, bob=TOKEN, carol=TOKEN)


def test_a_mate_is_met_again_without_being_announced() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB], PERIOD_S)
        for _ in range(20):
            await asyncio.sleep(10)
            await club.mates[ANNA].meet([], PERIOD_S)
        assert club.mates[ANNA].knows(BOB)
        assert club.mates[BOB].knows(ANNA)

    with_club(story)


@pytest.mark.parametrize("answer", [b"", b"\x80", b"x" * 10_000, pack(Hello(b"p" * 32, GREETING))])
def test_an_answer_that_is_no_proof_is_nobody_s_harm(answer: bytes) -> None:
    async def story(club: Club) -> None:
        async def nonsense(_caller: PublicKey, _request: bytes) -> bytes:
            return answer

        await club.network.endpoint(CAROL).serve(near_mates.METHOD, nonsense)
        await club.mates[ANNA].meet([CAROL, BOB], PERIOD_S)
        assert club.mates[ANNA].fresh() == (BOB,)

    with_club(story)


def test_there_is_no_end_of_room_for_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_mates, "MAX_MATES", 1)

    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB], PERIOD_S)
        await club.mates[CAROL].meet([ANNA], PERIOD_S)
        assert club.mates[ANNA].fresh() == (BOB,)

    with_club(story, anna=TOKEN, bob=TOKEN, carol=TOKEN)


# Real nodes.


async def echo(caller: PublicKey, request: bytes) -> bytes:
    return caller + request


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_mates_meet_over_real_connections_and_are_linked_on_their_host(tmp_path: Path) -> None:
    from manta_swarm.network.node import Node
    from tests.network.nodes import until, with_nodes

    async def work(first: Node, second: Node) -> None:
        both = []
        for node in (first, second):
            links = Links(node, RUN)
            mates = Mates(node, links, RUN, "here", TOKEN)
            await links.start()
            await mates.start()
            both.append((links, mates))
        await both[0][1].meet([second.key], PERIOD_S)
        await both[1][1].meet([first.key], PERIOD_S)
        assert both[0][1].fresh() == (second.key,)
        await until(lambda: LIBP2P not in (both[0][0].way(second.key), both[1][0].way(first.key)))
        assert both[0][0].way(second.key) == both[1][0].way(first.key) == UNIX
        await both[1][0].serve("echo", echo)
        assert await both[0][0].call(second.key, "echo", b"hello", timeout_s=DEADLINE_S) == first.key + b"hello"
        for links, mates in both:
            await links.close()
            await mates.close()

    with_nodes(tmp_path, 2, work)
