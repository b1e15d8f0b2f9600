"""Which shards a peer gets: all where there is room, else those held out and its key's part; what is said where that is too much."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from manta_swarm.automl.data.shards.layout import Shard, ShardList, travelling
from manta_swarm.peer.features.shards.plugin import Room, wanted
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.microbatches import held_shards
from manta_swarm.protocol.signing import Identity
from tests.runs import manifest_of

OPERATOR, KEY = Identity(b"\x01" * 32), b"k" * 32
MB = 1_000_000
LIST = ShardList("manta/shards/v1", "images", 3, ("a", "b"), 1, 80, tuple(Shard(bytes(32), bytes([n] * 32), MB, 8) for n in range(12)))


def _manifest() -> Manifest:
    return manifest_of(OPERATOR, dataset="shards-x", data_digest=LIST.digest, shards=(travelling(LIST),))


def _room(limit: int | None = None, free: int = 10**12) -> Room:
    return Room(Path("/data/x"), limit, free)


def test_where_there_is_room_all_are_wanted_and_claims_say_nothing_of_it() -> None:
    for room in (_room(), _room(12 * MB), _room(free=12 * MB)):
        found = wanted(_manifest(), KEY, LIST, room, ())
        assert (found.numbers, found.is_part, found.claimed, found.size_bytes) == (tuple(range(12)), False, 0, 12 * MB)


@pytest.mark.parametrize("room", [_room(8 * MB), _room(8 * MB + 999_999), _room(free=8 * MB)])
def test_where_there_is_none_for_all_those_held_out_come_first_and_then_the_key_s_part(room: Room) -> None:
    found = wanted(_manifest(), KEY, LIST, room, ())
    assert found.train == held_shards(0, KEY, 10, 6)
    assert (found.numbers, found.is_part, found.claimed, found.size_bytes) == ((*found.train, 10, 11), True, 6, 8 * MB)


def test_what_is_here_needs_no_room_on_the_disk_but_counts_for_the_person_s_limit() -> None:
    here = {10, 11, *held_shards(0, KEY, 10, 7)}
    assert wanted(_manifest(), KEY, LIST, _room(free=0), here).claimed == 7
    assert wanted(_manifest(), KEY, LIST, _room(free=MB), here).claimed == 8
    assert wanted(_manifest(), KEY, LIST, _room(8 * MB), here).claimed == 6


@pytest.mark.parametrize(
    ("room", "here", "says"),
    [
        (
            _room(3 * MB),
            (),
            "12.0 MB, of which at least 4.0 MB must be here to train; --data-limit allows 3.0 MB: give more with --data-limit",
        ),
        (_room(free=3 * MB), (), "4.0 MB more than now; the disk of /data/x has 3.0 MB left beside 1.1 GB that stay free: make room"),
        (_room(free=2 * MB), (11,), "3.0 MB more than now; the disk of /data/x has 2.0 MB left"),
    ],
)
def test_too_little_room_for_a_microbatch_is_said_in_a_line_with_what_to_do(room: Room, here: Sequence[int], says: str) -> None:
    with pytest.raises(UserError) as raised:
        wanted(_manifest(), KEY, LIST, room, here)
    assert says in str(raised.value)
    assert wanted(_manifest(), KEY, LIST, _room(4 * MB), ()).claimed == 2  # of 8 samples, for microbatches of 16
