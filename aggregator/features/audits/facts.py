"""What a log says of audited contributions: the facts that audits ask for, remembered for a while, and the list of all verdicts."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.features.audits.brought import Audited
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.exchange import codec_named
from manta_swarm.protocol.listed import left_by, was_left
from manta_swarm.protocol.notes import parse_tree_head, split_note
from manta_swarm.protocol.records import Header, Round, open_entry
from manta_swarm.protocol.reputation import Reputation
from manta_swarm.protocol.signed import is_signed
from manta_swarm.protocol.verdicts import Outcome, Verdict

_PAGE_BYTES = 1 << 20  # of entries that are read at once
_MAX_LEFT = 1 << 17  # residuals of keys that are remembered
_ROUND = 1 << 10  # what a round counts for beside them

_AT_A_TIME = 256  # entries


class LogFacts:
    """Answers what one log says of audited contributions; implements ``aggregator.features.audits.brought.Facts``."""

    def __init__(self, log: Log) -> None:
        """Know of nothing yet."""
        self._log = log
        self._is_sparse = codec_named(log.ledger.manifest.exchange.codec).is_sparse
        self._places: dict[bytes, int] = {}  # by contribution that is audited: of its entry in the log
        self._answers: dict[bytes, tuple[bool, ...]] = {}  # by contribution that is audited: of ``left``
        self._reading = threading.Lock()  # guards the next one
        self._left_by = OrderedDict[int, Mapping[bytes, bytes]]()  # by round: the residual that it left, by key; the last asked for

    @property
    def run(self) -> bytes:
        """The run's id."""
        return self._log.ledger.run

    @property
    def reputation(self) -> Reputation:
        """What verdicts add up to."""
        return self._log.ledger.reputation

    def beacon(self, round: int) -> bytes:
        """Return the beacon of a round that has another one after it."""
        commit = self._log.ledger.commit_at(round + 1)
        assert commit is not None
        return commit

    def base(self, round: int) -> tuple[bytes, int]:
        """Return the digest of the state that work for a round begins with, and the min exponent of its bodies."""
        ledger = self._log.ledger
        return ledger.state_at(round - 1), ledger.min_exponent_at(round - 1)

    async def left(self, audited: Audited) -> tuple[bool, ...]:
        """Return of each claim whether the residual that it names was left to its key."""
        contribution = audited.audit.work.contribution
        if contribution not in self._answers:
            self._answers[contribution] = await asyncio.to_thread(self._left, audited)
        return self._answers[contribution]

    def header(self, round: int, contribution: bytes) -> Header:
        """Return a contribution that is audited, with its claims; it blocks.

        Raises:
            StorageError: the disk failed, or the log has it not.
        """
        place = self._places.get(contribution)
        if place is None:
            audited = self.reputation.audits.keys() | {contribution}
            found = {bytes(header.contribution.digest): at for at, header in self._headers(round) if header.contribution.digest in audited}
            self._places |= found
            place = found.get(contribution)
        record = None if place is None else open_entry(self._log.entry(place))
        if not isinstance(record, Header):
            raise StorageError(f"the log does not have the contribution {contribution.hex()[:16]} of round {round}: verify the log")
        return record

    def committed(self) -> None:
        """The log has a new round: forget what is not audited any more."""
        audited = self.reputation.audits
        self._places = {contribution: place for contribution, place in self._places.copy().items() if contribution in audited}
        self._answers = {contribution: answer for contribution, answer in self._answers.items() if contribution in audited}

    def _left(self, audited: Audited) -> tuple[bool, ...]:
        sorts_after = self._log.ledger.training_spec.sorts_after
        return tuple([was_left(claim, audited.audit.round, sorts_after, self._left_by_round) for claim in audited.claims])

    def _left_by_round(self, round_: int) -> Mapping[bytes, bytes]:
        if not self._is_sparse or round_ < 1:
            return {}
        with self._reading:
            found = self._left_by.get(round_)
            if found is None:
                found = self._left_by[round_] = left_by(header for _, header in self._headers(round_))
            while len(self._left_by) > 1 and sum(_ROUND + len(each) for each in self._left_by.values()) > _MAX_LEFT:
                self._left_by.popitem(last=False)
        return found

    def _headers(self, round_: int) -> Iterator[tuple[int, Header]]:
        """Yield the contributions of a committed round, each after its place in the log."""
        index = self._log.ledger.index_at(round_)
        entry = None if index is None else open_entry(self._log.entry(index))
        if not isinstance(entry, Round):
            return
        place, end = entry.first, entry.first + entry.contributions
        while place < end:
            for data in self._log.entries(place, end - place, _PAGE_BYTES):
                record = open_entry(data)
                if isinstance(record, Header):
                    yield place, record
                place += 1


@dataclass(frozen=True, slots=True)
class LoggedVerdict:
    """A verdict in a log."""

    index: int  # of its entry
    verdict: Verdict
    keys: tuple[bytes, ...]  # of the contribution's claims

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What the verdict says of each claim."""
        return tuple(map(Outcome, self.verdict.outcomes))

    @property
    def is_good(self) -> bool:
        """Whether the verdict takes nothing away."""
        return not any(self.verdict.outcomes)


def verdicts_in(directory: Path) -> Iterator[LoggedVerdict]:
    """Yield the verdicts of the log in ``directory``, in its order.

    Raises:
        UserError: there is no log.
        StorageError: it is damaged, or the disk fails.
    """
    log = StoredLog(directory)
    rules, keys = log.manifest().open().audit_rules, dict[bytes, tuple[int, tuple[bytes, ...]]]()  # by contribution, with its round
    size, round_ = parse_tree_head(split_note(log.tree_head())[0]).size, 1
    for first in range(0, size if rules is not None else 0, _AT_A_TIME):
        for index, record in enumerate(map(open_entry, log.entries(first, min(first + _AT_A_TIME, size))), first):
            if isinstance(record, Header):
                keys[record.contribution.digest] = round_, tuple(signed.unchecked().key for signed in record.claims)
            elif is_signed(record, Verdict):
                verdict = record.open()
                yield LoggedVerdict(index, verdict, keys[verdict.contribution][1])
            elif isinstance(record, Round):
                assert rules is not None
                round_ = record.round + 1
                keys = {contribution: each for contribution, each in keys.items() if each[0] >= round_ - rules.pending_rounds - 1}
