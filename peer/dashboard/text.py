"""What the dashboard says of a peer, as text: pure functions of pictures of it. Nothing here knows the terminal."""

import re
from collections import deque
from dataclasses import dataclass

from peer.dashboard.picture import FETCHING, SEEKING, Picture
from peer.limits.limits import listed
from protocol.rounds import Phase

Rows = list[tuple[str, ...]]  # label and figure, then the figure in fewer letters, for where it does not fit

_WINDOW_S = 60.0  # over which rates are taken
_FULL, _EMPTY = "█", "░"
_UNITS = ("B", "kB", "MB", "GB", "TB")

_WORDS = {
    SEEKING: ("LOOKING FOR THE RUN", "nothing is computed yet"),
    FETCHING: ("GETTING DATA", "the data set comes from other peers and the operator"),
    "starting": ("STARTING", "what computes gets ready"),
    Phase.BEHIND.value: ("CATCHING UP", "the newest state is fetched and checked"),
    Phase.WORKING.value: ("TRAINING", ""),
    Phase.SEALED.value: ("AVERAGING", "what was learnt is handed in"),
    Phase.TICKETED.value: ("AVERAGING", "handed in; the round goes on without more work of this peer"),
    Phase.FINISHED.value: ("FINISHED", "the run has all its rounds"),
}


@dataclass(frozen=True, slots=True)
class Rates:
    """What went on in the last minute, each second."""

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


class Window:
    """The pictures of the last minute, for rates."""

    def __init__(self) -> None:
        """Begin without any."""
        self._seen: deque[tuple[float, Picture]] = deque()

    def add(self, now_s: float, picture: Picture) -> Rates | None:
        """Return the rates up to this picture, taken at ``now_s`` by a clock that does not go back; None: there is no older one."""
        if self._seen and self._seen[-1][1].pid != picture.pid:
            self._seen.clear()
        self._seen.append((now_s, picture))
        while now_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        since_s, first = self._seen[0]
        passed_s = now_s - since_s
        if passed_s <= 0:
            return None
        return Rates(
            (picture.samples_trained - first.samples_trained) / passed_s,
            (picture.sent_bytes - first.sent_bytes) / passed_s,
            (picture.received_bytes - first.received_bytes) / passed_s,
        )


def headline(picture: Picture) -> tuple[str, str]:
    """Return a peer's state in a word, and why."""
    if picture.paused and not picture.finished:
        return "PAUSED", "; ".join(picture.pauses.values()) or "nothing is computed"
    word, why = _WORDS.get(picture.phase, (picture.phase.upper(), ""))
    if picture.waiting_for:
        return (word if picture.phase == Phase.WORKING.value else "WAITING"), f"waiting for {picture.waiting_for}"
    return word, why


def title(picture: Picture) -> str:
    """Return what run and what peer it is."""
    if not picture.run:
        return "manta-peer"
    return f"manta-peer · run {picture.name} ({picture.run[:8]}) · peer {picture.peer[-8:]}"


def bar(done: float, width: int) -> str:
    """Return a bar that is full for the share ``done``, 0 to 1; it can be read without colours."""
    full = round(min(max(done, 0.0), 1.0) * width)
    return _FULL * full + _EMPTY * (width - full)


def progress(picture: Picture, width: int) -> list[str]:
    """Return the run's and the round's bars, each a line of ``width`` characters or a little less."""
    if picture.phase == FETCHING and picture.data_size_bytes:
        what = f"{size(picture.data_bytes)} of {size(picture.data_size_bytes)}"
        return [_bar_line("data", picture.data_bytes / picture.data_size_bytes, what, "", width), ""]
    if not picture.num_rounds:
        return ["", ""]
    done = picture.round / picture.num_rounds
    left = picture.num_rounds - picture.round
    ends = f"about {span(left * picture.open_ms / 1000)} left" if left and picture.open_ms else ""
    lines = [_bar_line("run", done, f"round {picture.round} of {picture.num_rounds}, {done:.0%}", ends, width)]
    if picture.left_ms is None or not picture.open_ms or not left:
        return [*lines, _bar_line("round", 0.0, "not open yet" if left else "over", "", width)]
    passed = 1 - picture.left_ms / picture.open_ms
    ends = f"{span(picture.left_ms / 1000)} left" if picture.left_ms else "closing"
    return [*lines, _bar_line("round", passed, f"round {picture.round + 1}, of {span(picture.open_ms / 1000)}", ends, width)]


def _bar_line(label: str, done: float, what: str, ends: str, width: int) -> str:
    text = f"{what:<26} {ends:<20}"
    return f"{label:<6}{bar(done, max(10, width - len(text) - 8))}  {text}".rstrip()


def own_rows(picture: Picture, rates: Rates | None) -> Rows:
    """Return what this peer gives, and what the log has of it."""
    return [
        ("samples/s", "-" if rates is None else f"{rates.samples:,.1f}"),
        ("counted", f"{picture.samples_counted:,} samples", count(picture.samples_counted)),
        _pending(picture) or ("in rounds", f"{picture.rounds_counted:,}"),
        *_credit(picture),
        ("newest", *_newest(picture)),
        ("lost", f"{picture.samples_lost:,} samples", count(picture.samples_lost)),
        ("loss", "-" if picture.loss is None else f"{picture.loss:.3f}"),
    ]


def _newest(picture: Picture) -> tuple[str, ...]:
    """Return this peer's part of the newest round that has any of it, and in which that was, if rounds went by since."""
    if not picture.last_round:
        return ("none yet",)
    of = f" of {picture.last_of:,}" if picture.last_of else ""
    own = f"{picture.last_samples:,}"
    if picture.last_round < picture.round - 1:
        when = f"in round {picture.last_round}"
        return f"{own}{of} {when}", f"{own} {when}", when
    return f"{own}{of}", own, count(picture.last_samples)


def _credit(picture: Picture) -> Rows:
    """Return what was earned, who vouches for it, and its newest part: short, for the panel is narrow."""
    if picture.credit is None:
        return [("credit", "not told yet"), ("checked", "-"), ("paid", "-")]
    if picture.credit_fault:
        checked = "in doubt!"
    elif picture.is_unaudited:
        checked = "unaudited"
    elif picture.credit_checked == picture.credit:
        checked = "all of it"
    else:
        checked = f"{100 * picture.credit_checked // picture.credit if picture.credit else 0}% of it"
    paid = (f"+{picture.earned:,}", f"+{count(picture.earned)}") if picture.earned_round else ("-",)
    return [("credit", f"{picture.credit:,}", count(picture.credit)), ("checked", checked), ("paid", *paid)]


def _pending(picture: Picture) -> tuple[str, ...] | None:
    """Return what of the credit is paid later, or what audits found, as the log says; None: nothing, as in any run without audits."""
    if picture.credit_faults:
        found = f"{len(picture.credit_faults)} faults!" if len(picture.credit_faults) > 1 else f"{picture.credit_faults[0].get('reason')}!"
        return "pending", f"{count(picture.credit_pending)}, {found}", found
    if picture.is_proven is False and picture.proven_after:
        return "proven", f"no, {picture.good:,} of {picture.proven_after:,} good", f"{picture.good}/{picture.proven_after}"
    if not picture.credit_pending:
        return None
    when = f"to round {picture.credit_until}" if picture.credit_until else "to the run's end"
    return "pending", f"{picture.credit_pending:,} {when}", f"{picture.credit_pending:,}", count(picture.credit_pending)


def swarm_rows(picture: Picture, rates: Rates | None) -> Rows:
    """Return who else is there, and what is sent and received."""
    sent, received = (0.0, 0.0) if rates is None else (rates.sent_bytes, rates.received_bytes)
    return [
        ("peers", f"about {picture.members:,}"),
        ("mates", f"{picture.mates:,} in its cohort"),
        ("cohort", picture.cohort or "-"),
        ("out", f"{size(picture.sent_bytes)}, {size(sent)}/s", size(picture.sent_bytes)),
        ("in", f"{size(picture.received_bytes)}, {size(received)}/s", size(picture.received_bytes)),
        ("reach", picture.reachable or "-"),
    ]


def machine_rows(picture: Picture, machine: Machine) -> Rows:
    """Return what the computer does and how it is."""
    return [
        ("device", picture.device or "-"),
        ("workers", f"{picture.workers:,}"),
        *_audits(picture),
        ("heat", "not told" if machine.celsius is None else f"{machine.celsius:.0f} °C"),
        ("power", _power(machine)),
        ("limits", listed(picture.limits) or "none"),
    ]


def _audits(picture: Picture) -> Rows:
    """Return how many contributions of others were computed again, and how many did not hold; nothing, where none were."""
    if not picture.audits:
        return []
    return [("audits", f"{picture.audits:,}, {picture.audits_against:,} false", count(picture.audits))]


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
