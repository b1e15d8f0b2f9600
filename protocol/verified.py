"""What was read and verified once is remembered, so that no bytes are read or verified twice on their way into the log."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

from manta_swarm.protocol.records import Claim, Contribution, Logged, open_entry
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.verdicts import Verdict

MAX_BYTES = 4 << 20  # of entries, of claims, of contributions and of verdicts each

Known = TypeVar("Known", bound=Hashable)
Opened = TypeVar("Opened")


class _Newest(Generic[Known, Opened]):
    """The newest results of a function whose answers never change, as many as were made of so many bytes. For any thread."""

    def __init__(self, open_: Callable[[Known], Opened], size_of: Callable[[Known], int], max_bytes: int) -> None:
        self._open = open_
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._opened: OrderedDict[Known, Opened] = OrderedDict()
        self._mutex = Lock()

    def __call__(self, what: Known) -> Opened:
        found = self._opened.get(what)
        if found is None:
            found = self._open(what)
            with self._mutex:
                if what not in self._opened:
                    self._opened[what] = found
                    self._num_bytes += self._size_of(what)
                while self._num_bytes > self._max_bytes:
                    oldest, _ = self._opened.popitem(last=False)
                    self._num_bytes -= self._size_of(oldest)
        return found


class Verified:
    """The newest entries that could be read, and the newest claims, contributions and verdicts whose signatures held. For any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES, *, signed_before: bool = False) -> None:
        """Remember what so many bytes of each kind were opened to, which takes some times as much memory.

        With ``signed_before`` the signatures of claims and contributions are known to hold: for entries under a tree head that was signed
        once they did.
        """
        self._entries = _Newest(open_entry, len, max_bytes)
        read = Signed.unchecked if signed_before else Signed.open
        self._claims: _Newest[Signed[Claim], Claim] = _Newest(read, _num_bytes, max_bytes)
        self._contributions: _Newest[Signed[Contribution], Contribution] = _Newest(read, _num_bytes, max_bytes)
        self._verdicts: _Newest[Signed[Verdict], Verdict] = _Newest(Signed.open, _num_bytes, max_bytes)

    def entry(self, data: bytes) -> Logged:
        """Return the record inside an entry's bytes, read now or before.

        Raises:
            EncodingError: as ``protocol.records.open_entry``.
        """
        return self._entries(data)

    def claim(self, signed: Signed[Claim]) -> Claim:
        """Return the claim, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``.
        """
        return self._claims(signed)

    def contribution(self, signed: Signed[Contribution]) -> Contribution:
        """Return the contribution, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``.
        """
        return self._contributions(signed)

    def verdict(self, signed: Signed[Verdict]) -> Verdict:
        """Return the verdict, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as ``Signed.open``.
        """
        return self._verdicts(signed)


def _num_bytes(signed: Signed[Any]) -> int:
    return len(signed.payload)
