"""A shell whose one command is a peer with a dashboard that is killed: ``python quick_shell.py DIR HOW``, with a terminal of its own.

It kills the command when SIGUSR1 says so. HOW it is: "late" leaves the terminal to its command; "plain" takes it before the command is
killed, and leaves it set as it is; "editing" takes it and sets it for itself.
"""

import os
import signal
import subprocess
import sys
import termios
from fcntl import ioctl

PEER = """
import signal, sys
from pathlib import Path
from peer.dashboard.screen import Screen
from swarm.voice import Voice

with Voice() as voice, Screen(Path(sys.argv[1]), voice):
    voice.say("joined the run of \u0141\xf3d\u017a")
    signal.pause()
"""


def edit(terminal: int) -> None:
    """Set the terminal as one who edits lines does."""
    attributes = termios.tcgetattr(terminal)
    attributes[0] |= termios.INLCR
    attributes[3] = (attributes[3] | termios.ISIG) & ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def main() -> None:
    """Start the command, be told to go on, kill it, and stay until the terminal is closed."""
    directory, how = sys.argv[1:]
    ioctl(0, termios.TIOCSCTTY, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU, signal.SIGUSR1})
    with subprocess.Popen([sys.executable, "-P", "-c", PEER, directory], process_group=0) as peer:
        os.tcsetpgrp(0, peer.pid)
        signal.sigwait({signal.SIGUSR1})
        if how != "late":
            os.tcsetpgrp(0, os.getpgrp())
        if how == "editing":
            edit(0)
        peer.kill()
    signal.sigwait({signal.SIGUSR1})


if __name__ == "__main__":
    main()
