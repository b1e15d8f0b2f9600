from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.monitor import kept, sight, view
from manta_swarm.aggregator.monitor.tables import OpenedEntry, RoundColumns, TableSeen, opened, table_seen
from manta_swarm.aggregator.monitor.view import View
from manta_swarm.aggregator.states.opening import OpenedRun
from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.protocol.admission import PEER, Revocation
from manta_swarm.protocol.errors import EncodingError, LedgerError
from manta_swarm.protocol.records import MAX_ENTRY_BYTES, Round
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import peer_name
from tests.aggregator.small_run import ENTRIES, OPERATOR, PEERS, grow, signed_manifest, training_spec_of

SIGNED = signed_manifest()


def view_of(log: Log) -> View:
    """Return the view of all of a small run's log."""
    found = View(SIGNED, training_spec_of(log.ledger.manifest))
    found.take(log.entries(0, log.head.size))
    return found


def test_rounds_and_credits_are_those_of_the_ledger(played: tuple[Path, OpenedRun]) -> None:
    log = played[1].log
    view = View(played[1].signed, ManifestTrainingSpec(log.ledger.manifest))
    view.take(log.entries(0, log.head.size))
    assert (view.round, view.size, view.root()) == (log.ledger.round, log.head.size, log.head.root)
    assert view.reputation.credits() == log.ledger.credits()
    assert sum(view.credit_of(claim) or 0 for peer in view.peers.values() for claim in peer.newest) == view.pool_paid
    assert view.pool_paid == sum(log.ledger.credits().values())
    for round_ in (1, 2, 3):
        assert view.rounds.state_of(round_) == log.ledger.state_at(round_)
        assert view.rounds.index_of(round_) == log.ledger.index_at(round_)


def test_it_does_not_matter_in_which_parts_the_entries_come(log: Log) -> None:
    grow(log, 5)
    whole, entries = view_of(log), log.entries(0, log.head.size)
    bit_by_bit = View(SIGNED, training_spec_of(log.ledger.manifest))
    for entry in entries:
        bit_by_bit.take([entry])
    assert bit_by_bit.root() == whole.root()
    assert bit_by_bit.rounds.series(1, 5, 10) == whole.rounds.series(1, 5, 10)
    assert bit_by_bit.peers == whole.peers


def test_a_table_is_the_same_when_it_is_looked_up_again(log: Log) -> None:
    grow(log, 3)
    view = view_of(log)
    newest = view.newest
    assert newest is not None
    again = view.table(3, log.entries(2 * ENTRIES, ENTRIES))
    assert again == newest
    assert [claim.key for claim in again.claims] == [peer.public_key for peer in PEERS]
    assert [view.peers[peer.public_key].last for peer in PEERS] == again.claims
    assert {peer.name for peer in view.peers.values()} == {peer_name(peer.public_key) for peer in PEERS}


def test_of_each_peer_the_newest_claims_are_kept_and_all_are_counted(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "KEPT_CLAIMS", 4)
    grow(log, 7)
    peer = view_of(log).peers[PEERS[1].public_key]
    assert [claim.round for claim in peer.newest] == [4, 5, 6, 7]
    assert (peer.claims, peer.first_round, peer.last_round) == (7, 1, 7)
    assert peer.microbatches == 3 * peer.claims  # 2 of the first architecture, 1 of the other
    assert peer.samples == peer.microbatches * log.ledger.manifest.microbatch_samples


def test_what_is_no_log_is_refused(log: Log) -> None:
    grow(log, 2)
    entries = log.entries(0, log.head.size)
    view = View(SIGNED, training_spec_of(log.ledger.manifest))
    with pytest.raises(EncodingError):
        view.take([b"no entry"])
    with pytest.raises(LedgerError, match="other contributions"):
        view.take([entries[0], entries[ENTRIES - 1]])


def test_an_entry_that_does_not_fit_is_not_kept_and_may_come_again(log: Log) -> None:
    """A look that fails is followed by another one, of the same entries."""
    grow(log, 2)
    entries = log.entries(0, log.head.size)
    view = View(SIGNED, training_spec_of(log.ledger.manifest))
    view.take(entries[: ENTRIES - 2])  # its newest contribution and the round's entry are to come
    for _ in range(3):
        with pytest.raises(LedgerError):
            view.take([entries[ENTRIES - 1]])  # without its newest contribution
        assert (view.size, view.round, len(view.peers)) == (ENTRIES - 2, 0, 0)
    view.take(entries[ENTRIES - 2 :])
    assert view.root() == log.head.root
    assert view.peers == view_of(log).peers
    assert view.rounds.index_of(2) == 2 * ENTRIES - 1


def rounds_of(count: int, table: TableSeen) -> RoundColumns:
    """Return as many rounds, all like the one of ``table``."""
    rounds = RoundColumns()
    for _ in range(count):
        rounds.append(table)
    return rounds


def test_a_long_run_is_shown_by_as_many_points_as_asked_for_and_none_is_left_out(log: Log) -> None:
    grow(log, 1)
    table = view_of(log).newest
    assert table is not None
    rounds = rounds_of(1001, table)
    for round_ in range(1, 1002):
        rounds.committed(round_, 1_000_000 + 100 * round_)
    series = rounds.series(1, 1001, 100)
    assert len(series.round) <= 100
    assert series.round[-1] == 1001
    assert series.round[0] == series.rounds_a_point == 11
    assert set(series.round_ms) == {100}
    assert set(series.counted) == {sum(claim.samples for claim in table.claims)}
    assert rounds.series(5, 4, 100).round == []
    assert rounds.recent_ms() == 100


def test_rounds_that_nobody_timed_have_no_time(log: Log) -> None:
    grow(log, 1)
    table = view_of(log).newest
    assert table is not None
    rounds = rounds_of(4, table)
    assert rounds.recent_ms() is None
    rounds.committed(2, 5_000)
    rounds.committed(3, 5_700)
    rounds.committed(9, 1)  # which is not there yet
    assert [rounds.row(round_).round_ms for round_ in (1, 2, 3, 4)] == [None, None, 700, None]
    assert rounds.recent_ms() == 700


def test_a_revocation_before_a_rounds_claims_is_passed_over(played: tuple[Path, OpenedRun]) -> None:
    log = played[1].log
    manifest, training_spec = log.ledger.manifest, log.ledger.training_spec
    *table, last = [opened(entry) for entry in log.entries(0, (log.ledger.index_at(1) or 0) + 1)]
    assert isinstance(last.said, Round)
    entries = [*table, replace(last, said=replace(last.said, first=1))]
    revocation = Revocation(log.ledger.run, manifest.operators[0], PEER, bytes(range(32)))
    before = OpenedEntry("revocation", revocation, Signed.sign(revocation, OPERATOR))
    assert table_seen(0, [before, *entries], manifest, training_spec) == table_seen(1, entries, manifest, training_spec)


def test_what_is_read_of_a_log_at_a_time_is_bounded_however_large_its_entries_are() -> None:
    for entries in (sight._READ_AT_A_TIME, kept._HASHED_AT_A_TIME):
        assert entries * MAX_ENTRY_BYTES <= 32 * 2**20
