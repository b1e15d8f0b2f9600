"""A home of its own for each test: no test reads or writes what belongs to the person who runs it. And pauses that take no time.

Imports hivemind by the only door, which silences what hivemind's own code warns of: in tests every warning is an error.
"""

import pytest

import manta_swarm.network.node  # noqa: F401
from manta_swarm.network import distances, timeouts
from tests.command import environment, home

__all__ = ["environment", "home"]


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses before something that failed is tried again, and those before others are looked for and measured again."""
    monkeypatch.setattr(timeouts, "LOG_AGAIN_S", (0.01, 0.05))
    monkeypatch.setattr(timeouts, "HAND_IN_AGAIN_S", (0.01, 0.05))
    monkeypatch.setattr(timeouts, "PIECE_AGAIN_S", (0.01, 0.05))
    monkeypatch.setattr(timeouts, "AWAY_S", 0.01)
    monkeypatch.setattr(timeouts, "BROUGHT_S", (0.5, 0.5))
    monkeypatch.setattr(timeouts, "FIRST_LOOKS_S", 0.05)
    monkeypatch.setattr(distances, "_PAUSE_S", 0.0)
