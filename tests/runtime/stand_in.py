"""Children that do nothing else than a test wants: ``python -m tests.runtime.stand_in HOW``."""

import os
import signal
import sys
import threading
from dataclasses import dataclass

from manta_swarm.protocol.errors import OwnFault, UserError
from manta_swarm.runtime.child import Program, python, with_threads
from manta_swarm.runtime.line import Heartbeat, Messages, Parent, be_child


@dataclass(frozen=True, slots=True)
class Ask:
    """To the child: say this."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """From the child: what it was asked to say."""

    text: str


MESSAGES = Messages((Ask,), (Answer,), max_to_child=1 << 24, max_to_parent=1000)


def answering(how: str = "answers") -> Program:
    """Return the stand-in that is talked to."""
    os.environ["OF_THE_PARENT"] = "1"
    return Program("child", python("-m", "tests.runtime.stand_in", how), None, with_threads(3), MESSAGES)


def work(parent: Parent) -> None:
    """Do what the first argument says."""
    how = sys.argv[1]
    if how in ("beats", "is stubborn"):
        if how == "is stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        parent.say(Heartbeat())
        print("at work", os.getpid(), file=sys.stderr, flush=True)
        parent.keep_beating()
        threading.Event().wait()
    elif how == "stands still":
        parent.say(Heartbeat())
        threading.Event().wait()
    elif how == "has no data":
        raise UserError("no such data")
    elif how == "fails":
        raise OwnFault("it is\nbroken")
    elif how == "has a fault":
        raise ZeroDivisionError("a fault")
    elif how == "babbles":
        parent._line.sendall(b"\xff" * 10)
    else:
        answer(parent)


def answer(parent: Parent) -> None:
    """Answer whatever it is asked."""
    parent.say(Answer(os.environ.get("OF_THE_CHILD", "") + os.environ["OF_THE_PARENT"]))
    while True:
        asked = parent.hear()
        if asked.text == "compute":
            while True:
                sum(range(1000))
        for _ in range(100 if asked.text == "again and again" else 1):
            parent.say(Answer(asked.text[:900]))


if __name__ == "__main__":
    be_child(MESSAGES, work)
