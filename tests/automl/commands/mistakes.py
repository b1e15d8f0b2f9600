"""What a person's mistake looks like."""

from click.testing import Result


def assert_one_line(result: Result, words: str = "") -> None:
    """Check that a command ended with exit code 2 and one line, which has these words."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("manta-search: ")
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr
