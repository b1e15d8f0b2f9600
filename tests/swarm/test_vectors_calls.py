"""A folder of vectors: what is kept, what goes first, and what a node that hands out something else achieves."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from exact.residuals import vector_digest
from protocol.encoding import unpack
from protocol.errors import RemoteFault, StorageError
from protocol.signing import Identity, PublicKey, sha256
from protocol.vectors import ASK, MAX_ASK_BYTES, PAGE_BYTES, AskVector
from swarm.memory import MemoryNetwork
from swarm.round_folders import NoRoom
from swarm.rpc import Refused
from swarm.vectors import WORKING, Vector, VectorsFolder, fetch_vector, serve_vectors
from tests.claimed import made

HERE, THERE = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
CLAIM = sha256(b"claim")
SIZE = 4 * 100


def folder_in(path: Path, kept_rounds: int = 5, max_bytes: int = 1 << 24) -> VectorsFolder:
    return VectorsFolder(path / "vectors", kept_rounds=kept_rounds, max_bytes=max_bytes)


def vector(seed: int, size: int = 100) -> Vector:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def keep(folder: VectorsFolder, values: Vector, round_: int = 3, claim: bytes = CLAIM) -> bytes:
    digest = vector_digest(values)
    folder.keep(round_, claim, digest, values)
    return digest


def test_what_is_kept_is_there_after_a_restart_and_goes_with_its_rounds(tmp_path: Path) -> None:
    digest = keep(folder_in(tmp_path), vector(1))
    again = folder_in(tmp_path)
    assert again.has(CLAIM, digest)
    assert again.claims == {CLAIM: 3}
    found = again.read(CLAIM, digest)
    assert found is not None
    assert found.tobytes() == vector(1).tobytes()
    again.prune(7)
    assert again.has(CLAIM, digest)
    again.prune(8)
    assert not again.has(CLAIM, digest)
    assert again.read(CLAIM, digest) is None
    assert again.claims == {}
    assert list((tmp_path / "vectors").iterdir()) == []


def test_a_vector_that_is_damaged_is_none(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    digest = keep(folder, vector(1))
    (path,) = (tmp_path / "vectors").glob("*/*/*")
    path.write_bytes(vector(2).tobytes())
    assert folder.read(CLAIM, digest) is None
    path.write_bytes(b"abc")
    assert folder.read(CLAIM, digest) is None


def test_only_what_is_asked_for_stays(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, max_bytes=3 * SIZE)
    first, second, third = (keep(folder, vector(seed)) for seed in range(3))
    folder.keep_only(CLAIM, (second, sha256(b"another")))
    assert [folder.has(CLAIM, digest) for digest in (first, second, third)] == [False, True, False]
    keep(folder, vector(4))
    keep(folder, vector(5))  # there is room again
    folder.keep_only(CLAIM, ())
    assert folder.claims == {}
    assert not folder.has(CLAIM, second)
    folder.keep_only(CLAIM, (second,))  # of what is not here nothing is kept
    assert list((tmp_path / "vectors").iterdir()) == []
    folder.prune(100)


def test_over_the_budget_the_oldest_rounds_go_and_never_newer_ones(tmp_path: Path) -> None:
    folder, later = folder_in(tmp_path, max_bytes=2 * SIZE), sha256(b"later")
    first = keep(folder, vector(1))
    keep(folder, vector(1))  # is there already
    keep(folder, vector(2), 4, later)
    second = keep(folder, vector(3), 4, later)
    assert not folder.has(CLAIM, first)
    assert folder.claims == {later: 4}
    with pytest.raises(NoRoom):
        keep(folder, vector(1))
    assert folder.has(later, second)
    assert folder_in(tmp_path, max_bytes=2 * SIZE).claims == {later: 4}


def test_what_was_kept_while_its_claim_was_not_made_is_the_claim_s(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.name_working(CLAIM)  # nothing was kept
    digest = keep(folder, vector(1), claim=WORKING)
    assert folder.claims == {}
    folder.name_working(CLAIM)
    assert folder.has(CLAIM, digest)
    assert not folder.has(WORKING, digest)
    other = keep(folder, vector(2), claim=WORKING)
    folder.name_working(CLAIM)  # the same claim again, as after a crash
    assert (folder.has(CLAIM, digest), folder.has(CLAIM, other)) == (False, True)
    assert folder_in(tmp_path).claims == {CLAIM: 3}


def test_what_a_crash_leaves_of_a_vector_is_gone_and_takes_no_room(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, max_bytes=2 * SIZE)
    part = folder.begin(3, CLAIM, vector_digest(vector(1)), SIZE)
    part.write(vector(1).tobytes()[:8])
    again = folder_in(tmp_path, max_bytes=2 * SIZE)  # the first one is not closed, as after kill -9
    assert [path for path in (tmp_path / "vectors").rglob("*") if path.is_file()] == []
    digests = [keep(again, vector(seed)) for seed in (1, 2)]
    assert all(again.has(CLAIM, digest) for digest in digests)
    part.close()


def test_a_vector_that_arrives_while_its_round_goes_is_gone_with_it(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    part = folder.begin(3, CLAIM, vector_digest(vector(1)), SIZE)
    part.write(vector(1).tobytes())
    folder.prune(100)
    part.finish()
    part.close()
    assert not folder.has(CLAIM, vector_digest(vector(1)))


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    (tmp_path / "vectors" / "00000003" / CLAIM.hex()).mkdir(parents=True)
    (tmp_path / "vectors" / "00000003" / CLAIM.hex() / f"{vector_digest(vector(1)).hex()}-0.part").mkdir()
    with pytest.raises(StorageError):
        keep(folder, vector(1))


def test_vectors_are_got_page_by_page_from_a_node_that_has_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        here, there = network.endpoint(HERE.public_key), network.endpoint(THERE.public_key)
        signed, _ = made(2)
        values = vector(1, PAGE_BYTES // 4 + 3)
        digest, into = vector_digest(values), folder_in(tmp_path)
        kept, other = (VectorsFolder(tmp_path / name, kept_rounds=5, max_bytes=1 << 24) for name in ("kept", "other"))
        await serve_vectors(there, other, kept)
        with pytest.raises(Refused):
            await fetch_vector(here, there.key, signed, digest, len(values), into)
        keep(kept, values, claim=signed.digest)
        await fetch_vector(here, there.key, signed, digest, len(values), into)
        found = into.read(signed.digest, digest)
        assert found is not None
        assert found.tobytes() == values.tobytes()
        del network.endpoints[there.key]
        await fetch_vector(here, there.key, signed, digest, len(values), into)  # it is here
        with pytest.raises(NoRoom):
            await fetch_vector(here, there.key, signed, digest, len(values), folder_in(tmp_path / "small", max_bytes=100))

    asyncio.run(scenario())


def test_a_node_that_hands_out_something_else_is_caught_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        network = MemoryNetwork()
        here, there = network.endpoint(HERE.public_key), network.endpoint(THERE.public_key)
        signed, _ = made(2)
        values = vector(1, PAGE_BYTES // 4 + 3)
        data, digest = values.tobytes(), vector_digest(values)
        into = folder_in(tmp_path, max_bytes=len(data) + 8)
        answers: dict[int, bytes] = {}

        async def answer(_caller: PublicKey, request: bytes) -> bytes:
            return answers[unpack(AskVector, request, max_bytes=MAX_ASK_BYTES).first]

        await there.serve(ASK, answer)
        first, second = data[:PAGE_BYTES], data[PAGE_BYTES:]
        for wrong in (
            {0: b"", PAGE_BYTES: second},
            {0: first[:-1], PAGE_BYTES: second},
            {0: first + b"\0", PAGE_BYTES: second},
            {0: first, PAGE_BYTES: second + b"\0\0\0\0"},
            {0: first, PAGE_BYTES: second[:-4]},
            {0: first[::-1], PAGE_BYTES: second},
        ):
            answers.update(wrong)
            with pytest.raises(RemoteFault):
                await fetch_vector(here, there.key, signed, digest, len(values), into)
            assert [path for path in (tmp_path / "vectors").rglob("*") if path.is_file()] == []
        answers.update({0: first, PAGE_BYTES: second})
        await fetch_vector(here, there.key, signed, digest, len(values), into)  # there is room for it still
        assert into.has(signed.digest, digest)

    asyncio.run(scenario())


def test_a_claim_of_another_has_its_own_vectors(tmp_path: Path) -> None:
    folder, signed = folder_in(tmp_path), made(2)[0]
    digest = keep(folder, vector(1))
    assert not folder.has(signed.digest, digest)
    assert folder.page(signed.digest, digest, 0) is None
    assert folder.page(CLAIM, digest, PAGE_BYTES) is None
    assert folder.page(CLAIM, digest, 0) == vector(1).tobytes()
