"""A peer's records: on its disk before its claim leaves, given to the log once that has the claim, and again until it takes them."""

import asyncio
from pathlib import Path

import pytest

from peer.rounds.records import OwnRecords
from protocol.encoding import unpack
from protocol.errors import EncodingError, StorageError
from protocol.evidence import GIVE, MAX_PAGE_BYTES, PAGE_LOTS, RecordsPage, pages
from protocol.operators import Operators
from protocol.signing import Identity, PublicKey
from swarm import waits
from swarm.memory import MemoryNetwork
from swarm.operator_line import OperatorLine
from swarm.records import RecordsFolder, fetch_records
from tests.claimed import made

PEER, LOG = (PublicKey(Identity(bytes([seed]) * 32).public_key) for seed in (1, 2))


class Scene:
    """A peer with records, and a log that takes them or not."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 24) -> None:
        network = MemoryNetwork()
        self.folder = RecordsFolder(directory / "records", kept_rounds=5, max_bytes=max_bytes)
        self.log = network.endpoint(LOG)
        endpoint = network.endpoint(PEER)
        self.own = OwnRecords(endpoint, OperatorLine(endpoint, Operators(bytes(32), (LOG,), 1)), self.folder)
        self.taken: list[RecordsPage] = []
        self.refusals = 0  # that are still to come

    async def serve(self) -> None:
        await self.log.serve(GIVE, self._take)
        await self.own.serve()

    async def _take(self, _caller: PublicKey, request: bytes) -> bytes:
        if self.refusals:
            self.refusals -= 1
            raise EncodingError("not now")
        self.taken.append(unpack(RecordsPage, request, max_bytes=MAX_PAGE_BYTES))
        return b""


def test_records_are_given_once_the_claim_is_handed_in_and_handed_to_whoever_asks(tmp_path: Path) -> None:
    signed, records = made(PAGE_LOTS + 2)

    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.serve()
        giving = asyncio.create_task(scene.own.give())
        await scene.own.keep(signed, records)
        await scene.own.settle()  # nothing was handed in: there is nothing to wait for
        assert (scene.taken, scene.folder.records(signed)) == ([], records)
        scene.own.handed_in()
        await scene.own.settle()
        assert scene.taken == pages(signed, records)
        assert await fetch_records(scene.log, PEER, signed) == scene.taken
        scene.own.handed_in()  # nothing new
        await scene.own.settle()
        assert len(scene.taken) == 2
        giving.cancel()
        await asyncio.gather(giving, return_exceptions=True)

    asyncio.run(scenario())


def test_a_log_that_does_not_take_them_is_offered_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "RECORDS_AGAIN_S", 0.0)
    signed, records = made(3)

    async def scenario() -> None:
        scene = Scene(tmp_path)
        await scene.serve()
        scene.refusals = 3
        giving = asyncio.create_task(scene.own.give())
        await scene.own.keep(signed, records)
        scene.own.handed_in()
        await scene.own.settle()
        assert scene.taken == pages(signed, records)
        scene.taken.clear()
        scene.refusals = 1000
        later, of_later = made(3, round=4)
        await scene.own.keep(later, of_later)
        scene.own.handed_in()
        await scene.own.settle()  # it is not offered for ever: the log asks if it wants them
        assert scene.taken == []
        assert 0 < scene.refusals < 1000
        giving.cancel()
        await asyncio.gather(giving, return_exceptions=True)

    asyncio.run(scenario())


def test_without_room_for_a_rounds_records_nothing_is_handed_in(tmp_path: Path) -> None:
    signed, records = made(30)

    async def scenario() -> None:
        with pytest.raises(StorageError, match="no room"):
            await Scene(tmp_path, max_bytes=100).own.keep(signed, records)

    asyncio.run(scenario())
