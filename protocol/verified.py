"""Signatures that held once: what was verified is remembered, so that no bytes are verified twice on their way into the log."""

from collections import OrderedDict
from threading import Lock
from typing import TypeVar

from protocol.records import Claim, Contribution, SignedClaim, SignedContribution

Opened = TypeVar("Opened", Claim, Contribution)


class Verified:
    """The newest claims and contributions whose signatures held, by digest. For any thread."""

    def __init__(self, capacity: int = 8192) -> None:
        """Remember so many."""
        self._capacity = capacity
        self._opened: OrderedDict[bytes, Claim | Contribution] = OrderedDict()
        self._mutex = Lock()

    def claim(self, signed: SignedClaim) -> Claim:
        """Return the claim, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as ``SignedClaim.open``.
        """
        known = self._opened.get(signed.digest)
        return known if isinstance(known, Claim) else self._remember(signed.digest, signed.open())

    def contribution(self, signed: SignedContribution) -> Contribution:
        """Return the contribution, its signature checked now or before.

        Raises:
            EncodingError, SignatureError: as ``SignedContribution.open``.
        """
        known = self._opened.get(signed.digest)
        return known if isinstance(known, Contribution) else self._remember(signed.digest, signed.open())

    def _remember(self, digest: bytes, opened: Opened) -> Opened:
        with self._mutex:
            self._opened[digest] = opened
            if len(self._opened) > self._capacity:
                self._opened.popitem(last=False)
        return opened
