"""What a submitter has in hand, and what it returns of each attempt to hand that in."""

from dataclasses import dataclass
from enum import Enum

from manta_swarm.network import waits
from manta_swarm.network.blobs import Blob
from manta_swarm.peer.cohort.cohort import Seat
from manta_swarm.peer.submit.making import Own
from manta_swarm.peer.train.work import Learnt
from manta_swarm.protocol.records import Contribution, Header, Ticket
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
    is_answered: bool = False  # the log itself answered this peer, which sent it what is brought


@dataclass(frozen=True, slots=True)
class Shared:
    """What handing in with the cohort takes."""

    seat: Seat
    own: Own
    learnt: Learnt


@dataclass(slots=True)
class InHand:
    """What is sealed, and how far it came."""

    header: Header  # of this peer alone
    blob: Blob
    is_common: bool  # audits compute its steps again, and in some of them others had a part
    shared: Shared | None = None  # until the cohort was tried
    refused: int = 0  # times that the log did
    pause_s: float = waits.HAND_IN_AGAIN_S[0]  # until the next attempt
