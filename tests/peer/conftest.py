"""A home of its own for each test: no test reads or writes what belongs to the person who runs it. Pauses that take no time, and scenes.

Imports hivemind by the only door, which silences what hivemind's own code warns of: in tests every warning is an error.
"""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import manta_swarm.network.node  # noqa: F401
from manta_swarm.network import distances, timeouts
from tests.command import environment, home
from tests.peer.cohorts import Band, band_with
from tests.peer.gateways import Gateway, gateway_with
from tests.peer.scene import Scene, scene_in

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


@pytest.fixture
def scene(tmp_path: Path) -> AbstractAsyncContextManager[Scene]:
    """Have a log, and peers that join it."""
    return scene_in(tmp_path)


@pytest.fixture
def gateway() -> AbstractAsyncContextManager[Gateway]:
    """Have the service of a gateway, without HTTP."""
    return gateway_with()


@pytest.fixture
def band() -> AbstractAsyncContextManager[Band]:
    """Have cohort peers whose rounds have one step."""
    return band_with()


@pytest.fixture
def stepped_band() -> AbstractAsyncContextManager[Band]:
    """Have cohort peers whose rounds have three local steps."""
    return band_with(local_steps=3)
