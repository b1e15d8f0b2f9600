"""Where a peer stands: the one model of it. Its status command, its live view, its dashboard, a swarm's report and an operator print this.

A running peer gives it over its control socket (``peer.control``), and keeps it in its folder, for other programs and for after its end.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from manta_swarm.protocol.errors import RemoteFault, StorageError

SEEKING, FETCHING, STARTING = "seeking", "fetching", "starting"  # stages before a peer takes part: it has no run, no data, no rounds yet

STATUS_FILE = "status.json"
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """What an audit found against a peer, as plain values."""

    round: int
    reason: str
    contribution: str  # hexadecimal


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Where a peer, or a light contributor, stands at a moment."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    peer: str  # libp2p peer id
    key: str
    run: str = ""  # empty: none is known yet
    name: str = ""
    cohort: str = ""
    device: str = ""
    num_rounds: int = 0
    pid: int = field(default_factory=os.getpid)
    round: int = 0  # the newest committed round whose state it holds
    state: str = ""
    teacher: str = ""  # digest of the state that its microbatches learn from too
    stage: str = STARTING
    waiting_for: str = ""
    left_ms: float | None = None  # until the headers of the open round close, when somebody looked last; so are the node's bytes
    open_ms: float = 0.0  # how long it is open in all
    members: int = 0
    cohort_peers: int = 0  # others of its cohort that are there
    links: str = ""  # how these are reached, in words
    why: str = ""  # it is in that cohort, in words
    size: str = ""  # of the cohort in model-parallel, and why it has that one, in words
    near: str = ""  # who is near and no cohort peer, in words
    round_trips: str = ""  # to the landmarks, in words
    reachable: str = "unknown"  # whether others can call this peer: unknown, local, public, outbound
    reach: str = ""  # the same in words
    loss: float | None = None
    samples_trained: int = 0  # since the start, whatever came of them
    samples_counted: int = 0
    samples_lost: int = 0
    rounds_counted: int = 0
    last_round: int = 0  # the newest round that counted this peer
    last_samples: int = 0  # of this peer in it
    last_of: int | None = None  # of all peers in it; None: not known
    credit: int | None = None  # earned over all rounds up to ``credit_round``, as the log says; None: it did not say
    credit_round: int = 0
    credit_paid: int = 0  # of it, as the log says, what was paid, for good
    credit_pending: int = 0  # and what is paid later unless audits find something
    credit_until: int = 0  # the round with which the last of that is paid; 0: none is pending, or the last is paid when the run is settled
    credit_faults: tuple[FaultSeen, ...] = ()  # what audits found; the newest
    account: str = ""  # that the credit of its claims adds up to from now on; empty: to its own key
    is_proven: bool | None = None  # as the log says: its samples weigh fully; None: it did not say
    good: int = 0  # as the log says: contributions that audits found good, since the last fault
    proven_after: int = 0  # of so many its key is proven; 0: all keys are
    credit_checked: int = 0  # of it, what this peer computed itself from the claims of ``credit_rounds`` rounds
    credit_rounds: int = 0
    credit_fault: str = ""  # how the log's word and its claims differ
    verdict: str = ""  # what audits found this peer guilty of, in words: it takes part no more
    is_private: bool = False  # the data: nobody else can compute the microbatches again that earned the credit
    earned_round: int = 0  # the newest round that counted this peer and of which it is known what it paid, and what
    earned: int = 0
    earned_checked: bool = False  # computed here; else as the log says
    bytes_handed_in: int = 0  # of bodies that this peer brought to the log, its own or its cohort's
    dropped: Mapping[str, int] = field(default_factory=dict)  # contributions that came to nothing, by reason
    promises_broken: int = 0  # inclusion promises that the log gave and did not keep
    joined_at_round: int | None = None  # the round whose state it fetched and checked when it came
    finished: bool = False
    is_leaving: bool = False  # the person said so
    operator: str = ""  # the one of several that it talks to: how its address ends
    log_fault: str = ""  # the log is not what it signed: how, and where the proof is
    own_round: int | None = None  # whose state was measured last on held-out images of its own, where data are private
    own_samples: int = 0  # such images
    own_largest: float | None = None  # share of them that the largest subnet gets right
    own_smallest: float | None = None
    epsilon: float | None = None  # of differential privacy, where noise is added: what was given away so far, at ``delta``
    delta: float | None = None
    workers: int = 0  # that are there: each computes a microbatch at a time
    sent_bytes: int = 0  # by its node, since the start
    received_bytes: int = 0
    measured_for_others: int = 0  # architectures, since the start
    audits: int = 0  # contributions of others that were computed again, since the start
    audits_taken_over: int = 0  # of a named auditor: those that it says are good since a volunteer found so
    audits_against: int = 0  # of those that were computed: in which something is not what it says
    audits_cpu_s: int = 0  # of the CPU's time, that they took
    audited: int = 0  # own contributions of which audits asked for something, since the start
    brought_bytes: int = 0  # of vectors that these rest on, and that were brought to operators
    leases_at: str = ""  # of a gateway: the address that light contributors are told
    gateway: str | None = None  # of a light contributor: where it leases; empty: none has answered yet; None: it is none
    leases: int = 0  # of a light contributor
    taken: int = 0  # of its claims, those that the log gave an inclusion promise for
    lost: int = 0  # of its leases, those that came to nothing
    data_bytes: int = 0  # of the data set that are here, while it is got from others
    data_size_bytes: int = 0  # of all that is wanted of it
    paused: bool = False  # nothing is computed, by the person's word or by a limit
    pauses: Mapping[str, str] = field(default_factory=dict)  # why, in words, by the limit's name; "you": the person's word
    limits: Mapping[str, str] = field(default_factory=dict)  # those that are set, in the person's words
    said: tuple[str, ...] = ()  # the last lines that it said

    @classmethod
    def of(cls, data: str | bytes) -> "PeerStatus":
        """Return the status that a peer sent or wrote.

        Raises:
            RemoteFault: it is none.
        """
        try:
            return _ADAPTER.validate_json(data)
        except ValidationError as error:
            raise RemoteFault(f"this is no status of a peer: {error.error_count()} fields are wrong") from error

    @classmethod
    def read(cls, directory: Path) -> "PeerStatus | None":
        """Return the status that a peer keeps in its folder, the one that runs or the last; None: none ever did.

        Raises:
            StorageError: it cannot be read.
            RemoteFault: it is none.
        """
        path = directory / STATUS_FILE
        try:
            with path.open("rb") as file:
                return cls.of(file.read(_MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error

    def to_json(self, indent: int | None = None) -> str:
        """Return the status as JSON; without ``indent`` on one line."""
        return _ADAPTER.dump_json(self, indent=indent).decode()


_ADAPTER = TypeAdapter(PeerStatus)
