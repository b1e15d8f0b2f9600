"""A peer at a moment, frozen: what a view of it is made of. It is taken when somebody asks over the control socket, and not otherwise."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.errors import RemoteFault
from swarm.voice import Voice

SEEKING = "seeking"  # the phase before there is one: the run is looked for
FETCHING = "fetching"  # after that: its data set's shards are got from others


class Picture(BaseModel):
    """Where a peer stands. Of another version some of it may be missing, or there may be more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    phase: str
    said: tuple[str, ...] = ()  # the last lines
    peer: str = ""
    run: str = ""
    name: str = ""
    cohort: str = ""
    device: str = ""
    num_rounds: int = 0
    round: int = 0
    left_ms: float | None = None  # until the headers of the open round close
    open_ms: float = 0.0  # how long it is open in all
    waiting_for: str = ""
    members: int = 0
    mates: int = 0
    why: str = ""
    reach: str = ""
    reachable: str = ""
    loss: float | None = None
    samples_trained: int = 0  # since the start, whatever came of them
    samples_counted: int = 0
    samples_lost: int = 0
    rounds_counted: int = 0
    last_round: int = 0  # the newest round that counted this peer, and what of it
    last_samples: int = 0
    last_of: int | None = None  # samples that all peers together gave to that round
    credit: int | None = None  # as the log says, and of it what the peer computed itself
    credit_checked: int = 0
    credit_fault: str = ""
    credit_pending: int = 0  # of it, as the log says
    credit_until: int = 0
    credit_faults: tuple[dict[str, Any], ...] = ()
    is_proven: bool | None = None
    good: int = 0
    proven_after: int = 0
    is_unaudited: bool = False
    earned_round: int = 0
    earned: int = 0  # in that round
    sent_bytes: int = 0
    received_bytes: int = 0
    workers: int = 0
    audits: int = 0  # contributions of others that were computed again, and of these those that do not hold
    audits_against: int = 0
    finished: bool = False
    paused: bool = False
    pauses: dict[str, str] = {}
    limits: dict[str, str] = {}
    leases_at: str = ""
    data_bytes: int = 0  # of the data set that are here, while it is got from others
    data_size_bytes: int = 0  # of all that is wanted of it

    @classmethod
    def of(cls, text: str) -> "Picture":
        """Return the picture that a peer sent.

        Raises:
            RemoteFault: it is none.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise RemoteFault(f"this is no picture of a peer: {error.error_count()} fields are wrong") from error


class Sitter:
    """The peer, for whoever takes its picture; before it has found its run there is little to see."""

    def __init__(self, voice: Voice) -> None:
        """Begin with what ``voice`` said."""
        self.voice = voice
        self._fields: Callable[[], Mapping[str, Any]] = lambda: {"phase": SEEKING}

    def sits(self, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Take the fields of pictures from here, from now on."""
        self._fields = fields

    def picture(self) -> str:
        """Return the picture of now, JSON."""
        fields = {"pid": os.getpid(), **self._fields(), "said": self.voice.last()}
        return Picture.model_validate(fields).model_dump_json()
