"""A real Chromium for tests: the machine's own, without a window, driven by playwright.

A module that uses it imports the fixture ``browser``. The browser lives as long as the module: playwright's loop runs in
the thread of the tests while it does, and tests elsewhere start loops of their own.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs_needed import lack

SCREENS = os.environ.get("MANTA_SCREENS")  # read before tests, which begin with none of Manta's variables
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of the machine's Chromium; ``MANTA_CHROMIUM`` says where it is if the path does not."""
    named = os.environ.get("MANTA_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A playwright browser that is a real Chromium."""
    path = chromium()
    if path is None:
        lack("no Chromium on this machine: install one (apt-get install chromium), or say where it is with MANTA_CHROMIUM")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'manta-swarm[dev]'")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses to be root's
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield running
        finally:
            running.close()


def picture(page: Any, name: str, *, whole: bool = True) -> None:
    """Keep a picture of a page, or of what is seen of it, in the folder that ``MANTA_SCREENS`` says; nobody looks where it says none."""
    if SCREENS:
        page.screenshot(path=Path(SCREENS, f"{name}.png"), full_page=whole)
