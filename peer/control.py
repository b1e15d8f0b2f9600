"""How a person tells a running peer what to do: words over its socket (``swarm.control``).

A word, after ``limits`` a JSON object of texts too; the answer is ``yes`` and what to tell the person, or ``no`` and why not. After
``picture`` what is told is a ``peer.dashboard.picture.Picture``.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from protocol.errors import MantaError, UserError
from swarm import control

PAUSE, RESUME, LEAVE, STOP, SHOW, LIMITS, PICTURE = "pause", "resume", "leave", "stop", "show", "limits", "picture"

_ANSWER_S, _SHOW_S = 30.0, 2.0  # for the peer to do it; what it wrote last does as well
_YES, _NO = "yes ", "no "


class Person(Protocol):
    """What does as the person says, and returns what to tell (``peer.limits.limiter.Limiter``). A ``MantaError`` is told as well."""

    async def pause(self) -> str:
        """Compute nothing from now on."""

    async def resume(self) -> str:
        """Go on."""

    async def leave(self, *, at_once: bool) -> str:
        """End, after handing in what is trained or at once."""

    async def limit(self, told: dict[str, str]) -> str:
        """Change limits, and say what they are."""

    async def show(self) -> str:
        """Write down where the peer stands."""


class Control(control.ControlSocket):
    """The socket of a running peer; a context manager. Who has the directory's lock may have it."""

    def __init__(self, directory: Path, person: Person, picture: Callable[[], str]) -> None:
        """Prepare; ``person`` is told what callers say, and ``picture`` is what they see."""
        super().__init__(directory, self._answer_line)
        self._person = person
        self._picture = picture

    async def _answer_line(self, line: str) -> str:
        word, _, rest = line.partition(" ")
        try:
            said = await self._do(word, rest)
        except MantaError as error:
            return _NO + " ".join(str(error).split())
        return f"{_NO}unknown word" if said is None else _YES + said

    async def _do(self, word: str, rest: str) -> str | None:
        person = self._person
        if word == LIMITS:
            return await person.limit(_texts(rest))
        if rest:
            return None
        if word == PICTURE:
            return self._picture()
        if word in (LEAVE, STOP):
            return await person.leave(at_once=word == STOP)
        simple = {PAUSE: person.pause, RESUME: person.resume, SHOW: person.show}
        return await simple[word]() if word in simple else None


def _texts(text: str) -> dict[str, str]:
    """Return a JSON object of texts.

    Raises:
        UserError: it is something else.
    """
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
        raise UserError("these are no limits")
    return told


def tell(directory: Path, word: str, told: dict[str, str] | None = None) -> str:
    """Tell the peer that runs on ``directory`` a word, with limits where they go with it; return what it answers once it is done.

    Raises:
        NobodyRuns: no peer runs there.
        UserError: it says no.
        Unreachable: it does not answer.
    """
    line, answer_s = word if told is None else f"{word} {json.dumps(told)}", _SHOW_S if word == SHOW else _ANSWER_S
    said = control.tell(directory, line, who="peer", answer_s=answer_s)
    if not said.startswith(_YES.strip()):
        raise UserError(said.removeprefix(_NO))
    return said.removeprefix(_YES.strip()).strip()
