"""The peer's side of the process that computes audits at low priority: it is started, asked, and ended in the middle of its work.

After each microbatch it says how long that took, and waits until it is told to go on: so it works no more than its share of the time,
however long an audit takes.
"""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from torch import Tensor

from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.fields import require
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.verdicts import Outcome
from manta_swarm.runtime.child import Child, Program, python, with_threads
from manta_swarm.runtime.line import MAX_REASON, Messages

MAX_WEIGHTS_BYTES = 1 << 31  # and of an ask with a body, which is no larger

NICENESS = 5
_ANSWER_S = 1800.0  # for one microbatch


class AuditAnswerKind(IntEnum):
    """What an answer of the process means."""

    WORKING = 0  # a microbatch is done; it is not over
    DONE = 1
    NEEDS = 2  # a step does not fit: the own vectors of its members are needed
    LACKS = 3  # vectors are not here; the outcomes are what is found if they are not brought
    NOTHING = 4  # it cannot be judged, by nobody's fault


@dataclass(frozen=True, slots=True)
class AuditSetup:
    """The first message to the process: the run. Once the process has the data it says a ``runtime.line.Heartbeat``."""

    manifest: bytes  # signed


@dataclass(frozen=True, slots=True)
class AuditWeights:
    """Tells the process the parameters to compute on from now on; there is no answer. Whatever is under way begins anew."""

    parameters: bytes  # binary32, little-endian
    teacher: bytes  # those of what the weights' round learns from too; or nothing


@dataclass(frozen=True, slots=True)
class GoOn:
    """Tells the process to go on, after an answer that says that an audit is not over yet."""


@dataclass(frozen=True, slots=True)
class AskAudit:
    """Asks for the audit of a contribution on the weights that were sent last, or, where a mean or a residual lacks, on none; asked again,
    the audit goes on.
    """

    round: int  # that has it
    header: Header
    body: bytes
    min_exponent: int  # of its base
    left: tuple[int, ...]  # by claim: 1: the residual that it names was left to its key
    over: tuple[int, ...]  # steps whose own vectors do not come any more: what is not here of them was not brought


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """The answer to ``AskAudit`` and ``GoOn``: what came of the audit so far."""

    said: int  # of AuditAnswerKind
    outcomes: tuple[int, ...]  # DONE, LACKS: of ``protocol.verdicts.Outcome``, one a claim
    step: int  # NEEDS: which; else 0
    reason: str  # for people
    cpu_ms: int  # that it took, since the last word

    def __post_init__(self) -> None:
        require(self.said in tuple(AuditAnswerKind), "an unknown answer")
        require(len(self.outcomes) <= MAX_COHORT and set(self.outcomes) <= set(Outcome), "an unknown outcome")
        require(bool(self.outcomes) == (self.said in (AuditAnswerKind.DONE, AuditAnswerKind.LACKS)), "outcomes where something was found")
        require(self.step >= 0 and self.cpu_ms >= 0 and len(self.reason) <= MAX_REASON, "numbers, or a reason, out of range")


MESSAGES = Messages((AuditSetup, AuditWeights, AskAudit, GoOn), (AuditAnswer,), max_to_child=MAX_WEIGHTS_BYTES, max_to_parent=4096)


class Computing(Protocol):
    """Computes contributions again, one at a time."""

    async def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """Compute on these parameters, and those of the teacher where the round has one, from now on."""

    async def answer(self, ask: AskAudit) -> AuditAnswer:
        """Return what comes of a contribution; ``AuditAnswerKind.WORKING`` after each microbatch: it waits for ``go_on``."""

    async def go_on(self) -> AuditAnswer:
        """Let it go on, and return what comes next of the contribution."""

    async def close(self) -> None:
        """End the computing."""


class Process:
    """Has a process of its own compute contributions again; implements ``Computing``."""

    def __init__(self, child: Child) -> None:
        """Use ``start``."""
        self._child = child

    @classmethod
    async def start(cls, signed: SignedManifest, fetched: Path, root: Path | None) -> "Process":
        """Start a process for a run, which finds what was brought in the folder ``fetched``. Call it on the main thread.

        Raises:
            ChildLost: it is not to be had.
            UserError: the data are not here, or not the run's.
        """
        command = python("-m", "manta_swarm.peer.features.audit.process", str(fetched), *([] if root is None else [str(root)]))
        program = Program("audits", command, environment=with_threads(1), messages=MESSAGES, niceness=NICENESS)
        return cls(await Child.ready(program, AuditSetup(pack(signed))))

    async def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """See ``Computing``."""
        await self._child.say(AuditWeights(weights.numpy().tobytes(), b"" if teacher is None else teacher.numpy().tobytes()))

    async def answer(self, ask: AskAudit) -> AuditAnswer:
        """See ``Computing``.

        Raises:
            ChildLost: it died, or took too long.
            UserError: it cannot: samples are missing here.
        """
        await self._child.say(ask)
        return await self._child.hear(AuditAnswer, _ANSWER_S)

    async def go_on(self) -> AuditAnswer:
        """See ``Computing``; it raises the same."""
        await self._child.say(GoOn())
        return await self._child.hear(AuditAnswer, _ANSWER_S)

    async def close(self) -> None:
        """See ``Computing``."""
        await self._child.kill()
