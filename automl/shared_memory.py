"""Memory that a program shares with processes that it starts: no name, no file that stays, gone with the last process that has it.

On Linux a memfd; elsewhere a file that is unlinked as soon as it is open. A process that is started gets the descriptor by inheritance.
Pages that nobody has written cost nothing, so a region may be larger than what is used of it.
"""

import mmap
import os
import sys
import tempfile
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manta_swarm.protocol.errors import StorageError

ALIGNED_BYTES = 64  # as torch aligns what it allocates: kernels add in another order otherwise


class Region:
    """Bytes in shared memory."""

    def __init__(self, descriptor: int, size_bytes: int, *, is_own: bool) -> None:
        """Use ``make`` or ``inherited``."""
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self._is_own = is_own

    @classmethod
    def make(cls, size_bytes: int) -> "Region":
        """Return a new one, all zero.

        Raises:
            StorageError: this system gives no such memory.
        """
        descriptor = -1
        try:
            if sys.platform == "linux":
                descriptor = os.memfd_create("manta-worker", os.MFD_CLOEXEC)
            else:
                with tempfile.TemporaryFile() as file:
                    descriptor = os.dup(file.fileno())
            os.ftruncate(descriptor, max(size_bytes, 1))
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise StorageError(f"no {size_bytes} bytes of shared memory: {error.strerror}; use one worker, with --workers 1") from error
        return cls(descriptor, size_bytes, is_own=True)

    @classmethod
    def inherited(cls, descriptor: int) -> "Region":
        """Return the one that the program which started this process gave it."""
        return cls(descriptor, os.fstat(descriptor).st_size, is_own=False)

    def floats(self, *, is_writable: bool) -> Tensor:
        """Return all of it as fp32 values; they stay good after ``close``. Who writes to values that are not writable is killed."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            return torch.frombuffer(self._mapped(is_writable), dtype=torch.float32, count=self.size_bytes // 4)

    def bytes(self, *, is_writable: bool) -> NDArray[np.uint8]:
        """Return all of it as bytes; they stay good after ``close``."""
        return np.frombuffer(self._mapped(is_writable), np.uint8, self.size_bytes)

    def close(self) -> None:
        """Give up the descriptor; what is mapped stays until it is not used any more."""
        if self._is_own and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _mapped(self, is_writable: bool) -> mmap.mmap:
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
        return mmap.mmap(self.descriptor, max(self.size_bytes, 1), flags=mmap.MAP_SHARED, prot=prot)


def aligned(size_bytes: int) -> int:
    """Return the least size from this one on that leaves what comes after it aligned."""
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES
