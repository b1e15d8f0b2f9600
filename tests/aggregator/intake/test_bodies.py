"""Bodies at the log: what was synced is there, what a crash tore off is not, and which groups of one on its way are said to be there."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.aggregator.intake.bodies import Bodies, StoredContribution, Uploads
from manta_swarm.network.log_client import BodyPart, HandIn, HeaderAnswer
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed
from manta_swarm.protocol.records import Claim, Contribution, Header
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.table import Weighing
from tests.aggregator.full_disk import file_size_limit
from tests.aggregator.small_run import PEERS, header, signed_manifest
from tests.runs import FixedTrainingSpec

BODY_BYTES = 40
HEADERS = [header(Ledger(signed_manifest(), FixedTrainingSpec()), peer) for peer in PEERS]
KEPT = [StoredContribution(header, bytes([number]) * BODY_BYTES) for number, header in enumerate(HEADERS)]
FIRST, SECOND, THIRD = KEPT

KEY, DIGEST = b"\x01" * 32, b"\x02" * 32
HEADER = Header(Signed(Contribution, b"", b""), (Signed(Claim, b"", b""),))
LISTED = Listed(
    contribution=DIGEST,
    founder=KEY,
    body=DIGEST,
    weighing=Weighing(0, 0, 1),
    round=1,
    cohort="here",
    keys=(KEY,),
    payouts=(KEY,),
    claims=(DIGEST,),
    counted=1,
    microbatches_ms=(1,),
    samples=(1,),
    weights=(1,),
    proven=(True,),
)


@pytest.fixture
def bodies(tmp_path: Path) -> Bodies:
    return Bodies(tmp_path / "aggregator" / "bodies", body_bytes=BODY_BYTES, keep=4)


def path_of(bodies: Bodies, round_: int = 1) -> Path:
    return bodies._file(round_).path


def batches(bodies: Bodies, *batches: list[StoredContribution]) -> list[int]:
    """Store batches for round 1, one after the other; return how long the file was after each."""
    sizes = []
    for batch in batches:
        bodies.append([(1, kept) for kept in batch])
        sizes.append(path_of(bodies).stat().st_size)
    return sizes


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_what_was_stored_is_read_again_in_its_order_and_by_its_round(bodies: Bodies) -> None:
    bodies.append([(3, THIRD), (1, FIRST), (3, SECOND)])
    bodies.append([(1, SECOND)])
    again = Bodies(path_of(bodies).parent, body_bytes=BODY_BYTES, keep=4)
    for each in (bodies, again):
        assert each.read(1) == [FIRST, SECOND]
        assert each.read(2) == []
        assert each.read(3) == [THIRD, SECOND]
        assert each.rounds() == [1, 3]


def test_before_anything_is_stored_there_is_nothing_and_no_directory(bodies: Bodies) -> None:
    assert (bodies.read(1, mend=True), bodies.rounds()) == ([], [])
    bodies.prune(100)
    assert not path_of(bodies).parent.exists()


def test_one_sync_covers_all_of_a_round_that_are_stored_together(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    batches(bodies, [FIRST])
    synced: list[int] = []

    def fsync(file: int) -> None:
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    bodies.append([(1, SECOND), (1, THIRD)])
    assert synced == [path_of(bodies).stat().st_size]  # with all of it written before
    bodies.append([(2, SECOND), (1, THIRD), (2, FIRST)])
    assert len(synced) == 4  # two files, and the directory for the new one's name


def test_a_tail_torn_off_at_any_byte_is_left_out_and_more_can_be_stored(bodies: Bodies) -> None:
    whole, end = batches(bodies, [FIRST], [SECOND])
    data = path_of(bodies).read_bytes()
    for size in sorted({*range(0, end, 19), whole - 1, whole, whole + 1, end - 1, end}):
        path_of(bodies).write_bytes(data[:size])
        expected = [kept for kept, after in ((FIRST, whole), (SECOND, end)) if size >= after]
        assert bodies.read(1) == expected
        assert path_of(bodies).stat().st_size == size
        assert bodies.read(1, mend=True) == expected
        assert path_of(bodies).stat().st_size == (0, whole, end)[len(expected)]
        bodies.append([(1, THIRD)])
        assert bodies.read(1) == [*expected, THIRD]


def test_a_tail_of_any_bytes_is_left_out(bodies: Bodies) -> None:
    (end,) = batches(bodies, [FIRST])
    data = path_of(bodies).read_bytes()
    for tail in (b"\x00", b"\x00" * 500, b"\xff" * 500, data[:24] + bytes(500), data[:-1] + bytes([data[-1] ^ 1])):
        path_of(bodies).write_bytes(data + tail)
        assert bodies.read(1, mend=True) == [FIRST]
        assert path_of(bodies).stat().st_size == end


def test_of_a_batch_that_a_crash_wrote_in_part_what_is_before_the_hole_stays(bodies: Bodies) -> None:
    """The end of a file may reach the disk before its middle: nothing of that batch was synced, so nothing of it was promised."""
    whole, _ = batches(bodies, [FIRST], [SECOND, THIRD])
    flip(path_of(bodies), whole + 100)
    assert bodies.read(1, mend=True) == [FIRST]
    assert path_of(bodies).stat().st_size == whole


def test_a_flipped_bit_in_what_was_synced_is_damage_and_nothing_is_cut_off(bodies: Bodies) -> None:
    ends = batches(bodies, [FIRST], [SECOND], [THIRD])
    data = path_of(bodies).read_bytes()
    head = 16  # a bit there may change where the next contribution begins
    for start, end in ((0, ends[0]), (ends[0], ends[1])):
        for place in range(start + head, end, 29):
            flip(path_of(bodies), place)
            damaged = path_of(bodies).read_bytes()
            with pytest.raises(
                StorageError, match=rf"{path_of(bodies)} is damaged after its first {start} bytes; restore it from a backup"
            ):
                bodies.read(1, mend=True)
            assert path_of(bodies).read_bytes() == damaged
            path_of(bodies).write_bytes(data)
    assert bodies.read(1) == [FIRST, SECOND, THIRD]


def test_bodies_of_another_size_than_the_runs_are_not_believed(bodies: Bodies) -> None:
    batches(bodies, [FIRST])
    with pytest.raises(StorageError, match="a body of another size than this run's"):
        Bodies(path_of(bodies).parent, body_bytes=BODY_BYTES + 1, keep=4).read(1)


def test_only_the_files_of_the_newest_rounds_stay_and_the_open_rounds_too(bodies: Bodies) -> None:
    bodies.append([(round_, FIRST) for round_ in range(1, 12)])
    (path_of(bodies).parent / "round-of-somebody-else.bodies").touch()
    for _ in range(2):
        bodies.prune(9)
        assert bodies.rounds() == [6, 7, 8, 9, 10, 11]
    bodies.prune(100)
    assert bodies.rounds() == []


# A disk that refuses.
def test_a_full_disk_is_a_storage_error_and_what_was_there_stays(bodies: Bodies) -> None:
    (end,) = batches(bodies, [FIRST])
    with file_size_limit(end + 30), pytest.raises(StorageError, match="File too large; make room"):
        bodies.append([(1, SECOND)])
    assert bodies.read(1, mend=True) == [FIRST]
    batches(bodies, [THIRD])
    assert bodies.read(1) == [FIRST, THIRD]


def refused(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_sync_that_fails_is_a_storage_error(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    batches(bodies, [FIRST])
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StorageError, match=r"round-00000001\.bodies: Input/output error"):
        bodies.append([(1, SECOND)])
    with pytest.raises(StorageError, match="Input/output error"):
        bodies.read(1, mend=True)


def test_a_directory_that_cannot_be_made_is_the_machines_fault(bodies: Bodies) -> None:
    path_of(bodies).parents[1].write_text("a file")
    with pytest.raises(StorageError, match="cannot make the directory"):
        bodies.append([(1, FIRST)])


def test_a_file_that_cannot_be_read_or_removed_is_a_storage_error(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies.append([(2, FIRST)])
    path_of(bodies).mkdir()
    for operation in (lambda: bodies.read(1), lambda: bodies.append([(1, FIRST)])):
        with pytest.raises(StorageError, match="Is a directory"):
            operation()
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(StorageError, match="Input/output error"):
        bodies.prune(9)


@given(st.integers(1, 40), st.data())
def test_groups_that_came_are_there_and_no_others(count: int, data: st.DataObject) -> None:
    came = data.draw(st.sets(st.integers(0, count - 1)))
    uploads = Uploads([1] * count, 8)
    uploads.place(DIGEST, HEADER, LISTED, bringer=KEY, is_awaited=True, now=0)
    for place in came:
        uploads.part(KEY, KEY, BodyPart(DIGEST, place, b"x"), 0)
    upload = uploads.get(DIGEST)
    assert upload is not None
    answer = HeaderAnswer(int(HandIn.SEND_BODY), 1, 0, (), there=upload.there)
    is_whole = len(came) == count
    expected = came - {count - 1} if is_whole else came
    assert {place for place in range(count + 20) if answer.has(place)} == expected
    stays = 0 < len(came) < count
    assert uploads.forget(DIGEST) == (KEY if stays else None)
    uploads.place(DIGEST, HEADER, LISTED, bringer=KEY, is_awaited=False, now=0)
    again = uploads.get(DIGEST)
    assert again is not None
    assert (again.there == upload.there) == (stays or not upload.there)
    assert uploads.forget(DIGEST) is None  # no more of it came
