"""What peers bring of audited contributions: who has a place, who loses it, what is forgotten, and what a disk without room does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest

from manta_swarm.aggregator.features.audits import brought
from manta_swarm.aggregator.features.audits.brought import LEAST_RATE, QUIET_S, BroughtVectors
from manta_swarm.codec.residuals import Vector, vector_digest
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Refused
from manta_swarm.network.vectors import VectorPart
from manta_swarm.protocol.auditing import (
    BRING,
    MAX_WANTED_BYTES,
    PAGE_BYTES,
    WANTED,
    AskWanted,
    PlacedContribution,
    VectorPage,
    WantedAnswer,
    WantedFate,
    WantedOf,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import StorageError, Unreachable
from manta_swarm.protocol.records import ClaimStep, Contribution, Header, StepMean
from manta_swarm.protocol.reputation import PayableWork, Pools, Reputation
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Digest, Identity, PublicKey, sha256
from manta_swarm.protocol.verdicts import AuditRules
from tests.claim_steps import all_of
from tests.clocks import ManualClock
from tests.protocol.record_samples import BASE, CLAIM, RUN

OPERATOR = Identity(sha256(b"operator"))
A, B, C, D = sorted((Identity(sha256(b"member %d" % number)) for number in range(4)), key=lambda each: each.public_key)
NUM_WEIGHTS = PAGE_BYTES // 2 + 100  # three pages
VECTOR_BYTES = 4 * NUM_WEIGHTS
KEPT_ROUNDS, PENDING_ROUNDS = 3, 8


@lru_cache(maxsize=8)
def vector(number: int) -> Vector:
    """Return a step's mean, or a member's own vector."""
    return np.random.default_rng(number).standard_normal(NUM_WEIGHTS, np.float32)


@cache
def digest_of(number: int) -> bytes:
    """Return the digest of a vector."""
    return vector_digest(vector(number))


def header_of(*members: Identity, steps: int = 1) -> Header:
    """Return what these hand in; step s has ``vector(s)`` as its mean."""
    claims = []
    for place, member in enumerate(members):
        own = tuple(ClaimStep(10 * step, 10 * step + 2, (), digest_of(100 * (place + 1) + step)) for step in range(steps))
        key = member.public_key
        claim = replace(CLAIM, run=RUN, key=key, payout=key, founder=members[0].public_key, work=(3 * steps, 0, 0), steps=own)
        claims.append(Signed.sign(claim, member))
    means = tuple(StepMean(digest_of(step), all_of(claims)) for step in range(steps))
    digests = tuple(signed.digest for signed in claims)
    contribution = Contribution(RUN, 3, BASE, members[0].public_key, digests, all_of(claims), means, sha256(b"body"), b"")
    return Header(Signed.sign(contribution, members[0]), tuple(claims))


class Scene:
    """A log of which every contribution is audited, and a clock that the test moves."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 30) -> None:
        rules = AuditRules((OPERATOR.public_key,), (), 1, 100, 100, kept_rounds=KEPT_ROUNDS, pending_rounds=PENDING_ROUNDS)
        self.reputation = Reputation(rules, Pools(1000))
        self.network = MemoryNetwork()
        self.endpoint = self.network.endpoint(PublicKey(OPERATOR.public_key))
        self.headers: dict[bytes, Header] = {}
        self.read: list[bytes] = []
        self.clock = ManualClock()
        self.faults = CallerFaults(ManualClock())
        self.directory = directory
        self.max_bytes = max_bytes

    async def start(self) -> None:
        """Begin, or begin anew on the same directory."""
        self.brought = await asyncio.to_thread(self._open)
        await self.brought.serve(self.endpoint)

    def _open(self) -> BroughtVectors:
        return BroughtVectors(self.directory, self, num_weights=NUM_WEIGHTS, max_bytes=self.max_bytes, faults=self.faults, clock=self.clock)

    def header(self, round: int, contribution: bytes) -> Header:
        """Return a contribution, as the log has it."""
        del round
        self.read.append(contribution)
        return self.headers[contribution]

    async def turn(self, *headers: Header) -> int:
        """Commit a round with these; return its number."""
        round_ = self.reputation.round + 1
        works = []
        for header in headers:
            keys = tuple(signed.open().key for signed in header.claims)
            self.headers[header.contribution.digest] = header
            works.append(PayableWork(header.contribution.digest, keys, keys, (1,) * len(keys), 3, (False,) * len(keys)))
        self.reputation.turn(round_, sha256(b"commit %d" % round_), [], works)
        await self.brought.committed()
        return round_

    async def audited(self, *headers: Header) -> int:
        """Commit a round with these, and the one after it."""
        round_ = await self.turn(*headers)
        await self.turn()
        return round_

    async def page(self, peer: Identity, header: Header, number: int = 0, place: int = 0, *, data: bytes | None = None) -> bytes:
        """Bring a page of ``vector(number)``."""
        values = vector(number)
        first = place * PAGE_BYTES
        found = values.tobytes()[first : first + PAGE_BYTES] if data is None else data
        return await self._call(peer, BRING, pack(VectorPage(header.contribution.digest, digest_of(number), first, found)))

    async def bring(self, peer: Identity, header: Header, number: int = 0) -> None:
        """Bring all of it."""
        for place in range(3):
            await self.page(peer, header, number, place)

    async def wanted(self, peer: Identity, header: Header, round_: int) -> WantedOf:
        """Return what is wanted."""
        answer = await self._call(peer, WANTED, pack(AskWanted((PlacedContribution(round_, header.contribution.digest),))))
        (found,) = unpack(WantedAnswer, answer, max_bytes=MAX_WANTED_BYTES).answers
        return found

    async def _call(self, peer: Identity, method: str, request: bytes) -> bytes:
        key = PublicKey(peer.public_key)
        endpoint = self.network.endpoints.get(key) or self.network.endpoint(key)
        return await endpoint.call(PublicKey(OPERATOR.public_key), method, request, timeout_s=20)

    def has(self, header: Header, number: int = 0) -> bool:
        """Return whether a vector is here whole."""
        return self.brought.folder.has(header.contribution.digest, digest_of(number))

    def parts(self) -> list[Path]:
        """Return the files of what is on its way."""
        return list(self.directory.rglob("*.part"))

    def kept_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())


@contextlib.asynccontextmanager
async def told(directory: Path, max_bytes: int = 1 << 30) -> AsyncIterator[Scene]:
    """A scene at work; afterwards nothing is half written."""
    scene = Scene(directory, max_bytes)
    await scene.start()
    try:
        yield scene
    finally:
        await scene.brought.close()
    assert scene.parts() == []
    assert scene.brought.num_bytes == scene.kept_bytes()


@pytest.fixture
def scene(tmp_path: Path) -> AbstractAsyncContextManager[Scene]:
    return told(tmp_path)


async def says(call: Awaitable[object], reason: str) -> None:
    with pytest.raises((Refused, Unreachable)) as caught:
        await call
    assert reason in f"{caught.value} {caught.value.__cause__}"  # whoever is busy says why to nobody


async def test_a_key_that_began_a_vector_and_did_not_bring_it_stands_in_no_others_way_again(scene: Scene) -> None:
    header = header_of(A, B)
    await scene.audited(header)
    await scene.page(A, header)
    await says(scene.page(B, header), "another of its keys brings it")
    scene.clock.advance(QUIET_S)
    await scene.page(B, header)  # the other is quiet
    await says(scene.page(A, header, place=1), "from its beginning")
    scene.clock.advance(QUIET_S)
    await scene.page(A, header)  # as B is by now: both have as many
    await says(scene.page(B, header), "another of its keys brings it")
    await scene.page(A, header)  # begins anew, once too often
    await scene.page(B, header)  # needs to wait no more
    for place in (1, 2):
        await scene.page(B, header, place=place)
    assert scene.has(header)


async def test_a_key_that_lies_about_a_vector_loses_its_place_to_the_others(scene: Scene) -> None:
    header = header_of(A, B)
    await scene.audited(header)
    for _ in range(2):
        for place in range(2):
            await scene.page(A, header, place=place)
        await says(scene.page(A, header, place=2, data=bytes(VECTOR_BYTES - 2 * PAGE_BYTES)), "another vector")
    await scene.page(A, header)
    await scene.bring(B, header)
    assert scene.has(header)
    assert scene.faults.by_key()[A.public_key] == {"malformed": 2}


async def test_who_brings_it_too_slowly_makes_room_where_another_waits(scene: Scene) -> None:
    header = header_of(A, B, steps=2)
    await scene.audited(header)
    for number in range(2):
        await scene.page(A, header, number)
    scene.clock.advance(QUIET_S - 1)
    await scene.page(A, header, 0, 1)  # two pages within two minutes
    scene.clock.advance(QUIET_S - 1)
    assert 2 * PAGE_BYTES < 2 * (QUIET_S - 1) * LEAST_RATE
    await scene.page(B, header)
    await says(scene.page(A, header, 0, 2), "from its beginning")


async def test_all_places_are_not_one_keys_and_go_to_others_where_they_are_held_for_nothing(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    monkeypatch.setattr(brought, "MAX_COMING", 4)
    monkeypatch.setattr(brought, "MAX_OF_ONE", 2)
    header, others = header_of(A, B, steps=6), header_of(D)
    await scene.audited(header, others)
    for member, first in ((A, 0), (B, 3)):
        for number in (first, first + 1):
            await scene.page(member, header, number)
        await says(scene.page(member, header, first + 2), "this key brings others")
    await says(scene.page(D, others), "others bring their vectors")
    assert len(scene.parts()) == 4
    scene.clock.advance(QUIET_S - 1)
    for member, first in ((A, 0), (B, 3)):
        await scene.page(member, header, first, 1)
    scene.clock.advance(2)
    await scene.bring(D, others)
    assert scene.has(others)


async def test_of_two_calls_with_one_page_one_is_told_to_come_again(scene: Scene) -> None:
    header = header_of(A, B)
    await scene.audited(header)
    for place in range(3):
        calls = [scene.page(A, header, place=place) for _ in range(3)] + [scene.page(B, header, place=place)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers.count(b"") == 1
        assert all(isinstance(answer, bytes | Refused | Unreachable) for answer in answers)
    assert scene.has(header)
    assert scene.brought.num_bytes == VECTOR_BYTES


async def test_who_hangs_up_leaves_no_page_half_written(scene: Scene) -> None:
    header = header_of(A)
    await scene.audited(header)
    handler = scene.endpoint.handlers[BRING]
    data = vector(0).tobytes()
    for place in range(3):
        first = place * PAGE_BYTES
        page = VectorPage(header.contribution.digest, digest_of(0), first, data[first : first + PAGE_BYTES])
        calling = asyncio.ensure_future(handler(PublicKey(A.public_key), pack(page)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the first page waits for what the log says
        if place == 0:
            await scene.brought.lacking(scene.reputation.audits[header.contribution.digest])
            await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await asyncio.wait(scene.brought._working)
    assert scene.has(header)


async def test_a_vector_whose_audit_ends_while_it_comes_leaves_nothing(scene: Scene) -> None:
    header = header_of(A)
    await scene.audited(header)
    for place in range(2):
        await scene.page(A, header, place=place)
    while scene.reputation.audits:
        await scene.turn()
    await says(scene.page(A, header, place=2), "not audited, or not any more")
    kept = scene.brought
    assert not any((kept._opened, kept._vectors, kept._failed, kept._broken))
    scene.clock.advance(QUIET_S)
    other = header_of(B)
    await scene.audited(other)
    await scene.bring(B, other)  # makes room
    assert not kept._coming


async def test_what_is_old_goes_and_what_is_forgotten_is_read_again(tmp_path: Path, scene: Scene) -> None:
    header = header_of(A)
    round_ = await scene.audited(header)
    await scene.bring(A, header)
    assert (await scene.wanted(A, header, round_)).fate == WantedFate.HELD
    assert scene.read == [header.contribution.digest]
    await scene.brought.close()
    await scene.start()
    assert (await scene.wanted(A, header, round_)).fate == WantedFate.HELD  # it is on the disk
    scene.brought.need(header.contribution.digest, 0)
    assert (await scene.wanted(A, header, round_)).vectors == (digest_of(100),)
    await scene.bring(A, header, 100)
    assert (await scene.wanted(A, header, round_)).fate == WantedFate.HELD
    while scene.reputation.audits:
        await scene.turn()
    assert (await scene.wanted(A, header, round_)).fate == WantedFate.NOTHING
    await scene.turn()
    assert scene.brought.num_bytes == 0
    assert not scene.brought._here
    assert list((tmp_path / "brought").iterdir()) == []


async def test_once_the_run_is_settled_all_of_it_goes(scene: Scene) -> None:
    header = header_of(A)
    await scene.audited(header)
    await scene.bring(A, header)
    scene.reputation.settle([])
    await scene.brought.committed()
    assert scene.brought.num_bytes == 0
    await says(scene.page(A, header), "not any more")


async def test_nothing_of_it_goes_for_want_of_room_and_who_finds_none_is_not_to_blame(tmp_path: Path) -> None:
    async with told(tmp_path, max_bytes=2 * VECTOR_BYTES - 1) as scene:
        first, second = header_of(A), header_of(B, C)
        await scene.audited(first)
        await scene.bring(A, first)
        round_ = await scene.audited(second)
        await says(scene.page(B, second), "no room")
        assert scene.has(first)
        assert [scene.brought.lacks_room(each.contribution.digest) for each in (first, second)] == [False, True]
        await scene.brought.close()
        await scene.start()
        assert scene.brought.lacks_room(second.contribution.digest)
        for _ in range(PENDING_ROUNDS):
            await scene.turn()
        assert not scene.brought.lacks_room(second.contribution.digest)
        assert not (tmp_path / "brought" / f"{round_:08d}").exists()
        assert not scene.faults.by_key()


async def test_a_disk_that_takes_nothing_more_is_nobodys_fault_and_the_log_goes_on(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    header = header_of(A)
    await scene.audited(header)
    await scene.page(A, header)

    def full(_part: VectorPart, _data: bytes) -> None:
        raise StorageError("no space left on device")

    monkeypatch.setattr(VectorPart, "write", full)
    await says(scene.page(A, header, place=1), "no room")
    monkeypatch.undo()
    assert scene.brought.lacks_room(header.contribution.digest)
    assert not scene.faults.by_key()
    await scene.bring(A, header)
    assert scene.has(header)


async def test_a_stranger_makes_nobody_read_the_log(scene: Scene) -> None:
    header = header_of(A)
    round_ = await scene.audited(header)
    await says(scene.wanted(B, header, round_), "another's contribution")
    await says(scene.page(B, header), "another's contribution")
    assert scene.read == []
    assert (await scene.wanted(B, header, round_ + 5)).fate == WantedFate.LATER
    unknown = replace(header, contribution=Signed(Contribution, header.contribution.payload, bytes(64)))
    assert (await scene.wanted(B, unknown, round_)).fate == WantedFate.NOTHING
    assert Digest(header.contribution.digest) in scene.reputation.audits
