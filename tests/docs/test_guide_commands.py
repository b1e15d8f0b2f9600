"""The commands of the guides that need no minutes, run as they stand on the page: they print what the page says.

A block that begins with three backticks and ``console`` is run: its lines ``$ COMMAND`` in turn, in one temporary folder a page, and
what stands below each is what it prints. ``...`` stands for anything, and on a line of its own for any number of lines.
Other blocks are not run.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import environment, typed
from tests.documents import ROOT
from tests.test_documents import group_of

__all__ = ["environment"]  # a fixture

GUIDES = {"volunteers.md": 8, "operators.md": 3, "installing.md": 0, "monitor.md": 0}  # the least that each has to run
MOST_WORDS = {"volunteers.md": 1800, "operators.md": 1800, "monitor.md": 400, "installing.md": 350, "researchers.md": 1800}

_BLOCK = re.compile(r"^(?P<indent> *)```console\n(?P<lines>.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands_of(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the words of each command of a page that is to be run, and what it is said to print."""
    for block in _BLOCK.finditer(text):
        lines = [line.removeprefix(block["indent"]) for line in block["lines"].splitlines()]
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield shlex.split(lines[start][2:], comments=True), "".join(f"{line}\n" for line in lines[start + 1 : end])


def is_printed(said: str, printed: str) -> bool:
    """Whether a command printed what a page says."""
    pattern = re.escape(said).replace(re.escape("...\n"), "\x00").replace(re.escape("..."), r"[^\n]*")
    pattern = re.sub(r"(^|\n)\x00", r"\1(?:[^\n]*\n)*", pattern).replace("\x00", r"[^\n]*\n")
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("page", [page for page, least in GUIDES.items() if least])
def test_the_commands_of_a_guide_print_what_the_page_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = list(commands_of((ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert len(commands) >= GUIDES[page]
    for (program, *words), said in commands:
        ended = typed(group_of(program), *words)
        assert ended.exit_code == 0, (program, words, ended)
        assert is_printed(said, ended.output), (program, words, said, ended)


@pytest.mark.parametrize("page", MOST_WORDS)
def test_a_guide_can_be_read_in_one_sitting(page: str) -> None:
    assert len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) <= MOST_WORDS[page]


def test_commands_are_taken_from_the_blocks_that_are_to_be_run() -> None:
    text = "```console\n$ a b  # c\nd ...\n$ e 'f g'\n```\n\n1. x\n\n   ```console\n   $ h\n   i\n   ```\n\n```sh\nj\n```\n"
    assert list(commands_of(text)) == [(["a", "b"], "d ...\n"), (["e", "f g"], ""), (["h"], "i\n")]


def test_three_dots_stand_for_a_part_of_a_line_or_for_lines() -> None:
    assert is_printed("a ... c\n...\nz\n", "a b c\nd\ne\nz\n")
    assert is_printed("...\n", "")
    assert not is_printed("a ... c\n", "a b\nc\n")
    assert not is_printed("a\n", "a\nb\n")
