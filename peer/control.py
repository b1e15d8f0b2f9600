"""How a person tells a running peer what to do: words over its socket (``runtime.control``).

What is sent is a word, after ``limits`` with a JSON object of texts. The answer is ``yes`` and what to tell the person, or ``no`` and why
not; after ``status`` it tells a ``PeerStatus``.
"""

import json
from pathlib import Path
from typing import Protocol

from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.protocol.errors import MantaError, UserError
from manta_swarm.runtime import control

PAUSE, RESUME, LEAVE, STOP, LIMITS, STATUS = "pause", "resume", "leave", "stop", "limits", "status"

_ANSWER_S = 30.0  # for the peer to do it
_YES, _NO = "yes ", "no "


class CommandedPeer(Protocol):
    """Carries out a person's commands and returns what to tell them (``peer.limits.limiter.Limiter``). A ``MantaError`` is told as well."""

    async def pause(self) -> str:
        """Compute nothing from now on."""

    async def resume(self) -> str:
        """Go on."""

    async def leave(self, *, at_once: bool) -> str:
        """End, after handing in what is trained or at once."""

    async def limit(self, told: dict[str, str]) -> str:
        """Change limits, and say what they are."""

    def status(self) -> PeerStatus:
        """Return where the peer stands."""


class Control(control.ControlSocket):
    """The socket of a running peer; a context manager. Who has the directory's lock may have it."""

    def __init__(self, directory: Path, peer: CommandedPeer) -> None:
        """Prepare; ``peer`` is told what callers say."""
        super().__init__(directory, self)
        self._peer = peer

    async def answer(self, words: str) -> str:
        """See ``runtime.control.CommandHandler``."""
        word, _, rest = words.partition(" ")
        try:
            said = await self._do(word, rest)
        except MantaError as error:
            return _NO + " ".join(str(error).split())
        return f"{_NO}unknown word" if said is None else _YES + said

    async def _do(self, word: str, rest: str) -> str | None:
        peer = self._peer
        if word == LIMITS:
            return await peer.limit(_texts(rest))
        if rest:
            return None
        if word == STATUS:
            return peer.status().to_json()
        if word in (LEAVE, STOP):
            return await peer.leave(at_once=word == STOP)
        simple = {PAUSE: peer.pause, RESUME: peer.resume}
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


def look(directory: Path, answer_s: float = _ANSWER_S) -> PeerStatus:
    """Return where the peer stands that runs on ``directory``.

    Raises:
        NobodyRuns: no peer runs there.
        UserError: it says no.
        Unreachable: it does not answer within so many seconds.
        RemoteFault: what it answers is no status.
    """
    return PeerStatus.of(tell(directory, STATUS, answer_s=answer_s))


def tell(directory: Path, word: str, told: dict[str, str] | None = None, answer_s: float = _ANSWER_S) -> str:
    """Tell the peer that runs on ``directory`` a word, with limits where they go with it; return what it answers once it is done.

    Raises:
        NobodyRuns: no peer runs there.
        UserError: it says no.
        Unreachable: it does not answer.
    """
    line = word if told is None else f"{word} {json.dumps(told)}"
    said = control.tell(directory, line, who="peer", answer_s=answer_s)
    if not said.startswith(_YES.strip()):
        raise UserError(said.removeprefix(_NO))
    return said.removeprefix(_YES.strip()).strip()
