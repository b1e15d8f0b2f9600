"""A home of its own for each test: no test reads or writes what belongs to the person who runs it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Home, new_home


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory, and no setting from outside. Returns the home directory."""
    for name in os.environ:
        if name.startswith(("MANTA_", "XDG_")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MANTA_STATE_DIR", str(home / "state"))
    return home


@pytest.fixture
def home(environment: Path) -> Iterator[Home]:
    with new_home(environment) as home:
        yield home
