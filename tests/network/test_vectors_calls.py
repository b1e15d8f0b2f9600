"""A folder of vectors: what is kept, what goes first, and who gets pages of it."""

from pathlib import Path

import numpy as np
import pytest

from manta_swarm.codec.residuals import vector_digest
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.vectors import Vector, VectorsFolder, serve_vectors
from manta_swarm.protocol.auditing import PAGE_BYTES, VECTOR, AskVector
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.signing import Identity, sha256
from manta_swarm.runtime.round_folder import NoRoom

HERE, THERE = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
BASE = sha256(b"base")
SIZE = 4 * 100


def folder_in(path: Path, kept_rounds: int = 5, max_bytes: int = 1 << 24) -> VectorsFolder:
    return VectorsFolder(path / "vectors", kept_rounds=kept_rounds, max_bytes=max_bytes)


def vector(seed: int, size: int = 100) -> Vector:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def keep(folder: VectorsFolder, values: Vector, round_: int = 3, kept_by: bytes = BASE) -> bytes:
    digest = vector_digest(values)
    folder.keep(round_, kept_by, digest, values)
    return digest


def test_what_is_kept_is_there_after_a_restart_and_goes_with_its_rounds(tmp_path: Path) -> None:
    digest = keep(folder_in(tmp_path), vector(1))
    again = folder_in(tmp_path)
    assert again.has(BASE, digest)
    assert again.rounds == {BASE: 3}
    found = again.read(BASE, digest)
    assert found is not None
    assert found.tobytes() == vector(1).tobytes()
    again.prune(7)
    assert again.has(BASE, digest)
    again.prune(8)
    assert not again.has(BASE, digest)
    assert again.read(BASE, digest) is None
    assert again.rounds == {}
    assert list((tmp_path / "vectors").iterdir()) == []


def test_a_vector_that_is_damaged_is_none(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    digest = keep(folder, vector(1))
    (path,) = (tmp_path / "vectors").glob("*/*/*")
    path.write_bytes(vector(2).tobytes())
    assert folder.read(BASE, digest) is None
    path.write_bytes(b"abc")
    assert folder.read(BASE, digest) is None


def test_only_what_is_asked_for_stays(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, max_bytes=3 * SIZE)
    first, second, third = (keep(folder, vector(seed)) for seed in range(3))
    folder.keep_only(BASE, (second, sha256(b"another")))
    assert [folder.has(BASE, digest) for digest in (first, second, third)] == [False, True, False]
    keep(folder, vector(4))
    keep(folder, vector(5))  # there is room again
    folder.keep_only(BASE, ())
    assert folder.rounds == {}
    assert not folder.has(BASE, second)
    folder.keep_only(BASE, (second,))  # of what is not here nothing is kept
    assert list((tmp_path / "vectors").iterdir()) == []
    folder.prune(100)


def test_over_the_budget_the_oldest_rounds_go_and_never_newer_ones(tmp_path: Path) -> None:
    folder, later = folder_in(tmp_path, max_bytes=2 * SIZE), sha256(b"later")
    first = keep(folder, vector(1))
    keep(folder, vector(1))  # is there already
    keep(folder, vector(2), 4, later)
    second = keep(folder, vector(3), 4, later)
    assert not folder.has(BASE, first)
    assert folder.rounds == {later: 4}
    with pytest.raises(NoRoom):
        keep(folder, vector(1))
    assert folder.has(later, second)
    assert folder_in(tmp_path, max_bytes=2 * SIZE).rounds == {later: 4}


def test_what_a_crash_leaves_of_a_vector_is_gone_and_takes_no_room(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, max_bytes=2 * SIZE)
    part = folder.begin(3, BASE, vector_digest(vector(1)), SIZE)
    part.write(vector(1).tobytes()[:8])
    again = folder_in(tmp_path, max_bytes=2 * SIZE)  # the first one is not closed, as after kill -9
    assert [path for path in (tmp_path / "vectors").rglob("*") if path.is_file()] == []
    digests = [keep(again, vector(seed)) for seed in (1, 2)]
    assert all(again.has(BASE, digest) for digest in digests)
    part.close()


def test_a_vector_that_arrives_while_its_round_goes_is_gone_with_it(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    part = folder.begin(3, BASE, vector_digest(vector(1)), SIZE)
    part.write(vector(1).tobytes())
    folder.prune(100)
    part.finish()
    part.close()
    assert not folder.has(BASE, vector_digest(vector(1)))


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    (tmp_path / "vectors" / "00000003" / BASE.hex()).mkdir(parents=True)
    (tmp_path / "vectors" / "00000003" / BASE.hex() / f"{vector_digest(vector(1)).hex()}-0.part").mkdir()
    with pytest.raises(StorageError):
        keep(folder, vector(1))


async def test_pages_are_handed_to_whoever_asks_from_any_of_the_folders(tmp_path: Path) -> None:
    network = MemoryNetwork()
    here, there = network.endpoint(HERE.public_key), network.endpoint(THERE.public_key)
    values = vector(1, PAGE_BYTES // 4 + 3)
    kept, other = (VectorsFolder(tmp_path / name, kept_rounds=5, max_bytes=1 << 24) for name in ("kept", "other"))
    await serve_vectors(there, other, kept)
    digest = vector_digest(values)

    async def page(first: int, kept_by: bytes = BASE) -> bytes:
        return await here.call(there.key, VECTOR, pack(AskVector(kept_by, digest, first)), timeout_s=5, large_answer=True)

    assert await page(0) == b""
    keep(kept, values)
    assert await page(0) + await page(PAGE_BYTES) == values.tobytes()
    assert await page(2 * PAGE_BYTES) == await page(0, sha256(b"another base")) == b""


def test_what_is_kept_by_something_else_is_another_vector_s(tmp_path: Path) -> None:
    folder, another = folder_in(tmp_path), sha256(b"another base")
    digest = keep(folder, vector(1))
    assert not folder.has(another, digest)
    assert folder.page(another, digest, 0) is None
    assert folder.page(BASE, digest, PAGE_BYTES) is None
    assert folder.page(BASE, digest, 0) == vector(1).tobytes()
