"""docs/reference: the files are what ``tests.docs.reference`` writes of the code, and somebody can read them in one sitting."""

import pytest

from tests.docs.reference import FOLDER, pages

PAGES = pages()
MAX_WORDS = 4_000


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_says_what_the_code_says(name: str) -> None:
    """Made again with: python -m tests.docs.reference"""
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]


def test_the_folder_has_nothing_else() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_the_pages_are_short() -> None:
    assert sum(len(text.split()) for name, text in PAGES.items() if name.endswith(".md")) <= MAX_WORDS
