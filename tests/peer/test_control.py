"""Telling a running peer to pause: over its socket, as the command does."""

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from peer.control import PAUSE, RESUME, Control, tell
from protocol.errors import UserError
from tests.memory_log import DEADLINE_S


class Peer:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def pause(self) -> None:
        self.told.append(PAUSE)

    async def resume(self) -> None:
        self.told.append(RESUME)


def play(directory: Path, story: Callable[[Control], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_S), Control(directory) as control:
            await story(control)

    asyncio.run(whole())


def test_a_peer_is_told_and_the_answer_comes_once_it_is_done(tmp_path: Path) -> None:
    async def story(control: Control) -> None:
        peer = Peer()
        await control.attach(peer)
        assert "not paused" in await asyncio.to_thread(tell, tmp_path, RESUME)
        assert (await asyncio.to_thread(tell, tmp_path, PAUSE)).startswith("paused")
        assert "already" in await asyncio.to_thread(tell, tmp_path, PAUSE)
        assert await asyncio.to_thread(tell, tmp_path, RESUME) == "resumed"
        assert peer.told == [RESUME, PAUSE, PAUSE, RESUME]
        assert stat.S_IMODE((tmp_path / "control").stat().st_mode) == 0o600

    play(tmp_path, story)
    assert not (tmp_path / "control").exists()


def test_who_is_told_before_it_has_found_its_run_begins_paused(tmp_path: Path) -> None:
    async def story(control: Control) -> None:
        assert (await asyncio.to_thread(tell, tmp_path, PAUSE)).startswith("paused")
        peer = Peer()
        await control.attach(peer)
        assert peer.told == [PAUSE]

    play(tmp_path, story)


def test_a_directory_whose_name_is_longer_than_a_socket_s_may_be(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 40)
    directory.mkdir()

    async def story(control: Control) -> None:
        assert (await asyncio.to_thread(tell, directory, PAUSE)).startswith("paused")

    play(directory, story)


def test_where_no_peer_runs_or_one_was_killed_the_person_hears_it(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"no peer runs on {directory}"):
            tell(directory, PAUSE)
    with socket.socket(socket.AF_UNIX) as killed:
        folder = os.open(tmp_path, os.O_RDONLY)
        killed.bind(f"/proc/self/fd/{folder}/control")
        os.close(folder)
    with pytest.raises(UserError, match="no peer runs on"):
        tell(tmp_path, PAUSE)

    async def story(control: Control) -> None:
        assert (await asyncio.to_thread(tell, tmp_path, PAUSE)).startswith("paused")

    play(tmp_path, story)


@pytest.mark.parametrize("word", [b"stop\n", b"\xff\xff\n", b"pause", b"p" * 10_000])
def test_what_is_no_word_changes_nothing(tmp_path: Path, word: bytes) -> None:
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

    async def story(control: Control) -> None:
        peer = Peer()
        await control.attach(peer)
        assert await asyncio.to_thread(say) in (b"", b"unknown word\n")
        assert peer.told == []

    play(tmp_path, story)
