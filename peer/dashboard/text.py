"""What the live view and the dashboard say of a peer, as text: pure functions of its status. Nothing here knows the terminal."""

import re
from collections import deque
from dataclasses import dataclass

from manta_swarm.network.peer_status import FETCHING, SEEKING, STARTING, PeerStatus
from manta_swarm.peer.limits.limits import listed
from manta_swarm.protocol.rounds import PeerStage

Rows = list[tuple[str, ...]]  # label and figure, then the figure in fewer letters, for where it does not fit

_WINDOW_S = 60.0  # over which rates are taken
_FULL, _EMPTY = "█", "░"
_UNITS = ("B", "kB", "MB", "GB", "TB")

_WORDS = {
    SEEKING: ("LOOKING FOR THE RUN", "nothing is computed yet"),
    FETCHING: ("GETTING DATA", "the data set comes from other peers and the operator"),
    STARTING: ("STARTING", "what computes gets ready"),
    PeerStage.BEHIND.value: ("CATCHING UP", "the newest state is fetched and checked"),
    PeerStage.WORKING.value: ("TRAINING", ""),
    PeerStage.SIGNED.value: ("AVERAGING", "what was learnt is handed in"),
    PeerStage.PROMISED.value: ("AVERAGING", "handed in; the round goes on without more work of this peer"),
    PeerStage.FINISHED.value: ("FINISHED", "the run has all its rounds"),
}


@dataclass(frozen=True, slots=True)
class MinuteRates:
    """What a peer trained, sent and received a second, on average over the last minute."""

    samples: float
    sent_bytes: float
    received_bytes: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What the computer says of itself; None: it does not."""

    celsius: float | None = None
    watts: float | None = None  # of its GPUs
    processor_watts: float | None = None
    whole_watts: float | None = None  # of all of it, while it runs on its battery


class StatusWindow:
    """A peer's statuses of the last minute, for rates."""

    def __init__(self) -> None:
        """Begin without any."""
        self._seen: deque[tuple[float, PeerStatus]] = deque()

    def add(self, now_s: float, status: PeerStatus) -> MinuteRates | None:
        """Return the rates up to this status, got at ``now_s`` by a clock that does not go back; None: there is no older one."""
        if self._seen and self._seen[-1][1].pid != status.pid:
            self._seen.clear()
        self._seen.append((now_s, status))
        while now_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        since_s, first = self._seen[0]
        passed_s = now_s - since_s
        if passed_s <= 0:
            return None
        return MinuteRates(
            (status.samples_trained - first.samples_trained) / passed_s,
            (status.sent_bytes - first.sent_bytes) / passed_s,
            (status.received_bytes - first.received_bytes) / passed_s,
        )


def headline(status: PeerStatus) -> tuple[str, str]:
    """Return a peer's state in a word, and why."""
    if status.is_leaving and not status.finished:
        return "LEAVING", "what is trained is handed in first"
    if status.paused and not status.finished and status.stage != FETCHING:
        return "PAUSED", "; ".join(status.pauses.values()) or "nothing is computed"
    word, why = _WORDS.get(status.stage, (status.stage.upper(), ""))
    if status.waiting_for:
        return (word if status.stage == PeerStage.WORKING.value else "WAITING"), f"waiting for {status.waiting_for}"
    return word, why


def title(status: PeerStatus) -> str:
    """Return what run and what peer it is."""
    if not status.run:
        return "manta-peer"
    return f"manta-peer · run {status.name} ({status.run[:8]}) · peer {status.peer[-8:]}"


def bar(done: float, width: int) -> str:
    """Return a bar that is full for the share ``done``, 0 to 1; it can be read without colours."""
    full = round(min(max(done, 0.0), 1.0) * width)
    return _FULL * full + _EMPTY * (width - full)


def progress(status: PeerStatus, width: int) -> list[str]:
    """Return the run's and the round's bars, each a line of ``width`` characters or a little less."""
    if status.stage == FETCHING and status.data_size_bytes:
        what = f"{size(status.data_bytes)} of {size(status.data_size_bytes)}"
        return [_bar_line("data", status.data_bytes / status.data_size_bytes, what, "", width), ""]
    if not status.num_rounds:
        return ["", ""]
    done = status.round / status.num_rounds
    left = status.num_rounds - status.round
    ends = f"about {span(left * status.open_ms / 1000)} left" if left and status.open_ms else ""
    lines = [_bar_line("run", done, f"round {status.round} of {status.num_rounds}, {done:.0%}", ends, width)]
    if status.left_ms is None or not status.open_ms or not left:
        return [*lines, _bar_line("round", 0.0, "not open yet" if left else "over", "", width)]
    passed = 1 - status.left_ms / status.open_ms
    ends = f"{span(status.left_ms / 1000)} left" if status.left_ms else "closing"
    return [*lines, _bar_line("round", passed, f"round {status.round + 1}, of {span(status.open_ms / 1000)}", ends, width)]


def _bar_line(label: str, done: float, what: str, ends: str, width: int) -> str:
    text = f"{what:<26} {ends:<20}"
    return f"{label:<6}{bar(done, max(10, width - len(text) - 8))}  {text}".rstrip()


def own_rows(status: PeerStatus, rates: MinuteRates | None) -> Rows:
    """Return what this peer gives, and what the log has of it."""
    return [
        ("samples/s", "-" if rates is None else f"{rates.samples:,.1f}"),
        ("counted", f"{status.samples_counted:,} samples", count(status.samples_counted)),
        _pending(status) or (("in rounds", f"{status.rounds_counted:,}") if status.gateway is None else ("in leases", f"{status.taken:,}")),
        *_credit(status),
        ("newest", *_newest(status)),
        ("lost", f"{status.samples_lost:,} samples", count(status.samples_lost)),
        ("loss", "-" if status.loss is None else f"{status.loss:.3f}"),
    ]


def _newest(status: PeerStatus) -> tuple[str, ...]:
    """Return this peer's part of the newest round that has any of it, and in which that was, if rounds went by since."""
    if not status.last_round:
        return ("none yet",)
    of = f" of {status.last_of:,}" if status.last_of else ""
    own = f"{status.last_samples:,}"
    if status.last_round < status.round - 1:
        when = f"in round {status.last_round}"
        return f"{own}{of} {when}", f"{own} {when}", when
    return f"{own}{of}", own, count(status.last_samples)


def _credit(status: PeerStatus) -> Rows:
    """Return what was earned, who vouches for it, and its newest part: short, for the panel is narrow."""
    if status.credit is None:
        return [("credit", "not told yet"), ("checked", "-"), ("paid", "-")]
    if status.credit_fault:
        checked = "in doubt!"
    elif status.is_private:
        checked = "private"
    elif status.credit_checked == status.credit:
        checked = "all of it"
    else:
        checked = f"{100 * status.credit_checked // status.credit if status.credit else 0}% of it"
    paid = (f"+{status.earned:,}", f"+{count(status.earned)}") if status.earned_round else ("-",)
    return [("credit", f"{status.credit:,}", count(status.credit)), ("checked", checked), ("paid", *paid)]


def _pending(status: PeerStatus) -> tuple[str, ...] | None:
    """Return what of the credit is paid later, or what audits found, as the log says; None: nothing, as in any run without audits."""
    if status.credit_faults:
        found = f"{len(status.credit_faults)} faults!" if len(status.credit_faults) > 1 else f"{status.credit_faults[0].reason}!"
        return "pending", f"{count(status.credit_pending)}, {found}", found
    if status.is_proven is False and status.proven_after:
        return "proven", f"no, {status.good:,} of {status.proven_after:,} good", f"{status.good}/{status.proven_after}"
    if not status.credit_pending:
        return None
    when = f"to round {status.credit_until}" if status.credit_until else "to the run's end"
    return "pending", f"{status.credit_pending:,} {when}", f"{status.credit_pending:,}", count(status.credit_pending)


def own_facts(status: PeerStatus, rates: MinuteRates | None) -> list[str]:
    """Return what this peer gives and what the log has of it, in words for one line."""
    facts = [] if rates is None else [f"{rates.samples:,.1f} samples/s"]
    facts.append(f"{count(status.samples_counted)} samples counted")
    if status.gateway is not None:
        facts.append(f"{status.taken:,} leases, {status.lost:,} lost")
    if status.credit is not None:
        (_, credit, *_), (_, checked), _ = _credit(status)
        facts.append(f"credit {credit}, {checked if checked.endswith('!') else f'checked {checked}'}")
    if pending := _pending(status):
        facts.append(" ".join(pending[:2]))
    return facts if status.loss is None else [*facts, f"loss {status.loss:.3f}"]


def swarm_facts(status: PeerStatus, rates: MinuteRates | None) -> list[str]:
    """Return who else is there and what is sent and received, in words for one line."""
    rows = {label: figure for label, figure, *_ in swarm_rows(status, rates)}
    there = (
        [f"{rows['peers']} peers", rows["cohort peers"]] if status.gateway is None else [f"leases from {status.gateway or 'nobody yet'}"]
    )
    limits = [f"limits {listed(status.limits)}"] if status.limits else []
    return [*there, f"out {rows['out']}", f"in {rows['in']}", *limits]


def swarm_rows(status: PeerStatus, rates: MinuteRates | None) -> Rows:
    """Return who else is there, and what is sent and received."""
    sent, received = (0.0, 0.0) if rates is None else (rates.sent_bytes, rates.received_bytes)
    return [
        ("peers", f"about {status.members:,}"),
        ("cohort peers", f"{status.cohort_peers:,} in its cohort"),
        ("links", status.links or "-"),
        ("cohort", status.cohort or "-"),
        ("out", f"{size(status.sent_bytes)}, {size(sent)}/s", size(status.sent_bytes)),
        ("in", f"{size(status.received_bytes)}, {size(received)}/s", size(status.received_bytes)),
        ("reach", status.reachable or "-"),
    ]


def machine_rows(status: PeerStatus, machine: Machine) -> Rows:
    """Return what the computer does and how it is."""
    return [
        ("device", status.device or "-"),
        ("workers", f"{status.workers:,}"),
        *_audits(status),
        ("heat", "not told" if machine.celsius is None else f"{machine.celsius:.0f} °C"),
        ("power", _power(machine)),
        ("limits", listed(status.limits) or "none"),
    ]


def _audits(status: PeerStatus) -> Rows:
    """Return how many contributions of others were computed again, and how many did not hold; nothing, where none were."""
    if not status.audits:
        return []
    return [("audits", f"{status.audits:,}, {status.audits_against:,} false", count(status.audits))]


def _power(machine: Machine) -> str:
    parts = ((machine.watts, "GPUs"), (machine.processor_watts, "CPU"), (machine.whole_watts, "battery"))
    return ", ".join(f"{watts:.0f} W ({what})" for watts, what in parts if watts is not None) or "not told"


def lines_of(rows: Rows, width: int, height: int) -> str:
    """Return rows as at most ``height`` lines, none longer than ``width``: a figure that does not fit goes on below while there is room."""
    column = max(len(label) for label, *_ in rows) + 1
    room, spare, lines = width - column, height - len(rows), list[str]()
    for label, *figures in rows:
        figure = next((each for each in figures if len(each) <= room), figures[-1])
        first, *more = _in_lines(figure, room, most=1 + max(0, spare))
        spare -= len(more)
        lines += [short(f"{label:<{column}}{first}", width), *(short(" " * column + part, width) for part in more)]
    return "\n".join(lines)


def _in_lines(figure: str, width: int, *, most: int) -> list[str]:
    """Return a figure in at most so many lines, broken at its commas, or where that is not enough at its spaces; the last may be long."""
    parts = re.split("(?<=,) ", figure)
    if max(map(len, parts)) > width:
        parts = figure.split(" ")
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines) < most and len(lines[-1]) + 1 + len(part) > width:
            lines.append(part)
        else:
            lines[-1] += f" {part}"
    return lines


def short(text: str, width: int) -> str:
    """Return a line that is cut to ``width`` characters, and says so."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def count(number: int) -> str:
    """Return a number for a person in few letters."""
    if number < 10**10:
        return f"{number:,}"
    return f"{number / 1e9:,.1f} bn" if number < 10**15 else f"{number:.1e}"


def span(seconds: float) -> str:
    """Return a time for a person."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{round(minutes / 60)} h" if minutes < 72 * 60 else f"{round(minutes / 1440)} days"


def size(num_bytes: float) -> str:
    """Return a number of bytes for a person."""
    for unit in _UNITS:
        if num_bytes < 1000 or unit == _UNITS[-1]:
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "B" or num_bytes >= 100 else f"{num_bytes:.1f} {unit}"
