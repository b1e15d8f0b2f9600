"""Keeps a log that may not be the newest from signing a round: after each start it hears those first who may know more.

Whoever is in the log's last table holds its newest head, or a newer one, and comes back to the log within seconds of its start. A folder
that is a copy, by its mark or by the place of its database on the disk, stays fenced until one of these says that it knows nothing newer.

DIR/restored.json   this folder was made from a backup, and has not heard yet whether it is the newest
DIR/place.json      where the database lies on the disk: a copy of the folder lies elsewhere
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from aggregator.log.log import Log
from aggregator.log.storage import DATABASE, RESTORED
from protocol.errors import UserError
from protocol.receipts import ProvenRound
from protocol.signing import PublicKey
from runtime.disk import disk_errors, sync_directory, write_durably
from swarm import waits
from swarm.tasks import within

PLACE = "place.json"


def mark_restored(directory: Path) -> None:
    """Mark a folder as made from a backup; durable when this returns.

    Raises:
        StorageError: the disk refuses.
    """
    write_durably(directory / RESTORED, b'{"restored": true}\n')


class Fence:
    """One start's."""

    def __init__(self, directory: Path, log: Log, say: Callable[[str], None], *, is_newest: bool = False) -> None:
        """Look at the folder of an open log; ``is_newest`` is the operator's word that nothing newer was ever signed."""
        self._directory = directory
        self._log = log
        self._say = say
        self._is_newest = is_newest
        self.why = self._why()  # this folder stays fenced; empty: it does not
        self._expected = log.ledger.last_keys
        self._heard: set[PublicKey] = set()
        self._has_word = False  # one of those expected holds just what this log has
        self._changed = asyncio.Event()

    def _why(self) -> str:
        if (self._directory / RESTORED).exists():
            return "was made from a backup"
        place = self._directory / PLACE
        try:
            known = json.loads(place.read_text())["inode"]
        except FileNotFoundError:
            return ""  # made before there were such files
        except (OSError, ValueError, KeyError, TypeError):
            known = None
        if not isinstance(known, int):
            return f"may be a copy, for its {PLACE} is damaged or cannot be read"
        return "" if known == self._inode() else "is a copy"

    def _inode(self) -> int:
        path = self._directory / DATABASE
        with disk_errors(path):
            return path.stat().st_ino

    def check_newest(self) -> None:
        """Refuse a copy in a run of several operators, which may have forgotten what it promised the others.

        Raises:
            UserError: this folder is one.
            StorageError: that it is none cannot be noted on the disk.
        """
        if self.why and not self._is_newest:
            raise UserError(
                f"{self._directory} {self.why}: it may have forgotten what it promised the run's other operators; if it has all that "
                "was ever written there, start with --newest; if not, this operator's key may not be used in this run any more"
            )
        self._note()

    def heard(self, key: PublicKey, held: ProvenRound | None) -> None:
        """A peer said which round it knows as the newest; that the log has it was checked."""
        if key not in self._expected:
            return
        self._heard.add(key)
        self._has_word |= held is not None and held.commit == self._log.ledger.last_commit
        self._changed.set()

    async def lifted(self) -> None:
        """Return once rounds may be signed.

        Raises:
            StorageError: that cannot be noted on the disk.
        """
        ledger = self._log.ledger
        if ledger.settled:
            return
        if self.why and not self._is_newest:
            self._say(
                f"this folder {self.why}: nothing is signed before a peer of its last round ({ledger.round}) says that it knows "
                "no newer one; if nobody can say so, and you know that it has all: start with --newest"
            )
        deadline = asyncio.get_running_loop().time() + waits.HEARD_S
        while not self._expected <= self._heard and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            self._changed.clear()
            await within(self._changed, left_s)
        while self.why and not self._is_newest and not self._has_word:
            self._changed.clear()
            await self._changed.wait()
        if self.why:
            self._say(f"this folder is the newest{', by your word' if self._is_newest else ''}: the run goes on after round {ledger.round}")
        self._note()

    def _note(self) -> None:
        write_durably(self._directory / PLACE, json.dumps({"inode": self._inode()}).encode())
        path = self._directory / RESTORED
        with disk_errors(path):
            path.unlink(missing_ok=True)
        sync_directory(self._directory)
