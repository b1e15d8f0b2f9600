"""No block of more than twelve lines stands twice in the product: not to the letter, and not with other names."""

import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("protocol", "codec", "runtime", "automl", "network", "peer", "aggregator", "programs")
MAX_LINES = 12  # that may be alike: of code, for blank lines, comments, docstrings and imports do not count

_LAYOUT = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


class Word(NamedTuple):
    """A token: a name, which a copy may have changed, or something else."""

    text: str
    is_name: bool


class Line(NamedTuple):
    """A line of code."""

    file: str
    number: int
    indent: int
    words: tuple[Word, ...]


Shape = tuple[object, ...]


def statements(source: str) -> Iterator[list[tokenize.TokenInfo]]:
    """Yield the tokens of each statement, or of the head of one, without what is layout only."""
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            yield statement
            statement = []
        elif token.type not in _LAYOUT:
            statement.append(token)


def lines_of(file: str, source: str) -> list[Line]:
    """Return the lines of a module that count.

    Fields of records, and arguments on a line each, are alike to the letter only: any two lists of them have one shape.
    """
    lines: list[Line] = []
    for statement in statements(source):
        if statement[0].string in ("import", "from") or all(token.type == tokenize.STRING for token in statement):
            continue
        by_line: dict[int, list[tokenize.TokenInfo]] = defaultdict(list)
        for token in statement:
            by_line[token.start[0]].append(token)
        for number, tokens in by_line.items():
            is_field = len(tokens) > 1 and tokens[1].string == ":" and not keyword.iskeyword(tokens[0].string)
            names = {each.string for each in tokens if each.type == tokenize.NAME and not keyword.iskeyword(each.string) and not is_field}
            words = (Word(each.string, each.string in names) for each in tokens)
            lines.append(Line(file, number, tokens[0].start[1], tuple(words)))
    return lines


def shape_of(line: Line) -> Shape:
    """Return a line without its names: windows whose lines differ in this are not alike."""
    return tuple(None if word.is_name else word.text for word in line.words)


def renamed(window: Sequence[Line]) -> Shape:
    """Return a window with each name as the place of its first appearance, and each line's indent from the first line's."""
    places: dict[str, int] = {}
    words = (places.setdefault(word.text, len(places)) if word.is_name else word.text for line in window for word in line.words)
    return (*words, *(line.indent - window[0].indent for line in window))


def windows(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Yield all runs of lines that are one too long to be written twice."""
    yield from (lines[start : start + MAX_LINES + 1] for start in range(len(lines) - MAX_LINES))


def copies(modules: Iterable[Sequence[Line]]) -> list[str]:
    """Return the pairs of places that are alike for more than ``MAX_LINES`` lines, each pair named once."""
    shapes: dict[Shape, int] = {}  # as numbers, which are faster to compare
    alike: dict[tuple[int, ...], list[Sequence[Line]]] = defaultdict(list)
    for lines in modules:
        numbers = [shapes.setdefault(shape_of(line), len(shapes)) for line in lines]
        for start, window in enumerate(windows(lines)):
            alike[tuple(numbers[start : start + MAX_LINES + 1])].append(window)
    found: list[tuple[Line, Line]] = []
    for candidates in alike.values():
        if len(candidates) > 1:
            same: dict[Shape, list[Sequence[Line]]] = defaultdict(list)
            for window in candidates:
                same[renamed(window)].append(window)
            found += [(one[0], other[0]) for group in same.values() for one, other in pairwise(group)]
    named: dict[tuple[str, str], tuple[Line, Line]] = {}
    for one, other in found:
        named.setdefault((one.file, other.file), (one, other))
    return [f"{one.file}:{one.number} and {other.file}:{other.number}" for one, other in named.values()]


def test_no_block_of_the_product_stands_twice() -> None:
    files = [path for room in ROOMS for path in sorted((ROOT / "manta_swarm" / room).rglob("*.py"))]
    found = copies(lines_of(str(path.relative_to(ROOT / "manta_swarm")), path.read_text(encoding="utf-8")) for path in files)
    assert not found, f"more than {MAX_LINES} lines alike, which belong written once:\n" + "\n".join(found)


BLOCK = "def total(values):\n    summed = 0\n" + "".join(f"    summed += values[{index}]\n" for index in range(11)) + "    return summed\n"


@pytest.mark.parametrize(
    ("other", "is_copy"),
    [
        (BLOCK, True),
        (BLOCK.replace("summed", "amount").replace("values", "prices"), True),
        ('"""What it does."""\n\nimport math\n\n' + BLOCK.replace("summed = 0\n", "summed = 0  # of nothing\n\n"), True),
        ("class Sums:\n" + "".join(f"    {line}\n" for line in BLOCK.splitlines()), True),
        (BLOCK.replace("values[5]", "summed[5]"), False),  # another name where the other has the same
        (BLOCK.replace("values[5]", "values[55]"), False),
        ("\n".join(BLOCK.splitlines()[:12]), False),
        ("".join(f"field_{number}: int\n" for number in range(20)), False),
    ],
)
def test_a_copy_is_found_whatever_its_names_and_comments(other: str, is_copy: bool) -> None:
    assert bool(copies([lines_of("one.py", BLOCK), lines_of("other.py", other)])) is is_copy
