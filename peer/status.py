"""What a peer tells its person and other programs: a live line on a terminal, a plain line a round elsewhere, and status.json."""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.status import Status as Spinner

from peer.store import PeerStore
from protocol.errors import StorageError

YOU = "you"  # in the place of a limit: who paused is the person

logger = logging.getLogger("manta.peer")


@dataclass
class PeerStatus:
    """Where a peer stands."""

    peer: str  # libp2p peer id
    key: str
    run: str
    name: str
    cohort: str
    device: str
    num_rounds: int
    pid: int = field(default_factory=os.getpid)
    round: int = 0  # the newest committed round whose state it holds
    state: str = ""
    teacher: str = ""  # digest of the state that its lots learn from too
    phase: str = "starting"
    waiting_for: str = ""
    members: int = 0
    mates: int = 0  # others of its cohort that are there
    why: str = ""  # it is in that cohort, in words
    size: str = ""  # of the cohort in model-parallel, and why it has that one, in words
    near: str = ""  # who is near and no mate, in words
    round_trips: str = ""  # to the landmarks, in words
    reachable: str = "unknown"  # whether others can call this peer: unknown, local, public, outbound
    reach: str = ""  # the same in words
    loss: float | None = None
    samples_counted: int = 0
    samples_lost: int = 0
    rounds_counted: int = 0
    bytes_handed_in: int = 0  # of bodies that this peer brought to the log, its own or its cohort's
    dropped: dict[str, int] = field(default_factory=dict)  # contributions that came to nothing, by reason
    promises_broken: int = 0  # tickets that the log gave and did not keep
    joined_at_round: int | None = None  # the round whose state it fetched and checked when it came
    finished: bool = False
    log_fault: str = ""  # the log is not what it signed: how, and where the proof is
    own_round: int | None = None  # whose state was measured last on held-out images of its own, where data are private
    own_samples: int = 0  # such images
    own_largest: float | None = None  # share of them that the largest subnet gets right
    own_smallest: float | None = None
    epsilon: float | None = None  # of differential privacy, where noise is added: what was given away so far, at ``delta``
    delta: float | None = None
    workers: int = 0  # that are there: each computes a lot at a time
    leases_at: str = ""  # of a gateway: the address that light contributors are told
    paused: bool = False  # nothing is computed, by the person's word or by a limit
    pauses: dict[str, str] = field(default_factory=dict)  # why, in words, by the limit's name; "you": the person's word
    limits: dict[str, str] = field(default_factory=dict)  # those that are set, in the person's words


class StatusBoard:
    """Shows a ``PeerStatus`` as it changes."""

    def __init__(self, store: PeerStore, status: PeerStatus) -> None:
        self.status = status
        self._store = store
        self._console = Console(stderr=False, highlight=False)
        self._spinner: Spinner | None = None

    def __enter__(self) -> "StatusBoard":
        if sys.stdout.isatty():
            self._spinner = self._console.status(self._line())
            self._spinner.start()
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()
        self.write()

    def update(self, **changes: Any) -> None:
        """Change fields and show it."""
        before, company = self.status.waiting_for, (self.status.cohort, self.status.why, self.status.size)
        for name, value in changes.items():
            setattr(self.status, name, value)
        if self._spinner is not None:
            self._spinner.update(self._line())
        if self.status.waiting_for != before or (self.status.cohort, self.status.why, self.status.size) != company:
            self.write()
        if self.status.waiting_for not in (before, "") and self._spinner is None:
            self.say(f"waiting for {self.status.waiting_for}")

    def pause(self, why: Mapping[str, str]) -> None:
        """Show that the peer is paused, and why, in words by limit; with no reason, that it goes on."""
        before, self.status.pauses = self.status.pauses, dict(why)
        if before.keys() == why.keys():
            return
        self.update(paused=bool(why))
        self.write()
        ends = "until manta-peer resume" if YOU in why else "until that is over"
        self.say(f"paused ({'; '.join(why.values())}): nothing is computed {ends}" if why else "resumed")

    def committed(self, *, round_: int, state: bytes, contributions: int, counted: bool, lost: int) -> None:
        """Show that a round was committed, ``lost`` samples of this peer not in it."""
        if self._spinner is not None:
            return
        loss = f" loss={self.status.loss:.3f}" if counted and self.status.loss is not None else ""
        without = "" if counted else f" (without this peer{f': {lost} samples are stale' if lost else ''})"
        where = f"round={round_} contributions={contributions} state={state.hex()[:12]}"
        self.say(f"round committed {where} samples={self.status.samples_counted}{loss}{without}")

    def say(self, text: str) -> None:
        """Print one line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    def write(self) -> None:
        """Write status.json. A disk that refuses it stops nothing: what matters is written elsewhere, and fails there."""
        try:
            self._store.write_status(asdict(self.status))
        except StorageError as error:
            logger.error("status not written reason=%s", error)

    def _phase(self) -> str:
        status = self.status
        return f"paused ({'; '.join(status.pauses.values())})" if status.paused else status.phase

    def _line(self) -> str:
        status = self.status
        parts = [f"round {status.round}/{status.num_rounds}", self._phase(), f"{status.members} peers"]
        if status.loss is not None:
            parts.append(f"loss {status.loss:.3f}")
        parts.append(f"{status.samples_counted} samples counted")
        if status.waiting_for:
            parts.append(f"waiting for {status.waiting_for}")
        return " · ".join(parts)
