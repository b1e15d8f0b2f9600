"""A witness's rule: at most one tree of each size, each going on from the last, remembered before anybody has the signature."""

import asyncio
import os
import random
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.features.witness.rule import HEAD, OtherLog, OtherSize, OtherTree, WitnessMemory
from manta_swarm.protocol.cosignatures import cosignatures_of, with_cosignatures
from manta_swarm.protocol.errors import EncodingError, ProofError, SignatureError, StorageError
from manta_swarm.protocol.notes import TreeHead, sign_tree_head
from manta_swarm.runtime import disk
from tests.aggregator.features.witness import histories
from tests.aggregator.features.witness.histories import SIGNED, WITNESS, History
from tests.aggregator.small_run import OTHER_OPERATOR
from tests.clocks import ManualClock

KILLS = 6


def memory_in(directory: Path) -> WitnessMemory:
    return WitnessMemory(directory, WITNESS, SIGNED, clock=ManualClock(1_700_000_000.9))


def test_heads_that_go_on_are_cosigned_and_remembered(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    log = History(memory, 9)
    for size in (1, 4, 4, 9):
        held = memory.head.size
        note = log.note(size)
        cosignature = memory.cosign(note, held, log.proof(held, size))
        assert cosignatures_of(with_cosignatures(note, [cosignature])) == [cosignature]
        assert (cosignature.key, cosignature.time_s) == (WITNESS.public_key, 1_700_000_000)
        memory = memory_in(tmp_path)
        assert memory.head == TreeHead(memory.origin, size, log.tree.root(size))


def test_what_does_not_go_on_is_not_cosigned_and_changes_nothing(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    log, other = History(memory, 9), History(memory, 9, fork=2, branch=b"x")
    memory.cosign(log.note(4), 0, [])
    before = (tmp_path / HEAD).read_bytes()
    refused = [
        (log.note(9), 0, [], OtherSize),
        (log.note(9), 3, log.proof(3, 9), OtherSize),
        (log.note(3), 4, [], EncodingError),
        (log.note(3), 3, [], OtherSize),
        (log.note(9), 4, [], ProofError),
        (log.note(9), 4, log.proof(4, 9)[:-1], ProofError),
        (log.note(9), 4, [*log.proof(4, 9), bytes(32)], ProofError),
        (log.note(9), 4, log.proof(3, 9), ProofError),
        (other.note(9), 4, other.proof(4, 9), ProofError),
        (log.note(4), 4, [bytes(32)], ProofError),
        (sign_tree_head(TreeHead(memory.origin, 9, log.tree.root()), memory.origin, OTHER_OPERATOR), 4, log.proof(4, 9), SignatureError),
        (sign_tree_head(TreeHead("elsewhere", 9, log.tree.root()), memory.origin, OTHER_OPERATOR), 4, log.proof(4, 9), OtherLog),
        ("no note", 4, [], EncodingError),
    ]
    for note, old, proof, error in refused:
        with pytest.raises(error):
            memory.cosign(note, old, proof)
    assert (tmp_path / HEAD).read_bytes() == before
    assert not (tmp_path / "proofs").exists()


def test_two_trees_of_one_size_are_kept_as_a_proof_that_anybody_can_check(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    log, other = History(memory, 6), History(memory, 6, fork=5, branch=b"x")
    memory.cosign(log.note(6), 0, [])
    with pytest.raises(OtherTree, match=r"log-6-6\.proof"):
        memory.cosign(other.note(6), 6, [])
    proof = tmp_path / "proofs" / "log-6-6.proof"
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(proof), "--run", SIGNED.run.hex()])
    assert (result.exit_code, "proven: the log has two histories" in result.output) == (0, True), result.output
    assert other.tree.root().hex()[:16] in result.output
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(proof), "--run", "00" * 32])
    assert result.exit_code == 2
    proof.write_bytes(proof.read_bytes()[:-5] + b"AAAA\n")
    assert CliRunner().invoke(main, ["ledger", "check-proof", str(proof)]).exit_code == 2


def test_what_cannot_be_remembered_is_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_in(tmp_path)
    log = History(memory, 9)
    memory.cosign(log.note(4), 0, [])

    def fails(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", fails)
    with pytest.raises(StorageError):
        memory.cosign(log.note(9), 4, log.proof(4, 9))
    monkeypatch.undo()
    assert memory.head.size == 4


def test_a_damaged_memory_signs_nothing(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    memory.cosign(History(memory, 4).note(4), 0, [])
    (tmp_path / HEAD).write_bytes((tmp_path / HEAD).read_bytes().replace(b"\n4\n", b"\n3\n"))
    with pytest.raises(StorageError, match="begin a new one"):
        memory_in(tmp_path)


def test_many_who_ask_at_once_get_one_tree(tmp_path: Path) -> None:
    memory = memory_in(tmp_path)
    logs = [History(memory, 5, branch=bytes([branch])) for branch in range(8)]

    async def story() -> list[object]:
        works = (asyncio.to_thread(memory.cosign, log.note(5), 0, []) for log in logs)
        return await asyncio.gather(*works, return_exceptions=True)

    answers = asyncio.run(story())
    given = [log for log, answer in zip(logs, answers, strict=True) if not isinstance(answer, Exception)]
    assert len(given) == 1
    assert all(isinstance(answer, OtherSize) for log, answer in zip(logs, answers, strict=True) if log not in given)


def test_killed_at_any_moment_it_never_signs_two_trees_of_one_size(tmp_path: Path) -> None:
    """Real kills of a process that is asked for two histories in turn; what it gave before is compared over all its lives."""
    rng, given = random.Random(1), dict[int, str]()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    for _ in range(KILLS):
        with Popen([sys.executable, histories.__file__, tmp_path], stdout=PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 40)):
                line = process.stdout.readline()
                if not line:
                    break
                size, root = line.split()
                assert given.setdefault(int(size), root) == root
            process.kill()
            for line in process.stdout:  # given, and not read yet
                if line.endswith("\n"):
                    size, root = line.split()
                    assert given.setdefault(int(size), root) == root
    held = memory_in(tmp_path).head
    assert held.size >= max(given)
    assert len(given) > KILLS
    assert len(set(given.values())) == len(given)
