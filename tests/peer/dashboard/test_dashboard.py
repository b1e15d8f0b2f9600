"""The dashboard beside a peer's real control socket, driven by Textual's pilot."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from manta_swarm.peer.control import Control
from manta_swarm.peer.dashboard import dashboard
from manta_swarm.peer.dashboard.dashboard import Dashboard, Help, new_lines
from manta_swarm.peer.limits.limiter import Limiter
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.status import LiveStatus
from tests.memory_log import DEADLINE_S
from tests.peer.computer import Computer, Peer, live_status_in

SIZES = [(80, 24), (200, 60)]
Story = Callable[["Scene", Pilot[None]], Awaitable[None]]


class Shown(Peer):
    """A peer that shows in its status what it is told."""

    def __init__(self, live_status: LiveStatus) -> None:
        super().__init__()
        self.live_status = live_status

    async def pause(self, why: Mapping[str, str]) -> None:
        await super().pause(why)
        self.live_status.pause(why)

    async def resume(self) -> None:
        await super().resume()
        self.live_status.pause({})

    def show(self) -> None:
        self.live_status.update(left_ms=500.0, open_ms=1000.0)


class Scene:
    """A peer whose status a test sets, and who is told things for real."""

    def __init__(self, directory: Path) -> None:
        self.live_status = live_status_in(directory / "peer")
        self.live_status.update(run="bb" * 32, name="digits", cohort="here", device="cpu", num_rounds=9, stage="working", round=3)
        self.peer = Shown(self.live_status)
        self.limiter = Limiter(Limits(), directory, Computer().sensors, self.live_status)


@asynccontextmanager
async def scene_in(directory: Path, size: tuple[int, int] = (80, 24), *, is_there: bool = True) -> AsyncIterator[tuple[Scene, Pilot[None]]]:
    scene = Scene(directory)
    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as opened:
        if is_there:
            await opened.enter_async_context(Control(directory, scene.limiter))
            await scene.limiter.attach(scene.peer)
        yield scene, await opened.enter_async_context(Dashboard(directory).run_test(size=size))


def shown(pilot: Pilot[None]) -> str:
    """What the screen has, as text."""
    return "\n".join("".join(segment.text for segment in line) for line in pilot.app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], *texts: str) -> str:
    """Return the screen once it has all of that."""
    while not all(text in shown(pilot) for text in texts):
        await pilot.pause(0.02)
    return shown(pilot)


@pytest.mark.parametrize("size", SIZES)
async def test_it_shows_where_the_peer_stands_and_follows(tmp_path: Path, size: tuple[int, int]) -> None:
    async with scene_in(tmp_path, size) as (scene, pilot):
        scene.live_status.say("[red]a line[/red] that it says")
        await until(pilot, "TRAINING", "round 3 of 9", "digits", "peers", "limits", "[red]a line[/red] that it says")
        screen = await until(pilot, "Pause / resume", "Leave the run", "Close view", "Help")
        lines = screen.splitlines()
        assert len(lines) == size[1]
        assert all(len(line) <= size[0] for line in lines)
        assert "Help" in lines[-1]
        scene.live_status.update(round=4, stage="signed")
        await until(pilot, "AVERAGING", "round 4 of 9")


async def test_pause_and_leave_are_keys_and_what_others_tell_the_peer_shows(tmp_path: Path) -> None:
    async with scene_in(tmp_path) as (scene, pilot):
        await until(pilot, "TRAINING")
        await pilot.press("p")
        await until(pilot, "PAUSED  by you")
        assert scene.peer.why == {"you": "by you"}
        await pilot.press("p")
        await until(pilot, "TRAINING")
        assert scene.peer.why == {}
        await scene.limiter.pause()  # from another terminal
        await until(pilot, "PAUSED  by you")
        await scene.limiter.resume()
        await until(pilot, "TRAINING")
        await pilot.press("l", "l")
        await until(pilot, "LEAVING")
        while not scene.peer.told:
            await pilot.pause(0.02)
        await pilot.press("l")
        assert scene.peer.told == ["leave"]  # a second one would stop it at once


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_help_opens_and_closes_and_the_view_can_be_closed(tmp_path: Path, key: str) -> None:
    async with scene_in(tmp_path) as (_scene, pilot):
        await until(pilot, "TRAINING")
        await pilot.press("question_mark")
        await until(pilot, "computes nothing, and loses nothing")
        assert isinstance(pilot.app.screen, Help)
        await pilot.press("escape")
        await until(pilot, "TRAINING")
        await pilot.press(key)
        assert pilot.app.return_code == 0


async def test_while_nobody_answers_it_says_so_and_shows_whoever_comes(tmp_path: Path) -> None:
    async with scene_in(tmp_path, is_there=False) as (_scene, pilot):
        await until(pilot, "STARTING", "no peer runs here")
        await pilot.press("p", "question_mark", "escape")  # nothing to tell: that is said, and nothing ends
        other = Scene(tmp_path)
        async with Control(tmp_path, other.limiter):
            await other.limiter.attach(other.peer)
            await until(pilot, "TRAINING")
        await until(pilot, "NO ANSWER", "no peer runs here now", "round 3 of 9")


async def test_without_colours_everything_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with scene_in(tmp_path) as (_scene, pilot):
        await until(pilot, "TRAINING", "round 3 of 9", "█", "░")
        assert pilot.app.no_color
        assert pilot.app.screen.query_one("#round", Static).has_class("is-training")


async def test_what_is_seen_while_the_view_closes_is_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_LOOK_S", 0.0)
    async with scene_in(tmp_path) as (_scene, pilot):
        await until(pilot, "TRAINING")


async def test_its_colours_are_the_sixteen_of_the_terminal(tmp_path: Path) -> None:
    async with scene_in(tmp_path) as (scene, pilot):
        for number in range(39):
            scene.live_status.say(f"line {number}")
        await until(pilot, "TRAINING", "line 38", "Help")
        await pilot.press("p")
        await until(pilot, "PAUSED  by you")
        styles = [segment.style for line in pilot.app.screen._compositor.render_strips() for segment in line if segment.style]
        colours = {colour for style in styles for colour in (style.color, style.bgcolor) if colour is not None}
        assert all(colour.is_default or (colour.number is not None and colour.number < 16) for colour in colours), colours


def test_only_what_was_said_since_is_added() -> None:
    assert new_lines((), ("a", "b")) == ("a", "b")
    assert new_lines(("a", "b"), ("a", "b")) == ()
    assert new_lines(("a", "b"), ("b", "c", "d")) == ("c", "d")
    assert new_lines(("a", "a"), ("a", "a", "a")) == ("a",)
    assert new_lines(("a", "b"), ("c",)) == ("c",)
