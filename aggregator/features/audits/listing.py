"""Reads the verdicts in a log one after the other, each with the keys of the claims that it is about."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.protocol.notes import parse_tree_head, split_note
from manta_swarm.protocol.records import Header, Round, open_entry
from manta_swarm.protocol.signed import is_signed
from manta_swarm.protocol.verdicts import Outcome, Verdict

_AT_A_TIME = 256  # entries


@dataclass(frozen=True, slots=True)
class Seen:
    """A verdict in a log."""

    index: int  # of its entry
    verdict: Verdict
    keys: tuple[bytes, ...]  # of the contribution's claims

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What it says of each claim."""
        return tuple(map(Outcome, self.verdict.outcomes))

    @property
    def is_good(self) -> bool:
        """Whether it takes nothing away."""
        return not any(self.verdict.outcomes)


def verdicts_in(directory: Path) -> Iterator[Seen]:
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
                yield Seen(index, verdict, keys[verdict.contribution][1])
            elif isinstance(record, Round):
                assert rules is not None
                round_ = record.round + 1
                keys = {contribution: each for contribution, each in keys.items() if each[0] >= round_ - rules.pending_rounds - 1}
