"""Shards that travel: which of them a key holds, what a manifest says of them, and which claims of parts a log takes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.manifest import TravellingShards
from manta_swarm.protocol.microbatches import held_shards, shards_in_order
from manta_swarm.protocol.records import entry_of
from tests.contributions import PEERS, header_of
from tests.protocol.ledgers import append, ledger_of, refused

KEY = b"k" * 32
# As computed when the rule was made; a change would make microbatches of old rounds impossible to recompute.
HELD = (5, 6, 7, 8)
SHARDS = TravellingShards(bytes(32), 100, 10_000, 10)


def test_the_shards_of_a_key_are_the_same_on_every_machine_for_ever() -> None:
    assert held_shards(7, KEY, 10, 4) == HELD


@given(st.integers(0, 2**62), st.binary(min_size=32, max_size=32), st.integers(1, 60), st.data())
def test_one_shard_more_is_one_beside_those_of_before(seed: int, key: bytes, count: int, data: st.DataObject) -> None:
    fewer = data.draw(st.integers(1, count))
    held = held_shards(seed, key, count, fewer)
    assert held == tuple(sorted(set(held)))
    assert set(held) <= set(held_shards(seed, key, count, count)) == set(range(count))
    assert set(held) == set(shards_in_order(seed, key, count)[:fewer])


def test_many_peers_together_hold_all_shards_about_equally_often() -> None:
    counts = Counter(shard for number in range(400) for shard in held_shards(7, number.to_bytes(32, "big"), 20, 5))
    assert set(counts) == set(range(20))
    assert 60 < min(counts.values()) <= max(counts.values()) < 145  # 100 each, deviation 8.7


@pytest.mark.parametrize("count", [0, -1, 11])
def test_none_or_more_than_there_are_cannot_be_held(count: int) -> None:
    with pytest.raises(ValueError, match="cannot be held"):
        held_shards(7, KEY, 10, count)


@pytest.mark.parametrize(
    "values", [(b"", 1, 1, 1), (bytes(32), 0, 1, 1), (bytes(32), 9 << 20, 1, 1), (bytes(32), 1, 0, 1), (bytes(32), 1, 1, 0)]
)
def test_a_set_that_cannot_be_is_refused(values: tuple[bytes, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"."):
        TravellingShards(*values)


def test_a_log_takes_microbatches_of_a_part_where_shards_travel_and_nowhere_else() -> None:
    part = {"shards": 9}
    refused(ledger_of(), entry_of(header_of(ledger_of(), PEERS[0], **part)), match="9 of the 0 shards")
    ledger = ledger_of(shards=(SHARDS,))
    refused(ledger, entry_of(header_of(ledger, PEERS[0], shards=10)), match="10 of the 10 shards")
    append(ledger, header_of(ledger, PEERS[0], **part))
    assert ledger.is_between_rounds is False
