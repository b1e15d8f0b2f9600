"""A folder of records: what is kept, what goes first, and what a node that hands out something else achieves."""

import asyncio
import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from protocol.encoding import pack, unpack
from protocol.errors import RemoteFault, StorageError
from protocol.evidence import ASK, PAGE_LOTS, AskRecords, Records, pages
from protocol.records import SignedClaim
from protocol.signing import Identity, PublicKey
from swarm.memory import MemoryNetwork
from swarm.records import RecordsFolder, fetch_records, serve_records
from swarm.round_folders import NoRoom
from tests.claimed import made

HERE, THERE = Identity(b"\x01" * 32), Identity(b"\x02" * 32)


def folder_in(path: Path, kept_rounds: int = 5, max_bytes: int = 1 << 20) -> RecordsFolder:
    return RecordsFolder(path / "records", kept_rounds=kept_rounds, max_bytes=max_bytes)


def keep(folder: RecordsFolder, signed: SignedClaim, records: Records) -> None:
    for page in pages(signed, records):
        folder.keep(page)


def test_what_is_kept_is_there_after_a_restart_and_goes_with_its_rounds(tmp_path: Path) -> None:
    signed, records = made(PAGE_LOTS + 3, 2)
    assert folder_in(tmp_path).records(signed) is None
    keep(folder_in(tmp_path), signed, records)
    again = folder_in(tmp_path)
    assert again.records(signed) == records
    assert again.has(signed)
    again.prune(7)
    assert again.records(signed) == records
    again.prune(8)
    assert again.records(signed) is None
    assert not again.has(signed)
    assert list((tmp_path / "records").iterdir()) == []


def test_a_page_that_is_damaged_or_missing_is_none(tmp_path: Path) -> None:
    signed, records = made(PAGE_LOTS + 3)
    folder = folder_in(tmp_path)
    keep(folder, signed, records)
    path = next(path for path in (tmp_path / "records" / "00000003").iterdir() if path.name.endswith("-0"))
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert folder.records(signed) is None
    assert folder.find(signed.digest, 0) is None
    assert folder.find(signed.digest, PAGE_LOTS) is not None
    path.unlink()
    assert folder.records(signed) is None
    assert not folder.has(signed)


def test_over_the_budget_the_oldest_rounds_go_and_never_newer_ones(tmp_path: Path) -> None:
    signed, records = made(20)
    later, _ = made(20, round=4)
    size = len(pack(pages(signed, records)[0]))
    folder = folder_in(tmp_path, max_bytes=size + size // 2)
    keep(folder, signed, records)
    keep(folder, signed, records)  # is there already
    keep(folder, later, records)
    assert folder.records(signed) is None
    assert folder.records(later) == records
    with pytest.raises(NoRoom):
        keep(folder, signed, records)
    assert folder.records(later) == records


def test_any_number_of_threads_may_keep_and_remove_at_once(tmp_path: Path) -> None:
    claims = [made(2, round=round_) for round_ in range(1, 41)]
    size = len(pack(pages(*claims[0])[0]))
    folder = folder_in(tmp_path, max_bytes=4 * size)
    begin = threading.Barrier(8)

    def work(number: int) -> None:
        begin.wait()
        for signed, records in claims:
            with contextlib.suppress(NoRoom):  # others are at newer rounds
                keep(folder, signed, records)
            folder.prune(signed.open().round - number % 3)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)
    left = [path for path in (tmp_path / "records").rglob("*") if path.is_file()]
    assert 1 <= len(left) <= 4
    assert not [path for path in left if path.suffix == ".part"]


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    signed, records = made(2)
    folder = folder_in(tmp_path)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "00000003").mkdir()
    (tmp_path / "records" / "00000003" / f"{signed.digest.hex()}-0.part").mkdir()
    with pytest.raises(StorageError):
        keep(folder, signed, records)


def test_records_are_got_from_a_node_that_has_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        here, there = network.endpoint(HERE.public_key), network.endpoint(THERE.public_key)
        signed, records = made(PAGE_LOTS + 3, 2)
        folder = folder_in(tmp_path)
        await serve_records(there, folder)
        with pytest.raises(RemoteFault):
            await fetch_records(here, there.key, signed)
        keep(folder, signed, records)
        assert await fetch_records(here, there.key, signed) == pages(signed, records)

    asyncio.run(scenario())


def test_a_node_that_hands_out_other_records_is_caught(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        here, there = network.endpoint(HERE.public_key), network.endpoint(THERE.public_key)
        signed, records = made(PAGE_LOTS + 3)
        other, of_other = made(PAGE_LOTS + 4)
        first, second = pages(signed, records)

        answers: dict[int, bytes] = {}

        async def answer(_caller: PublicKey, request: bytes) -> bytes:
            return answers[unpack(AskRecords, request, max_bytes=64).first]

        await there.serve(ASK, answer)
        for wrong in (
            {0: b"", PAGE_LOTS: b""},
            {0: pack(first), PAGE_LOTS: pack(first)},
            {0: pack(pages(other, of_other)[0]), PAGE_LOTS: pack(second)},
            {0: pack(first), PAGE_LOTS: pack(pages(other, of_other)[1])},
        ):
            answers.update(wrong)
            with pytest.raises(RemoteFault):
                await fetch_records(here, there.key, signed)

    asyncio.run(scenario())
