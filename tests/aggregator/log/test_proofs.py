"""A file that shows two histories of a run with several operators names those who lied, to anybody who has nothing but the file."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.cli import main
from protocol.encoding import pack
from protocol.histories import TwoHeads
from protocol.signing import Identity, peer_name
from tests.protocol.test_operators import FOUR, HEAD, OTHER, SIGNED, note_of

ONE_LIES, FORKED = "two histories were signed for, of which at most one is the log's", "the log has two histories"


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
    path = tmp_path / "two-heads-7.proof"
    path.write_bytes(pack(TwoHeads(SIGNED, (note_of(HEAD, one[:1], one[1:]), note_of(OTHER, other[:1], other[1:])))))
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(path), "--run", SIGNED.run.hex()])
    assert result.exit_code == 0, result.output
    said = result.output.splitlines()
    assert said[0] == f"run {SIGNED.run.hex()}"
    assert sorted(said[1:-1]) == sorted(f"operator {each.public_key.hex()} {peer_name(each.public_key)}" for each in liars)
    assert said[-1].startswith(f"proven: {what}; ")
    assert all(head.root.hex()[:16] in said[-1] for head in (HEAD, OTHER))


def test_two_heads_that_no_one_operator_signed_prove_nothing(tmp_path: Path) -> None:
    path = tmp_path / "two-heads-7.proof"
    path.write_bytes(pack(TwoHeads(SIGNED, (note_of(HEAD, FOUR[:2], []), note_of(OTHER, FOUR[2:], [])))))
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(path)])
    assert result.exit_code == 2
    assert "no operator signed both heads" in result.output
