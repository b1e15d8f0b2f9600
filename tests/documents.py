"""What the documents say, taken apart: headings, links, and the commands, options and files that they name in code."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FENCED = re.compile(r"^(?P<fence>`{3,})[^\n]*\n(?P<code>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?:(?: {4}|\t)[^\n]*\n|\n(?= {4}))+")
_SPAN = re.compile(r"(?<!`)`(?P<code>[^`]+)`(?!`)")
_LINK = re.compile(r"!?\[(?:[^][]|\[[^][]*\])*\]\((?P<target>[^()\s]+)\)")
_HTML_LINK = re.compile(r"\b(?:src|srcset|href)=\"(?P<target>[^\"\s]+)\"")
_HEADING = re.compile(r"^#{1,6} +(?P<title>.*?) *#*$", re.MULTILINE)
_ANYTHING_BEFORE = re.compile(r"^(?:[A-Z_]+=(?:\$\([^)]*\)|\S*)\s+)*")  # variables that are set for one command


@dataclass(frozen=True)
class Document:
    """A Markdown file of this project."""

    path: Path

    @property
    def name(self) -> str:
        """Where it lies, from the project's root."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def _prose(self) -> str:
        return _INDENTED.sub("\n", _FENCED.sub("\n", self.text))

    def anchors(self) -> set[str]:
        """Return what a link may have after its `#`, as GitHub makes it of the headings."""
        seen: dict[str, int] = {}
        for heading in _HEADING.finditer(self._prose):
            words = re.sub(r"\[([^][]*)\]\([^()]*\)", r"\1", heading["title"])
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            seen[slug] = seen.get(slug, -1) + 1
        return {f"{slug}-{count}" if count else slug for slug, most in seen.items() for count in range(most + 1)}

    def links(self) -> list[str]:
        """Return the targets of all links and pictures, but for those that stand in code."""
        prose = _SPAN.sub("", self._prose)
        return [match["target"] for pattern in (_LINK, _HTML_LINK) for match in pattern.finditer(prose)]

    def code(self) -> Iterator[str]:
        """Yield each line of the blocks of code, continued ones in one, and each span of code."""
        blocks = [match["code"] for match in _FENCED.finditer(self.text)]
        blocks += [match[0] for match in _INDENTED.finditer(_FENCED.sub("\n", self.text))]
        for block in blocks:
            yield from re.sub(r"\\\n\s*", " ", block).splitlines()
        for match in _SPAN.finditer(self._prose):
            yield " ".join(match["code"].split())

    def commands(self, program: str) -> Iterator[list[str]]:
        """Yield the arguments of each command in the document's code whose program's name matches a regular expression, its name first."""
        starts = re.compile(rf"(?:\S*/bin/(?:python )?|python )?(?P<name>{program})(?![\w.:/-])")
        for line in self.code():
            if match := starts.match(line := _ANYTHING_BEFORE.sub("", line.strip())):
                yield [match["name"], *_words(line[match.end() :])]


def documents() -> list[Document]:
    """Return all documents of the project."""
    return [Document(path) for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]


def _words(line: str) -> list[str]:
    """Return a command line's words, without its comment and what stands for more of the same."""
    lexer = shlex.shlex(re.split(r"(?:^|\s)#", line)[0], posix=True, punctuation_chars=";&")
    lexer.whitespace_split, lexer.commenters = True, ""
    words = []
    for word in lexer:
        if word in {"|", ";", "&", "&&"}:
            break
        if word != "...":
            words.append(word)
    return words
