"""What a peer tells its person and other programs: what is worth a line, its ``PeerStatus``, and what audits found against it."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from manta_swarm.network.log_client import CreditWord
from manta_swarm.network.peer_status import FaultSeen, PeerStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.protocol.errors import StorageError
from manta_swarm.protocol.reputation import FALSE, WITHHELD, Fault
from manta_swarm.protocol.verdicts import AuditRules
from manta_swarm.runtime.console import Form, PrintingConsole

_MEANS = {
    WITHHELD: (
        "an audit needed what it rests on, and nobody brought that in time: it is not paid, nor what was pending before and not audited, "
        "and this key has to be found good from the beginning; keep the peer running, on a disk with room, while audits may ask"
    ),
    FALSE: (
        "an audit computed it again, and it is not what it says: what was pending and not audited is not paid, and this key is guilty for "
        "good; run manta-peer doctor, and look for overclocking, heat and bad memory"
    ),
}
_COMPUTES_WRONGLY = (
    "if you changed nothing on purpose, this computer computes wrongly: look for overclocking, heat and bad memory, install the program "
    "and the data anew, and run manta-peer doctor"
)
_ANEW = "this key stays guilty in this run: then take part with another one (manta-peer join --dir OTHER-FOLDER)"

_ROUNDS = 40  # of which it is known how many samples they had

_CREDIT_FIGURES = ("credit", "credit_round", "credit_checked", "credit_paid", "credit_pending", "credit_until")

YOU = "you"  # in the place of a limit: who paused is the person

logger = logging.getLogger("manta.peer")


def plain_fault(fault: Fault) -> FaultSeen:
    """Return what was found, as plain values."""
    return FaultSeen(fault.round, fault.reason, fault.contribution.hex())


def fault_line(fault: FaultSeen) -> str:
    """Return the sentence for what was found."""
    what = f"contribution {fault.contribution[:16]} was found {fault.reason} with round {fault.round}"
    means = _MEANS.get(fault.reason)
    return f"{what}: {means}" if means else what


def is_guilty(fault: Fault) -> bool:
    """Return whether a fault ends trust for good."""
    return fault.reason == FALSE


def verdict(fault: Fault) -> str:
    """Return the line that says of what a peer was found guilty."""
    what = f"its contribution {fault.contribution.hex()[:16]} was computed again, and is not what it says"
    return f"audits found this peer guilty with round {fault.round}: {what}; what was pending is not paid, and its work counts no more"


def advice() -> str:
    """Return what the person of a guilty peer can do."""
    return f"{_COMPUTES_WRONGLY}; {_ANEW}"


def pending_words(until: int, num_rounds: int) -> str:
    """Return when what is pending is paid; ``until``: the round with which the last of it is, 0: some of it is with the settlement."""
    if until:
        return f"paid round by round, the last of it with round {until}, unless audits find something"
    return f"paid round by round, the last of it when the run is settled after its last round, {num_rounds}, unless audits find something"


def unproven_words(good: int, proven_after: int) -> str:
    """Return what it means that a key is not proven, of which so many contributions were found good."""
    needed = f"{good} of {proven_after} contributions found good so far" if proven_after else f"{good} contributions found good so far"
    return f"not proven yet: {needed}; until then its work weighs less, and only what an audit finds good is paid"


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
        "credit_faults": tuple(plain_fault(each) for each in word.faults),
        "is_proven": bool(word.proven),
        "good": word.good,
        "proven_after": 0 if rules is None else rules.proven_after,
    }


class LiveStatus:
    """Replaces a peer's status as it changes, keeps it in the peer's folder, and says what is worth a line. For any thread."""

    def __init__(self, store: PeerStore, status: PeerStatus, console: PrintingConsole | None = None) -> None:
        """Begin with ``status``; keep it in ``store``, and say what changes with ``console``."""
        self.status = status  # is replaced under the mutex
        self._store = store
        self._console = console or PrintingConsole()
        self._mutex = threading.RLock()
        self._samples_of: dict[int, int] = {}  # by round, of all peers, where their claims were looked at

    def __enter__(self) -> "LiveStatus":
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        self.write()

    def shown(self) -> PeerStatus:
        """Return the status of now, with the last lines that were said."""
        return replace(self.status, said=self._console.last())

    def update(self, **changes: Any) -> None:
        """Replace fields; write what others wait for."""
        with self._mutex:
            before = self.status
            self.status = now = replace(before, **changes)
            if (now.waiting_for, now.cohort, now.why, now.size) != (before.waiting_for, before.cohort, before.why, before.size):
                self.write()

    def wait_for(self, what: str) -> None:
        """Show what is waited for, and say it once; ``update`` shows that it came."""
        is_new = what != self.status.waiting_for
        self.update(waiting_for=what)
        if is_new:
            self.say(f"waiting for {what}")

    def add(self, **counts: int) -> None:
        """Add to fields that count."""
        with self._mutex:
            self.update(**{name: getattr(self.status, name) + count for name, count in counts.items()})

    def pause(self, why: Mapping[str, str]) -> None:
        """Show that the peer is paused, and why, in words by limit; with no reason, that it goes on."""
        before = self.status.pauses
        self.update(paused=bool(why), pauses=dict(why))
        if before.keys() == why.keys():
            return
        self.write()
        self._console.tell("paused" if why else "resumed", why=dict(why))
        self.say(paused_line(why))

    def committed(self, *, round_: int, state: bytes, contributions: int, counted: bool, lost: int) -> None:
        """Say that a round was committed, with ``lost`` samples of this peer not in it."""
        status = self.status
        if self._console.form is Form.OBJECTS:
            figures = {"samples_counted": status.samples_counted, "loss": status.loss, "lost": lost}
            self._console.tell("round", round=round_, contributions=contributions, state=state.hex(), counted=counted, **figures)
            return
        loss = f" loss={status.loss:.3f}" if counted and status.loss is not None else ""
        without = "" if counted else f" (without this peer{f': {lost} samples are stale' if lost else ''})"
        where = f"round={round_} contributions={contributions} state={state.hex()[:12]}"
        self.say(f"round committed {where} samples={status.samples_counted}{loss}{without}")

    def counted(self, round_: int, samples: int) -> None:
        """Note that a round's table has so many samples of this peer."""
        self.add(samples_counted=samples, rounds_counted=1)
        if round_ > self.status.last_round:
            self.update(last_round=round_, last_samples=samples, last_of=self._samples_of.get(round_))

    def credit(self, word: CreditWord, rules: AuditRules | None, checked: int, rounds: int) -> None:
        """Show what was earned, as the log says, and how much of it was computed here, from the claims of so many rounds."""
        for fault in map(plain_fault, word.faults):
            if fault not in self.status.credit_faults:
                self.say(f"{fault_line(fault)} (as the log says: its verdicts are entries of it)")
        self.update(**credit_fields(word, rules), credit_checked=checked, credit_rounds=rounds)

    def earned(self, round_: int, earned: int, *, is_checked: bool, samples: int | None = None) -> None:
        """Show what a round that counted this peer paid, computed here or as the log says; with the samples of all its claims, if known."""
        if samples is not None:
            self._samples_of = {round_: samples} | {older: count for older, count in self._samples_of.items() if older > round_ - _ROUNDS}
            self.update(last_of=self._samples_of.get(self.status.last_round))
        if round_ >= self.status.earned_round:
            self.update(earned_round=round_, earned=earned, earned_checked=is_checked)
        figures = {name: getattr(self.status, name) for name in _CREDIT_FIGURES}
        faults = [asdict(fault) for fault in self.status.credit_faults]
        self._console.tell("credit", round=round_, earned=earned, checked=is_checked, of_samples=samples, **figures, credit_faults=faults)

    def say(self, text: str) -> None:
        """Say a line."""
        self._console.say(text)

    def tell(self, event: str, **fields: Any) -> None:
        """Tell a program of an event (``PrintingConsole.tell``)."""
        self._console.tell(event, **fields)

    def write(self) -> None:
        """Keep the status in the folder. A disk that refuses it stops nothing: what matters is written elsewhere, and fails there."""
        with self._mutex:
            try:
                self._store.write_status(self.shown())
            except StorageError as error:
                logger.error("status not written reason=%s", error)
