"""What a log checks again when it is opened: everything, but for signatures under a head that it has signed itself."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import manta_swarm.protocol.signed
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import DATABASE, TREE_HEAD
from manta_swarm.protocol.errors import SignatureError, StorageError
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, origin, sign_tree_head
from manta_swarm.protocol.signing import Identity
from tests.aggregator.small_run import (
    ENTRIES,
    OPERATOR,
    OTHER_OPERATOR,
    PEERS,
    STRANGER,
    create,
    grow,
    next_round,
    opened_head,
    quorum_note,
    reopen,
    signed_manifest,
    verified,
)

SIGNED = signed_manifest()
ROUNDS = 3
OF_A_ROUND = ["contribution", "claim"] * len(PEERS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed log of three rounds; beside it, as ``before``, the head that it had signed a round earlier."""
    path = tmp_path / "aggregator"
    with create(path, SIGNED) as log:
        grow(log, ROUNDS - 1)
        (tmp_path / "before").write_text(log.tree_head)
        grow(log, 1)
    return path


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kinds of the signatures of entries that were checked, one after the other."""
    kinds: list[str] = []
    verify = manta_swarm.protocol.signed.verify

    def noted(kind: str, public_key: bytes, payload: bytes, signature: bytes) -> None:
        kinds.append(kind)
        verify(kind, public_key, payload, signature)

    with monkeypatch.context() as patched:
        patched.setattr(manta_swarm.protocol.signed, "verify", noted)
        yield kinds


def rewrite(directory: Path, index: int, entry: bytes) -> TreeHead:
    """Have the database hold another entry, its nodes and its root changed with it; return the head that it then has."""
    with closing(sqlite3.connect(directory / DATABASE)) as connection, connection:
        connection.execute("UPDATE entries SET bytes = ? WHERE position = ?", (entry, index))
        entries = [each for (each,) in connection.execute("SELECT bytes FROM entries ORDER BY position")]
        tree = Tree()
        for node in [node for each in entries for node in tree.append(leaf_hash(each))]:
            connection.execute("UPDATE nodes SET hash = ? WHERE level = ? AND position = ?", (node[2], *node[:2]))
        connection.execute("UPDATE log SET root = ?", (tree.root(),))
    return TreeHead(origin(SIGNED.run), tree.size, tree.root())


def forged(directory: Path) -> tuple[int, bytes]:
    """Return the last contribution's place, and its bytes with another signature."""
    index = ROUNDS * ENTRIES - 2
    with closing(sqlite3.connect(directory / DATABASE)) as connection:
        (entry,) = connection.execute("SELECT bytes FROM entries WHERE position = ?", (index,)).fetchone()
    return index, entry[:-1] + bytes([entry[-1] ^ 1])


def test_signatures_under_the_head_that_it_signed_are_not_checked_again(directory: Path, checks: list[str]) -> None:
    with reopen(directory) as log:
        assert checks == []
        assert log.ledger.round == ROUNDS
        *others, contribution, round_ = next_round(log.ledger)
        with pytest.raises(SignatureError):  # what comes is checked
            log.commit([*others, contribution[:-1] + bytes([contribution[-1] ^ 1]), round_])


def test_signatures_of_what_came_after_that_head_are_checked(directory: Path, tmp_path: Path, checks: list[str]) -> None:
    (directory / TREE_HEAD).write_text((tmp_path / "before").read_text())  # killed before the last round was signed for
    with reopen(directory) as log:
        assert checks == OF_A_ROUND
        assert opened_head(log).size == ROUNDS * ENTRIES


def test_whoever_verifies_checks_every_signature(directory: Path, checks: list[str]) -> None:
    verified(directory)
    assert checks == OF_A_ROUND * ROUNDS


def test_entries_that_are_not_those_of_the_head_are_all_checked(directory: Path, checks: list[str]) -> None:
    index, entry = forged(directory)
    rewrite(directory, index, entry)
    with pytest.raises(StorageError, match=f"entry {index} does not hold: the signature"):
        reopen(directory)
    assert checks == OF_A_ROUND * ROUNDS


def test_a_head_that_another_key_signed_spares_nothing(directory: Path, checks: list[str]) -> None:
    index, entry = forged(directory)
    head = rewrite(directory, index, entry)
    (directory / TREE_HEAD).write_text(sign_tree_head(head, head.origin, STRANGER))
    with pytest.raises(StorageError, match=f"entry {index} does not hold: the signature"):
        reopen(directory)
    assert checks == OF_A_ROUND * ROUNDS


def test_an_unsigned_change_under_the_head_is_found_where_no_signature_would_show_it(directory: Path) -> None:
    index = ROUNDS * ENTRIES - 1  # a round has no signature: nothing follows that names its digest either
    with reopen(directory) as log:
        other = next_round(log.ledger, mean=b"another mean")[-1]
    with closing(sqlite3.connect(directory / DATABASE)) as connection, connection:
        connection.execute("UPDATE entries SET bytes = ? WHERE position = ?", (other, index))
    with pytest.raises(StorageError, match=f"entry {index}"):
        reopen(directory)


def test_of_several_operators_the_own_signature_is_what_counts(tmp_path: Path, checks: list[str]) -> None:
    operators = (OPERATOR, OTHER_OPERATOR, STRANGER)
    signed = signed_manifest("several", operators=operators)
    for name, signers in (("own", operators[:2]), ("others", operators[1:])):
        path = tmp_path / name
        with create(path, signed) as log:
            _commit(log, *signers)
        checks.clear()
        with reopen(path):
            assert checks == ([] if OPERATOR in signers else OF_A_ROUND)


def _commit(log: Log, *signers: Identity) -> None:
    entries = next_round(log.ledger)
    log.commit(entries, quorum_note(log, entries, *signers))
