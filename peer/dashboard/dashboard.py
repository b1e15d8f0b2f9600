"""The dashboard: a full-screen view of a peer that runs elsewhere on this computer. It asks for the peer's status, and passes keys on.

It has a terminal of its own, and changes nothing for the peer: it may be closed, crash or be killed.
"""

import contextlib
import threading
import time
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import ModalScreen
from textual.widgets import Footer, RichLog, Static

from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.peer.control import LEAVE, PAUSE, RESUME, look, tell
from manta_swarm.peer.dashboard import text
from manta_swarm.peer.dashboard.text import Machine, MinuteRates, StatusWindow
from manta_swarm.peer.limits import sensors
from manta_swarm.peer.limits.sensors import PowerMeter
from manta_swarm.peer.status import YOU
from manta_swarm.protocol.errors import MantaError
from manta_swarm.runtime.control import NobodyRuns

_LOOK_S = 0.5
_MACHINE_LOOKS = 10  # looks at the peer for each at the computer, which may take longer

_HELP = """\
 p       pause, or go on: a paused peer computes nothing, and loses nothing
 l       leave the run: what is trained is handed in first
 q       close this view: the peer goes on; so does Ctrl-C
 up, down, Page Up, Page Down   older lines below
 ?, Esc  close this

 TRAINING   microbatches are computed
 AVERAGING  what was learnt is on its way into the round
 WAITING    for what the line says
 PAUSED     by you, or by a limit: the line says which

 counted  samples that the log has under your key
 credit   what the log says that it paid you, over all rounds
 pending  of it, what audits can still take back, and until when
 checked  how much of it this peer computed itself from the claims
 paid     what the newest round that counted you added to it
 newest   yours of all samples in the newest round that has any of yours
 lost     trained, and too late to be of use
 audits   contributions of others that were computed again; false: of these"""


class StatusSeen(Message):
    """The message that the peer was looked at, with what was seen."""

    def __init__(self, status: PeerStatus | None, problem: str, rates: MinuteRates | None, machine: Machine) -> None:
        """``status`` None: there is none, because of the ``problem``."""
        super().__init__()
        self.status = status
        self.problem = problem
        self.rates = rates
        self.machine = machine


class KeyAnswered(Message):
    """The message that the peer answered a key."""

    def __init__(self, answer: str) -> None:
        """Show ``answer``."""
        super().__init__()
        self.answer = answer


class Eyes:
    """Looks at a peer again and again, on a thread: neither a peer nor a sensor that is slow keeps the screen from its keys."""

    def __init__(self, directory: Path, screen: MessagePump) -> None:
        """Look at the peer of ``directory``, and post to ``screen`` what is seen."""
        self._directory = directory
        self._screen = screen
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_again, name="eyes", daemon=True)

    def open(self) -> None:
        """Begin to look at the peer."""
        self._thread.start()

    def close(self) -> None:
        """Look at the peer no more."""
        self._closed.set()

    def _look_again(self) -> None:
        window, machine, looks, meter = StatusWindow(), Machine(), 0, PowerMeter()
        while not self._closed.is_set():
            status, problem, rates = None, "", None
            try:
                status = look(self._directory)
                rates = window.add(time.monotonic(), status)
            except NobodyRuns:
                problem = "no peer runs here now"
            except MantaError as error:
                problem = str(error)
            if looks % _MACHINE_LOOKS == 0:
                machine = _machine(meter)
            looks += 1
            self._screen.post_message(StatusSeen(status, problem, rates, machine))
            self._closed.wait(_LOOK_S)


def _machine(meter: PowerMeter) -> Machine:
    watts, found = [gpu.watts for gpu in sensors.gpus() if gpu.watts is not None], meter.look()
    celsius = None
    with contextlib.suppress(OSError):
        celsius = sensors.hottest()
    return Machine(celsius, sum(watts) if watts else None, found.processors, found.whole)


class Help(ModalScreen[None]):
    """The screen that says what the keys do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("question_mark", "dismiss", "Close"),
        Binding("q", "dismiss", "Close", show=False),
    ]
    DEFAULT_CSS = "Help { align: center middle; } Help Static { width: auto; height: auto; max-width: 100%; border: round ansi_default; }"

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(Content(_HELP))


class Dashboard(App[None]):
    """The full-screen view of one peer."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #title { height: 1; text-style: bold; }
    #round { height: 5; border: round ansi_default; }
    #panels { height: 11; }
    #panels Static { width: 1fr; height: 100%; border: round ansi_default; }
    #said { height: 1fr; min-height: 3; border: round ansi_default; background: ansi_default; scrollbar-size-vertical: 1; }
    #said:focus { border: round ansi_default; }
    .is-paused { color: ansi_yellow; }
    .is-training { color: ansi_green; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause / resume"),
        Binding("l", "leave", "Leave the run"),
        Binding("q", "close", "Close view"),
        Binding("question_mark", "help", "Help"),
        Binding("ctrl+c", "close", "Close", priority=True, show=False),
        Binding("ctrl+q", "close", "Close", priority=True, show=False),
    ]

    def __init__(self, directory: Path) -> None:
        """Show the peer of ``directory``."""
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # the terminal's own sixteen colours, on its own background
        self._directory = directory
        self._eyes = Eyes(directory, self)
        self._status: PeerStatus | None = None
        self._seen: StatusSeen | None = None
        self._written: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static("manta-peer", id="title")
        with Vertical():
            state = Static(id="round")
            state.border_title = "state"
            yield state
            with Horizontal(id="panels"):
                for name, heading in (("own", "this peer"), ("swarm", "the run"), ("machine", "this computer")):
                    panel = Static(id=name)
                    panel.border_title = heading
                    yield panel
            said = RichLog(id="said", wrap=True, markup=False, highlight=False, max_lines=1000, min_width=1)
            said.border_title = "what it says"
            yield said
        yield Footer()

    def on_mount(self) -> None:
        """See Textual."""
        self.query_one("#said").focus()
        self._eyes.open()

    def on_unmount(self) -> None:
        """See Textual."""
        self._eyes.close()

    def on_resize(self) -> None:
        """See Textual."""
        self.call_after_refresh(self._draw)

    def on_status_seen(self, seen: StatusSeen) -> None:
        """Show what was seen; the last status stays while the peer does not answer."""
        self._seen = seen
        self._status = seen.status or self._status
        self._draw()

    def on_key_answered(self, said: KeyAnswered) -> None:
        """Show what the peer answered."""
        self.notify(said.answer, markup=False, timeout=3)

    def _draw(self) -> None:
        if self._seen is None or not self.is_running:  # it closes, and its panels go one by one
            return
        status, seen = self._status, self._seen
        panel = self.query_one("#round", Static)
        if status is None:
            panel.update(Content(f"STARTING\n{seen.problem}"))
            return
        word, why = ("NO ANSWER", seen.problem) if seen.problem else text.headline(status)
        width = panel.content_size.width
        panel.set_class(word in ("PAUSED", "NO ANSWER", "WAITING", "LEAVING"), "is-paused")
        panel.set_class(word == "TRAINING", "is-training")
        head = text.short(f"{word}  {why}", width)
        panel.update(Content("\n").join([Content.styled(head, "bold"), *map(Content, text.progress(status, width))]))
        self.query_one("#title", Static).update(Content(text.title(status)))
        for name, rows in (
            ("own", text.own_rows(status, seen.rates)),
            ("swarm", text.swarm_rows(status, seen.rates)),
            ("machine", text.machine_rows(status, seen.machine)),
        ):
            panel = self.query_one(f"#{name}", Static)
            panel.update(Content(text.lines_of(rows, *panel.content_size)))
        self._write(status.said)

    def _write(self, said: tuple[str, ...]) -> None:
        """Add to the log what was said since the status before."""
        log = self.query_one("#said", RichLog)
        for line in new_lines(self._written, said):
            log.write(line, expand=True)
        self._written = said

    # Keys.

    def action_pause(self) -> None:
        """Pause the peer, or let it go on."""
        is_paused = self._status is not None and YOU in self._status.pauses
        self._tell(RESUME if is_paused else PAUSE)

    def action_leave(self) -> None:
        """Let the peer hand in what is trained, and end."""
        if self._status is not None and self._status.is_leaving:
            self.notify("it is leaving; manta-peer leave --now stops it at once")
        else:
            self._tell(LEAVE)

    def action_close(self) -> None:
        """Close this view; the peer goes on."""
        self.exit()

    def action_help(self) -> None:
        """Say what the keys do."""
        self.push_screen(Help())

    def _tell(self, word: str) -> None:
        def ask() -> None:
            try:
                answer = tell(self._directory, word)
            except MantaError as error:
                answer = str(error)
            self.post_message(KeyAnswered(answer))

        threading.Thread(target=ask, name="tell", daemon=True).start()


def new_lines(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the last lines ``now`` that came after the last lines ``before``."""
    for first in range(len(before)):
        kept = before[first:]
        if now[: len(kept)] == kept:
            return now[len(kept) :]
    return now


def watch(directory: Path) -> None:
    """Show the peer of a directory until the person closes the view."""
    Dashboard(directory).run(mouse=False)
