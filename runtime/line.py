"""The line between a child process and its parent: what may be said on it, and the side of the child.

It is a socket, the child's standard input. A message is a record (``protocol.encoding``) after its length (4 bytes, big-endian) and its
kind (1 byte: its place among those that this end may say). What is not exactly that is refused.
"""

import contextlib
import os
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, UserError

MAX_REASON = 300
BEAT_S = 1.0
HEAD_BYTES = 5


@dataclass(frozen=True, slots=True)
class Failed:
    """A child's last message: why it ends."""

    is_users: int  # 1: it will never do anything here, which a person could change
    reason: str

    def __post_init__(self) -> None:
        if self.is_users not in (0, 1) or len(self.reason) > MAX_REASON:
            raise ValueError("no reason")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A child's message that it is alive and goes on."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """The records that one end may say, and how long they may be."""

    records: tuple[type[Any], ...] = ()
    max_bytes: int = 65_536

    def framed(self, message: object) -> bytes:
        """Return a message as it travels."""
        data = pack(message)
        return struct.pack(">IB", len(data), self.records.index(type(message))) + data

    def head(self, data: bytes) -> tuple[int, type[Any]]:
        """Return the length and the kind of the message that follows these ``HEAD_BYTES``.

        Raises:
            EncodingError: there is no such message.
        """
        length, kind = struct.unpack(">IB", data)
        if kind >= len(self.records) or length > self.max_bytes:
            raise EncodingError(f"no message: kind {kind}, {length} bytes")
        return length, self.records[kind]

    def message(self, kind: type[Any], data: bytes) -> Any:
        """Return the message of a kind.

        Raises:
            EncodingError: it is not one.
        """
        return unpack(kind, data, max_bytes=self.max_bytes)


class Messages:
    """The records that a child and its parent may say to each other."""

    def __init__(
        self,
        to_child: tuple[type[Any], ...] = (),
        to_parent: tuple[type[Any], ...] = (),
        *,
        max_to_child: int = 65_536,
        max_to_parent: int = 65_536,
    ) -> None:
        """Allow these records, and those that any child may say."""
        self.to_child = Kinds(to_child, max_to_child)
        self.to_parent = Kinds((Failed, Heartbeat, *to_parent), max_to_parent)


BEATS = Messages()  # of a child that only says that it goes on


class Parent:
    """The parent, as its child knows it. A thread of its own hears it, so that its end is noticed in the middle of any work."""

    def __init__(self, messages: Messages, line: socket.socket, on_end: Callable[[], None] = lambda: os._exit(0)) -> None:
        """Use a connected socket; ``on_end`` is called in that thread when the parent is gone: it ends the process."""
        self._messages = messages
        self._line = line
        self._on_end = on_end
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._saying = threading.Lock()
        threading.Thread(target=self._read, name="parent", daemon=True).start()

    def hear(self) -> Any:
        """Return what the parent says next.

        Raises:
            EncodingError: it said what nobody understands.
            EOFError: it is gone.
        """
        said = self._heard.get()
        if isinstance(said, Exception):
            raise said
        return said

    def say(self, message: object) -> None:
        """Send a message."""
        data = self._messages.to_parent.framed(message)
        with self._saying, contextlib.suppress(OSError):  # it is gone, and the thread that hears ends this process
            self._line.sendall(data)

    def keep_beating(self) -> None:
        """Say now and then that this process goes on, from a thread of its own: for one whose work takes long at a time."""

        def again_and_again() -> None:
            while True:
                self.say(Heartbeat())
                pause.wait(BEAT_S)

        pause = threading.Event()
        threading.Thread(target=again_and_again, name="beat", daemon=True).start()

    def _read(self) -> None:
        kinds = self._messages.to_child
        try:
            while True:
                length, kind = kinds.head(self._exactly(HEAD_BYTES))
                self._heard.put(kinds.message(kind, self._exactly(length)))
        except (EOFError, OSError):
            self._on_end()
            self._heard.put(EOFError())
        except EncodingError as error:
            self._heard.put(error)

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            received = self._line.recv_into(view)
            if not received:
                raise EOFError
            view = view[received:]
        return bytes(data)


def be_child(messages: Messages, work: Callable[[Parent], None]) -> NoReturn:
    """Be a child process: do ``work`` with its parent, say why if that fails, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # else what this process starts would hold the line
    os.close(nothing)
    parent, code = Parent(messages, line), 1
    try:
        work(parent)
        code = 0
    except MantaError as error:
        parent.say(Failed(int(isinstance(error, UserError)), _in_a_line(str(error))))
    except Exception as error:  # noqa: BLE001 - the outermost loop of this process
        traceback.print_exc()
        parent.say(Failed(0, _in_a_line(f"{type(error).__name__}: {error}")))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what else Python does at its end would wait for a device, or for threads


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON]
