"""Peers that audit for the run: which of them are there, what each is asked, and what the operator leaves to them.

Whose finding on a claim may count at all is its panel's, which the beacon says (``protocol.trust``); of these whoever asked the log for
work lately is there. Two of them are asked about a lot, or about all lots of a claim, and where they agree that it holds, the operator
looks at a part only: at which, nobody else can know before. Bodies the operator compares itself. What one of them accuses the operator
looks at in any case; what the operator would accuse, they are asked about first, and cannot tell it from anything else.
"""

import random
from collections.abc import Sequence

from aggregator.audits.tables import Tables
from aggregator.log.log import Log
from protocol.audits import LOT
from protocol.duties import ANSWERED, ASK, MAX_ASK_BYTES, MAX_DUTIES, AskDuties, Duties, Duty
from protocol.encoding import pack, unpack
from protocol.signing import PublicKey
from protocol.standing import Due
from protocol.trust import SEATS, Question
from swarm.rpc import Endpoint

THERE = 2  # rounds that somebody is counted on who asked for work
WAIT = 3  # rounds that the operator leaves a question to them
OWN_SHARE = 0.25  # of what is left to them, that the operator looks at all the same
_ASKED = 2  # about what nobody accuses: two say together that it holds


class Volunteers:
    """Those of one log."""

    def __init__(self, log: Log, tables: Tables, own: bytes, rng: random.Random) -> None:
        """Know of none.

        Args:
            log: says who may audit what.
            tables: have the claims.
            own: the operator's key, which asks nobody for work.
            rng: draws what the operator looks at itself.
        """
        self._log = log
        self._tables = tables
        self._own = own
        self._rng = rng
        self._asked: dict[bytes, int] = {}  # key -> the newest round in which it asked for work
        self._round = 0  # the newest that was looked at
        self._due: Sequence[Due] = ()  # after it
        self._waiting: dict[bytes, list[Due]] = {}  # of these by auditor: those of the panel that have not answered
        self._doubted: dict[Question, int] = {}  # of which the operator has a doubt, with the round of their table
        self._looked_at: dict[Question, tuple[int, bool]] = {}  # round of its table, and whether the operator looks at it itself

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer "audits" from now on."""
        await endpoint.serve(ASK, self._on_ask)

    def due(self) -> Sequence[Due]:
        """Return what is open after the newest round."""
        round_ = self._log.ledger.round
        if self._round < round_:
            self._round, self._due = round_, self._log.ledger.standing.due()
            self._waiting = {}
            for due in sorted(self._due, key=lambda due: due.question.check != LOT):  # what is cheap first, and of that the oldest
                for key in set(due.panel).difference(vote.auditor for vote in due.votes):
                    self._waiting.setdefault(key, []).append(due)
            oldest = round_ - self._log.ledger.manifest.trust.kept_rounds
            self._asked = {key: asked for key, asked in self._asked.items() if asked >= round_ - THERE}
            self._doubted = {question: table for question, table in self._doubted.items() if table >= oldest}
            self._looked_at = {question: kept for question, kept in self._looked_at.items() if kept[0] >= oldest}
        return self._due

    @property
    def count(self) -> int:
        """How many are there."""
        return len(self._asked)

    def are_left(self, due: Due) -> bool:
        """Return whether a question is left to them for now, or for good, if they have answered it."""
        standing = self._log.ledger.standing
        if due.is_accused or self._is_looked_at(due):
            return False
        if due.question in standing.decisions:
            return True
        waited = self._log.ledger.round - due.claimed.round - 1
        return waited < WAIT and self._are_enough(due)

    def doubt(self, due: Due) -> bool:
        """The operator would accuse this claim: have it looked at by as many as there are; return whether there is anybody."""
        self._doubted[due.question] = due.claimed.round
        return any(vote.auditor != self._own for vote in due.votes) or bool(self._of(due))

    def _is_looked_at(self, due: Due) -> bool:
        _, is_looked_at = self._looked_at.setdefault(due.question, (due.claimed.round, self._rng.random() < OWN_SHARE))
        return is_looked_at

    def _are_enough(self, due: Due) -> bool:
        """Are there as many as decide a question that nobody is accused in: one that the run names, or two."""
        there = self._of(due)
        return len(there) >= _ASKED or any(key in self._log.ledger.manifest.trust.auditors for key in there)

    def _of(self, due: Due) -> list[bytes]:
        """Return who of a question's panel is there and is asked, in the panel's order."""
        if due.question.check not in ANSWERED:
            return []
        named = self._log.ledger.manifest.trust.auditors
        there = [key for key in due.panel if key in self._asked and key != self._own]
        wanted = SEATS if due.is_accused or due.question in self._doubted else _ASKED
        return [*(key for key in there if key in named), *[key for key in there if key not in named][:wanted]]

    async def _on_ask(self, caller: PublicKey, request: bytes) -> bytes:
        asked, ledger = unpack(AskDuties, request, max_bytes=MAX_ASK_BYTES), self._log.ledger
        is_theirs = caller in ledger.manifest.trust.auditors or ledger.standing.is_proven(caller)
        if not is_theirs or caller in ledger.standing.guilty or asked.round < ledger.round - THERE:
            return pack(Duties(()))
        self._asked[caller] = ledger.round
        self.due()
        found = list[Duty]()
        for due in self._waiting.get(caller, ()):
            is_doubted = due.is_accused or due.question in self._doubted
            if (due.question in ledger.standing.decisions and not is_doubted) or caller not in self._of(due):
                continue
            signed, _ = self._tables.claim(due.claimed.round, due.claimed.digest)
            found.append(Duty(signed, due.claimed.round, due.claimed.row, due.question.check, due.question.lot))
            if len(found) == MAX_DUTIES:
                break
        return pack(Duties(tuple(found)))
