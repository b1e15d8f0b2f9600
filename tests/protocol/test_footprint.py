"""What a run makes a peer fetch, send and keep, and audits a log: sums that were computed by hand, and bounds that hold in any run."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.exchange import Exchange
from manta_swarm.protocol.footprint import (
    ExpectedTable,
    Sizes,
    data_bytes,
    entry_bytes,
    log_audits,
    most_vectors_bytes,
    num_brought,
    peer_disk,
    round_traffic,
    usual_vectors_bytes,
    vectors_rounds,
)
from manta_swarm.protocol.manifest import TravellingShards
from manta_swarm.protocol.signing import Identity
from tests.audited import RULES as AUDITED
from tests.runs import manifest_of

SIZES = Sizes(num_weights=100_000, body=6_000, state=800_000)  # so a vector has 400,000 bytes
MANIFEST = manifest_of(Identity(bytes(32)))
DENSE = replace(MANIFEST.exchange, max_claim_samples=4096)
STEPPED = replace(DENSE, codec="topk-192-4", local_steps=4, first_min_exponent=-28)
RULES = replace(AUDITED, kept_rounds=20, pending_rounds=30, audit_percent=5)  # what audits ask for is kept for 20 + 4 + 1 = 25 rounds
CONTRIBUTION = entry_bytes(4)


def test_of_a_contribution_of_four_steps_four_means_and_a_residual_are_brought() -> None:
    assert num_brought(STEPPED) == 5
    assert num_brought(DENSE) == 1
    assert num_brought(replace(DENSE, codec="topk-256-4")) == 2


def test_the_disk_of_a_peer_is_mostly_what_audits_may_ask_for() -> None:
    shards = TravellingShards(list_root=bytes(32), list_bytes=1_000, size_bytes=5_000_000, train_shards=4)
    manifest = replace(MANIFEST, exchange=STEPPED, audits=(RULES,), shards=(shards,), num_rounds=10_000)
    assert data_bytes(manifest, None) == data_bytes(manifest, 6_000_000) == 5_001_000
    assert data_bytes(manifest, 2_000_000) == 2_001_000
    disk = peer_disk(manifest, SIZES, ExpectedTable(rows=3, open_s=1.0), 2_001_000)
    assert disk.vectors == (3 + 1) * 5 * 400_000  # three rounds without a beacon, and of twenty with one those that are audited
    assert (disk.residuals, disk.signed) == (800_000, 6_000 + CONTRIBUTION)
    assert disk.usual == disk.vectors + disk.residuals + disk.signed + 2_001_000
    assert disk.payout_receipt == 3_000 + 3 * CONTRIBUTION
    assert disk.most > 26 * 10 * 400_000 + disk.residuals + disk.signed + disk.data


def test_an_open_run_of_one_step_keeps_a_contribution_and_payout_receipts() -> None:
    disk = peer_disk(replace(MANIFEST, exchange=DENSE), SIZES, ExpectedTable(rows=3, open_s=1.0), 0)
    assert (disk.vectors, disk.residuals, disk.data) == (0, 0, 0)
    assert disk.usual == SIZES.body + entry_bytes(1)


def test_a_round_brings_the_others_contributions_or_their_mean_and_takes_the_own_one_and_a_copy() -> None:
    few = round_traffic(STEPPED, RULES, SIZES, ExpectedTable(rows=3, open_s=1.0))
    assert few.fetched == 2 * 6_000 + 3 * 128 + 3 * CONTRIBUTION + CONTRIBUTION + 4_000
    assert few.sent == 6_000 + CONTRIBUTION + 2 * 6_000 + 3 * 128 + 4_000
    assert few.brought == 5 * 400_000
    assert few.brought_when_proven == few.brought * 5 // 100
    assert round_traffic(STEPPED, RULES, SIZES, ExpectedTable(rows=1_000, open_s=1.0)).fetched == 400_000 + 40_000 + CONTRIBUTION + 4_000
    longer = round_traffic(STEPPED, RULES, SIZES, ExpectedTable(rows=3, open_s=61.0))  # announcements go on for a minute more
    assert (longer.fetched - few.fetched, longer.sent - few.sent) == (84_000, 84_000)
    alone = round_traffic(DENSE, None, SIZES, ExpectedTable(rows=1, open_s=1.0))
    assert (alone.brought, alone.sent) == (0, 6_000 + entry_bytes(1) + 128 + 4_000)


def test_an_operator_keeps_what_is_brought_until_it_is_paid() -> None:
    taken = log_audits(STEPPED, RULES, SIZES, ExpectedTable(rows=20, open_s=1.0))
    assert taken.brought == 5 * 400_000  # one contribution of twenty
    assert taken.vectors == 30 * taken.brought
    assert 0 < taken.verdicts < 1_000
    assert log_audits(STEPPED, None, SIZES, ExpectedTable(rows=3, open_s=1.0)).vectors == 0


@given(
    steps=st.integers(1, 64),
    codec=st.sampled_from(["int16", "int8", "topk-64-2", "topk-192-4"]),
    kept=st.integers(1, 100),
    percent=st.integers(1, 100),
)
def test_what_is_usual_is_within_what_is_kept_at_most(steps: int, codec: str, kept: int, percent: int) -> None:
    exchange: Exchange = replace(DENSE, codec=codec, local_steps=steps)
    rules = replace(RULES, kept_rounds=kept, pending_rounds=kept + 5, audit_percent=percent)
    assert usual_vectors_bytes(exchange, rules, 1000) <= most_vectors_bytes(exchange, rules, 1000)
    assert vectors_rounds(rules) == kept + 5
    assert vectors_rounds(None) == usual_vectors_bytes(exchange, None, 1000) == most_vectors_bytes(exchange, None, 1000) == 0
