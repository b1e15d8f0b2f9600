"""Of all tests: how hypothesis looks for what breaks them, that Ctrl-C can be pressed, what they need of the machine,
and what runs those that are coroutines."""

import gc
import inspect
import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.network.members import run
from tests.network.virtual_time import run_virtual
from tests.programs_needed import need

# Nothing here compares times: on a busy machine an example, or drawing it, takes as long as it takes.
settings.register_profile("manta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manta")

# A shell has what it starts in the background ignore SIGINT, and so would each program that a test starts and presses Ctrl-C in.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Say what the mark of tests that are coroutines means."""
    config.addinivalue_line("markers", "virtual_time: in its loop waiting costs no time (tests/network/virtual_time.py)")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own; fixtures that are asynchronous contexts are entered for it, in the same loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def play() -> None:
        async with AsyncExitStack() as opened:
            given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
            for name, value in given.items():
                if hasattr(value, "__aenter__"):
                    given[name] = await opened.enter_async_context(value)
            await pyfuncitem.obj(**given)

    (run_virtual if pyfuncitem.get_closest_marker("virtual_time") else run)(play())
    return True


def pytest_collection_finish() -> None:
    """Have the garbage collector pass by what was loaded for the tests, which stays: looking at it takes half a second each time."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for what a test is marked to need, before anything is set up for it."""
    need(*[name for mark in item.iter_markers("needs") for name in mark.args])
