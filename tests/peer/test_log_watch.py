import asyncio
from typing import Any

import pytest

from peer import log_watch
from peer.log_watch import LogWatch
from protocol.errors import SignatureError, Unreachable

AWAY = Unreachable("away")


class Script:
    """A log and a node that answer as the test says; watching ends with the script."""

    def __init__(self, answers: list[Any], meetings: list[bool]) -> None:
        self.operator = b"operator"
        self._answers, self._meetings = iter(answers), iter(meetings)
        self.met: list[bool] = []

    async def latest(self) -> Any:
        answer = next(self._answers, asyncio.CancelledError())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def meet_again(self, _key: bytes) -> None:
        self.met.append(next(self._meetings))
        if not self.met[-1]:
            raise AWAY


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_watch, "LOG_POLL_S", 0.0)
    monkeypatch.setattr(log_watch, "LOG_RETRY_S", (0.0, 0.0))


def watched(script: Script) -> list[Any]:
    """Return the commits that a watch of ``script`` finds."""
    found: list[Any] = []

    async def watch() -> None:
        try:
            await LogWatch(script, script, found.append).watch()  # type: ignore[arg-type]
        except asyncio.CancelledError:
            return

    asyncio.run(watch())
    return found


def test_every_commit_found_is_told() -> None:
    script = Script(["one", None, "one", SignatureError("a lie"), "two"], [True])
    assert watched(script) == ["one", "one", "two"]


def test_a_log_that_was_away_is_met_again_also_when_it_answers_by_itself() -> None:
    script = Script(["one", AWAY, "one", "one", "one", "one"], [False, False, True])
    assert watched(script) == ["one"] * 5
    assert script.met == [False, False, True]


def test_the_first_look_waits_for_the_log_and_says_so() -> None:
    found: list[Any] = []
    shown: list[bool] = []
    script = Script([AWAY, AWAY, "one"], [])
    asyncio.run(LogWatch(script, script, found.append).first_look(lambda: False, shown.append))  # type: ignore[arg-type]
    assert (found, shown) == (["one"], [True, True, False])


def test_the_first_look_of_one_who_leaves_ends() -> None:
    found: list[Any] = []
    script = Script([AWAY], [])
    shown: list[bool] = []
    asyncio.run(LogWatch(script, script, found.append).first_look(lambda: bool(shown), shown.append))  # type: ignore[arg-type]
    assert (found, shown) == ([], [True])
