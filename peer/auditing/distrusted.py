"""The volunteers that found good what was not: a named auditor believes none of them again, after a restart either.

FILE   their public keys, one after the other
"""

from pathlib import Path

from protocol.errors import StorageError
from swarm.disk import disk_errors, replace_file

_KEY_BYTES = 32
_MAX = 4096  # of the newest; each was proven, which takes more work than a lie is worth


class Distrusted:
    """One auditor's."""

    def __init__(self, path: Path) -> None:
        """Begin with those in the file ``path``, whose folder is there; none where there is no such file.

        Raises:
            StorageError: it cannot be read.
        """
        self._path = path
        data = b""
        if path.exists():
            with disk_errors(path):
                data = path.read_bytes()
        if len(data) % _KEY_BYTES:
            raise StorageError(f"{path} is damaged; delete it: the volunteers that it named will be found out again")
        self._keys = [data[at : at + _KEY_BYTES] for at in range(0, len(data), _KEY_BYTES)]

    def __contains__(self, key: bytes) -> bool:
        """Return whether a volunteer is distrusted."""
        return key in self._keys

    def add(self, key: bytes) -> None:
        """Believe a volunteer no more. Blocks.

        Raises:
            StorageError: the disk refuses.
        """
        if key not in self._keys:
            self._keys = [*self._keys, key][-_MAX:]
            replace_file(self._path, b"".join(self._keys))
