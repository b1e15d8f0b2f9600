"""The other end: what a process beside a peer hears and says, over a socket that it inherited. Knows no network."""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

import torch

from peer.aside.messages import HEAD_BYTES, MAX_REASON, Kind, framed, head
from protocol.errors import MantaError


class Line:
    """The line to the peer that started this process."""

    def __init__(self, line: socket.socket) -> None:
        """Use a connected socket."""
        self._line = line

    def say(self, kind: Kind, data: bytes) -> None:
        """Send a message."""
        self._line.sendall(framed(kind, data))

    def heard(self, max_bytes: int) -> tuple[Kind, bytearray]:
        """Return the next message, of at most so many bytes.

        Raises:
            EOFError: nobody will say anything more.
            EncodingError: it is none.
        """
        length, kind = head(bytes(self._exactly(HEAD_BYTES)), max_bytes=max_bytes)
        return kind, self._exactly(length)

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            received = self._line.recv_into(view)
            if not received:
                raise EOFError
            view = view[received:]
        return data


def be(work: Callable[[Line, list[str]], None]) -> None:
    """Be a program that is started with ``SOCKET ARGUMENTS``: do ``work`` with its line and arguments until nobody asks any more."""
    descriptor, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    line = Line(socket.socket(fileno=int(descriptor)))
    try:
        work(line, arguments)
    except (EOFError, ConnectionError):
        os._exit(0)  # whoever asked is gone
    except MantaError as error:
        line.say(Kind.CANNOT, " ".join(str(error).split())[:MAX_REASON].encode())
    except Exception:  # noqa: BLE001 - the outermost loop of this process
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
