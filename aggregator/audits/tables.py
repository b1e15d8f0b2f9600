"""The committed tables that audits are about, as the log has them: each claim with the contribution that lists it."""

from aggregator.log.log import Log
from protocol.records import Header, SignedClaim, SignedContribution, open_entry


class Tables:
    """Those of one log, read when they are first asked for."""

    def __init__(self, log: Log) -> None:
        """Read them from ``log``."""
        self._log = log
        self._read: dict[int, dict[bytes, tuple[SignedClaim, Header]]] = {}  # by round

    def claim(self, round_: int, digest: bytes) -> tuple[SignedClaim, Header]:
        """Return a claim of a committed table, and the contribution that lists it."""
        if round_ not in self._read:
            headers = headers_at(self._log, round_)
            self._read[round_] = {bytes(signed.digest): (signed, header) for header in headers for signed in header.claims}
        return self._read[round_][digest]

    def forget(self, oldest: int) -> None:
        """Nobody will ask for what is older than the table of ``oldest``."""
        for round_ in [each for each in self._read if each < oldest]:
            del self._read[round_]


def headers_at(log: Log, round_: int) -> list[Header]:
    """Return the contributions of a committed table, each with its claims, in its order."""
    before, index = log.ledger.index_at(round_ - 1), log.ledger.index_at(round_)
    assert index is not None
    start = 0 if before is None else before + 1
    headers, claims = list[Header](), list[SignedClaim]()
    for entry in log.entries(start, index - start):
        record = open_entry(entry)
        if isinstance(record, SignedClaim):
            claims.append(record)
        elif isinstance(record, SignedContribution):
            headers.append(Header(record, tuple(claims)))
            claims = []
    return headers
