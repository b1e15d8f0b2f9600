"""Vectors between mates: through memory that they share, or over the network; who is a mate; calls at a door on the same host."""

import asyncio
import fcntl
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cohorts import mate_proof
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, Unreachable
from protocol.signing import PublicKey
from swarm import handles, near, near_mates
from swarm.handles import ID_BYTES, Handle, Memory, read
from swarm.memory import MemoryNetwork
from swarm.near import AskPart, Offer, Vectors
from swarm.near_calls import Call, Door, NearCalls, _path, _read, _write
from swarm.near_mates import Hello, HelloAnswer, Mates
from swarm.rpc import Refused
from tests.swarm.members import PEERS, run, settle
from tests.swarm.virtual_time import now, run_virtual

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = b"i" * ID_BYTES
DATA = bytes(range(256)) * 40
TOKEN, RUN = b"t" * 32, b"r" * 32
ANNA, BOB, CAROL = (peer.public_key for peer in PEERS[:3])
DEADLINE_S = 60.0

linux = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")


def vector_of(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


# Shared memory.


@contextmanager
def other_process(code: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run ``code`` in a process of its own; it is gone at the end."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        watch = threading.Timer(DEADLINE_S, process.kill)
        watch.start()
        try:
            yield process
        finally:
            watch.cancel()
            process.kill()


OWNER = """
import sys
from swarm.handles import Memory
memory = Memory.of(b"i" * 16, [memoryview(bytes(range(256)) * 40)])
print(memory.handle.pid, memory.handle.descriptor, flush=True)
sys.stdin.read()
"""

READER = """
import hashlib, sys
from swarm.handles import Handle, read
data = read(Handle(int(sys.argv[1]), int(sys.argv[2])), b"i" * 16, 10240)
print(hashlib.sha256(data).hexdigest(), flush=True)
"""


@linux
@pytest.mark.swarm
def test_another_process_reads_this_one_s_memory() -> None:
    import hashlib

    memory = Memory.of(IDENTITY, [memoryview(DATA)])
    assert memory is not None
    with other_process(READER, str(memory.handle.pid), str(memory.handle.descriptor)) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == hashlib.sha256(DATA).hexdigest()
    memory.close()


@linux
@pytest.mark.swarm
def test_what_was_mapped_outlives_its_owner_and_then_nothing_is_left() -> None:
    with other_process(OWNER) as owner:
        assert owner.stdout is not None
        handle = Handle(*map(int, owner.stdout.readline().split()))
        assert handle.pid == owner.pid
        data = read(handle, IDENTITY, len(DATA))
        owner.send_signal(signal.SIGKILL)
        owner.wait(DEADLINE_S)
        assert bytes(data) == DATA
        with pytest.raises(Unreachable):
            read(handle, IDENTITY, len(DATA))
    assert not [name for name in os.listdir("/dev/shm") if "manta" in name]


@linux
def test_memory_is_read_as_it_was_made_and_changes_only_for_who_changes_it() -> None:
    memory = Memory.of(IDENTITY, [memoryview(DATA)])
    assert memory is not None
    first, second = read(memory.handle, IDENTITY, len(DATA)), read(memory.handle, IDENTITY, len(DATA))
    first[0:3] = b"abc"
    assert bytes(first[:3]) == b"abc"
    assert bytes(second) == DATA == bytes(memory.view())
    memory.close()
    assert bytes(second) == DATA


@linux
def test_memory_of_parts_is_that_of_the_whole() -> None:
    memory = Memory.of(IDENTITY, (memoryview(DATA)[start : start + 1000] for start in range(0, len(DATA), 1000)))
    assert memory is not None
    assert bytes(read(memory.handle, IDENTITY, len(DATA))) == DATA
    memory.close()


@linux
def test_what_cannot_be_made_leaves_no_file_open() -> None:
    def parts() -> Iterator[memoryview]:
        yield memoryview(DATA)
        raise ValueError("no mean")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="no mean"):
        Memory.of(IDENTITY, parts())
    assert len(os.listdir("/proc/self/fd")) == before


@linux
def test_nobody_changes_sealed_memory() -> None:
    memory = Memory.of(IDENTITY, [memoryview(DATA)])
    assert memory is not None
    descriptor = memory.handle.descriptor
    for change in (
        lambda: os.ftruncate(descriptor, 10),
        lambda: os.ftruncate(descriptor, 100_000),
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: mmap.mmap(descriptor, 100),
        lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, 0),
    ):
        with pytest.raises(PermissionError):
            change()
    memory.close()


@contextmanager
def opened(descriptor: int) -> Iterator[Handle]:
    try:
        yield Handle(os.getpid(), descriptor)
    finally:
        os.close(descriptor)


@linux
def test_a_handle_to_a_file_on_disk_is_not_read(tmp_path: Path) -> None:
    for name in ("file", "memfd:manta-near"):
        (tmp_path / name).write_bytes(IDENTITY.ljust(64, b"\0") + DATA)
        with opened(os.open(tmp_path / name, os.O_RDONLY)) as handle, pytest.raises(EncodingError, match="something else"):
            read(handle, IDENTITY, len(DATA))


@linux
def test_a_handle_to_a_pipe_or_a_device_does_not_hold_anybody_up() -> None:
    reading, writing = os.pipe()
    with opened(reading) as handle, opened(writing), pytest.raises(EncodingError):
        read(handle, IDENTITY, len(DATA))
    with opened(os.open("/dev/zero", os.O_RDONLY)) as handle, pytest.raises(EncodingError):
        read(handle, IDENTITY, len(DATA))


@linux
def test_memory_that_can_still_be_shrunk_is_not_mapped() -> None:
    descriptor = os.memfd_create("manta-near", os.MFD_ALLOW_SEALING)
    os.write(descriptor, IDENTITY.ljust(64, b"\0") + DATA)
    with opened(descriptor) as handle, pytest.raises(EncodingError, match="sealed"):
        read(handle, IDENTITY, len(DATA))


@linux
def test_memory_of_another_size_or_identity_is_not_read() -> None:
    memory = Memory.of(IDENTITY, [memoryview(DATA)])
    assert memory is not None
    for size in (0, len(DATA) - 1, len(DATA) + 1, 2**40):
        with pytest.raises(EncodingError, match="size"):
            read(memory.handle, IDENTITY, size)
    with pytest.raises(Unreachable, match="given up"):  # its number is another one's by now
        read(memory.handle, b"j" * ID_BYTES, len(DATA))
    handle = memory.handle
    memory.close()
    with pytest.raises(Unreachable):
        read(handle, IDENTITY, len(DATA))


@linux
def test_memory_of_another_user_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory.of(IDENTITY, [memoryview(DATA)])
    assert memory is not None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(EncodingError, match="owner"):
        read(memory.handle, IDENTITY, len(DATA))
    memory.close()


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40))
def test_a_handle_names_a_process_and_a_file(pid: int, descriptor: int) -> None:
    if 0 < pid < 2**31 and 0 <= descriptor < 2**31:
        assert Handle(pid, descriptor).pid == pid
    else:
        with pytest.raises(ValueError, match="process"):
            Handle(pid, descriptor)


def test_where_there_are_no_memfds_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles.sys, "platform", "darwin")  # type: ignore[attr-defined]
    assert Memory.of(IDENTITY, [memoryview(DATA)]) is None
    with pytest.raises(Unreachable):
        read(Handle(1, 1), IDENTITY, len(DATA))


# Vectors.


class Pair:
    """Anna, who offers, and Bob, who fetches."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.annas, self.bobs, self.carols = (Vectors(self.network.endpoint(key)) for key in (ANNA, BOB, CAROL))
        self.parts = 0

    async def start(self) -> "Pair":
        """Let all answer."""
        for vectors in (self.annas, self.bobs, self.carols):
            await vectors.start()
        answer = self.network.endpoints[ANNA].handlers[near.METHOD]

        async def counted(caller: PublicKey, request: bytes) -> bytes:
            self.parts += 1
            return await answer(caller, request)

        await self.network.endpoints[ANNA].serve(near.METHOD, counted)
        return self

    async def fetched(self, offer: Offer, count: int) -> Any:
        """Return what Bob gets."""
        return await self.bobs.fetch(ANNA, offer, count, timeout_s=5.0)


def with_pair(story: Callable[[Pair], Any]) -> None:
    async def whole() -> None:
        pair = await Pair().start()
        await story(pair)
        for vectors in (pair.annas, pair.bobs, pair.carols):
            vectors.close()

    run(whole())


@linux
@pytest.mark.parametrize("count", [1, 1000, near.INLINE_VALUES + 1])
def test_a_vector_on_one_host_is_fetched_without_the_network(count: int) -> None:
    async def story(pair: Pair) -> None:
        vector = vector_of(count)
        found = await pair.fetched(await pair.annas.offer(vector, (BOB,), is_shared=True), count)
        assert found.dtype == np.float32
        assert found.flags.writeable
        assert found.tobytes() == vector.tobytes()
        assert pair.parts == 0

    with_pair(story)


@pytest.mark.parametrize("count", [1, near.PART_VALUES, near.PART_VALUES + 1, 3 * near.PART_VALUES])
def test_a_vector_over_the_network_comes_in_parts(count: int) -> None:
    async def story(pair: Pair) -> None:
        vector = vector_of(count)
        offer = await pair.annas.offer(vector, (BOB,), is_shared=False)
        assert offer.handle == ()
        found = await pair.fetched(offer, count)
        assert found.flags.writeable
        assert found.tobytes() == vector.tobytes()
        assert pair.parts == -(-count // near.PART_VALUES)

    with_pair(story)


@linux
def test_a_handle_that_leads_nowhere_costs_nothing_but_the_network() -> None:
    """A mate may be on another host, or in a container of its own, whatever was found out before."""

    async def story(pair: Pair) -> None:
        vector = vector_of(1000)
        offer = await pair.annas.offer(vector, (BOB,), is_shared=True)
        wrong = Offer(offer.id, offer.count, (Handle(os.getpid(), 2**20),))
        assert (await pair.fetched(wrong, 1000)).tobytes() == vector.tobytes()
        assert pair.parts == 1

    with_pair(story)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_vector_is_made_part_by_part(is_shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "INLINE_VALUES", 100)
    monkeypatch.setattr(near, "_MADE_VALUES", 300)

    async def story(pair: Pair) -> None:
        vector, parts = vector_of(1000), []

        def make(part: slice) -> Any:
            parts.append(part)
            return vector[part]

        offer, made = await pair.annas.offer_made(1000, make, (BOB,), is_shared=is_shared)
        assert [part.stop - part.start for part in parts] == [300, 300, 300, 100]
        assert made.tobytes() == vector.tobytes()
        made[:] = 0  # it is the caller's
        assert (await pair.fetched(offer, 1000)).tobytes() == vector.tobytes()

    with_pair(story)


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_cannot_be_made_is_not_offered(is_shared: bool) -> None:
    async def story(pair: Pair) -> None:
        def make(part: slice) -> Any:
            raise ValueError(f"nothing to make {part.stop} values of")

        with pytest.raises(ValueError, match="nothing to make 10 values of"):
            await pair.annas.offer_made(10, make, (BOB,), is_shared=is_shared)
        assert not pair.annas._offered

    with_pair(story)


def test_a_vector_is_for_those_whom_it_is_offered() -> None:
    async def story(pair: Pair) -> None:
        offer = await pair.annas.offer(vector_of(10), (BOB,), is_shared=False)
        with pytest.raises(Unreachable, match="not offered"):
            await pair.carols.fetch(ANNA, offer, 10, timeout_s=5.0)

    with_pair(story)


def test_a_vector_of_another_length_is_not_fetched() -> None:
    async def story(pair: Pair) -> None:
        for is_shared in (True, False):
            offer = await pair.annas.offer(vector_of(10), (BOB,), is_shared=is_shared)
            with pytest.raises(EncodingError, match="10 values where 11"):
                await pair.fetched(offer, 11)
            longer = Offer(offer.id, 11, offer.handle)
            with pytest.raises(EncodingError, match="40 bytes, not 44"):
                await pair.fetched(longer, 11)

    with_pair(story)


def test_an_offer_is_there_until_the_second_one_after_it() -> None:
    async def story(pair: Pair) -> None:
        before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
        offers = [await pair.annas.offer(vector_of(10, number), (BOB,), is_shared=True) for number in range(5)]
        for number in (3, 4):
            assert (await pair.fetched(offers[number], 10)).tobytes() == vector_of(10, number).tobytes()
        for offer in offers[:3]:
            with pytest.raises(Unreachable):
                await pair.fetched(offer, 10)
        pair.annas.close()
        if sys.platform == "linux":
            assert len(os.listdir("/proc/self/fd")) == before

    with_pair(story)


def test_no_part_is_handed_out_that_a_vector_does_not_have() -> None:
    async def story(pair: Pair) -> None:
        offer = await pair.annas.offer(vector_of(10), (BOB,), is_shared=False)
        bob = pair.network.endpoints[BOB]
        for place in (-1, 1, 2**50):
            with pytest.raises(Refused, match="no part"):
                await bob.call(ANNA, near.METHOD, pack(AskPart(offer.id, place)), timeout_s=1.0)
        for request in (b"", b"\x80", pack(AskPart(offer.id, 0)) + b"x", b"x" * 1000):
            with pytest.raises(Refused):
                await bob.call(ANNA, near.METHOD, request, timeout_s=1.0)

    with_pair(story)


def test_an_owner_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    async def story() -> None:
        pair = await Pair().start()
        offer = await pair.annas.offer(vector_of(10), (BOB,), is_shared=False)

        async def never(_caller: PublicKey, _request: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        await pair.network.endpoints[ANNA].serve(near.METHOD, never)
        with pytest.raises(Unreachable):
            await pair.fetched(offer, 10)
        assert now() == 5.0

    run_virtual(story())


# Mates.


class Club:
    """Anna, Bob and Carol, and who of them has which token."""

    def __init__(self, tokens: dict[PublicKey, bytes], clock: Callable[[], float] = now) -> None:
        self.network = MemoryNetwork()
        self.mates: dict[PublicKey, Mates] = {}
        self.calls: dict[PublicKey, NearCalls] = {}
        for key, token in tokens.items():
            endpoint = self.network.endpoint(key)
            self.calls[key] = NearCalls(endpoint)
            self.mates[key] = Mates(endpoint, self.calls[key], RUN, "here", token, lambda: 10.0, clock)

    async def start(self) -> None:
        for key in self.mates:
            await self.calls[key].start()
            await self.mates[key].start()

    async def close(self) -> None:
        for key in self.mates:
            await self.calls[key].close()
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
        await club.mates[ANNA].meet([BOB])
        assert club.mates[ANNA].fresh() == (BOB,)
        assert club.mates[BOB].fresh() == (ANNA,)
        await settle()
        assert club.mates[ANNA].share_host(BOB) == club.mates[BOB].share_host(ANNA) == (sys.platform == "linux")

    with_club(story)


def test_who_has_another_token_is_no_mate() -> None:
    async def story(club: Club) -> None:
        await club.mates[CAROL].meet([ANNA, BOB])
        await club.mates[ANNA].meet([BOB, CAROL])
        await settle()
        assert club.mates[ANNA].fresh() == (BOB,)
        assert club.mates[CAROL].fresh() == ()
        assert not club.mates[ANNA].knows(CAROL)
        assert club.mates[ANNA].refused > 0

    with_club(story, anna=TOKEN, bob=TOKEN, carol=b"x" * 32)


def test_a_proof_that_was_overheard_is_of_no_use() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB])
        carol = club.network.endpoint(CAROL)
        for overheard in ((ANNA, BOB), (BOB, ANNA)):
            request = pack(Hello(mate_proof(TOKEN, RUN, "here", *overheard), ()))
            for callee in (ANNA, BOB):
                with pytest.raises(Refused, match="no proof"):
                    await carol.call(callee, near_mates.METHOD, request, timeout_s=1.0)
        assert not club.mates[BOB].knows(CAROL)

    with_club(story)


def test_a_stranger_that_throws_the_proof_back_is_no_mate() -> None:
    async def story(club: Club) -> None:
        async def echo(_caller: PublicKey, request: bytes) -> bytes:
            return pack(HelloAnswer(unpack(Hello, request, max_bytes=1000).proof, b"", ()))

        carol = club.network.endpoint(CAROL)
        await carol.serve(near_mates.METHOD, echo)
        await club.mates[ANNA].meet([CAROL])
        assert club.mates[ANNA].fresh() == ()

    with_club(story)


def test_who_reads_nothing_of_this_process_is_a_mate_on_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> memoryview:
        raise Unreachable("another host")

    monkeypatch.setattr(near_mates, "read", unreadable)

    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB])
        await settle()
        assert club.mates[ANNA].fresh() == (BOB,)
        assert not club.mates[ANNA].share_host(BOB)
        assert not club.calls[ANNA]._doors

    with_club(story)


@linux
def test_who_only_guesses_the_nonce_does_not_share_the_host() -> None:
    async def story(club: Club) -> None:
        async def guess(_caller: PublicKey, _request: bytes) -> bytes:
            return pack(HelloAnswer(mate_proof(TOKEN, RUN, "here", CAROL, ANNA), b"n" * 32, (Door(b"n" * 16, b"k" * 32),)))

        await club.network.endpoint(CAROL).serve(near_mates.METHOD, guess)
        await club.mates[ANNA].meet([CAROL])
        assert club.mates[ANNA].fresh() == (CAROL,)
        assert not club.mates[ANNA].share_host(CAROL)
        assert not club.calls[ANNA]._doors

    with_club(story)


def test_a_mate_that_is_silent_is_forgotten_after_a_while() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB])
        del club.network.endpoints[BOB]
        for _ in range(5):
            await asyncio.sleep(10)
            await club.mates[ANNA].meet([])
        assert club.mates[ANNA].knows(BOB)
        await asyncio.sleep(11)
        assert not club.mates[ANNA].knows(BOB)
        assert club.mates[ANNA].fresh() == ()

    with_club(story)


def test_who_says_goodbye_is_no_mate_any_more_and_may_come_back() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB, CAROL])
        del club.network.endpoints[CAROL]  # who is gone already is no harm
        await club.mates[ANNA].leave()
        assert club.mates[BOB].fresh() == ()
        assert not club.mates[BOB].share_host(ANNA)
        await club.mates[ANNA].meet([BOB])
        assert club.mates[BOB].fresh() == (ANNA,)

    with_club(story, anna=TOKEN, bob=TOKEN, carol=TOKEN)


def test_a_mate_is_met_again_without_being_announced() -> None:
    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB])
        for _ in range(20):
            await asyncio.sleep(10)
            await club.mates[ANNA].meet([])
        assert club.mates[ANNA].knows(BOB)
        assert club.mates[BOB].knows(ANNA)

    with_club(story)


@pytest.mark.parametrize("answer", [b"", b"\x80", b"x" * 10_000, pack(HelloAnswer(b"p" * 32, b"", ()))])
def test_an_answer_that_is_no_proof_is_nobody_s_harm(answer: bytes) -> None:
    async def story(club: Club) -> None:
        async def nonsense(_caller: PublicKey, _request: bytes) -> bytes:
            return answer

        await club.network.endpoint(CAROL).serve(near_mates.METHOD, nonsense)
        await club.mates[ANNA].meet([CAROL, BOB])
        assert club.mates[ANNA].fresh() == (BOB,)

    with_club(story)


def test_there_is_no_end_of_room_for_mates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_mates, "MAX_MATES", 1)

    async def story(club: Club) -> None:
        await club.mates[ANNA].meet([BOB])
        await club.mates[CAROL].meet([ANNA])
        assert club.mates[ANNA].fresh() == (BOB,)

    with_club(story, anna=TOKEN, bob=TOKEN, carol=TOKEN)


# Calls at a door.


async def echo(caller: PublicKey, request: bytes) -> bytes:
    return caller + request


@contextmanager
def no_network(network: MemoryNetwork) -> Iterator[None]:
    network.lost = lambda *_: True
    yield
    network.lost = lambda *_: False


async def neighbours_of(network: MemoryNetwork) -> tuple[NearCalls, NearCalls]:
    """Return Anna's and Bob's calls; Anna knows Bob's door."""
    annas, bobs = NearCalls(network.endpoint(ANNA)), NearCalls(network.endpoint(BOB))
    await annas.start()
    await bobs.start()
    annas.learn(BOB, bobs.door_for(ANNA)[0])
    return annas, bobs


@linux
def test_a_call_at_a_door_needs_no_network() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        annas, bobs = await neighbours_of(network)
        await bobs.serve("echo", echo)
        with no_network(network):
            assert await annas.call(BOB, "echo", b"hello", timeout_s=10.0) == ANNA + b"hello"
        with pytest.raises(Unreachable), no_network(network):
            await bobs.call(ANNA, "echo", b"hello", timeout_s=10.0)  # he knows no door
        await annas.close()
        await bobs.close()

    run(story())


@linux
def test_a_refusal_at_a_door_is_one() -> None:
    async def refuse(_caller: PublicKey, _request: bytes) -> bytes:
        raise EncodingError("not\x1b this way")

    async def story() -> None:
        annas, bobs = await neighbours_of(MemoryNetwork())
        await bobs.serve("refuse", refuse)
        with pytest.raises(Refused, match=r"not\? this way"):
            await annas.call(BOB, "refuse", b"", timeout_s=10.0)
        await annas.close()
        await bobs.close()

    run(story())


@linux
def test_whoever_has_not_the_key_is_sent_away_from_a_door() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        annas, bobs = await neighbours_of(network)
        await bobs.serve("echo", echo)
        door = bobs.door_for(ANNA)[0]
        for knock in (
            pack(Call(CAROL, door.key, "echo", b"")),  # with Anna's key, in another's name
            pack(Call(ANNA, b"k" * 32, "echo", b"")),
            pack(Call(ANNA, door.key, "other", b"")),
            b"nonsense",
        ):
            reader, writer = await asyncio.open_unix_connection(_path(door.name))
            await _write(writer, knock)
            assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_unix_connection(_path(door.name))
        writer.write((2**31).to_bytes(4, "big"))
        assert await reader.read() == b""
        writer.close()
        assert await annas.call(BOB, "echo", b"", timeout_s=10.0) == ANNA
        await annas.close()
        await bobs.close()

    run(story())


@linux
def test_another_user_s_process_is_sent_away_from_a_door(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        annas, bobs = await neighbours_of(MemoryNetwork())
        await bobs.serve("echo", echo)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(Unreachable, match="hung up"):
            await annas.call(BOB, "echo", b"", timeout_s=10.0)
        await annas.close()
        await bobs.close()

    run(story())


@linux
def test_who_hangs_up_at_a_door_is_not_worked_for_any_more() -> None:
    async def story() -> None:
        annas, bobs = await neighbours_of(MemoryNetwork())
        waiting, given_up = asyncio.Event(), asyncio.Event()

        async def wait(_caller: PublicKey, _request: bytes) -> bytes:
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            return b""

        await bobs.serve("wait", wait)
        call = asyncio.create_task(annas.call(BOB, "wait", b"", timeout_s=60.0))
        await waiting.wait()
        call.cancel()
        await given_up.wait()
        with suppress(asyncio.CancelledError):
            await call
        await annas.close()
        await bobs.close()

    run(story())


@linux
def test_who_dies_at_its_door_is_noticed_at_once() -> None:
    async def story() -> None:
        annas, bobs = await neighbours_of(MemoryNetwork())
        waiting = asyncio.Event()

        async def wait(_caller: PublicKey, _request: bytes) -> bytes:
            waiting.set()
            await asyncio.Event().wait()
            return b""

        await bobs.serve("wait", wait)
        call = asyncio.create_task(annas.call(BOB, "wait", b"", timeout_s=3600.0))
        await waiting.wait()
        await bobs.close()
        with pytest.raises(Unreachable, match="hung up"):
            await call
        await annas.close()

    run(story())


@linux
def test_who_has_another_door_by_now_is_called_over_the_network() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        annas, bobs = await neighbours_of(network)
        await bobs.close()
        again = NearCalls(network.endpoint(BOB))
        await again.serve("echo", echo)
        assert await annas.call(BOB, "echo", b"hello", timeout_s=10.0) == ANNA + b"hello"
        await annas.close()

    run(story())


@linux
def test_a_door_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    async def story() -> None:
        annas, bobs = await neighbours_of(MemoryNetwork())

        async def wait(_caller: PublicKey, _request: bytes) -> bytes:
            await asyncio.Event().wait()
            return b""

        await bobs.serve("wait", wait)
        with pytest.raises(Unreachable, match="within 3 s"):
            await annas.call(BOB, "wait", b"", timeout_s=3.0)
        assert now() == pytest.approx(3.0)
        await annas.close()
        await bobs.close()

    run_virtual(story())


@linux
def test_a_door_has_no_name_in_any_folder() -> None:
    async def story() -> None:
        annas, bobs = await neighbours_of(MemoryNetwork())
        (door,) = bobs.door_for(ANNA)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(_path(door.name))  # it is there
            assert caller.getpeername()[:1] == b"\0"
        await annas.close()
        await bobs.close()

    run(story())


# Real nodes.


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_vectors_cross_real_connections(tmp_path: Path) -> None:
    from swarm.node import Node
    from tests.swarm.nodes import with_nodes

    async def work(first: Node, second: Node) -> None:
        annas, bobs = Vectors(first), Vectors(second)
        await annas.start()
        await bobs.start()
        for count in (10, near.PART_VALUES * 5 + 1):
            vector = vector_of(count)
            offer = await annas.offer(vector, (second.key,), is_shared=False)
            found = await bobs.fetch(first.key, offer, count, timeout_s=DEADLINE_S)
            assert found.tobytes() == vector.tobytes()
        with pytest.raises(Unreachable, match="given a vector up"):
            await bobs.fetch(first.key, Offer(b"o" * ID_BYTES, 10, ()), 10, timeout_s=DEADLINE_S)

    with_nodes(tmp_path, 2, work)


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_mates_meet_over_real_connections_and_find_that_they_share_a_host(tmp_path: Path) -> None:
    from swarm.node import Node
    from tests.swarm.nodes import with_nodes

    async def work(first: Node, second: Node) -> None:
        both = []
        for node in (first, second):
            calls = NearCalls(node)
            mates = Mates(node, calls, RUN, "here", TOKEN, lambda: 10.0)
            await calls.start()
            await mates.start()
            both.append((calls, mates))
        await both[0][1].meet([second.key])
        await both[1][1].meet([first.key])
        assert both[0][1].fresh() == (second.key,)
        assert both[1][1].share_host(first.key) == (sys.platform == "linux")
        await both[1][0].serve("echo", echo)
        assert await both[0][0].call(second.key, "echo", b"hello", timeout_s=DEADLINE_S) == first.key + b"hello"
        for calls, mates in both:
            await calls.close()
            await mates.close()

    with_nodes(tmp_path, 2, work)


def test_messages_at_a_door_are_bounded() -> None:
    async def story() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data((20_000).to_bytes(4, "big") + b"x" * 20_000)
        with pytest.raises(EncodingError, match="20000 bytes"):
            await _read(reader)

    run(story())
