"""Direct links between peers of a cohort, over real sockets: by Unix socket and by TLS; what strangers get; what is left behind."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manta_swarm.network import link as link_module
from manta_swarm.network import links as links_module
from manta_swarm.network import timeouts
from manta_swarm.network.link import CHUNK_VALUES, TAG_BYTES
from manta_swarm.network.link_certificate import LinkCertificate
from manta_swarm.network.links import Greeting, Links
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rpc import LIBP2P, MAX_MESSAGE_BYTES, TLS, UNIX, Refused
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, Unreachable
from manta_swarm.protocol.signing import PublicKey
from tests.network.members import PEERS
from tests.runtime.forked_child import forked_program

RUN, TAG = b"r" * 32, b"t" * TAG_BYTES
KEYS = sorted(peer.public_key for peer in PEERS[:3])
ANNA, BOB, CAROL = KEYS  # the smaller key dials
DEADLINE_S = 60.0
WAYS = [pytest.param(UNIX, marks=pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets that show who calls")), TLS]


class Inbox:
    """Takes vectors of some length, one of each sender and turn."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.vectors: dict[tuple[PublicKey, int], Any] = {}
        self.values: dict[tuple[PublicKey, int], int] = {}
        self.refused: str = ""

    def buffer(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> memoryview | None:
        if self.refused:
            raise EncodingError(self.refused)
        vector = self.vectors.setdefault((sender, turn), np.zeros(self.count, "<f4"))
        return memoryview(vector[first : first + num_bytes // 4].data).cast("B")

    def received(self, sender: PublicKey, turn: int, first: int, num_bytes: int) -> None:
        self.values[sender, turn] = self.values.get((sender, turn), 0) + num_bytes // 4


class Pair:
    """Anna and Bob, who know each other's greetings."""

    def __init__(self, way: str) -> None:
        self.network = MemoryNetwork()
        self.ends: dict[PublicKey, MemoryEndpoint] = {key: self.network.endpoint(key) for key in (ANNA, BOB)}
        for end in self.ends.values():
            end.listens_at, end.hosts = ["/ip4/127.0.0.1/tcp/1"], ["127.0.0.1"]
        self.links = {key: Links(end, RUN, ways=[way]) for key, end in self.ends.items()}

    async def start(self) -> None:
        for links in self.links.values():
            await links.start()

    async def meet(self, changed: Callable[[Greeting], Greeting] = lambda greeting: greeting) -> None:
        """Let both know of each other, and link themselves if they can; ``changed`` is what Bob says to Anna."""
        self.links[BOB].learn(ANNA, self.links[ANNA].greeting(BOB))
        self.links[ANNA].learn(BOB, changed(self.links[BOB].greeting(ANNA)))
        for links in self.links.values():
            await settled(links)

    async def close(self) -> None:
        for links in self.links.values():
            await links.close()


@contextlib.asynccontextmanager
async def pair_by(way: str, *, is_met: bool = True) -> AsyncIterator[Pair]:
    """Yield a pair; one that has met is linked, and nothing goes by libp2p."""
    pair = Pair(way)
    await pair.start()
    try:
        if is_met:
            await pair.meet()
            assert pair.links[ANNA].way(BOB) == pair.links[BOB].way(ANNA) == way
            pair.network.lost = lambda *_: True
        yield pair
    finally:
        await pair.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - of many kinds, and the deadline is the story's
        await asyncio.sleep(0.01)


async def settled(links: Links) -> None:
    """Wait until no link is being made any more."""
    if dialling := [peer.dialling for peer in links._peers.values() if peer.dialling is not None]:
        await asyncio.wait(dialling)


async def echo(caller: PublicKey, request: bytes) -> bytes:
    return caller + request


def vector_of(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(count).astype("<f4")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 1, 70_000, MAX_MESSAGE_BYTES - 40])
async def test_calls_go_by_the_link_in_both_directions(way: str, size: int) -> None:
    async with pair_by(way) as pair:
        for caller, callee in ((ANNA, BOB), (BOB, ANNA)):
            await pair.links[callee].serve("echo", echo)
            request = os.urandom(size)
            assert await pair.links[caller].call(callee, "echo", request, timeout_s=DEADLINE_S) == caller + request


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, CHUNK_VALUES, 20 * CHUNK_VALUES + 7])
async def test_vectors_arrive_as_they_are_while_calls_go_on(way: str, count: int) -> None:
    async with pair_by(way) as pair:
        vector, inbox = vector_of(count), Inbox(count)
        pair.links[BOB].receive(TAG, inbox)
        await pair.links[BOB].serve("echo", echo)
        sending = pair.links[ANNA].send(BOB, TAG, 3, 0, vector.data.cast("B"), timeout_s=DEADLINE_S)
        await asyncio.gather(sending, *(pair.links[ANNA].call(BOB, "echo", b"x" * 100, timeout_s=DEADLINE_S) for _ in range(20)))
        await until(lambda: inbox.values.get((ANNA, 3)) == count)
        assert inbox.vectors[ANNA, 3].tobytes() == vector.tobytes()


@pytest.mark.parametrize("way", WAYS)
async def test_a_vector_that_comes_before_it_is_expected_waits_and_nothing_is_lost(way: str) -> None:
    async with pair_by(way) as pair:
        vector, inbox = vector_of(5 * CHUNK_VALUES), Inbox(5 * CHUNK_VALUES)
        sending = asyncio.create_task(pair.links[ANNA].send(BOB, TAG, 0, 0, vector.data.cast("B"), timeout_s=DEADLINE_S))
        await asyncio.sleep(0.1)  # until Bob's side has read the first header
        pair.links[BOB].receive(TAG, inbox)
        await sending
        await until(lambda: inbox.values.get((ANNA, 0)) == len(vector))
        assert inbox.vectors[ANNA, 0].tobytes() == vector.tobytes()


@pytest.mark.parametrize("way", WAYS)
async def test_a_vector_that_is_over_is_dropped_and_the_link_stays(way: str) -> None:
    async with pair_by(way) as pair:
        pair.links[BOB].receive(TAG, Inbox(10))
        pair.links[BOB].receive_no_more(TAG)
        await pair.links[BOB].serve("echo", echo)
        await pair.links[ANNA].send(BOB, TAG, 0, 0, vector_of(3 * CHUNK_VALUES).data.cast("B"), timeout_s=DEADLINE_S)
        assert await pair.links[ANNA].call(BOB, "echo", b"", timeout_s=DEADLINE_S) == ANNA


@pytest.mark.parametrize("way", WAYS)
async def test_who_sends_what_nobody_waits_for_is_cut_off_and_counted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LINK_CHUNK_S", 0.05)
    async with pair_by(way) as pair:
        await pair.links[ANNA].send(BOB, TAG, 0, 0, vector_of(10).data.cast("B"), timeout_s=DEADLINE_S)
        await until(lambda: sum(pair.links[BOB].faults.values()) == 1)
        assert pair.links[BOB].way(ANNA) == LIBP2P


@pytest.mark.parametrize("way", WAYS)
async def test_who_sends_what_its_receiver_refuses_is_cut_off_and_counted(way: str) -> None:
    async with pair_by(way) as pair:
        inbox = Inbox(10)
        inbox.refused = "twice"
        pair.links[BOB].receive(TAG, inbox)
        await pair.links[ANNA].send(BOB, TAG, 0, 0, vector_of(10).data.cast("B"), timeout_s=DEADLINE_S)
        await until(lambda: pair.links[BOB].faults["links"] == 1)
        await until(lambda: pair.links[BOB].way(ANNA) == LIBP2P == pair.links[ANNA].way(BOB))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "frame",
    [
        link_module._HEADER.pack(9, 1, 0, TAG, 0, 0),
        link_module._HEADER.pack(link_module._CALL, 1, 2**31, TAG, 0, 0),
        link_module._HEADER.pack(link_module._CHUNK, 0, 2**24, TAG, 0, 0),
        link_module._HEADER.pack(link_module._CHUNK, 0, 3, TAG, 0, 0) + b"abc",
        link_module._HEADER.pack(link_module._CHUNK, 0, 0, TAG, 0, 0),
        link_module._HEADER.pack(link_module._CALL, 1, 0, TAG, 0, 0),
        link_module._HEADER.pack(link_module._CALL, 1, 3, TAG, 0, 0) + b"\x02\xff\xff",
    ],
)
async def test_a_frame_that_none_may_be_ends_the_link(way: str, frame: bytes) -> None:
    async with pair_by(way) as pair:
        pair.links[BOB].receive(TAG, Inbox(10))
        connection = pair.links[ANNA]._peers[BOB].link
        assert connection is not None
        assert connection._transport is not None
        connection._transport.write(frame)
        await until(lambda: sum(pair.links[BOB].faults.values()) == 1)
        await until(lambda: pair.links[BOB].way(ANNA) == LIBP2P == pair.links[ANNA].way(BOB))


@pytest.mark.parametrize("way", WAYS)
async def test_a_refusal_is_one_and_an_unknown_method_too(way: str) -> None:
    async with pair_by(way) as pair:

        async def refuse(_caller: PublicKey, _request: bytes) -> bytes:
            raise EncodingError("not\x1b this")

        await pair.links[BOB].serve("refuse", refuse)
        with pytest.raises(Refused, match=r"not\? this"):
            await pair.links[ANNA].call(BOB, "refuse", b"", timeout_s=DEADLINE_S)
        with pytest.raises(Refused, match="no such method"):
            await pair.links[ANNA].call(BOB, "nothing", b"", timeout_s=DEADLINE_S)


@pytest.mark.parametrize("way", WAYS)
async def test_who_does_not_answer_is_waited_for_until_the_deadline_and_worked_no_more_for(way: str) -> None:
    async with pair_by(way) as pair:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def hang(_caller: PublicKey, _request: bytes) -> bytes:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return b""

        await pair.links[BOB].serve("hang", hang)
        with pytest.raises(Unreachable, match="did not answer"):
            await pair.links[ANNA].call(BOB, "hang", b"", timeout_s=0.2)
        assert begun.is_set()
        await ended.wait()


@pytest.mark.parametrize("way", WAYS)
async def test_who_hangs_up_is_noticed_at_once_and_linked_again_with_the_next_greeting(way: str) -> None:
    async with pair_by(way) as pair:

        async def hang(_caller: PublicKey, _request: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        await pair.links[BOB].serve("hang", hang)
        calling = asyncio.create_task(pair.links[ANNA].call(BOB, "hang", b"", timeout_s=DEADLINE_S))
        await asyncio.sleep(0.05)
        link = pair.links[BOB]._peers[ANNA].link
        assert link is not None
        link.close()
        with pytest.raises(Unreachable, match="hung up"):
            await calling
        await until(lambda: pair.links[ANNA].way(BOB) == LIBP2P)
        await pair.meet()
        assert pair.links[ANNA].way(BOB) == pair.links[BOB].way(ANNA) == way


async def test_a_certificate_of_another_key_makes_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LINK_S", 0.1)
    async with pair_by(TLS, is_met=False) as pair:
        other = LinkCertificate().der
        await pair.meet(lambda greeting: replace(greeting, certificate=other))
        assert pair.links[ANNA].way(BOB) == LIBP2P


async def test_who_shows_another_certificate_than_its_greeting_said_makes_no_link() -> None:
    async with pair_by(TLS, is_met=False) as pair:
        pair.links[ANNA]._certificate = LinkCertificate()
        pair.links[BOB].learn(ANNA, replace(pair.links[ANNA].greeting(BOB), certificate=LinkCertificate().der, places=()))
        pair.links[ANNA].learn(BOB, pair.links[BOB].greeting(ANNA))
        await settled(pair.links[ANNA])
        await until(lambda: pair.links[BOB].faults["connections"] > 0)
        assert pair.links[BOB].way(ANNA) == LIBP2P


async def test_a_greeting_with_nonsense_for_a_certificate_makes_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LINK_S", 0.1)
    async with pair_by(TLS, is_met=False) as pair:
        await pair.meet(lambda greeting: replace(greeting, certificate=b"nonsense"))
        assert pair.links[ANNA].way(BOB) == LIBP2P


@pytest.mark.parametrize("way", WAYS)
async def test_a_stranger_at_the_socket_is_sent_away(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_by(way) as pair:
        monkeypatch.setattr(timeouts, "LINK_S", 0.1)
        listening, loop = pair.links[BOB]._listening[0], asyncio.get_running_loop()

        async def come(said: bytes) -> None:
            with socket.socket(listening.family, socket.SOCK_STREAM) as stranger:
                stranger.setblocking(False)
                await loop.sock_connect(stranger, listening.getsockname())
                with contextlib.suppress(OSError):
                    await loop.sock_sendall(stranger, said)
                    while await loop.sock_recv(stranger, 100):
                        pass

        await asyncio.gather(*map(come, (b"", b"short", CAROL + b"s" * 32, ANNA + b"s" * 32, os.urandom(1000))))
        assert pair.links[BOB].way(ANNA) == way  # the true one's stays
        await until(lambda: pair.links[BOB].faults["connections"] == 5)


@pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets that show who calls")
async def test_another_user_s_process_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    monkeypatch.setattr(timeouts, "LINK_S", 0.1)
    async with pair_by(UNIX, is_met=False) as pair:
        await pair.meet()
        assert pair.links[ANNA].way(BOB) == LIBP2P


async def test_only_addresses_that_may_be_dialled_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LINK_S", 0.1)
    async with pair_by(TLS, is_met=False) as pair:
        dialled = []
        dial_at = Links._dial_at

        async def noted(self: Links, key: PublicKey, greeting: Greeting, place: Any) -> None:
            dialled.append(place)
            await dial_at(self, key, greeting, place)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Links, "_dial_at", noted)
            pair.ends[ANNA].hosts = ["203.0.113.7"]
            for end in pair.ends.values():
                end.hosts = ["198.51.100.1"]  # it is seen from there, and so is on no private network of ours
            await pair.meet(lambda greeting: replace(greeting, places=(("127.0.0.1", 9), ("10.0.0.1", 9), ("192.168.7.7", 22))))
        assert dialled == []
        assert pair.links[ANNA].way(BOB) == LIBP2P


@pytest.mark.parametrize(
    "make",
    [
        lambda: Greeting(b"", ()),
        lambda: Greeting(b"c" * 2000, ()),
        lambda: Greeting(b"c", (("127.0.0.1", 1),) * 9),
        lambda: Greeting(b"c", (("no address", 1),)),
        lambda: Greeting(b"c", (("127.0.0.1", 0),)),
        lambda: Greeting(b"c", (), b"h" * 16),
        lambda: Greeting(b"c", (), b"h" * 16, b"s" * 16, b"k"),
    ],
)
def test_a_greeting_that_means_nothing_is_refused(make: Callable[[], Greeting]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


async def test_who_is_not_linked_is_called_and_sent_to_by_libp2p() -> None:
    async with pair_by(TLS, is_met=False) as pair:
        vector, inbox = vector_of(40 * CHUNK_VALUES + 3), Inbox(40 * CHUNK_VALUES + 3)
        await pair.links[BOB].serve("echo", echo)
        assert await pair.links[ANNA].call(BOB, "echo", b"x", timeout_s=DEADLINE_S) == ANNA + b"x"
        sending = asyncio.create_task(pair.links[ANNA].send(BOB, TAG, 0, 0, vector.data.cast("B"), timeout_s=DEADLINE_S))
        await asyncio.sleep(0.05)
        pair.links[BOB].receive(TAG, inbox)
        await sending
        assert inbox.vectors[ANNA, 0].tobytes() == vector.tobytes()
        with pytest.raises(Refused, match="a chunk of"):
            await pair.ends[ANNA].call(BOB, links_module.CHUNK, b"x" * 27, timeout_s=DEADLINE_S)


async def test_what_goes_over_the_network_is_counted_and_held_back_where_there_is_a_limit() -> None:
    async with pair_by(TLS) as pair:
        vector, inbox = vector_of(8 * CHUNK_VALUES), Inbox(8 * CHUNK_VALUES)
        pair.links[BOB].receive(TAG, inbox)
        await pair.links[ANNA].send(BOB, TAG, 0, 0, vector.data.cast("B"), timeout_s=DEADLINE_S)
        await until(lambda: inbox.values.get((ANNA, 0)) == len(vector))
        assert pair.ends[ANNA].traffic.sent.total == vector.nbytes
        assert vector.nbytes <= pair.ends[BOB].traffic.received.total < vector.nbytes * 1.01
        pair.ends[ANNA].traffic.sent.limit = 4 * vector.nbytes  # bytes a second
        pair.ends[BOB].traffic.received.limit = 4 * vector.nbytes
        begun = asyncio.get_running_loop().time()
        for turn in (1, 2):
            await pair.links[ANNA].send(BOB, TAG, turn, 0, vector.data.cast("B"), timeout_s=DEADLINE_S)
        await until(lambda: inbox.values.get((ANNA, 2)) == len(vector))
        assert asyncio.get_running_loop().time() - begun > 0.2  # half a second's bytes, half of which may come at once


@pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets that show who calls")
async def test_on_one_host_nothing_is_counted() -> None:
    async with pair_by(UNIX) as pair:
        await pair.links[BOB].serve("echo", echo)
        await pair.links[ANNA].call(BOB, "echo", b"x" * 1000, timeout_s=DEADLINE_S)
        assert pair.ends[ANNA].traffic.sent.total == pair.ends[BOB].traffic.received.total == 0


@pytest.mark.skipif(sys.platform != "linux", reason="files are counted in /proc")
@pytest.mark.parametrize("way", WAYS)
async def test_links_leave_no_files_open(way: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        pair = Pair(way)
        await pair.start()
        await pair.meet()
        await pair.close()
    await asyncio.sleep(0)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_nothing_but_tls_1_3_is_spoken() -> None:
    async with pair_by(TLS) as pair:
        listening = pair.links[BOB]._listening[0]

        def old() -> str:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with socket.create_connection(listening.getsockname(), timeout=10) as connection:
                connection.sendall(ANNA)
                try:
                    with context.wrap_socket(connection) as tls:
                        return str(tls.version())
                except (ssl.SSLError, OSError):
                    return "refused"

        assert await asyncio.to_thread(old) == "refused"


@pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets that show who calls")
async def test_a_process_that_is_killed_is_noticed_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    links, log = Links(MemoryNetwork().endpoint(ANNA), RUN, ways=[UNIX]), tmp_path / "log"
    await links.start()
    words = [part.hex() for part in (RUN, ANNA, BOB, pack(links.greeting(BOB)))]
    other = forked_program(log, "tests.network.lone_link", *words).process
    try:
        await until(lambda: log.exists() and log.read_text().endswith("\n"))
        greeting = unpack(Greeting, bytes.fromhex(log.read_text()), max_bytes=4096)
        links.learn(BOB, greeting)
        await settled(links)
        assert links.way(BOB) == UNIX
        calling = asyncio.create_task(links.call(BOB, "hang", b"", timeout_s=DEADLINE_S))
        await asyncio.sleep(0.05)
    finally:
        other.kill()
    with pytest.raises(Unreachable, match="hung up"):
        await calling
    await asyncio.to_thread(other.wait)
    assert f"manta-link-{greeting.socket.hex()}" not in await asyncio.to_thread(Path("/proc/net/unix").read_text)
    await links.close()
