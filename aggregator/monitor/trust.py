"""Trust as the monitor shows it: what the aggregator says that the log's audits come to, and the findings themselves, read from the log."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aggregator.attendants.live import DIRECTORY
from aggregator.audits.trust_file import FILE, FaultSeen, KeyTrust, Trust, read_trust
from aggregator.log.stored import StoredLog
from aggregator.monitor.opened import Opened, Said, opened
from aggregator.monitor.rounds import Rounds
from protocol.admission import Admission
from protocol.audits import PATIENCE, Extra, Finding
from protocol.encoding import unpack
from protocol.errors import EncodingError
from protocol.records import Header, LotRecord
from protocol.revocation import Revocation

MAX_FINDINGS = 32  # on one claim
_AT_A_TIME = 256
_MAX_READ = 16_384  # entries of a table


@dataclass(frozen=True, slots=True)
class FindingSeen:
    """A finding in the log."""

    index: int
    round: int  # with whose entry it took effect
    said: Finding

    @property
    def shown_record(self) -> LotRecord | None:
        """What the key claimed of the lot, where the finding shows it."""
        if not self.said.evidence:
            return None
        with contextlib.suppress(EncodingError):  # the ledger checked it
            return unpack(LotRecord, self.said.evidence[0].record, max_bytes=len(self.said.evidence[0].record))
        return None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What stands in the log about one claim."""

    index: int | None  # of the entry that has the claim; None: no finding says where it is
    findings: tuple[FindingSeen, ...]


class TrustSeen:
    """The aggregator's newest word on it."""

    def __init__(self, directory: Path) -> None:
        """Read the file in the run's ``directory``, when told."""
        self._directory = directory
        self._stamp: tuple[int, int] | None = None
        self.newest: Trust | None = None
        self.num_read = 0  # times that something new was there
        self._of: dict[str, KeyTrust] = {}

    def read_on(self) -> bool:
        """Take what is new; return whether there was anything. Blocks for as long as the disk takes.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged; what was read before stays.
        """
        try:
            found = (self._directory / DIRECTORY / FILE).stat()
        except FileNotFoundError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        self.newest = read_trust(self._directory)
        self._of = {one.key: one for one in self.newest.keys}
        self._stamp = stamp
        self.num_read += 1
        return True

    def of(self, key: bytes) -> KeyTrust | None:
        """Return what is known of a key; None: nothing."""
        return self._of.get(key.hex())

    def verdicts(self) -> list[tuple[str, FaultSeen]]:
        """Return key and fault of each verdict against somebody, the newest first."""
        if self.newest is None:
            return []
        found = [(one.key, fault) for one in self.newest.keys for fault in one.faults]
        return sorted(found, key=lambda each: (-each[1].round, each[0]))

    def last_round_about(self, claim: str) -> int | None:
        """Return the round up to which something may stand in the log about a claim; None: there is no verdict, nor a doubt."""
        if self.newest is None:
            return None
        rounds = [fault.round for _, fault in self.verdicts() if fault.claim == claim]
        if any(one.claim == claim for one in self.newest.in_doubt):
            rounds.append(self.newest.round)
        return max(rounds, default=None)


def evidence_about(log: StoredLog, rounds: Rounds, claim: bytes, last: int, kept_rounds: int) -> Evidence:
    """Return the findings on a claim that took effect up to round ``last``, and where the claim stands. Blocks: it reads the log.

    Raises:
        StorageError: the log cannot be read.
    """
    found = list[FindingSeen]()
    for round_ in range(max(1, last - kept_rounds - PATIENCE - 1), min(last, rounds.newest) + 1):
        extras = _extras_with(log, claim, rounds.index_of(round_ - 1) + 1, rounds.index_of(round_))
        found += [FindingSeen(index, round_, one) for index, one in extras if isinstance(one, Finding) and one.claim == claim]
    if not found:
        return Evidence(None, ())
    table = found[0].said.round
    start, end = rounds.index_of(table - 1) + 1, rounds.index_of(table)
    entries = log.entries(start, min(end, start + _MAX_READ))
    places = [start + place for place, entry in enumerate(entries) if _has_claim(opened(entry), claim)]
    return Evidence(places[0] if places else None, tuple(found[-MAX_FINDINGS:]))


def _extras_with(log: StoredLog, data: bytes, start: int, end: int) -> Iterator[tuple[int, Said]]:
    """Yield those of the entries from ``start`` that have ``data`` in them, up to where the extras before a round end or a little after.

    Of the others one in so many is opened: a run has thousands of extras in the rounds in which a claim is audited.
    """
    for first in range(start, end, _AT_A_TIME):
        entries = log.entries(first, min(first + _AT_A_TIME, end))
        yield from ((index, opened(entry).said) for index, entry in enumerate(entries, first) if data in entry)
        if not isinstance(opened(entries[-1]).said, Extra | Admission | Revocation):
            return


def _has_claim(one: Opened, digest: bytes) -> bool:
    return isinstance(one.record, Header) and any(signed.digest == digest for signed in one.record.claims)
