"""What a named auditor believes of volunteers: which of them found good what was not, and what it computes again of what others find good.

FILE   the public keys of those that are not believed any more, one after the other; known after a restart, too
"""

import os
from pathlib import Path

from protocol.draws import number
from protocol.errors import StorageError
from runtime.disk import disk_errors, replace_file

AGAIN_PERCENT = 25  # of what volunteers find good, that is computed again
_KEY_BYTES = 32
_MAX = 4096  # of the newest; each was proven, which takes more work than a lie is worth


class Volunteers:
    """Those of one auditor's run."""

    def __init__(self, path: Path, again_percent: int = AGAIN_PERCENT) -> None:
        """Begin with those in the file ``path``, whose folder is there; none where there is no such file.

        Raises:
            StorageError: it cannot be read.
        """
        self._path = path
        self._again_percent = again_percent
        self._secret = os.urandom(32)  # of this life: nobody can foresee what is computed again
        data = b""
        if path.exists():
            with disk_errors(path):
                data = path.read_bytes()
        if len(data) % _KEY_BYTES:
            raise StorageError(f"{path} is damaged; delete it: the volunteers that it named will be found out again")
        self._distrusted = [data[at : at + _KEY_BYTES] for at in range(0, len(data), _KEY_BYTES)]

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
            self._distrusted = [*self._distrusted, volunteer][-_MAX:]
            replace_file(self._path, b"".join(self._distrusted))
