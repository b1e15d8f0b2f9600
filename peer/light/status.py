"""What a light contributor tells its person and other programs: lines, status.json, and what a picture of it has."""

import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from peer.status import paused_line
from peer.store import PeerStore
from swarm.voice import Voice


@dataclass
class LightStatus:
    """Where a light contributor stands: status.json."""

    peer: str
    key: str
    run: str = ""
    name: str = ""
    num_rounds: int = 0
    cohort: str = ""  # it has none: its claims name its gateway's
    pid: int = field(default_factory=os.getpid)
    gateway: str = ""
    phase: str = "starting"
    waiting_for: str = ""
    round: int = 0  # of the newest lease
    leases: int = 0
    taken: int = 0  # claims that the log has: it gave a ticket for each
    lost: int = 0  # leases that came to nothing
    samples_taken: int = 0
    loss: float | None = None
    credit: int | None = None  # these as in ``peer.status.PeerStatus``, by way of the gateway
    credit_round: int = 0
    credit_paid: int = 0
    credit_pending: int = 0
    credit_until: int = 0
    credit_faults: list[dict[str, Any]] = field(default_factory=list)
    account: str = ""
    is_proven: bool | None = None
    good: int = 0
    proven_after: int = 0
    credit_checked: int = 0
    credit_rounds: int = 0
    earned_round: int = 0
    earned: int = 0
    earned_checked: bool = False
    bytes_down: int = 0
    bytes_up: int = 0
    finished: bool = False
    paused: bool = False  # nothing is computed, by the person's word or by a limit
    pauses: dict[str, str] = field(default_factory=dict)  # why, in words, by the limit's name; "you": the person's word
    limits: dict[str, str] = field(default_factory=dict)  # those that are set, in the person's words


class LightBoard:
    """Shows a ``LightStatus``; its methods may be called from any thread."""

    def __init__(self, store: PeerStore, status: LightStatus, voice: Voice) -> None:
        """Show ``status`` in ``store``, and say what happens with ``voice``."""
        self.status = status
        self._store = store
        self._voice = voice
        self._mutex = threading.Lock()

    def say(self, line: str) -> None:
        """Say a line."""
        self._voice.say(line)

    def write(self) -> None:
        """Write status.json.

        Raises:
            StorageError: the disk refuses.
        """
        with self._mutex:
            self._store.write_status(asdict(self.status))

    def pause(self, why: Mapping[str, str]) -> None:
        """Show that it is paused, and why, in words by limit; with no reason, that it goes on."""
        before, self.status.pauses, self.status.paused = self.status.pauses, dict(why), bool(why)
        if before.keys() != why.keys():
            self.write()
            self.say(paused_line(why))

    def fields(self) -> dict[str, Any]:
        """Return what a picture of the contributor has of its status."""
        status = self.status
        return {**asdict(status), "device": "cpu", "workers": 1, "samples_counted": status.samples_taken, "rounds_counted": status.taken}
