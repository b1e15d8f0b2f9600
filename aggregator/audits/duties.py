"""Tells auditors what waits for them, takes what volunteers found, and asks for own vectors where a named auditor needs them.

The log's word decides nothing: which contributions are audited, and whose word counts, everybody can tell from the log. It saves auditors
from copying it. A volunteer is drawn for a contribution by its beacon, of those that asked for work lately; where it says nothing for
some rounds the named auditor does without.
"""

from dataclasses import dataclass
from typing import Protocol

from aggregator.audits.brought import Audited, Brought
from aggregator.rounds.refusals import NotTheirs, is_too_much, noted
from protocol.auditing import (
    DUTIES,
    FINDING,
    MAX_DUTIES,
    MAX_SIGNED_FINDING_BYTES,
    MAX_SIGNED_VERDICT_BYTES,
    NEED,
    VERDICT,
    AskDuties,
    Duties,
    Duty,
    Need,
    SignedFinding,
)
from protocol.closing import NotTaken
from protocol.draws import number
from protocol.encoding import pack, unpack
from protocol.errors import LedgerError
from protocol.reputation import Reputation
from protocol.signing import PublicKey
from protocol.verdicts import SignedVerdict
from swarm.budget import Faults
from swarm.rpc import Endpoint

THERE = 3  # rounds that a volunteer is counted on that asked for work
WAIT = 6  # rounds that a contribution is left to a volunteer, once all of it is here
MAX_VOLUNTEERS = 1024  # that are remembered
_SMALL_BYTES = 64


@dataclass(slots=True)
class _Left:
    """A contribution that is left to a volunteer."""

    volunteer: bytes
    until: int  # round
    finding: SignedFinding | None = None


class Facts(Protocol):
    """What a log says of what was handed in."""

    @property
    def run(self) -> bytes:
        """The run's id."""

    @property
    def reputation(self) -> Reputation:
        """What verdicts add up to."""

    def beacon(self, round: int) -> bytes:
        """Return that of a round."""

    def base(self, round: int) -> tuple[bytes, int]:
        """Return the digest of the state that work for a round begins with, and the floor of its bodies."""

    def residual(self, key: bytes, round: int) -> bytes:
        """Return the digest of what the last contribution of a key that was listed before a round left it; empty: zeros."""

    async def take(self, signed: SignedVerdict) -> None:
        """Have a verdict stand before the next round; it is on the disk when this returns.

        Raises:
            RemoteFault: it may not stand there, or there is no room for it now.
        """


class DutiesDesk:
    """One log's."""

    def __init__(self, brought: Brought, facts: Facts, faults: Faults) -> None:
        """Know of no auditor; ``serve`` answers from then on.

        Args:
            brought: has what was brought.
            facts: the log's.
            faults: counts what is nobody's to say.
        """
        self._brought = brought
        self._facts = facts
        self._faults = faults
        self._asked: dict[bytes, int] = {}  # by volunteer: the newest round in which it asked for work
        self._left: dict[bytes, _Left] = {}  # by contribution

    @property
    def num_volunteers(self) -> int:
        """How many are there."""
        return len(self._asked)

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer from now on."""
        await endpoint.serve(DUTIES, self._on_duties)
        await endpoint.serve(NEED, self._on_need)
        await endpoint.serve(FINDING, self._on_finding)
        await endpoint.serve(VERDICT, self._on_verdict)

    async def _on_duties(self, caller: PublicKey, request: bytes) -> bytes:
        asked, reputation = unpack(AskDuties, request, max_bytes=_SMALL_BYTES), self._facts.reputation
        self._tidy(reputation)
        is_named = self._is_named(caller)
        if not is_named:
            if not reputation.is_proven(caller) or asked.round < reputation.round - THERE or len(self._asked) >= MAX_VOLUNTEERS:
                return pack(Duties(()))
            self._asked[caller] = reputation.round
        waiting = sorted(reputation.audits.values(), key=lambda audit: (not audit.is_against, audit.round, audit.work.contribution))
        found = list[Duty]()
        for audit in waiting:
            if any(verdict.auditor == caller for verdict in audit.verdicts) or (not is_named and audit.verdicts):
                continue
            audited = self._brought.audited(audit.work.contribution)
            duty = None if audited is None or caller in audit.work.keys else self._duty(caller, audited, is_named=is_named)
            if duty is not None:
                found.append(duty)
            if len(found) == MAX_DUTIES:
                break
        return pack(Duties(tuple(found)))

    def _duty(self, caller: PublicKey, audited: Audited, *, is_named: bool) -> Duty | None:
        """Return what an auditor is told of a contribution; None: nothing, now."""
        audit, rules = audited.audit, self._facts.reputation.rules
        assert rules is not None
        is_drawn = audit.auditor == caller
        if is_named and not is_drawn and not audit.is_against:
            return None  # it is another's; whoever would take something away calls the others
        is_here = not self._brought.lacking(audited)
        is_late = self._facts.reputation.round >= audit.round + rules.kept_rounds
        left = None if audit.is_against or not is_here else self._left_to(audited)
        if not is_named and (left is None or left.volunteer != caller or left.finding is not None):
            return None
        lacks_room = self._brought.lacks_room(audit.work.contribution, audit.round)
        volunteer = () if left is None or not is_named else (left.volunteer,)
        finding = (left.finding,) if left is not None and left.finding is not None and volunteer else ()
        state, floor = self._facts.base(audited.contribution.round)
        residuals = tuple([self._facts.residual(claim.key, audit.round) for claim in audited.claims])
        return Duty(audit.round, audited.header, state, floor, residuals, int(is_here), int(is_late), int(lacks_room), volunteer, finding)

    def _left_to(self, audited: Audited) -> _Left | None:
        """Return to which volunteer a contribution is left, all of which is here; None: to none."""
        audit, round_ = audited.audit, self._facts.reputation.round
        left = self._left.get(audit.work.contribution)
        if left is None:
            there = sorted(self._asked.keys() - set(audit.work.keys))
            if not there:
                return None
            place = number("volunteer", self._facts.beacon(audit.round), audit.work.contribution) % len(there)
            left = self._left[audit.work.contribution] = _Left(there[place], round_ + WAIT)
        return None if left.finding is None and round_ > left.until else left

    async def _on_need(self, caller: PublicKey, request: bytes) -> bytes:
        need = unpack(Need, request, max_bytes=_SMALL_BYTES)
        audited = self._brought.audited(need.contribution)
        if audited is None:
            raise NotTaken("this contribution is not audited, or not any more")
        if not self._is_named(caller):
            raise NotTheirs("own vectors are a named auditor's to ask for")
        if need.step >= len(audited.contribution.steps):
            raise LedgerError("a step that the contribution has not got")
        self._brought.need(need.contribution, need.step)
        return b""

    async def _on_finding(self, caller: PublicKey, request: bytes) -> bytes:
        if is_too_much(self._faults, caller):
            raise NotTaken("too much that was wrong came from there lately")
        with noted(self._faults, caller):
            signed = unpack(SignedFinding, request, max_bytes=MAX_SIGNED_FINDING_BYTES)
            finding = signed.open()
            if finding.run != self._facts.run or finding.by != caller:
                raise NotTheirs("a finding of somebody else, or of another run")
            audited, left = self._brought.audited(finding.contribution), self._left.get(finding.contribution)
            if audited is None or left is None or left.volunteer != caller:
                raise NotTaken("this contribution is not left to this volunteer, or not any more")
            if finding.round != audited.audit.round or len(finding.outcomes) != len(audited.claims):
                raise LedgerError("a finding about something else than the contribution")
            left.finding = left.finding or signed
        return b""

    async def _on_verdict(self, caller: PublicKey, request: bytes) -> bytes:
        if is_too_much(self._faults, caller):
            raise NotTaken("too much that was wrong came from there lately")
        with noted(self._faults, caller):
            signed = unpack(SignedVerdict, request, max_bytes=MAX_SIGNED_VERDICT_BYTES)
            verdict = signed.open()
            if verdict.run != self._facts.run:
                raise LedgerError("a verdict of another run")
            self._facts.reputation.check(verdict)
            await self._facts.take(signed)
        return b""

    def _is_named(self, key: bytes) -> bool:
        rules = self._facts.reputation.rules
        return rules is not None and key in rules.named

    def _tidy(self, reputation: Reputation) -> None:
        self._asked = {key: asked for key, asked in self._asked.items() if asked > reputation.round - THERE}
        self._left = {contribution: left for contribution, left in self._left.items() if contribution in reputation.audits}
