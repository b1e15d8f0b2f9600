"""What a named auditor believes of volunteers: which of them found good what was not, and what it computes again of what others find good.

FILE   the public keys of those that are not believed any more; known after a restart, too
"""

import os
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.protocol.auditing import number
from manta_swarm.runtime.atomic_file import AtomicFile

AGAIN_PERCENT = 25  # of what volunteers find good, that is computed again
_MAX = 4096  # of the newest; each was proven, which takes more work than a lie is worth
_MAX_BYTES = _MAX * 64


@dataclass(frozen=True, slots=True)
class _Keys:
    keys: tuple[bytes, ...]


class Volunteers:
    """Those of one auditor's run."""

    def __init__(self, path: Path, again_percent: int = AGAIN_PERCENT) -> None:
        """Begin with those in the file ``path``, whose folder is there; none where there is no such file.

        Raises:
            StorageError: it cannot be read.
        """
        self._file = AtomicFile(path, _MAX_BYTES, "delete it: the volunteers that it named will be found out again")
        self._again_percent = again_percent
        self._secret = os.urandom(32)  # of this life: nobody can foresee what is computed again
        self._distrusted = (self._file.load(_Keys) or _Keys(())).keys

    def are_believed(self, contribution: bytes, volunteer: bytes) -> bool:
        """Return whether what this volunteer finds of a contribution is not computed again."""
        return volunteer not in self._distrusted and number("again", self._secret, contribution) % 100 >= self._again_percent

    @property
    def distrusted(self) -> frozenset[bytes]:
        """Those of whom nothing is believed."""
        return frozenset(self._distrusted)

    def distrust(self, volunteer: bytes) -> None:
        """Believe a volunteer no more. Blocks.

        Raises:
            StorageError: the disk refuses.
        """
        if volunteer not in self._distrusted:
            self._distrusted = (*self._distrusted, volunteer)[-_MAX:]
            self._file.save(_Keys(self._distrusted))
