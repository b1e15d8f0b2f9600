import shutil
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import DATABASE, MANIFEST
from manta_swarm.protocol.errors import EncodingError, LedgerError, SignatureError, StorageError, UserError
from manta_swarm.protocol.merkle import leaf_hash, verify_inclusion
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.records import entry_of
from manta_swarm.protocol.signing import sha256
from tests.aggregator.audited_log import AuditedRun
from tests.aggregator.small_run import (
    ENTRIES,
    OPERATOR,
    OTHER_OPERATOR,
    PEERS,
    STRANGER,
    child,
    create,
    grow,
    next_round,
    opened_head,
    quorum_note,
    reopen,
    rfc_root,
    signed_manifest,
    training_spec_of,
)
from tests.audited import OPERATOR as AUDITED_OPERATOR
from tests.audited import verdict_of

SIGNED = signed_manifest()


def test_a_new_log_is_empty_and_has_a_signed_tree_head(log: Log) -> None:
    head = opened_head(log)
    assert (head.size, head.root) == (0, sha256(b""))
    assert log.ledger.size == 0
    assert log.entries(0, 10) == []


def test_the_root_is_the_one_that_the_rfc_defines_over_the_entries(log: Log) -> None:
    written: list[bytes] = []
    for _ in range(5):
        batch = next_round(log.ledger)
        log.commit(batch)
        written += batch
        assert (opened_head(log).size, opened_head(log).root) == (len(written), rfc_root(written))
    assert log.entries(0, 1000) == written
    assert log.entries(3, 4) == written[3:7]
    assert [log.entry(index) for index in range(len(written))] == written
    assert log.ledger.round == 5


def test_every_receipt_holds_under_the_published_tree_head(log: Log) -> None:
    for rounds in range(1, 5):
        grow(log, 1)
        head = opened_head(log)
        assert head.size == rounds * ENTRIES
        for index in range(head.size):
            receipt = log.receipt(index)
            assert receipt.tree_head == log.tree_head
            assert receipt.entry == log.entry(index)
            verify_inclusion(leaf_hash(receipt.entry), receipt.index, head.size, receipt.proof, head.root)


def test_a_batch_with_one_invalid_entry_changes_nothing(log: Log, directory: Path) -> None:
    grow(log, 1)
    before = (log.ledger.size, log.tree_head, log.entries(0, 100))
    entries = next_round(log.ledger)
    claim, contribution, round_ = entries[0], entries[1], entries[-1]
    forged = claim[:-1] + bytes([claim[-1] ^ 1])
    for batch, refusal in (
        ([*entries[:2], forged, *entries[3:]], SignatureError),
        ([claim, *entries], LedgerError),
        ([claim, contribution, round_], LedgerError),
        ([round_], LedgerError),
        ([*entries, claim], LedgerError),
        (entries[:-1], LedgerError),  # it ends with no round
        ([claim, b"\x00"], EncodingError),
    ):
        with pytest.raises(refusal):
            log.commit(batch)
        assert (log.ledger.size, log.tree_head, log.entries(0, 100)) == before
    log.commit([])
    assert (log.ledger.size, log.tree_head) == before[:2]
    log.commit(entries)
    assert log.ledger.round == 2
    log.close()
    with reopen(directory) as again:
        assert again.ledger.round == 2


def test_a_reopened_log_is_the_same_and_goes_on(log: Log, directory: Path) -> None:
    grow(log, 3)
    before = (log.tree_head, log.ledger.size, log.ledger.credits(), log.entries(0, 100))
    log.close()
    with reopen(directory, run=SIGNED.run) as again:
        assert (again.tree_head, again.ledger.size, again.ledger.credits(), again.entries(0, 100)) == before
        grow(again, 2)
        assert again.ledger.round == 5


def test_entries_end_at_the_bytes_that_are_asked_for_and_there_is_one_at_least(log: Log) -> None:
    grow(log, 2)
    written = log.entries(0, 100)
    sizes = [len(entry) for entry in written]
    assert log.entries(0, 100, 0) == written[:1]
    assert log.entries(1, 100, sizes[1] + sizes[2]) == written[1:3]
    assert log.entries(1, 100, sizes[1] + sizes[2] + sizes[3] - 1) == written[1:3]
    assert log.entries(0, 3, sum(sizes)) == written[:3]
    assert log.entries(0, 100, sum(sizes)) == written
    assert log.entries(len(written), 100, sum(sizes)) == []


def test_what_does_not_exist_is_a_value_error(log: Log) -> None:
    grow(log, 1)
    for index in (-1, ENTRIES, 2**70):
        with pytest.raises(ValueError, match="has no entry"):
            log.entry(index)
        with pytest.raises(ValueError, match="has no entry"):
            log.receipt(index)
    for start, limit in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="no entries from"):
            log.entries(start, limit)
    assert log.entries(2**70, 2**70) == []


def test_a_second_process_is_refused_while_the_first_one_lives(log: Log, directory: Path) -> None:
    log.close()
    with child("hold", directory) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=f"another aggregator uses {directory}"):
            reopen(directory)
        with pytest.raises(UserError, match="another aggregator uses"):
            create(directory, SIGNED)
    with reopen(directory) as again:
        with pytest.raises(UserError, match="another aggregator uses"):
            reopen(directory)  # in the same process
        grow(again, 1)


def test_a_forked_process_that_outlives_a_killed_aggregator_does_not_keep_its_log(log: Log, directory: Path) -> None:
    log.close()
    with child("hold-and-fork", directory) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        holder.kill()
        holder.wait(timeout=30)
        with reopen(directory) as again:  # the forked one lives until our end of its standard input closes
            grow(again, 1)


def test_a_user_hears_what_is_wrong_with_a_directory(log: Log, directory: Path, tmp_path: Path) -> None:
    log.close()
    with pytest.raises(UserError, match="already holds the log of a run"):
        create(directory, SIGNED)
    with pytest.raises(UserError, match="holds another run"):
        reopen(directory, run=signed_manifest("another").run)
    with pytest.raises(UserError, match="of another operator"):
        reopen(directory, OTHER_OPERATOR)
    with pytest.raises(UserError, match="holds no log"):
        reopen(tmp_path / "nothing")
    with pytest.raises(UserError, match="does not name this operator"):
        create(tmp_path / "new", SIGNED, STRANGER)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make the directory"):
        create(tmp_path / "file" / "below", SIGNED)
    reopen(directory).close()  # no refusal has kept the lock


def test_a_manifest_of_another_run_beside_the_database_is_refused(log: Log, directory: Path, tmp_path: Path) -> None:
    log.close()
    create(tmp_path / "other", signed_manifest("another")).close()
    shutil.copy(tmp_path / "other" / MANIFEST, directory / MANIFEST)
    with pytest.raises(StorageError, match="of another run than the manifest"):
        reopen(directory)


def test_a_log_whose_database_is_gone_is_not_started_anew(log: Log, directory: Path) -> None:
    grow(log, 1)
    log.close()
    (directory / DATABASE).unlink()
    with pytest.raises(StorageError, match=f"whose {DATABASE} is missing"):
        create(directory, SIGNED)


def test_a_creation_that_was_killed_can_be_repeated(log: Log, directory: Path) -> None:
    log.close()
    (directory / DATABASE).rename(directory / f"{DATABASE}.new")  # one step before the end, for another run
    with pytest.raises(UserError, match="holds no log"):
        reopen(directory)
    with create(directory, signed_manifest("another")) as again:
        grow(again, 1)
    assert not (directory / f"{DATABASE}.new").exists()


@pytest.mark.parametrize("write", ["write_manifest", "write_durably", "create_database"])
def test_a_creation_that_is_killed_before_any_of_its_writes_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"manta_swarm.aggregator.log.log.{write}", dies)
    with pytest.raises(KeyboardInterrupt):
        create(tmp_path, SIGNED)
    monkeypatch.undo()
    with create(tmp_path, SIGNED) as again:
        grow(again, 1)


def test_each_operator_keeps_a_log_of_its_own_and_takes_what_enough_of_them_signed_for(tmp_path: Path) -> None:
    signed = signed_manifest(operators=(OPERATOR, OTHER_OPERATOR))
    with create(tmp_path / "second", signed, OTHER_OPERATOR) as log:
        entries = next_round(log.ledger)
        with pytest.raises(LedgerError, match="fewer than 2 operators"):
            log.commit(entries)
        with pytest.raises(SignatureError, match="1 of 2 operators"):
            log.commit(entries, quorum_note(log, entries, OPERATOR))
        with pytest.raises(LedgerError, match="other entries"):
            log.commit(entries, quorum_note(log, entries[:-1], OPERATOR, OTHER_OPERATOR))
        assert log.head.size == 0
        note = quorum_note(log, entries, OPERATOR, OTHER_OPERATOR)
        log.commit(entries, note)
        assert log.tree_head == note
        assert open_round_receipt(log.receipt(ENTRIES - 1), Operators.of_signed(signed)).round.round == 1
    with reopen(tmp_path / "second", OTHER_OPERATOR) as log:
        assert (log.tree_head, log.head.size) == (note, ENTRIES)


def test_a_crash_before_or_after_the_entries_leaves_a_head_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = signed_manifest(operators=(OPERATOR, OTHER_OPERATOR))
    notes = []
    for when in ("_store", "_sign"):
        directory = tmp_path / when
        with create(directory, signed, OPERATOR) as log:
            first = next_round(log.ledger)
            log.commit(first, note := quorum_note(log, first, OPERATOR, OTHER_OPERATOR))
            second = next_round(log.ledger)
            later = quorum_note(log, second, OPERATOR, OTHER_OPERATOR)
            with monkeypatch.context() as patch:
                patch.setattr(log, when, lambda *_: (_ for _ in ()).throw(StorageError("the power went")))
                with pytest.raises(StorageError, match="the power went"):
                    log.commit(second, later)
        notes = [note, later]
        with reopen(directory, OPERATOR) as log:
            assert log.tree_head == (note if when == "_store" else later)
    assert notes[0] != notes[1]


def test_closing_twice_is_harmless_and_a_closed_log_does_nothing(log: Log) -> None:
    log.close()
    log.close()
    with pytest.raises(StorageError, match=r"has stopped \(closed\)"):
        grow(log, 1)


def test_a_settlement_is_committed_with_the_verdicts_before_it_and_the_log_opens_again_and_takes_no_more(tmp_path: Path) -> None:
    run = AuditedRun(tmp_path / "audited", num_rounds=4, proven=PEERS[:3])
    run.rounds_to_the_end()
    late, again = verdict_of(run.ledger, PEERS[0]), verdict_of(run.ledger, PEERS[1])
    with pytest.raises(LedgerError, match="or with the settlement"):
        run.log.commit([entry_of(late)])
    run.settle(late)
    assert run.ledger.settled
    run.log.close()
    with Log.open(tmp_path / "audited", AUDITED_OPERATOR, training_spec_of=training_spec_of) as log:
        assert (log.ledger.settled, log.ledger.credits()) == (True, run.ledger.credits())
        with pytest.raises(LedgerError, match="the run is finished"):
            log.commit([entry_of(again)])
