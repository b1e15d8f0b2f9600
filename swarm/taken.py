"""From whom a node took verified bytes lately, and how many: what its next claim thanks for (``protocol.serving``). Bounded, in memory."""

from collections.abc import Callable

from protocol.manifest import Manifest
from protocol.serving import Thanks, most_thanked
from protocol.signing import PublicKey

OnGiven = Callable[[PublicKey, int], None]  # is told who gave bytes that turned out to be right, and how many

MAX_KEYS = 256  # that are remembered; whoever gave least makes room


class Taken:
    """One node's, in one run. Bytes are counted once it is known that they are what was asked for."""

    def __init__(self, manifest: Manifest) -> None:
        """Count nothing yet; nothing at all in a run that pays nothing for serving, and never the operators, who are not paid."""
        self._is_paid = manifest.serving_pool_percent > 0
        self._operators = frozenset(manifest.operators)
        self._bytes: dict[bytes, int] = {}

    def note(self, key: PublicKey, num_bytes: int) -> None:
        """Count what ``key`` gave."""
        if not self._is_paid or key in self._operators:
            return
        if key not in self._bytes and len(self._bytes) >= MAX_KEYS:
            del self._bytes[min(self._bytes, key=lambda each: self._bytes[each])]
        self._bytes[key] = self._bytes.get(key, 0) + num_bytes

    def name(self) -> Thanks:
        """Return what a claim is to say now, and begin anew: what is not in it is never thanked for."""
        thanks = most_thanked(self._bytes.items())
        self._bytes = {}
        return thanks
