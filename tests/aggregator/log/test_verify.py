import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import DATABASE, MANIFEST, TREE_HEAD
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.protocol.errors import MantaError, StorageError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from tests.aggregator.small_run import (
    ENTRIES,
    OPERATOR,
    PEERS,
    POOL,
    child,
    create,
    grow,
    next_round,
    opened_head,
    reopen,
    rfc_root,
    signed_manifest,
    training_spec_of,
    verified,
)
from tests.command import contents

SIGNED = signed_manifest()
ROUNDS = 3
SIZE = ROUNDS * ENTRIES


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed log of three rounds."""
    path = tmp_path / "aggregator"
    with create(path, SIGNED) as log:
        grow(log, ROUNDS)
    return path


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Log]:
    with create(tmp_path / "running", SIGNED) as log:
        yield log


def change(directory: Path, statement: str, *values: object) -> None:
    """Change the database behind the log's back."""
    with closing(sqlite3.connect(directory / DATABASE)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")  # hundreds of changes, none of which has to survive a power cut
        connection.execute(statement, values)


def read(directory: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(directory / DATABASE)) as connection:
        return connection.execute(query).fetchall()


def entries_of(directory: Path) -> list[bytes]:
    entries = []
    for (entry,) in read(directory, "SELECT bytes FROM entries ORDER BY position"):
        assert isinstance(entry, bytes)
        entries.append(entry)
    return entries


def test_a_sound_log_is_described_and_left_as_it_is(directory: Path) -> None:
    before = contents(directory)
    found = verified(directory)
    assert contents(directory) == before
    assert (found.run, found.operator) == (SIGNED.run, OPERATOR.public_key)
    assert (found.size, found.signed_size, found.rounds, found.finished) == (SIZE, SIZE, ROUNDS, False)
    assert found.root == rfc_root(entries_of(directory))
    assert found.tree_head == (directory / TREE_HEAD).read_text()


def test_credits_are_those_that_a_person_would_work_out(directory: Path) -> None:
    # Microbatches of 16 samples through architectures of 10 and 15 MACs: the first peer has one microbatch of each, the second two of the
    # first, the third three. Largest remainder gives the last unit.
    weights = [16 * (10 * microbatches + 15) for microbatches in (1, 2, 3)]
    exact = [Fraction(POOL * weight, sum(weights)) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(3), key=lambda peer: shares[peer] - exact[peer])
    for peer in by_remainder[: POOL - sum(shares)]:
        shares[peer] += 1
    assert verified(directory).credits == {peer.public_key: ROUNDS * share for peer, share in zip(PEERS, shares, strict=True)}


def test_an_empty_log_is_sound(running: Log, tmp_path: Path) -> None:
    found = verified(tmp_path / "running")
    assert (found.size, found.rounds, found.credits) == (0, 0, {})


def test_a_finished_run_is_said_to_be_finished(tmp_path: Path) -> None:
    with create(tmp_path / "short", signed_manifest(num_rounds=2)) as log:
        grow(log, 2)
    assert verified(tmp_path / "short").finished


def test_whoever_reads_is_given_the_ledger_after_each_round(directory: Path) -> None:
    seen: list[tuple[int, int, int]] = []

    def on_round(ledger: Ledger) -> None:
        table = ledger.table_at(ledger.round)
        assert table is not None
        seen.append((ledger.round, ledger.size, len(table)))

    verify_directory(directory, training_spec_of=training_spec_of, on_round=on_round)
    assert seen == [(round_, round_ * ENTRIES, len(PEERS)) for round_ in range(1, ROUNDS + 1)]


def test_any_flipped_byte_of_an_entry_is_found_and_named(directory: Path) -> None:
    entries = entries_of(directory)
    chance = random.Random(0)
    places = [(index, place) for index, entry in enumerate(entries) for place in range(len(entry))]
    sample = [(0, place) for place in range(0, len(entries[0]), 17)] + chance.sample(places, 40)
    for index, place in sample:
        flipped = bytearray(entries[index])
        flipped[place] ^= 1 << chance.randrange(8)
        change(directory, "UPDATE entries SET bytes = ? WHERE position = ?", bytes(flipped), index)
        with pytest.raises(StorageError, match=rf"entry {index}( does not hold|: the tree node at level 0)"):
            verified(directory)
        change(directory, "UPDATE entries SET bytes = ? WHERE position = ?", entries[index], index)
    assert verified(directory).size == SIZE


def test_any_flipped_node_is_found_and_names_the_entry_that_completed_it(directory: Path) -> None:
    for level, position, good in read(directory, "SELECT level, position, hash FROM nodes"):
        assert isinstance(level, int)
        assert isinstance(position, int)
        assert isinstance(good, bytes)
        bad = good[:-1] + bytes([good[-1] ^ 1])
        change(directory, "UPDATE nodes SET hash = ? WHERE level = ? AND position = ?", bad, level, position)
        last_leaf = ((position + 1) << level) - 1
        with pytest.raises(StorageError, match=rf"entry {last_leaf}: the tree node at level {level}, position {position}, is not what"):
            verified(directory)
        change(directory, "UPDATE nodes SET hash = ? WHERE level = ? AND position = ?", good, level, position)
    assert verified(directory).size == SIZE


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("DELETE FROM nodes WHERE level = 1 AND position = 2", "entry 5: the tree node at level 1, position 2, is not stored"),
        ("INSERT INTO nodes VALUES (7, 0, zeroblob(32))", "stored nodes that no tree of 12 entries has"),
        ("DELETE FROM entries WHERE position = 5", "entry 5 is missing"),
        ("DELETE FROM entries WHERE position = 11", "not those of the size"),
        ("UPDATE entries SET position = -1 WHERE position = 0", "entry 0 is missing"),
        (
            "UPDATE entries SET bytes = (SELECT bytes FROM entries WHERE position = 5) WHERE position = 4",
            "entry 4: the tree node at level 0",
        ),
        ("UPDATE entries SET bytes = 'text' WHERE position = 4", "entry 4 does not hold: not bytes"),
        ("UPDATE entries SET bytes = zeroblob(900000) WHERE position = 4", "entry 4 does not hold"),
        ("UPDATE entries SET bytes = zeroblob(9000000) WHERE position = 4", "too big"),
        ("UPDATE log SET size = 11", "not those of the size"),
        ("UPDATE log SET root = zeroblob(32)", "not those of the size"),
        ("UPDATE log SET run = zeroblob(32)", "another run"),
        ("UPDATE log SET operator = zeroblob(32)", "an operator that the manifest does not name"),
        ("DELETE FROM log", "does not say whose log it is"),
        ("DROP TABLE nodes", "no such table"),
        ("DROP TABLE log", "no such table"),
        ("PRAGMA user_version = 9", "has format 9"),
        ("PRAGMA user_version = 0", "is empty or no log: something else changed it; restore it from a backup"),
    ],
)
def test_whatever_else_was_changed_is_found(directory: Path, statement: str, complaint: str) -> None:
    change(directory, statement)
    for look in (verified, reopen):
        with pytest.raises(StorageError, match=complaint):
            look(directory)


def test_an_emptied_database_is_one_that_was_changed(directory: Path) -> None:
    (directory / DATABASE).write_bytes(b"")
    for look in (verified, reopen):
        with pytest.raises(StorageError, match="something else changed it; restore it from a backup"):
            look(directory)


def test_a_flipped_byte_of_the_signed_head_is_found(directory: Path) -> None:
    note = (directory / TREE_HEAD).read_bytes()
    for place in {*random.Random(0).sample(range(len(note)), 20), 0, len(note) - 1}:
        flipped = bytearray(note)
        flipped[place] ^= 1
        (directory / TREE_HEAD).write_bytes(flipped)
        with pytest.raises(StorageError, match=TREE_HEAD):
            verified(directory)


def test_a_flipped_byte_of_the_manifest_is_found(directory: Path) -> None:
    manifest = (directory / MANIFEST).read_bytes()
    for place in range(0, len(manifest), 7):
        flipped = bytearray(manifest)
        flipped[place] ^= 1
        (directory / MANIFEST).write_bytes(flipped)
        with pytest.raises(StorageError, match=MANIFEST):
            verified(directory)


def test_a_flipped_byte_of_the_database_file_is_found_or_means_nothing(directory: Path) -> None:
    sound = verified(directory)
    good = (directory / DATABASE).read_bytes()
    chance = random.Random(0)
    num_found = 0
    for place in chance.sample(range(len(good)), 80):
        flipped = bytearray(good)
        flipped[place] ^= 1 << chance.randrange(8)
        (directory / DATABASE).write_bytes(flipped)
        try:
            assert verified(directory) == sound
        except StorageError:
            num_found += 1
    assert num_found > 9


def test_a_tree_head_of_another_log_is_refused(directory: Path) -> None:
    name = origin(SIGNED.run)
    other = origin(signed_manifest("another").run)
    head = TreeHead(other, SIZE, verified(directory).root)
    for key_name in (name, other):
        (directory / TREE_HEAD).write_text(sign_tree_head(head, key_name, OPERATOR))
        with pytest.raises(StorageError, match="of another log"):
            verified(directory)


def test_an_operator_cannot_sign_an_invalid_entry_into_a_sound_log(directory: Path) -> None:
    entries = entries_of(directory)
    with reopen(directory) as log:
        forged = bytearray(next_round(log.ledger)[0])
    forged[-1] ^= 1
    tree = Tree()
    for entry in [*entries, bytes(forged)]:
        nodes = tree.append(leaf_hash(entry))
    change(directory, "INSERT INTO entries VALUES (?, ?)", SIZE, bytes(forged))
    for node in nodes:
        change(directory, "INSERT INTO nodes VALUES (?, ?, ?)", *node)
    change(directory, "UPDATE log SET size = ?, root = ?", tree.size, tree.root())
    name = origin(SIGNED.run)
    (directory / TREE_HEAD).write_text(sign_tree_head(TreeHead(name, tree.size, tree.root()), name, OPERATOR))
    with pytest.raises(StorageError, match=f"entry {SIZE} does not hold: the signature"):
        verified(directory)


def test_a_running_log_is_verified_beside_its_writer(directory: Path) -> None:
    sizes = []
    with child("append", directory) as writer:
        assert writer.stdout is not None
        for _ in range(4):
            assert writer.stdout.readline() != ""
            found = verified(directory)
            assert found.signed_size <= found.size
            sizes.append(found.size)
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0] > SIZE


def test_a_copy_of_an_open_log_is_sound(running: Log, tmp_path: Path) -> None:
    grow(running, 2)
    for leave_out in ((), (f"{DATABASE}-shm",)):
        copy = tmp_path / f"copy{len(leave_out)}"
        shutil.copytree(tmp_path / "running", copy, ignore=shutil.ignore_patterns(*leave_out))
        assert verified(copy).root == opened_head(running).root


@pytest.mark.parametrize("name", [MANIFEST, TREE_HEAD])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    for look in (verified, reopen):
        with pytest.raises(MantaError, match=name):
            look(directory)
