"""What a run makes a peer fetch, send and keep, and audits a log: sums that were computed by hand, and bounds that hold in any run."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.audits import ALL_ALIKE, AUDITED, Trust
from protocol.exchange import Exchange
from protocol.footprint import (
    Sizes,
    Table,
    data_bytes,
    entry_bytes,
    kept_rounds,
    log_audits,
    most_vectors_bytes,
    num_asked,
    num_kept,
    num_made,
    peer_disk,
    round_traffic,
    usual_vectors_bytes,
)
from protocol.shards import TravellingShards
from protocol.signing import Identity
from tests.runs import manifest_of

SIZES = Sizes(num_weights=100_000, body=6_000, state=800_000)  # so a vector has 400,000 bytes
MANIFEST = manifest_of(Identity(bytes(32)))
DENSE = replace(MANIFEST.exchange, max_claim_samples=4096)
STEPPED = replace(DENSE, codec="topk-192-4", local_steps=4, first_floor=-28)
TRUST = Trust(AUDITED, kept_rounds=8, pending_rounds=13, whole_percent=0)  # what audits ask of is kept for 8 + 3 + 4 + 1 = 16 rounds
CONTRIBUTION = entry_bytes(4)
CLAIM = 578  # of it


def test_of_a_claim_of_four_steps_audits_ask_for_about_five_vectors() -> None:
    assert num_made(STEPPED, TRUST) == 7  # the weights, four gradients, what was learnt, the residual
    assert num_asked(STEPPED, TRUST) == pytest.approx(0.75 + 2.5 + 2)  # a lot's weights, means up to the step looked at, the last two
    assert num_asked(STEPPED, replace(TRUST, whole_percent=100)) == pytest.approx(0.75 + 4 + 2)
    assert num_asked(STEPPED, replace(TRUST, audit_lots=2)) == pytest.approx(3 * (1 - 9 / 16) + 2.5 + 2)
    assert num_kept(STEPPED, TRUST) == pytest.approx(0.75 + 4 + 2)  # a lot's weights, all gradients, the last two
    assert (num_made(DENSE, TRUST), num_asked(DENSE, TRUST)) == (1, 0)  # who is alone has said all by its records, and keeps its gradient
    assert num_made(replace(DENSE, codec="topk-256-4"), TRUST) == num_kept(replace(DENSE, codec="topk-256-4"), TRUST) == 3
    assert (num_made(STEPPED, ALL_ALIKE), num_asked(STEPPED, ALL_ALIKE)) == (0, 0)


def test_the_disk_of_a_peer_is_mostly_what_audits_may_ask_for() -> None:
    shards = TravellingShards(list_root=bytes(32), list_bytes=1_000, size_bytes=5_000_000, train_shards=4)
    manifest = replace(MANIFEST, exchange=STEPPED, trust=TRUST, shards=(shards,), num_rounds=10_000)
    assert data_bytes(manifest, None) == data_bytes(manifest, 6_000_000) == 5_001_000
    assert data_bytes(manifest, 2_000_000) == 2_001_000
    disk = peer_disk(manifest, SIZES, Table(rows=3, lots=8, open_s=1.0), 2_001_000)
    assert disk.vectors == (3 * 7 + 13 * 6.75) * 400_000  # three rounds without a beacon, and thirteen with one
    assert disk.records == 16 * (CLAIM + 12 * 110)
    assert (disk.residuals, disk.sealed) == (800_000, 6_000 + CONTRIBUTION)
    assert disk.usual == disk.vectors + disk.records + disk.residuals + disk.sealed + 2_001_000
    assert disk.slip == 3_000 + 3 * CONTRIBUTION
    assert disk.most > 17 * 14 * 400_000 + disk.residuals + disk.sealed + disk.data


def test_an_open_run_of_one_step_keeps_a_contribution_and_slips() -> None:
    disk = peer_disk(replace(MANIFEST, exchange=DENSE), SIZES, Table(rows=3, lots=8, open_s=1.0), 0)
    assert (disk.vectors, disk.records, disk.residuals, disk.data) == (0, 0, 0, 0)
    assert disk.usual == SIZES.body + entry_bytes(1)


def test_a_round_brings_the_others_contributions_or_their_mean_and_takes_the_own_one_and_a_copy() -> None:
    few = round_traffic(STEPPED, TRUST, SIZES, Table(rows=3, lots=8, open_s=1.0))
    assert few.fetched == 2 * 6_000 + 3 * 128 + 3 * CONTRIBUTION + 4_000
    assert few.sent == 6_000 + CONTRIBUTION + (CLAIM + 12 * 110) + 2 * 6_000 + 3 * 128 + 4_000
    assert few.shown == 5.25 * 400_000
    assert few.shown_when_proven == few.shown * 5 // 100
    assert round_traffic(STEPPED, TRUST, SIZES, Table(rows=1_000, lots=8, open_s=1.0)).fetched == 400_000 + 40_000 + 4_000
    longer = round_traffic(STEPPED, TRUST, SIZES, Table(rows=3, lots=8, open_s=61.0))  # announcements go on for a minute more
    assert (longer.fetched - few.fetched, longer.sent - few.sent) == (84_000, 84_000)
    alone = round_traffic(DENSE, ALL_ALIKE, SIZES, Table(rows=1, lots=8, open_s=1.0))
    assert (alone.shown, alone.sent) == (0, 6_000 + entry_bytes(1) + 128 + 4_000)


def test_a_log_keeps_what_audits_asked_of_all_who_are_not_proven() -> None:
    taken = log_audits(STEPPED, TRUST, SIZES, Table(rows=3, lots=8, open_s=1.0))
    assert taken.fetched == 3 * 5.25 * 400_000
    assert taken.vectors == 15 * taken.fetched
    assert (taken.fetched_when_proven, taken.vectors_when_proven) == (taken.fetched // 20, taken.vectors // 20)
    assert taken.records == 16 * 3 * (CLAIM + 12 * 110)
    assert log_audits(STEPPED, ALL_ALIKE, SIZES, Table(rows=3, lots=8, open_s=1.0)).vectors == 0


@given(
    steps=st.integers(1, 64),
    codec=st.sampled_from(["int16", "int8", "topk-64-2", "topk-192-4"]),
    kept=st.integers(1, 100),
    lots=st.integers(1, 8),
    whole=st.integers(0, 100),
)
def test_what_is_usual_is_within_what_is_kept_at_most(steps: int, codec: str, kept: int, lots: int, whole: int) -> None:
    exchange: Exchange = replace(DENSE, codec=codec, local_steps=steps)
    trust = replace(TRUST, kept_rounds=kept, pending_rounds=kept + 5, audit_lots=lots, whole_percent=whole)
    assert usual_vectors_bytes(exchange, trust, 1000) <= most_vectors_bytes(exchange, trust, 1000)
    assert kept_rounds(trust) == kept + 8
