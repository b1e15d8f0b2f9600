"""Of all tests: how hypothesis looks for what breaks them, that Ctrl-C can be pressed, and what they need of the machine."""

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.programs_needed import need

# Nothing here compares times: on a busy machine an example, or drawing it, takes as long as it takes.
settings.register_profile("manta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manta")

# A shell has what it starts in the background ignore SIGINT, and so would each program that a test starts and presses Ctrl-C in.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Have the garbage collector pass by what was loaded for the tests, which stays: looking at it takes half a second each time."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for what a test is marked to need, before anything is set up for it."""
    need(*[name for mark in item.iter_markers("needs") for name in mark.args])
