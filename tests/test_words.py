"""The words of the project: the glossary is short and has each word once; words that it replaced are nowhere in product and documents."""

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("aggregator", "automl", "benchmarks", "codec", "network", "peer", "programs", "protocol", "runtime", "tests")
OWN_WORDS = 80  # at most
REPLACED = {  # by what the field says
    "attendant": "sidecar",
    "attendants": "sidecars",
    "belongings": "payout account",
    "crew": "worker pool",
    "crews": "worker pools",
    "desk": "service",
    "farewell": "shutdown notice",
    "fellow": "follower, cohort peer",
    "fellows": "followers, cohort peers",
    "glimpse": "quick evaluation",
    "lot": "microbatch",
    "lots": "microbatches",
    "mate": "cohort peer",
    "mates": "cohort peers",
    "patience": "timeout",
    "payroll": "payouts",
    "pile": "gradient accumulator",
    "rumour": "gossip",
    "rumours": "gossip",
    "seat": "cohort session",
    "seats": "cohort sessions",
    "shelf": "blob store",
    "slip": "payout receipt",
    "slips": "payout receipts",
    "ticket": "inclusion promise",
    "ticketed": "promised",
    "tickets": "inclusion promises",
    "valve": "work gate",
    "voice": "console",
    "whereabouts": "addresses, run locator",
    "wishes": "options",
    "workbench": "local trainer",
}
FOREIGN = ("session tickets", "num_tickets")  # TLS has them


def own_words(glossary: str) -> Iterator[str]:
    """Return the words in the glossary's list of words that are the project's own."""
    _, _, own = glossary.partition("## Our own words")
    yield from re.findall(r"\*\*(.+?)\*\*", own)


def words_of(text: str) -> Counter[str]:
    """Return the words of a Python file, parts of names among them, or of any other text; lower case."""
    return Counter(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower()))


def replaced_in(text: str) -> list[str]:
    """Return which of the words that were replaced are in a text."""
    for foreign in FOREIGN:
        text = text.replace(foreign, "")
    found = words_of(text)
    return sorted(word for word in REPLACED if found[word])


def test_the_glossary_has_few_words_of_its_own_and_each_once() -> None:
    words = list(own_words((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")))
    assert 0 < len(words) <= OWN_WORDS
    assert [word for word, times in Counter(words).items() if times > 1] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_word_that_was_replaced_is_in_the_code(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path == Path(__file__) or not replaced_in(text):
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):  # which says in what line it is
            found = replaced_in(token.string)
            assert not found, f"{path.relative_to(ROOT)}:{token.start[0]}: {', '.join(f'{word}: say {REPLACED[word]}' for word in found)}"


def test_no_word_that_was_replaced_is_in_the_documents_or_on_the_page() -> None:
    pages = [*(ROOT / "aggregator" / "monitor" / "static").rglob("*.[jhc][sts]*"), *(ROOT / "docs").glob("*.svg")]
    for path in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]):
        if path.name.endswith((".min.js", ".min.css")):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = replaced_in(line)
            assert not found, f"{path.relative_to(ROOT)}:{number}: {', '.join(f'{word}: say {REPLACED[word]}' for word in found)}"


def test_a_word_is_found_in_names_and_in_sentences() -> None:
    assert replaced_in("def next_lot(self): # a Lot of the NearMates") == ["lot", "mates"]
    assert replaced_in("a slot, a pilot and an OP_Session without session tickets") == []
