"""The front that the run's members measured last, read when there is a newer one."""

from pathlib import Path

from manta_swarm.aggregator.follow.front_file import FILE, MembersFront, read_front


class FrontSeen:
    """The newest one."""

    def __init__(self, snapshots: Path) -> None:
        """Read the file in ``snapshots``, when told."""
        self._snapshots = snapshots
        self._stamp: tuple[int, int] | None = None
        self.newest: MembersFront | None = None

    def read_on(self) -> bool:
        """Take the front if there is a newer one; return whether. Blocks for as long as the disk takes.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is damaged; what was read before stays.
        """
        try:
            found = (self._snapshots / FILE).stat()
        except FileNotFoundError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        self.newest = read_front(self._snapshots)
        self._stamp = stamp
        return True
