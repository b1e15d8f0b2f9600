"""Memory that another process of the same user on the same Linux host may read: sealed memfds, named by process and file descriptor.

Nothing is on a disk, and nothing is left when the owner is killed. What a handle names is checked before it is read, for it comes from
another: it has to be a memfd of ours, of this user, of the expected size and identity, and sealed, so that nobody can shrink or change
what is mapped. Elsewhere than on Linux there are no handles, and vectors go over the network.
"""

import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.errors import EncodingError, Unreachable

ID_BYTES = 16
_NAME = "manta-near"
_HEAD_BYTES = 64  # the identity, and zeros: what follows is aligned
_LARGEST_WRITE = 1 << 30
_MAX_PID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Handle:
    """Where another process finds the memory."""

    pid: int
    descriptor: int

    def __post_init__(self) -> None:
        if not (0 < self.pid <= _MAX_PID and 0 <= self.descriptor <= _MAX_PID):
            raise ValueError("a handle names no process")


class Memory:
    """Sealed bytes of this process, until they are closed."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        """Use ``Memory.of``."""
        self._descriptor = descriptor
        self._size_bytes = size_bytes

    @classmethod
    def of(cls, identity: bytes, parts: Iterable[memoryview]) -> "Memory | None":
        """Return a copy of these bytes, in order, known by ``identity`` (16 bytes); each part is copied before the next one is made.

        None: this system has no such memory, or not enough.
        """
        if sys.platform != "linux":
            return None
        try:
            descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return None
        size_bytes = 0
        try:
            _write(descriptor, memoryview(identity.ljust(_HEAD_BYTES, b"\0")))
            for part in parts:
                _write(descriptor, part.cast("B"))
                size_bytes += part.nbytes
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals())
        except OSError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, size_bytes)

    @property
    def handle(self) -> Handle:
        """What another process reads it by."""
        return Handle(os.getpid(), self._descriptor)

    def view(self) -> memoryview:
        """Return the bytes; they outlive ``close`` as long as the view is used."""
        return _mapped(self._descriptor, self._size_bytes)

    def close(self) -> None:
        """Let nobody find it any more; who has mapped it keeps it."""
        os.close(self._descriptor)


def read(handle: Handle, identity: bytes, size_bytes: int) -> memoryview:
    """Return the ``size_bytes`` bytes that another process keeps under ``identity``, for as long as they are used.

    Whoever writes to them changes what it sees itself; they are not copied before.

    Raises:
        Unreachable: there is nothing by this handle, or not for this process: it may be another host's.
        EncodingError: there is something else.
    """
    if sys.platform != "linux":
        raise Unreachable("this system has no handles")
    path = f"/proc/{handle.pid}/fd/{handle.descriptor}"
    try:
        _check_name(path)  # before it is opened: opening a device may do something
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        raise Unreachable(f"no memory of a mate by this handle: {error.strerror}") from error
    try:
        _check_name(f"/proc/self/fd/{descriptor}")
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != _HEAD_BYTES + size_bytes:
            raise EncodingError("a mate's handle leads to something of another owner or size")
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _seals() != _seals():
            raise EncodingError("a mate's memory is not sealed")
        if os.pread(descriptor, ID_BYTES, 0) != identity:
            raise Unreachable("a mate's memory has been given up for another")
        return _mapped(descriptor, size_bytes)
    except OSError as error:
        raise EncodingError(f"a mate's handle cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _check_name(path: str) -> None:
    if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
        raise EncodingError("a mate's handle leads to something else than its memory")


def _mapped(descriptor: int, size_bytes: int) -> memoryview:
    # Private: a sealed file may be mapped no other way, and who writes to the mapping changes a copy of the page.
    mapped = mmap.mmap(descriptor, _HEAD_BYTES + size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return memoryview(mapped)[_HEAD_BYTES:]


def _seals() -> int:
    return fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data[:_LARGEST_WRITE]) :]
