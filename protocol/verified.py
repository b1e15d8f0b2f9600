"""What was read and verified once is remembered, so that no bytes are read or verified twice on their way into the log."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from protocol.audits import Extra, SignedExtra
from protocol.records import Claim, Contribution, Logged, SignedClaim, SignedContribution, open_entry

Known = TypeVar("Known", bound=Hashable)
Opened = TypeVar("Opened")


class _Newest(Generic[Known, Opened]):
    """The newest results of a function whose answers never change. For any thread."""

    def __init__(self, open_: Callable[[Known], Opened], capacity: int) -> None:
        self._open = open_
        self._capacity = capacity
        self._opened: OrderedDict[Known, Opened] = OrderedDict()
        self._mutex = Lock()

    def __call__(self, what: Known) -> Opened:
        found = self._opened.get(what)
        if found is None:
            found = self._open(what)
            with self._mutex:
                self._opened[what] = found
                if len(self._opened) > self._capacity:
                    self._opened.popitem(last=False)
        return found


class Verified:
    """The newest entries that could be read, and the newest claims, contributions and extras whose signatures held. For any thread."""

    def __init__(self, capacity: int = 8192, *, signed_before: bool = False) -> None:
        """Remember so many of each, of entries half as many; with ``signed_before`` the signatures of claims and contributions are known
        to hold: for entries under a tree head that was signed once they did.
        """
        self._entries = _Newest(open_entry, capacity // 2)
        self._claims = _Newest(SignedClaim.unchecked if signed_before else SignedClaim.open, capacity)
        self._contributions = _Newest(SignedContribution.unchecked if signed_before else SignedContribution.open, capacity)
        self._extras = _Newest(_open_extra, capacity)

    def entry(self, data: bytes) -> Logged:
        """Return the record inside an entry's bytes, read now or before.

        Raises:
            EncodingError: as ``protocol.records.open_entry``.
        """
        return self._entries(data)

    def claim(self, signed: SignedClaim) -> Claim:
        """Return the claim, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as ``SignedClaim.open``.
        """
        return self._claims(signed)

    def contribution(self, signed: SignedContribution) -> Contribution:
        """Return the contribution, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as ``SignedContribution.open``.
        """
        return self._contributions(signed)

    def extra(self, signed: SignedExtra) -> Extra:
        """Return the finding, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as its ``open``.
        """
        return self._extras(signed)


def _open_extra(signed: SignedExtra) -> Extra:
    return signed.open()
