"""A file that proves a lie names who lied, to anybody who has nothing but the file; whoever did nothing wrong is named by none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log import proofs
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.notes import parse_tree_head, sign_tree_head
from manta_swarm.protocol.signing import Identity, peer_name
from tests.network.committed import commit, shape_of
from tests.protocol import test_histories as alone
from tests.protocol.test_operators import FOUR, HEAD, OTHER, SIGNED, note_of

ONE_LIES, FORKED = "two histories were signed for, of which at most one is the log's", "the log has two histories"
PROVEN, NO_PROOF, NOTHING_PROVEN = 0, 2, 5  # exit codes


def checked(path: Path, proof: Any, *arguments: str) -> Result:
    """Return how the command ends whose file has these bytes, or this record."""
    path.write_bytes(proof if isinstance(proof, bytes) else pack(proof))
    return CliRunner().invoke(main, ["ledger", "check-proof", str(path), *arguments])


def assert_accuses_nobody(result: Result, exit_code: int, words: str) -> None:
    """Check that one line says why, and that nobody is named."""
    assert result.exit_code == exit_code, result.output
    (line,) = result.output.splitlines()
    assert line.startswith("manta-aggregator: ")
    assert words in line
    for operator in (*FOUR, alone.OPERATOR):
        assert operator.public_key.hex() not in line
        assert peer_name(operator.public_key) not in line


@pytest.mark.parametrize(
    ("one", "other", "liars", "what"),
    [
        (FOUR[:1], FOUR[:1], FOUR[:1], ONE_LIES),
        (FOUR[:3], [FOUR[0], FOUR[3]], FOUR[:1], ONE_LIES),  # the liar alone could not make the other one count
        (FOUR[:3], FOUR[1:], FOUR[1:3], FORKED),
    ],
)
def test_who_signed_two_heads_of_one_size_is_named(
    tmp_path: Path, one: list[Identity], other: list[Identity], liars: list[Identity], what: str
) -> None:
    path = tmp_path / "log-7-7.proof"
    path.write_bytes(pack(Histories(SIGNED, (note_of(HEAD, one[:1], one[1:]), note_of(OTHER, other[:1], other[1:])))))
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(path), "--run", SIGNED.run.hex()])
    assert result.exit_code == 0, result.output
    said = result.output.splitlines()
    assert said[0] == f"run {SIGNED.run.hex()}"
    assert sorted(said[1:-1]) == sorted(f"operator {each.public_key.hex()} {peer_name(each.public_key)}" for each in liars)
    assert said[-1].startswith(f"proven: {what}; ")
    assert all(head.root.hex()[:16] in said[-1] for head in (HEAD, OTHER))


def test_of_a_lie_that_did_not_count_it_is_not_said_that_the_log_has_two_histories(tmp_path: Path) -> None:
    signed = alone.SignedManifest.sign(alone.manifest_of(FOUR[0], operators=tuple(each.public_key for each in FOUR), quorum=3), FOUR[0])
    ((_, receipts), (other, _)) = alone.histories("ab", "ax", signed=signed)
    head = parse_tree_head(f"{receipts[1].tree_head.partition(chr(10) * 2)[0]}\n")
    held = replace(receipts[1], tree_head=note_of(head, FOUR[:1], FOUR[1:3], name=head.origin))
    shown = sign_tree_head(replace(head, root=other.tree.root()), head.origin, FOUR[1])
    result = checked(tmp_path / "log-10-10.proof", Histories.shown_after(signed, held, shown, ()))
    assert result.exit_code == PROVEN, result.output
    assert result.output.splitlines()[1] == f"operator {FOUR[1].public_key.hex()} {peer_name(FOUR[1].public_key)}"
    assert result.output.splitlines()[2].startswith(f"proven: {ONE_LIES}; ")


def test_heads_that_an_honest_log_signed_accuse_nobody_however_they_are_put_together(tmp_path: Path) -> None:
    ((log, receipts),) = alone.histories("abc")
    older, newer = receipts[0], receipts[2]
    way = tuple(log.tree.consistency_proof(3))
    for proof, words in (
        (Histories.shown_after(log.signed, newer, older.tree_head, ()), "which was shown last"),
        (Histories.shown_after(log.signed, older, newer.tree_head, ()), "whether the log went on"),
        (Histories.shown_after(log.signed, older, newer.tree_head, way[::-1]), "whether the log went on"),
        (Histories.shown_after(log.signed, older, newer.tree_head, way), "continues the 3 signed for before"),
        (Histories.shown_after(log.signed, older, older.tree_head, ()), "continues the 3 signed for before"),
        (Histories.of_rounds(log.signed, older, newer), "may stand in one log"),
        (Histories(log.signed, (older.tree_head, newer.tree_head)), "whether the log went on"),
        (Histories(log.signed, (newer.tree_head, older.tree_head)), "which was shown last"),
        (Histories(log.signed, (older.tree_head, older.tree_head)), "continues the 3 signed for before"),
    ):
        assert_accuses_nobody(checked(tmp_path / "log-5-15.proof", proof), NOTHING_PROVEN, words)


def test_a_group_of_a_mean_that_is_right_accuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "_shape_of", shape_of)  # of a mean of fewer values than any supernet has
    right, wrong = commit([0, 1]), commit([0, 1], wrong={0: 0.5})
    assert_accuses_nobody(checked(tmp_path / "wrong-group-3-0.proof", right.proof(0)), NOTHING_PROVEN, "is what its table comes to")
    assert checked(tmp_path / "wrong-group-3-0.proof", wrong.proof(0)).exit_code == PROVEN
    damaged = replace(wrong.proof(0), mean=right.proof(0).mean)
    assert_accuses_nobody(checked(tmp_path / "wrong-group-3-0.proof", damaged), NO_PROOF, "is no proof")


def test_two_heads_that_no_one_operator_signed_prove_nothing(tmp_path: Path) -> None:
    two = Histories(SIGNED, (note_of(HEAD, FOUR[:2], []), note_of(OTHER, FOUR[2:], [])))
    assert_accuses_nobody(checked(tmp_path / "log-7-7.proof", two), NOTHING_PROVEN, "no operator signed both")


def test_what_is_damaged_or_not_rightly_signed_or_something_else_is_no_proof(tmp_path: Path) -> None:
    two = Histories(SIGNED, (note_of(HEAD, FOUR[:1], []), note_of(OTHER, FOUR[:1], [])))
    ((log, receipts), (other, _)) = alone.histories("ab", "ax")
    forged = Histories.shown_after(log.signed, receipts[1], other.note(signer=alone.STRANGER), ())
    cases: list[tuple[Any, str]] = [
        (b"", "damaged, or a file of another kind"),
        (pack(two)[:-1], "damaged, or a file of another kind"),
        (pack(log.signed), "damaged, or a file of another kind"),
        (pack(two).replace(b"manta/", b"manto/"), "is no proof: "),
        (forged, "no operator of the run signed what was shown"),
        (Histories.shown_after(log.signed, replace(receipts[1], index=3), other.note()), "is no proof: "),
    ]
    for proof, words in cases:
        assert_accuses_nobody(checked(tmp_path / "some.proof", proof), NO_PROOF, words)


def test_a_proof_about_another_run_is_none_about_the_one_that_is_meant(tmp_path: Path) -> None:
    two = Histories(SIGNED, (note_of(HEAD, FOUR[:1], []), note_of(OTHER, FOUR[:1], [])))
    ((log, receipts), (other, _)) = alone.histories("ab", "ax")
    for proof in (two, Histories.shown_after(log.signed, receipts[1], other.note(), ()), commit([0], wrong={0: 0.5}).proof(0)):
        result = checked(tmp_path / "some.proof", proof, "--run", "00" * 32)
        assert_accuses_nobody(result, NO_PROOF, f"is about another run, {proof.manifest.run.hex()}")
