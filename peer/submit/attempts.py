"""What comes of handing in, as the submitter returns it."""

from dataclasses import dataclass
from enum import Enum

from manta_swarm.network.blobs import Blob
from manta_swarm.protocol.records import Contribution, Ticket
from manta_swarm.protocol.signed import Signed


class Result(Enum):
    """What came of an attempt to hand in."""

    DONE = "done"  # the log has it: on its disk, or in a table already
    AGAIN = "again"  # the log has no place for it now, or refused it for the first time
    AWAY = "away"  # the log cannot be reached, or says what no log says
    REFUSED = "refused"  # it will never be in the log: that refuses it
    LEFT = "left"  # nor will this: it takes the cohort that it was learnt with, which did not hand it in


@dataclass(frozen=True, slots=True)
class Brought:
    """A body that is here, of a contribution with a ticket: others may have it once the headers of the ticket's round are closed."""

    contribution: Signed[Contribution]
    ticket: Signed[Ticket]
    blob: Blob


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to hand in."""

    result: Result
    brought: Brought | None = None
    samples_lost: int = 0  # with REFUSED and LEFT
    why: str = ""  # in words, with these
