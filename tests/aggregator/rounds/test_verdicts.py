"""What is handed in between rounds: on the disk before anybody hears so, and before the claims of the next round."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from protocol.audits import DIFFERS, HOLDS, SignedVerdict

from aggregator.rounds import verdicts as extras_module
from aggregator.rounds import waiting as waiting_module
from aggregator.rounds.verdicts import Verdicts
from aggregator.rounds.waiting import WAITING, Waiting
from protocol.closing import NotTaken
from protocol.errors import LedgerError, SignatureError, StorageError
from protocol.records import MAX_SIGNED_BYTES, entry_of
from protocol.signing import PublicKey
from swarm.budget import FAULTS_FORGIVEN, Faults
from swarm.memory import MemoryEndpoint, MemoryNetwork
from swarm.rpc import Refused
from tests.audited import OPERATOR, SECOND, audited_ledger, finding_of, go_on, work_of
from tests.contributions import PEERS, listing

A, B = PEERS[:2]
NAMED = {"auditors": (SECOND.public_key,)}


class Desk:
    """A log's verdicts, and everybody who might call."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / WAITING
        self.ledger = audited_ledger(**NAMED)
        for _ in range(2):
            go_on(self.ledger, [A, B])
        self.network = MemoryNetwork()
        self.stopped: list[BaseException] = []
        self.endpoint: MemoryEndpoint = self.network.endpoint(OPERATOR.public_key)
        self.verdicts: Verdicts
        self.waiting: Waiting

    def begin(self) -> None:
        """Begin, as a start of the program does."""
        self.waiting = Waiting(self.path.parent, self.stopped.append)
        self.verdicts = Verdicts(self.endpoint, self.waiting, lambda: self.ledger, Faults(lambda: 0.0))

    async def end(self) -> None:
        """End, as a stop of the program does."""
        await self.verdicts.close()
        await self.waiting.close()

    async def call(self, signed: SignedVerdict | bytes, by: Any = SECOND) -> bytes:
        """Return the answer to a call."""
        request = signed if isinstance(signed, bytes) else entry_of(signed)
        caller = self.network.endpoints.get(by.public_key) or self.network.endpoint(by.public_key)
        return await caller.call(PublicKey(OPERATOR.public_key), "verdict", request, timeout_s=20)

    async def again(self) -> None:
        """Kill the program, and start it again on the same disk."""
        await self.end()
        self.begin()

    async def commit(self) -> list[SignedVerdict]:
        """Commit a round with what waits; return that."""
        found = await self.verdicts.for_round()
        go_on(self.ledger, [A, B], found)
        await self.verdicts.committed(found)
        return found


@contextlib.asynccontextmanager
async def desk_in(directory: Path) -> AsyncIterator[Desk]:
    desk = Desk(directory)
    desk.begin()
    await desk.verdicts.start()
    try:
        yield desk
    finally:
        await desk.end()


def test_what_was_taken_is_there_after_a_kill_and_in_the_next_round(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            found = [finding_of(desk.ledger, each, A) for each in (OPERATOR, SECOND)]
            assert await asyncio.gather(*(desk.call(each) for each in found)) == [b"", b""]
            assert await desk.call(found[0]) == b""  # the same again is welcome
            await desk.again()
            assert await desk.verdicts.for_round() == sorted(found, key=lambda each: each.digest)
            assert await desk.commit() == sorted(found, key=lambda each: each.digest)
            assert len(next(iter(desk.ledger.standing.votes.values()))) == 2
            assert desk.path.stat().st_size == 0
            assert await desk.commit() == []
            await desk.again()
            assert await desk.verdicts.for_round() == []

    asyncio.run(story())


def test_what_the_log_has_already_is_not_brought_again_after_a_kill_before_it_was_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            await desk.verdicts.hand_in(finding_of(desk.ledger, SECOND, A))
            found = await desk.verdicts.for_round()
            go_on(desk.ledger, [A, B], found)  # and then the program dies
            await desk.again()
            assert await desk.verdicts.for_round() == []

    asyncio.run(story())


def test_what_is_refused_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            with pytest.raises(LedgerError, match="not asked"):
                await desk.verdicts.hand_in(finding_of(desk.ledger, B, A))
            signed = finding_of(desk.ledger, SECOND, A)
            with pytest.raises(SignatureError):
                await desk.verdicts.hand_in(type(signed)(signed.payload, bytes(64)))
            for request, reason in ((b"junk", "CBOR|cut"), (bytes(MAX_SIGNED_BYTES + 1), "at most"), (entry_of(signed)[:-1], "cut")):
                with pytest.raises(Refused, match=reason):
                    await desk.call(request)
            assert not desk.path.exists()
            for _ in range(FAULTS_FORGIVEN):
                with pytest.raises(Refused, match=r"CBOR|cut"):
                    await desk.call(b"junk", A)
            with pytest.raises(Refused, match=r"CBOR|cut"):
                await desk.call(b"junk", A)
            with pytest.raises(Refused, match="later"):
                await desk.call(signed, A)
            assert await desk.call(signed) == b""

    asyncio.run(story())


def test_a_contribution_is_handed_in_otherwise(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            with pytest.raises(Refused, match="otherwise"):
                await desk.call(entry_of(listing([work_of(desk.ledger, A)], A)))

    asyncio.run(story())


def test_what_waits_of_one_key_and_of_all_is_bounded_and_an_operator_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras_module, "MAX_OF_ONE", 1)
    monkeypatch.setattr(extras_module, "MAX_VERDICTS", 2)

    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            go_on(desk.ledger, [A, B])
            await desk.verdicts.hand_in(finding_of(desk.ledger, SECOND, A))
            with pytest.raises(NotTaken, match="of this key"):
                await desk.verdicts.hand_in(finding_of(desk.ledger, SECOND, B))
            for peer, round_ in ((A, 1), (B, 1), (A, 2)):
                await desk.verdicts.hand_in(finding_of(desk.ledger, OPERATOR, peer, round=round_))
            with pytest.raises(NotTaken, match="too many"):
                await desk.verdicts.hand_in(finding_of(desk.ledger, OPERATOR, B))
            first = await desk.commit()
            assert len(first) == 2  # a round's worth
            second = await desk.commit()
            assert len(second) == 2
            assert set(first).isdisjoint(second)
            assert await desk.commit() == []

    asyncio.run(story())


def test_what_was_decided_meanwhile_is_dropped(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            late = finding_of(desk.ledger, SECOND, A)
            await desk.verdicts.hand_in(late)
            go_on(desk.ledger, [A, B], [finding_of(desk.ledger, OPERATOR, A, DIFFERS), finding_of(desk.ledger, SECOND, A, DIFFERS)])
            assert await desk.commit() == []
            with pytest.raises(LedgerError):
                await desk.verdicts.hand_in(late)

    asyncio.run(story())


def test_a_finished_run_takes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            while not desk.ledger.finished:
                go_on(desk.ledger, [A])
            with pytest.raises(NotTaken, match="finished"):
                await desk.verdicts.hand_in(finding_of(desk.ledger, SECOND, A))

    asyncio.run(story())


# The disk.


def written(directory: Path) -> tuple[Desk, bytes, list[SignedVerdict]]:
    """A file with two findings, each synced by itself."""

    async def story() -> tuple[Desk, bytes, list[SignedVerdict]]:
        async with desk_in(directory) as desk:
            found: list[SignedVerdict] = [finding_of(desk.ledger, each, A, HOLDS) for each in (OPERATOR, SECOND)]
            for each in found:
                await desk.verdicts.hand_in(each)
            return desk, desk.path.read_bytes(), found

    return asyncio.run(story())


async def waiting(desk: Desk) -> list[SignedVerdict]:
    desk.begin()
    try:
        return await desk.verdicts.for_round()
    finally:
        await desk.end()


def test_what_a_crash_tore_off_is_cut_off_and_nothing_else(tmp_path: Path) -> None:
    desk, data, found = written(tmp_path)
    first = len(data) - data.index(entry_of(found[1])) + 16
    whole = len(data) - first  # where the second one begins
    for size in (whole, whole + 1, whole + 20, len(data) - 1):
        desk.path.write_bytes(data[:size])
        assert asyncio.run(waiting(desk)) == found[:1]
        assert desk.path.read_bytes() == data[:whole]
    desk.path.write_bytes(data + os.urandom(5))
    assert asyncio.run(waiting(desk)) == sorted(found, key=lambda each: each.digest)
    assert desk.path.read_bytes() == data


def test_damage_before_what_was_synced_is_told(tmp_path: Path) -> None:
    desk, data, found = written(tmp_path)
    place = data.index(entry_of(found[0])) + 50
    desk.path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(StorageError, match="damaged"):
        desk.begin()


def test_a_disk_that_fails_stops_the_log_and_nothing_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with desk_in(tmp_path) as desk:

            def fails(_descriptor: int) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(os, "fsync", fails)
            with pytest.raises(NotTaken, match="stops"):
                await desk.verdicts.hand_in(finding_of(desk.ledger, SECOND, A))
            monkeypatch.undo()
            assert [type(error) for error in desk.stopped] == [StorageError]
            with pytest.raises(NotTaken, match="stops"):
                await desk.verdicts.hand_in(finding_of(desk.ledger, SECOND, B))
            assert await desk.verdicts.for_round() == []

    asyncio.run(story())


def test_the_file_of_a_log_that_takes_much_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "_REWRITTEN_BYTES", 1)
    monkeypatch.setattr(extras_module, "MAX_VERDICTS", 7)

    async def story() -> None:
        async with desk_in(tmp_path) as desk:
            for _ in range(3):
                go_on(desk.ledger, PEERS[:7])
            for round_ in (3, 4):
                for peer in PEERS[:7]:
                    await desk.verdicts.hand_in(finding_of(desk.ledger, OPERATOR, peer, round=round_))
            before = desk.path.stat().st_size
            monkeypatch.setattr(waiting_module, "MAX_SIGNED_BYTES", 100)
            assert len(await desk.commit()) == 7
            assert before // 3 < desk.path.stat().st_size < 2 * before // 3
            monkeypatch.undo()
            await desk.again()
            assert len(await desk.verdicts.for_round()) == 7

    asyncio.run(story())
