"""What a peer tells its person and other programs: what is worth a line, a line a round, and status.json."""

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from peer.faults import fault_line, plain_fault
from peer.store import PeerStore
from protocol.errors import StorageError
from protocol.verdicts import AuditRules
from swarm.messages import CreditWord
from swarm.voice import Form, Voice

_ROUNDS = 40  # of which it is known how many samples they had

_CREDIT_FIGURES = (
    "credit",
    "credit_round",
    "credit_checked",
    "credit_paid",
    "credit_pending",
    "credit_until",
    "credit_faults",
)

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
    last_round: int = 0  # the newest round that counted this peer
    last_samples: int = 0  # of this peer in it
    credit: int | None = None  # earned over all rounds up to ``credit_round``, as the log says; None: it did not say
    credit_round: int = 0
    credit_paid: int = 0  # of it, as the log says, what was paid, for good
    credit_pending: int = 0  # and what is paid later unless audits find something
    credit_until: int = 0  # the round with which the last of that is paid; 0: none is pending, or the last is paid when the run is settled
    credit_faults: list[dict[str, Any]] = field(default_factory=list)  # what audits found: round, reason, contribution (hex); the newest
    account: str = ""  # that the credit of its claims adds up to from now on; empty: to its own key
    is_proven: bool | None = None  # as the log says: its samples weigh fully; None: it did not say
    good: int = 0  # as the log says: contributions that audits found good, since the last fault
    proven_after: int = 0  # of so many its key is proven; 0: all keys are
    credit_checked: int = 0  # of it, what this peer computed itself from the claims of ``credit_rounds`` rounds
    credit_rounds: int = 0
    credit_fault: str = ""  # how the log's word and its claims differ
    verdict: str = ""  # what audits found this peer guilty of, in words: it takes part no more
    is_unaudited: bool = False  # credit for lots that nobody else can compute again
    earned_round: int = 0  # the newest round that counted this peer and of which it is known what it paid, and what
    earned: int = 0
    earned_checked: bool = False  # computed here; else as the log says
    bytes_handed_in: int = 0  # of bodies that this peer brought to the log, its own or its cohort's
    dropped: dict[str, int] = field(default_factory=dict)  # contributions that came to nothing, by reason
    promises_broken: int = 0  # tickets that the log gave and did not keep
    joined_at_round: int | None = None  # the round whose state it fetched and checked when it came
    finished: bool = False
    operator: str = ""  # the one of several that it talks to: how its address ends
    log_fault: str = ""  # the log is not what it signed: how, and where the proof is
    own_round: int | None = None  # whose state was measured last on held-out images of its own, where data are private
    own_samples: int = 0  # such images
    own_largest: float | None = None  # share of them that the largest subnet gets right
    own_smallest: float | None = None
    epsilon: float | None = None  # of differential privacy, where noise is added: what was given away so far, at ``delta``
    delta: float | None = None
    workers: int = 0  # that are there: each computes a lot at a time
    measured_for_others: int = 0  # architectures, since the start
    audits: int = 0  # contributions of others that were computed again, since the start
    audits_taken_over: int = 0  # of a named auditor: those that it says are good since a volunteer found so
    audits_against: int = 0  # of those that were computed: in which something is not what it says
    audits_cpu_s: int = 0  # of the CPU's time, that they took
    audited: int = 0  # own contributions of which audits asked for something, since the start
    brought_bytes: int = 0  # of vectors that these rest on, and that were brought to operators
    leases_at: str = ""  # of a gateway: the address that light contributors are told
    paused: bool = False  # nothing is computed, by the person's word or by a limit
    pauses: dict[str, str] = field(default_factory=dict)  # why, in words, by the limit's name; "you": the person's word
    limits: dict[str, str] = field(default_factory=dict)  # those that are set, in the person's words


def paused_line(why: Mapping[str, str]) -> str:
    """Return the line that says for which reasons, in words by limit, nothing is computed; for none of them that it goes on."""
    ends = "until manta-peer resume" if YOU in why else "until that is over"
    return f"paused ({'; '.join(why.values())}): nothing is computed {ends}" if why else "resumed"


def credit_fields(word: CreditWord, rules: AuditRules | None) -> dict[str, Any]:
    """Return what a status shows of the log's word, in a run with these rules of audits; None: it has none."""
    return {
        "credit": word.credit,
        "credit_round": word.round,
        "credit_paid": word.paid,
        "credit_pending": word.pending,
        "credit_until": word.until,
        "credit_faults": [plain_fault(each) for each in word.faults],
        "is_proven": bool(word.proven),
        "good": word.good,
        "proven_after": 0 if rules is None else rules.proven_after,
    }


class StatusBoard:
    """Shows a ``PeerStatus`` as it changes."""

    def __init__(self, store: PeerStore, status: PeerStatus, voice: Voice | None = None) -> None:
        """Show ``status`` in ``store``, and say what changes with ``voice``."""
        self.status = status
        self._store = store
        self._voice = voice or Voice()
        self._samples_of: dict[int, int] = {}  # by round, of all peers, where their claims were looked at

    def __enter__(self) -> "StatusBoard":
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        self.write()

    def update(self, **changes: Any) -> None:
        """Change fields and show it."""
        before, company = self.status.waiting_for, (self.status.cohort, self.status.why, self.status.size)
        for name, value in changes.items():
            setattr(self.status, name, value)
        if self.status.waiting_for != before or (self.status.cohort, self.status.why, self.status.size) != company:
            self.write()
        if self.status.waiting_for not in (before, ""):
            self.say(f"waiting for {self.status.waiting_for}")

    def pause(self, why: Mapping[str, str]) -> None:
        """Show that the peer is paused, and why, in words by limit; with no reason, that it goes on."""
        before, self.status.pauses = self.status.pauses, dict(why)
        if before.keys() == why.keys():
            return
        self.update(paused=bool(why))
        self.write()
        self._voice.tell("paused" if why else "resumed", why=dict(why))
        self.say(paused_line(why))

    def committed(self, *, round_: int, state: bytes, contributions: int, counted: bool, lost: int) -> None:
        """Show that a round was committed, with ``lost`` samples of this peer not in it."""
        status = self.status
        if self._voice.form is Form.OBJECTS:
            figures = {"samples_counted": status.samples_counted, "loss": status.loss, "lost": lost}
            self._voice.tell("round", round=round_, contributions=contributions, state=state.hex(), counted=counted, **figures)
            return
        loss = f" loss={status.loss:.3f}" if counted and status.loss is not None else ""
        without = "" if counted else f" (without this peer{f': {lost} samples are stale' if lost else ''})"
        where = f"round={round_} contributions={contributions} state={state.hex()[:12]}"
        self.say(f"round committed {where} samples={status.samples_counted}{loss}{without}")

    def counted(self, round_: int, samples: int) -> None:
        """Note that a round's table has so many samples of this peer."""
        status = self.status
        status.samples_counted += samples
        status.rounds_counted += 1
        if round_ > status.last_round:
            status.last_round, status.last_samples = round_, samples

    def credit(self, word: CreditWord, rules: AuditRules | None, checked: int, rounds: int) -> None:
        """Show what was earned, as the log says, and how much of it was computed here, from the claims of so many rounds."""
        for fault in map(plain_fault, word.faults):
            if fault not in self.status.credit_faults:
                self.say(f"{fault_line(fault)} (as the log says: its verdicts are entries of it)")
        self.update(**credit_fields(word, rules), credit_checked=checked, credit_rounds=rounds)

    def earned(self, round_: int, earned: int, *, is_checked: bool, samples: int | None = None) -> None:
        """Show what a round that counted this peer paid, computed here or as the log says; with the samples of all its claims, if known."""
        status = self.status
        if samples is not None:
            self._samples_of = {round_: samples} | {older: count for older, count in self._samples_of.items() if older > round_ - _ROUNDS}
        if round_ >= status.earned_round:
            self.update(earned_round=round_, earned=earned, earned_checked=is_checked)
        figures = {name: getattr(status, name) for name in _CREDIT_FIGURES}
        self._voice.tell("credit", round=round_, earned=earned, checked=is_checked, of_samples=samples, **figures)

    def fields(self) -> dict[str, Any]:
        """Return what a picture of the peer has of its status."""
        return {**asdict(self.status), "last_of": self._samples_of.get(self.status.last_round)}

    def say(self, text: str) -> None:
        """Say a line."""
        self._voice.say(text)

    def write(self) -> None:
        """Write status.json. A disk that refuses it stops nothing: what matters is written elsewhere, and fails there."""
        try:
            self._store.write_status(asdict(self.status))
        except StorageError as error:
            logger.error("status not written reason=%s", error)
