"""Tells auditors what waits for them, takes what volunteers found, and asks for own vectors where a named auditor needs them.

These answers decide nothing: everybody can tell from the log which contributions are audited, and whose verdict counts. They save auditors
from copying the log. A volunteer is drawn for a contribution by its beacon, among those that asked for work lately; where the volunteer
says nothing for some rounds, the named auditor does without.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manta_swarm.aggregator.features.audits.brought import BroughtVectors, Facts
from manta_swarm.aggregator.intake.refusals import NotTheirs, is_too_much, noted
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.auditing import (
    ASSIGNMENTS,
    FINDING,
    MAX_ASSIGNMENTS,
    MAX_SIGNED_FINDING_BYTES,
    NEED,
    AskAssignments,
    Assignment,
    Assignments,
    Finding,
    Need,
    Needed,
    number,
)
from manta_swarm.protocol.closing import NotTaken
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import LedgerError
from manta_swarm.protocol.reputation import Audit
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import PublicKey

THERE = 3  # rounds that a volunteer is counted on that asked for work
WAIT = 6  # rounds that a contribution is left to a volunteer, once all of it is here
MAX_VOLUNTEERS = 1024  # that are remembered
_OLDEST = MAX_ASSIGNMENTS // 2  # of the assignments that are told of, where there are more; the others are told of in turn, by the round
_SMALL_BYTES = 64


@dataclass(slots=True)
class _Left:
    """A contribution that is left to a volunteer."""

    volunteer: bytes
    until: int  # round
    finding: Signed[Finding] | None = None


class AssignmentsService:
    """Assigns audits on behalf of one operator. It leaves verdicts to ``aggregator.intake.verdicts``."""

    def __init__(self, brought: BroughtVectors, facts: Facts, faults: CallerFaults) -> None:
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
        """How many volunteers there are."""
        return len(self._asked)

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer from now on."""
        await endpoint.serve(ASSIGNMENTS, self._on_assignments)
        await endpoint.serve(NEED, self._on_need)
        await endpoint.serve(FINDING, self._on_finding)

    def committed(self) -> None:
        """The log has a new round: forget what is not audited any more, and volunteers that did not ask lately."""
        reputation = self._facts.reputation
        self._asked = {key: asked for key, asked in self._asked.items() if asked > reputation.round - THERE}
        self._left = {contribution: left for contribution, left in self._left.items() if contribution in reputation.audits}

    async def _on_assignments(self, caller: PublicKey, request: bytes) -> bytes:
        asked, reputation = unpack(AskAssignments, request, max_bytes=_SMALL_BYTES), self._facts.reputation
        if self._is_named(caller):
            waiting = [audit for audit in reputation.audits.values() if self._is_for_named(caller, audit)]
            accused = [audit for audit in waiting if audit.is_against]
            whole, lacking = list[Audit](), list[Audit]()
            for audit in _oldest_first(audit for audit in waiting if not audit.is_against):
                (whole if await self._can_be_judged(audit) else lacking).append(audit)
            ordered = [*_in_turn(_oldest_first(accused), reputation.round), *_in_turn(whole, reputation.round)]
            chosen = [*ordered, *_in_turn(lacking, reputation.round)][:MAX_ASSIGNMENTS]
            return pack(Assignments(tuple([await self._assignment(audit, is_named=True) for audit in chosen]), 1, len(reputation.audits)))
        is_new, is_proven = caller not in self._asked, reputation.is_proven(caller)
        if not is_proven or asked.round < reputation.round - THERE or (is_new and len(self._asked) >= MAX_VOLUNTEERS):
            return pack(Assignments((), int(is_proven), len(reputation.audits)))
        self._asked[caller] = reputation.round
        found = list[Assignment]()
        for audit in _oldest_first(audit for audit in reputation.audits.values() if not audit.verdicts and caller not in audit.work.keys):
            left = await self._left_to(audit)
            if left is not None and left.volunteer == caller and left.finding is None:
                found.append(await self._assignment(audit, is_named=False))
            if len(found) == MAX_ASSIGNMENTS:
                break
        return pack(Assignments(tuple(found), 1, len(reputation.audits)))

    def _is_for_named(self, caller: PublicKey, audit: Audit) -> bool:
        """Return whether an audit waits for a named auditor: it was drawn for it, or somebody would take something away."""
        has_judged = any(verdict.auditor == caller for verdict in audit.verdicts)
        return not has_judged and caller not in audit.work.keys and (audit.auditor == caller or audit.is_against)

    async def _can_be_judged(self, audit: Audit) -> bool:
        return self._is_late(audit) or not await self._brought.lacking(audit)

    def _is_late(self, audit: Audit) -> bool:
        reputation = self._facts.reputation
        return reputation.rules is not None and reputation.round >= audit.round + reputation.rules.kept_rounds

    async def _assignment(self, audit: Audit, *, is_named: bool) -> Assignment:
        """Return what an auditor is told of a contribution."""
        audited = await self._brought.opened(audit)
        is_here = not await self._brought.lacking(audit)
        left = await self._left_to(audit) if is_named else None
        state, min_exponent = self._facts.base(audited.contribution.round)
        return Assignment(
            round=audit.round,
            header=audited.header,
            state=state,
            min_exponent=min_exponent,
            left=tuple(map(int, await self._facts.left(audited))),
            is_here=int(is_here),
            is_late=int(self._is_late(audit)),
            lacks_room=int(self._brought.lacks_room(audit.work.contribution)),
            needed=tuple(Needed(step, round_) for step, round_ in self._brought.needed(audit.work.contribution).items()),
            volunteer=() if left is None else (left.volunteer,),
            finding=() if left is None or left.finding is None else (left.finding,),
        )

    async def _left_to(self, audit: Audit) -> _Left | None:
        """Return to which volunteer a contribution is left, all of which is here; None: to none."""
        contribution, round_ = audit.work.contribution, self._facts.reputation.round
        if audit.is_against or await self._brought.lacking(audit):
            return None
        left = self._left.get(contribution)
        if left is None:
            there = sorted(self._asked.keys() - set(audit.work.keys))
            if not there:
                return None
            place = number("volunteer", self._facts.beacon(audit.round), contribution) % len(there)
            left = self._left[contribution] = _Left(there[place], round_ + WAIT)
        return None if left.finding is None and round_ > left.until else left

    async def _on_need(self, caller: PublicKey, request: bytes) -> bytes:
        need = unpack(Need, request, max_bytes=_SMALL_BYTES)
        audit = self._brought.audit_of(need.contribution)
        if audit is None:
            raise NotTaken("this contribution is not audited, or not any more")
        if not self._is_named(caller):
            raise NotTheirs("own vectors are a named auditor's to ask for")
        if need.step >= len((await self._brought.opened(audit)).contribution.steps):
            raise LedgerError("a step that the contribution has not got")
        self._brought.need(need.contribution, need.step)
        return b""

    async def _on_finding(self, caller: PublicKey, request: bytes) -> bytes:
        if is_too_much(self._faults, caller):
            raise NotTaken("too much that was wrong came from there lately")
        with noted(self._faults, caller):
            signed = unpack(Signed[Finding], request, max_bytes=MAX_SIGNED_FINDING_BYTES)
            finding = signed.open()
            if finding.run != self._facts.run or finding.by != caller:
                raise NotTheirs("a finding of somebody else, or of another run")
            audit, left = self._brought.audit_of(finding.contribution), self._left.get(finding.contribution)
            if audit is None or left is None or left.volunteer != caller:
                raise NotTaken("this contribution is not left to this volunteer, or not any more")
            if finding.round != audit.round or len(finding.outcomes) != len(audit.work.keys):
                raise LedgerError("a finding about something else than the contribution")
            left.finding = left.finding or signed
        return b""

    def _is_named(self, key: bytes) -> bool:
        rules = self._facts.reputation.rules
        return rules is not None and key in rules.named


def _oldest_first(audits: Iterable[Audit]) -> list[Audit]:
    return sorted(audits, key=lambda audit: (audit.round, audit.work.contribution))


def _in_turn(audits: Sequence[Audit], round_: int) -> list[Audit]:
    """Return the oldest ones, then the others in an order that goes on with the round: what nobody can judge stands in no other's way."""
    oldest, others = list(audits[:_OLDEST]), audits[_OLDEST:]
    start = round_ * _OLDEST % len(others) if others else 0
    return [*oldest, *others[start:], *others[:start]]
