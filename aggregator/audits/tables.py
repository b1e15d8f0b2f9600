"""The committed tables that audits are about, as the log has them: each claim with the contribution that lists it."""

from collections.abc import Iterable, Mapping

from aggregator.log.log import Log
from protocol.exchange import MAX_AGE
from protocol.records import Claim, Header, SignedClaim, open_entry
from protocol.residuals import RESIDUAL_ROUNDS, was_left


class Tables:
    """Those of one log, read when they are first asked for."""

    def __init__(self, log: Log) -> None:
        """Read them from ``log``."""
        self._log = log
        self._read: dict[int, dict[bytes, tuple[SignedClaim, Header]]] = {}  # by round
        self._left: dict[int, Mapping[bytes, bytes]] = {}  # by round, the residual that its table left to each key

    def claim(self, round_: int, digest: bytes) -> tuple[SignedClaim, Header]:
        """Return a claim of a committed table, and the contribution that lists it."""
        if round_ not in self._read:
            headers = headers_at(self._log, round_)
            self._read[round_] = {bytes(signed.digest): (signed, header) for header in headers for signed in header.claims}
        return self._read[round_][digest]

    def was_left(self, claim: Claim, round_: int) -> bool:
        """Return whether a claim of a committed table names no residual, or one that was left to its key."""
        return was_left(claim, round_, self._log.ledger.course.sorts_after, self._left_by)

    def forget(self, oldest: int) -> None:
        """Nobody will ask for what is older than the table of ``oldest``."""
        for round_ in [each for each in self._read if each < oldest]:
            del self._read[round_]
        for round_ in [each for each in self._left if each < oldest - MAX_AGE - RESIDUAL_ROUNDS]:
            del self._left[round_]

    def _left_by(self, round_: int) -> Mapping[bytes, bytes]:
        if round_ not in self._left:
            self._left[round_] = left_by(headers_at(self._log, round_))
        return self._left[round_]


def left_by(headers: Iterable[Header]) -> Mapping[bytes, bytes]:
    """Return the residual that contributions leave to each key with a claim in their body; who is left with none is not in it."""
    opened = ((header, header.contribution.open()) for header in headers)
    return {
        signed.open().key: contribution.residual
        for header, contribution in opened
        if contribution.residual
        for signed in header.claims
        if signed.digest in contribution.in_body
    }


def headers_at(log: Log, round_: int) -> list[Header]:
    """Return the contributions of a committed table, each with its claims, in its order."""
    before, index = log.ledger.index_at(round_ - 1), log.ledger.index_at(round_)
    assert index is not None
    start = 0 if before is None else before + 1
    records = [open_entry(entry) for entry in log.entries(start, index - start)]
    return [record for record in records if isinstance(record, Header)]
