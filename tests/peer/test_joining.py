import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.run_locator import find_addresses
from manta_swarm.peer.joining import Stopped, _until_told_to_stop
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import StorageError, Unreachable, UserError
from manta_swarm.protocol.signing import sha256
from manta_swarm.runtime.local_runs import LocalRun, find, listed

RUN, OTHER_RUN = sha256(b"run"), sha256(b"other run")
GIVEN, LAST, LOCAL = ("/given",), ("/last",), ("/local", "/local/too")


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path / "peer")


def local(run: bytes = RUN) -> LocalRun:
    return LocalRun(run.hex(), "digits", LOCAL)


def test_an_address_that_was_given_beats_the_run_joined_last_and_that_one_an_aggregator_on_this_computer(store: PeerStore) -> None:
    with listed(local()):
        assert find_addresses(PeerConfig(), store.last_run()) == (LOCAL, RUN.hex())
        store.remember_run(OTHER_RUN, LAST)
        assert find_addresses(PeerConfig(), store.last_run()) == (LAST, OTHER_RUN.hex())
        assert find_addresses(PeerConfig(initial_peers=GIVEN), store.last_run()) == (GIVEN, None)
        assert find_addresses(PeerConfig(initial_peers=GIVEN, run=RUN.hex()), store.last_run()) == (GIVEN, RUN.hex())


def test_a_run_that_is_named_is_found_wherever_it_is_known_from(store: PeerStore) -> None:
    store.remember_run(OTHER_RUN, LAST)
    with listed(local()):
        assert find_addresses(PeerConfig(run=RUN.hex()), store.last_run()) == (LOCAL, RUN.hex())
        assert find_addresses(PeerConfig(run=OTHER_RUN.hex()), store.last_run()) == (LAST, OTHER_RUN.hex())
        with pytest.raises(UserError, match="no run was found"):
            find_addresses(PeerConfig(run=sha256(b"a third").hex()), store.last_run())


def test_what_a_dead_aggregator_left_is_no_run(store: PeerStore, environment: Path) -> None:
    directory = environment / "state" / "aggregators"
    directory.mkdir(parents=True)
    (directory / "1234.json").write_text(json.dumps({"run": RUN.hex(), "name": "digits", "addresses": LOCAL}))
    with pytest.raises(UserError, match="no run was found"):
        find_addresses(PeerConfig(), store.last_run())
    assert list(directory.iterdir()) == []


def test_an_aggregator_is_listed_as_long_as_it_runs() -> None:
    assert find() == []
    with listed(local()):
        assert find() == [local()]
    assert find() == []


# Ctrl-C, and what ends a peer.


class Loop:
    """A peer's loop that runs until it may end; leaving takes it as long as the test says."""

    def __init__(self, *, leaves: bool = True, failures: tuple[Exception, ...] = ()) -> None:
        self.running = asyncio.Event()
        self.left, self.trains = 0, True
        self._may_end = asyncio.Event()
        self._leaves = leaves
        self._failures = failures

    def leave(self) -> None:
        self.left += 1
        if self._leaves:
            self.end()

    def end(self) -> None:
        self._may_end.set()

    async def run(self) -> None:
        self.running.set()
        if self._failures:
            raise ExceptionGroup("tasks", self._failures)
        await self._may_end.wait()


def stopping(store: PeerStore, *loops: Loop) -> "list[asyncio.Task[None]]":
    """Have these loops run until somebody tells them to stop."""
    live_status = LiveStatus(store, PeerStatus("p", "k", "r", "digits", "here", "cpu", num_rounds=9))
    return [asyncio.create_task(_until_told_to_stop(loop, live_status)) for loop in loops]  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_ctrl_c_lets_it_leave_and_says_what_a_second_one_does(
    store: PeerStore, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    loop = Loop()
    (ending,) = stopping(store, loop)
    await loop.running.wait()
    os.kill(os.getpid(), number)
    await ending
    assert loop.left == 1
    assert capsys.readouterr().out == "leaving as soon as what is trained is handed in; press Ctrl-C again to stop at once\n"


async def test_a_terminal_that_is_closed_lets_it_leave_however_often_that_is_told(store: PeerStore) -> None:
    loop = Loop(leaves=False)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # where the tests run under nohup it is ignored, by them and by a peer
    try:
        (ending,) = stopping(store, loop)
        await loop.running.wait()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.01)
        loop.end()
        await ending  # and was not stopped
    finally:
        signal.signal(signal.SIGHUP, before)
    assert loop.left == 1


async def test_several_sessions_in_one_process_all_leave_at_one_ctrl_c(store: PeerStore) -> None:
    loops = [Loop(), Loop(leaves=False), Loop()]
    first, second, third = stopping(store, *loops)
    await asyncio.gather(*(loop.running.wait() for loop in loops))
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.gather(first, third)
    os.kill(os.getpid(), signal.SIGINT)  # the second one, for who is still there
    with pytest.raises(Stopped):
        await second
    assert [loop.left for loop in loops] == [1, 1, 1]


async def test_of_what_ended_it_the_person_hears_one_thing_and_a_fault_of_the_program_first(store: PeerStore) -> None:
    with pytest.raises(StorageError, match="disk"):
        await stopping(store, Loop(failures=(StorageError("disk"),)))[0]
    with pytest.raises(KeyError):
        await stopping(store, Loop(failures=(Unreachable("away"), KeyError("ours"))))[0]
