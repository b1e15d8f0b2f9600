"""A terminal that a full-screen program draws on, made usable again by that program when the peer that it shows is killed.

Whoever mends it is not alone with it. The shell learns of the kill at the same moment, takes the terminal, and may be the quicker one. A
shell that edits lines (bash, zsh, fish) then sets the terminal as it needs it itself, and must find that untouched; a plain one (dash)
leaves it as it is. So it is not who has the terminal that decides, but how it is set: what nobody has changed since is mended.
"""

import os
import signal
import termios
import time
from typing import Final

_DESCRIPTORS = (0, 1, 2)
_OUT = 1
_SETS_S = 0.5  # for a shell that has the terminal to set it for itself
_LOOK_S = 0.02
# A frame that ended half way; the usual keys; focus, mouse, pasted text and sizes not reported; the usual screen; a cursor, wrapped
# lines, plain colours.
_CODES = (b"?2026l", b"<u", b"?1004l", b"?1000l", b"?1003l", b"?2004l", b"?2048l", b"?1049l", b"?25h", b"?7h", b"0m")
MEND: Final = b"".join(b"\x1b[" + code for code in _CODES) + b"\r"


class Terminal:
    """This program's terminal."""

    def __init__(self) -> None:
        """Remember how it is set, before anything is drawn.

        Raises:
            termios.error: it is gone.
        """
        self._descriptor = os.dup(_OUT)
        self._before = termios.tcgetattr(self._descriptor)
        self._drawn: list[object] | None = None

    def is_taken(self) -> None:
        """Remember how it is set by what draws on it; to be called once that has set it."""
        self._drawn = list(termios.tcgetattr(self._descriptor))

    def mend(self, said: bytes = b"") -> None:
        """Make it what it was and say ``said``; the program can draw no more, and has to end. From any thread.

        Raises:
            OSError, termios.error: it is gone.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # who is not in front, too, may set it
        self._mend_left()  # at once: what a shell finds it sets for the commands to come
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in _DESCRIPTORS:
            os.dup2(nowhere, descriptor)  # from here on the threads that draw and read reach nothing
        if self._drawn is not None:
            os.write(self._descriptor, MEND)
        end_s = time.monotonic() + _SETS_S
        while not self._mend_left(is_sure=time.monotonic() > end_s):
            time.sleep(_LOOK_S)
        os.write(self._descriptor, said)

    def _mend_left(self, *, is_sure: bool = False) -> bool:
        """Set it as it was if nobody else has set it, or does so now, which ``is_sure`` once it has had the time; False: that may come."""
        is_in_front = os.tcgetpgrp(self._descriptor) == os.getpgrp()
        found = termios.tcgetattr(self._descriptor)
        is_left = is_in_front if self._drawn is None else found == self._drawn  # what draws may just be about to take it
        if is_left and (is_in_front or is_sure):
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
        return is_in_front or is_sure or not is_left
