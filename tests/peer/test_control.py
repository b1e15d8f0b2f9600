"""Telling a running peer to pause, to leave, and what it may take: over its socket, as the commands do."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manta_swarm.network.peer_status import FETCHING, SEEKING, STARTING
from manta_swarm.peer.commands.report import lines_of
from manta_swarm.peer.control import LEAVE, LIMITS, PAUSE, RESUME, STATUS, STOP, Control, tell
from manta_swarm.peer.limits.limiter import Limiter
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime import control
from manta_swarm.runtime.control import ControlSocket
from tests.memory_log import DEADLINE_S
from tests.peer.computer import Computer, Peer, live_status_in

Story = Callable[[Limiter, Peer], Awaitable[None]]


@asynccontextmanager
async def controlled(directory: Path, *, is_attached: bool = True) -> AsyncIterator[tuple[Limiter, Peer]]:
    limiter, peer = Limiter(Limits(), directory, Computer().sensors, live_status_in(directory / "peer")), Peer()
    async with asyncio.timeout(DEADLINE_S), Control(directory, limiter):
        if is_attached:
            await limiter.attach(peer)
        yield limiter, peer


async def told(directory: Path, word: str, limits: dict[str, str] | None = None) -> str:
    return await asyncio.to_thread(tell, directory, word, limits)


async def test_a_peer_is_told_and_the_answer_comes_once_it_is_done(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_limiter, peer):
        assert await told(tmp_path, RESUME) == "it was not paused by you"
        assert (await told(tmp_path, PAUSE)).startswith("paused")
        assert peer.why == {"you": "by you"}
        assert "already" in await told(tmp_path, PAUSE)
        assert await told(tmp_path, RESUME) == "resumed"
        assert peer.why == {}
        assert "12D3KooWpeer" in await told(tmp_path, STATUS)
        assert "handed in" in await told(tmp_path, LEAVE)
        assert "at once" in await told(tmp_path, STOP)
        assert peer.told == ["show", "leave", "stop"]
        assert stat.S_IMODE((tmp_path / "control").stat().st_mode) == 0o600
    assert not (tmp_path / "control").exists()


async def test_who_is_told_before_it_has_found_its_run_begins_paused(tmp_path: Path) -> None:
    async with controlled(tmp_path, is_attached=False) as (limiter, peer):
        assert (await told(tmp_path, PAUSE)).startswith("paused")
        await told(tmp_path, LIMITS, {"duty": "40%"})
        said = await asyncio.to_thread(lines_of, tmp_path)
        assert said == ["a peer runs, and looks for its run; duty 40%; nothing is computed now: by you"]
        await limiter.attach(peer)
        assert peer.why == {"you": "by you"}
        assert peer.limits == Limits(duty=40)


@pytest.mark.parametrize(
    ("stage", "does", "leaves"),
    [
        (SEEKING, "looks for its run", "it had not found its run yet"),
        (FETCHING, "gets its run's data", "not all of its run's data had come yet, and what has stays there"),
        (STARTING, "gets ready to train", "it had not begun yet"),
    ],
)
async def test_it_is_said_what_a_peer_does_before_it_takes_part_and_who_leaves_then_is_heard(
    tmp_path: Path, stage: str, does: str, leaves: str
) -> None:
    async with controlled(tmp_path, is_attached=False) as (limiter, _peer):
        limiter._live_status.update(stage=stage)
        assert await asyncio.to_thread(lines_of, tmp_path) == [f"a peer runs, and {does}; no limits"]
        assert not limiter.called_off.is_set()
        assert await told(tmp_path, LEAVE) == f"it leaves; {leaves}"
        assert limiter.called_off.is_set()


async def test_who_leaves_already_is_not_stopped_at_once_by_the_same_word(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (limiter, peer):
        await told(tmp_path, LEAVE)
        assert limiter.status().is_leaving
        assert "leaves already" in await told(tmp_path, LEAVE)
        assert peer.told == ["leave", "show"]


async def test_limits_are_changed_while_it_runs_and_kept_for_the_next_start(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_limiter, peer):
        assert await told(tmp_path, LIMITS, {}) == "no limits"
        assert await told(tmp_path, LIMITS, {"duty": "60%", "max_upload": "2MB"}) == "duty 60%, max-upload 2MB"
        assert await told(tmp_path, LIMITS, {"duty": "none", "on_ac": "true"}) == "max-upload 2MB, on-ac"
        assert peer.limits == Limits(max_upload=2_000_000, on_ac=True)
    assert (tmp_path / "limits.toml").read_text().splitlines()[1:] == ['duty = "none"', 'max_upload = "2MB"', 'on_ac = "true"']


@pytest.mark.parametrize("bad", [{"duty": "0"}, {"max_upload": "fast"}, {"cohort": "mine"}, {"when_idle": "5min"}])
async def test_a_limit_that_cannot_be_or_be_kept_changes_nothing(tmp_path: Path, bad: dict[str, str]) -> None:
    async with controlled(tmp_path) as (limiter, peer):
        with pytest.raises(UserError, match=f"--{next(iter(bad)).replace('_', '-')}"):
            await told(tmp_path, LIMITS, {"duty": "30%", **bad})
        assert limiter.limits == peer.limits == Limits()
    assert not (tmp_path / "limits.toml").exists()


async def test_a_directory_whose_name_is_longer_than_a_socket_s_may_be(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 40)
    directory.mkdir()
    async with controlled(directory) as (_limiter, _peer):
        assert (await asyncio.to_thread(tell, directory, PAUSE)).startswith("paused")


async def test_where_no_peer_runs_or_one_was_killed_the_person_hears_it(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"no peer runs on {directory}"):
            tell(directory, PAUSE)
    with socket.socket(socket.AF_UNIX) as killed:
        folder = os.open(tmp_path, os.O_RDONLY)
        killed.bind(f"/proc/self/fd/{folder}/control")
        os.close(folder)
    with pytest.raises(UserError, match="no peer runs on"):
        tell(tmp_path, PAUSE)
    async with controlled(tmp_path) as (_limiter, _peer):
        assert (await asyncio.to_thread(tell, tmp_path, PAUSE)).startswith("paused")


@pytest.mark.parametrize(
    "word", [b"go\n", b"pause now\n", b"limits\n", b'limits {"duty": 5}\n', b"limits [\n", b"\xff\xff\n", b"pause", b"p" * 10_000]
)
async def test_what_is_no_word_changes_nothing(tmp_path: Path, word: bytes) -> None:
    def say() -> bytes:
        with socket.socket(socket.AF_UNIX) as caller:
            folder = os.open(tmp_path, os.O_RDONLY)
            caller.connect(f"/proc/self/fd/{folder}/control")
            os.close(folder)
            caller.sendall(word)
            caller.shutdown(socket.SHUT_WR)
            try:
                return caller.recv(100)
            except ConnectionResetError:  # it hung up with words unread
                return b""

    async with controlled(tmp_path) as (_limiter, peer):
        assert (await asyncio.to_thread(say))[:3] in (b"", b"no ")
        assert (peer.told, peer.why, peer.limits) == ([], {}, Limits())


def test_who_waits_for_an_answer_as_the_program_ends_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control, "_LAST_ANSWERS_S", 0.05)

    async def whole() -> None:
        asked = asyncio.Event()

        class Silent:
            async def answer(self, _words: str) -> str:
                asked.set()
                await asyncio.Event().wait()
                return ""

        async with asyncio.timeout(DEADLINE_S), ControlSocket(tmp_path, Silent()):
            await asyncio.to_thread(caller.connect, str(tmp_path / "control"))
            caller.sendall(b"picture\n")
            await asked.wait()

    with socket.socket(socket.AF_UNIX) as caller:
        asyncio.run(whole())
    assert caplog.records == []
