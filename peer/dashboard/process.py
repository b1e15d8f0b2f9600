"""The process of a dashboard: ``python -m peer.dashboard.process DIR PID FD``, started by ``peer.dashboard.screen`` for the peer PID.

FD has a byte once the peer ends, and ends without one if it is killed. This process then ends as well, and gives the terminal back;
also while what draws is still being loaded, for an error that ends a peer at once is to be told at once.
"""

import contextlib
import os
import signal
import sys
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from peer.dashboard.terminal import Terminal

if TYPE_CHECKING:
    from peer.dashboard.dashboard import Dashboard

_SWITCH_S = 0.0005  # that the thread which mends the terminal waits for the one that draws: a shell is as quick
_KILLED = b"manta-peer was killed; what it had sealed is kept, and handed in at the next start\r\n"


class Ending:
    """Ends this process with the peer: in order if it says so, at once if it was killed."""

    def __init__(self, peer: int, terminal: Terminal) -> None:
        """Wait from now on, on a thread, for what comes out of the descriptor ``peer``."""
        self._peer = peer
        self._terminal = terminal
        self._lock = threading.Lock()
        self._app: Dashboard | None = None
        self._thread = threading.Thread(target=self._wait, name="peer", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of this process, which is under way."""
        self._thread.join()

    def runs(self, app: "Dashboard") -> None:
        """The app runs, and can be told to end."""
        with self._lock:
            self._app = app

    def _wait(self) -> None:
        is_over = bool(os.read(self._peer, 1))
        with self._lock:  # a dashboard that does not run yet has nothing to end
            app = self._app
            if app is None or not is_over:
                with contextlib.suppress(OSError, termios.error):  # it is gone, nobody looks at it
                    self._terminal.mend(b"" if is_over else _KILLED)
                os._exit(0 if is_over else 1)
        app.call_from_thread(app.exit)


def main() -> None:
    """Be the dashboard of the peer that started this program."""
    directory, pid, peer = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is a key here
    sys.setswitchinterval(_SWITCH_S)
    terminal = Terminal()
    ending = Ending(peer, terminal)

    from textual.drivers.linux_driver import LinuxDriver  # takes a second, and more on a busy computer

    from peer.dashboard.dashboard import Dashboard

    class Driver(LinuxDriver):
        def start_application_mode(self) -> None:
            super().start_application_mode()  # type: ignore[no-untyped-call]  # the only one there
            terminal.is_taken()

    class Attached(Dashboard):
        def on_load(self) -> None:
            ending.runs(self)

    app = Attached(directory, pid, driver_class=Driver)
    app.run(mouse=False)
    if os.getppid() != pid:
        ending.join()  # killed: the app may have failed as a shell took the terminal from it
    os._exit(app.return_code or 0)  # a thread that asks may still wait for its answer


if __name__ == "__main__":
    main()
