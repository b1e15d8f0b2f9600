"""Audits contributions of others: the work of a named auditor, which weighs what volunteers find, and of a volunteer, within limits.

After each commit it asks the log what waits for it, gets what was brought, has a process of low priority compute it all again, and says
what came out: a named auditor by a verdict for the log, a volunteer by a finding for the named one. A named auditor leaves a contribution
for some rounds to the volunteer that is drawn for it, and takes over that volunteer's finding that all is good. A part of these findings,
which nobody else can foresee, and all of a volunteer that was wrong before, it computes itself. It takes nothing away that it has not
computed, or asked for, itself.

A contribution that cannot be judged, by nobody's fault, gets no verdict. Members' own vectors of a step are asked for once its mean turns
out not to fit; a member that has no time left to bring them then has not withheld them.

A named auditor writes down the public keys of volunteers that found good what was not: it does not believe them any more, also after a
restart.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor

from manta_swarm.network import timeouts
from manta_swarm.network.operator_line import OperatorLine
from manta_swarm.peer.features.audit.computing import AskAudit, AuditAnswer, AuditAnswerKind, Computing
from manta_swarm.peer.features.audit.fetching import Fetching, NotNow
from manta_swarm.peer.status import LiveStatus
from manta_swarm.protocol.auditing import (
    ASSIGNMENTS,
    FINDING,
    MAX_ASSIGNMENTS_BYTES,
    VERDICT,
    AskAssignments,
    Assignment,
    Assignments,
    Finding,
    number,
    vectors_of,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, MantaError, UserError
from manta_swarm.protocol.records import Claim, Contribution
from manta_swarm.protocol.signed import Signed, is_signed
from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.protocol.verdicts import AuditRules, Verdict
from manta_swarm.runtime.atomic_file import AtomicFile
from manta_swarm.runtime.child import ChildLost
from manta_swarm.runtime.on_demand import OnDemandProcess
from manta_swarm.runtime.tasks import wait_within

AGAIN_PERCENT = 25  # of what volunteers find good, that is computed again
_MAX = 4096  # of the newest; each was proven, which takes more work than a lie is worth
_MAX_BYTES = _MAX * 64

AGAIN_S = 10.0  # until the log is asked again
LAST_S = 60.0  # once the run is over, for a log that does not answer any more
LEAST_ROUNDS = 2  # that members have to bring own vectors, once these are asked for
_DEATHS = 3  # in a row, until nothing is audited any more

logger = logging.getLogger("manta.audits")


@dataclass(frozen=True, slots=True)
class _Keys:
    keys: tuple[bytes, ...]


class Volunteers:
    """The volunteers of one named auditor's run: which of them it believes, and which never again."""

    def __init__(self, path: Path, again_percent: int = AGAIN_PERCENT) -> None:
        """Begin with those in the file ``path``, whose folder is there; none where there is no such file.

        Raises:
            StorageError: it cannot be read.
        """
        self._file = AtomicFile(path, _MAX_BYTES, "delete it: the volunteers that it named will be found out again")
        self._again_percent = again_percent
        self._secret = os.urandom(32)  # of this life: nobody can foresee what is computed again
        self._distrusted = (self._file.load(_Keys) or _Keys(())).keys

    def are_believed(self, contribution: bytes, volunteer: bytes) -> bool:
        """Return whether what this volunteer finds of a contribution is not computed again."""
        return volunteer not in self._distrusted and number("again", self._secret, contribution) % 100 >= self._again_percent

    @property
    def distrusted(self) -> frozenset[bytes]:
        """The volunteers of whom nothing is believed."""
        return frozenset(self._distrusted)

    def distrust(self, volunteer: bytes) -> None:
        """Believe a volunteer no more. Blocks.

        Raises:
            StorageError: the disk refuses.
        """
        if volunteer not in self._distrusted:
            self._distrusted = (*self._distrusted, volunteer)[-_MAX:]
            self._file.save(_Keys(self._distrusted))


@dataclass(frozen=True, slots=True)
class AuditContext:
    """What does not change while an auditor is at work."""

    identity: Identity  # signs what is found
    run: bytes
    rules: AuditRules
    line: OperatorLine
    live_status: LiveStatus  # shows what was done


class AuditHost(Protocol):
    """What an auditor needs of the peer that it is part of: what that knows of the run, gets from others, and starts."""

    @property
    def newest_round(self) -> int:
        """The round of the newest commit."""

    @property
    def is_finished(self) -> bool:
        """Whether the newest commit is the run's last one."""

    async def parameters(self, state: bytes) -> tuple[Tensor, Tensor | None]:
        """Return the parameters of a committed state by its digest, and of its teacher."""

    async def body(self, root: bytes) -> bytes:
        """Return the body of a committed contribution, by its root."""

    async def start(self) -> Computing:
        """Start the process that computes audits."""


@dataclass(slots=True)
class _Open:
    """A contribution that this auditor was told of, until it is paid."""

    round: int  # that has it
    said: Signed[Verdict] | Signed[Finding] | None = None
    given_up: tuple[int, float] | None = None  # the newest round when it could not be judged, and until when it is not tried again in it
    needed: set[int] = field(default_factory=set)  # steps that turned out not to fit, of which operators may not know yet


class Auditor:
    """Audits the contributions that operators assign to this peer."""

    def __init__(
        self, context: AuditContext, host: AuditHost, fetching: Fetching, volunteers: Volunteers, *, does_nothing_else: bool = False
    ) -> None:
        """Audit nothing yet.

        Args:
            context: of the audits.
            host: the peer.
            fetching: gets what was brought.
            volunteers: says of a named auditor whose work it takes over.
            does_nothing_else: where no share of the time is set, it has all of it.
        """
        self._identity = context.identity
        self._run = context.run
        self._rules = context.rules
        self._is_named = context.identity.public_key in context.rules.named
        self._host = host
        self._line = context.line
        self._fetching = fetching
        self._live_status = context.live_status
        self._volunteers = volunteers
        self._does_nothing_else = does_nothing_else
        self._child = OnDemandProcess(self._start)
        self._open: dict[bytes, _Open] = {}  # by contribution
        self._began_s = 0.0
        self._deaths = 0
        self._cpu_s = 0.0
        self._may_audit = True  # as far as is known
        self._is_over = False
        self._unheard_s: float | None = None  # since when the log does not say what waits

    @property
    def share(self) -> int:
        """Hundredths of the time that it works at most."""
        return round(100 * self._child.share)

    @property
    def is_broken(self) -> bool:
        """Whether the process that computes cannot any more: nothing is audited then."""
        return self._deaths >= _DEATHS

    def limit(self, share: int, assignment: int) -> None:
        """Work at most so many hundredths of the time, and no more than microbatches may; with 0 audit nothing."""
        self._child.limit(100 if self._does_nothing_else and not share else share, assignment)

    def pause(self) -> None:
        """Compute nothing, and have no process, until ``resume``."""
        self._child.pause()

    def resume(self) -> None:
        """Go on."""
        self._child.resume()

    def committed(self) -> None:
        """The log has a new round."""
        self._child.changed.set()

    async def keep(self) -> None:
        """Audit what waits for it, until the run is over and settled, or what computes cannot any more, which is said."""
        try:
            while not self.is_broken and not self._is_over:
                self._child.changed.clear()
                if not self._child.may_work:
                    await self._child.release()
                    await self._child.changed.wait()
                    continue
                round_ = self._host.newest_round
                has_done = await self.do_one(await self.assignments())
                if self._host.newest_round == round_ and not has_done and not self._is_over:
                    await wait_within(self._child.changed, AGAIN_S)
        finally:
            await self._child.release()

    async def assignments(self) -> tuple[Assignment, ...]:
        """Return what waits, as the log says; nothing, where it cannot be asked."""
        try:
            asked = pack(AskAssignments(self._host.newest_round))
            answer = await self._line.call(ASSIGNMENTS, asked, timeout_s=timeouts.CALL_S, large_answer=True)
            told = unpack(Assignments, answer, max_bytes=MAX_ASSIGNMENTS_BYTES)
            await self._tidy(told)
        except MantaError as error:
            logger.info("not told what to audit reason=%s", error)
            now_s = asyncio.get_running_loop().time()
            self._unheard_s = now_s if self._unheard_s is None else self._unheard_s
            self._is_over = self._host.is_finished and now_s - self._unheard_s >= LAST_S
            return ()
        self._unheard_s, self._is_over = None, self._host.is_finished and not told.audited
        if self._may_audit != bool(told.may_audit):
            self._may_audit = bool(told.may_audit)
            why = "this key is proven by now" if told.may_audit else "this key is none of the run's auditors, and not proven"
            self._live_status.say(f"audits {'from now on' if told.may_audit else 'nothing yet'}: {why}")
        return told.assignments

    async def _tidy(self, told: Assignments) -> None:
        """Forget what is paid, and remove what was fetched of what waits no more.

        Raises:
            StorageError: the disk refuses.
        """
        newest = self._host.newest_round
        self._open = {digest: one for digest, one in self._open.items() if newest <= one.round + self._rules.pending_rounds}
        waiting = {digest for digest, one in self._open.items() if one.said is None}
        await asyncio.to_thread(self._fetching.keep_only, waiting | {_digest(assignment) for assignment in told.assignments})

    async def do_one(self, assignments: tuple[Assignment, ...]) -> bool:
        """Take over all that can be, and compute the first of the rest; return whether anything was done: more may wait by now."""
        has_done = False
        for assignment in sorted(assignments, key=lambda assignment: not assignment.finding or not self._is_volunteers(assignment)):
            digest = _digest(assignment)
            one = self._open.setdefault(digest, _Open(assignment.round))
            if self._is_given_up(one) or self._is_left(assignment) or self._comes_still(assignment):
                continue
            if not self._child.may_work:
                return False
            try:
                is_new = one.said is None
                has_computed = await self._do(assignment, one)
                has_done |= is_new and one.said is not None
                if has_computed:
                    break
            except ChildLost as error:
                await self._ended(one, str(error))
                return False
            except UserError as error:
                self._live_status.say(f"audits no more: {error}")
                self._deaths = _DEATHS
                return False
            except MantaError as error:  # it is told again what waits
                self._give_up(one, str(error))
        return has_done

    def _is_left(self, assignment: Assignment) -> bool:
        """Return whether a contribution is left to a volunteer that has not found anything yet: also what is computed again, after that.

        Else who finds all good without a look would never be found out.
        """
        return bool(assignment.volunteer) and not assignment.finding and assignment.volunteer[0] not in self._volunteers.distrusted

    def _comes_still(self, assignment: Assignment) -> bool:
        """Return whether a contribution is still brought to a lone operator: once all of it is there it may be left to a volunteer."""
        return self._line.operators.is_alone and not assignment.is_here and not assignment.is_late

    def _is_volunteers(self, assignment: Assignment) -> bool:
        """Return whether a volunteer is believed what it finds of a contribution; nobody else can know it."""
        return bool(assignment.volunteer) and self._volunteers.are_believed(_digest(assignment), assignment.volunteer[0])

    async def _do(self, assignment: Assignment, one: _Open) -> bool:
        """Judge a contribution and say so; return whether it was computed for that.

        Raises:
            ChildLost, UserError: what computes has ended.
            MantaError: it cannot be judged now, or the log does not take the word.
        """
        has_computed = False
        if one.said is None:
            one.said = self._taken_over(assignment)
        if one.said is None:
            one.said, has_computed = await self._judged(assignment, one), True
        if one.said is None:
            return False
        self._live_status.write()
        method = VERDICT if is_signed(one.said, Verdict) else FINDING
        await self._line.call(method, pack(one.said), timeout_s=timeouts.CALL_S)
        return has_computed

    def _taken_over(self, assignment: Assignment) -> Signed[Verdict] | None:
        """Return a verdict by a volunteer's finding that all is good; None: there is none, or it is not taken over."""
        if not self._is_named or not assignment.finding or not self._is_volunteers(assignment):
            return None
        finding = assignment.finding[0].open()
        expected = (self._run, _digest(assignment), assignment.round, len(assignment.header.claims), assignment.volunteer[0])
        if (finding.run, finding.contribution, finding.round, len(finding.outcomes), finding.by) != expected or any(finding.outcomes):
            return None
        self._live_status.add(audits_taken_over=1)
        return self._verdict(assignment, finding.outcomes, finding.by)

    async def _judged(self, assignment: Assignment, one: _Open) -> Signed[Verdict] | Signed[Finding] | None:
        found = await self._child.work(self._computed(assignment, one))
        if found is None:
            return None
        self._live_status.add(audits=1, audits_against=int(any(found.outcomes)))
        if any(found.outcomes):
            founder = peer_name(assignment.header.contribution.open().founder)
            self._live_status.say(f"audit: a contribution of {founder}, round {assignment.round}: {found.reason}")
            if assignment.finding and not any(assignment.finding[0].open().outcomes):
                await asyncio.to_thread(self._volunteers.distrust, assignment.volunteer[0])
        if self._is_named:
            return self._verdict(assignment, found.outcomes, self._identity.public_key)
        finding = Finding(self._run, self._identity.public_key, assignment.round, _digest(assignment), found.outcomes)
        return Signed.sign(finding, self._identity)

    def _verdict(self, assignment: Assignment, outcomes: tuple[int, ...], by: bytes) -> Signed[Verdict]:
        verdict = Verdict(self._run, self._identity.public_key, assignment.round, _digest(assignment), outcomes, by)
        return Signed.sign(verdict, self._identity)

    # What it takes.

    async def _computed(self, assignment: Assignment, one: _Open) -> AuditAnswer:
        """Return what is found of each claim of a contribution, and why.

        Raises:
            NotNow: it cannot be judged, by nobody's fault, or not yet.
            ChildLost, UserError: what computes has ended.
            MantaError: something that it takes is not to be had now.
        """
        contribution = assignment.header.contribution.open()
        claims = tuple(signed.open() for signed in assignment.header.claims)
        if contribution.claims != tuple(signed.digest for signed in assignment.header.claims):
            raise EncodingError("other claims than the contribution lists")
        body = await self._host.body(contribution.body)
        while True:
            needed = sorted(one.needed.union(each.step for each in assignment.needed))
            for step in needed:
                await self._fetching.need(_digest(assignment), step)
            vectors = vectors_of(contribution, claims, tuple(needed))
            lacking = await self._fetching.fetch(assignment, claims, vectors)
            over = self._over(assignment, needed, contribution, claims, lacking)
            if lacking:
                await self._fetching.check(assignment, vectors)
            ask = AskAudit(assignment.round, assignment.header, body, assignment.min_exponent, assignment.left, over)
            found = await self._answered(assignment, ask, needs_weights=not set(lacking) & set(vectors_of(contribution, claims)))
            if found.said == AuditAnswerKind.DONE or (found.said == AuditAnswerKind.LACKS and lacking):
                return found
            if found.said != AuditAnswerKind.NEEDS or found.step in needed:
                raise NotNow(f"it cannot be judged: {found.reason or 'what was fetched of it cannot be read any more'}")
            if not self._is_named:
                raise NotNow("a step does not fit, which is a named auditor's to look at")
            one.needed.add(found.step)

    def _over(
        self,
        assignment: Assignment,
        needed: Sequence[int],
        contribution: Contribution,
        claims: tuple[Claim, ...],
        lacking: tuple[bytes, ...],
    ) -> tuple[int, ...]:
        """Return the steps whose own vectors lack, and were to be brought by now; nobody waits for anything that lacks any more.

        Raises:
            NotNow: somebody does, or it is nobody's fault that it lacks.
        """
        if not lacking:
            return ()
        if assignment.lacks_room:
            raise NotNow("the log had no room for what was to be brought")
        if not assignment.is_late or not self._is_named:
            raise NotNow("not all of it was brought yet")
        if self._host.newest_round + 1 >= assignment.round + self._rules.pending_rounds:
            raise NotNow("it is paid before the next round has a verdict: operators keep what was brought until then")
        known = set(vectors_of(contribution, claims))
        since = {each.step: each.round for each in assignment.needed}
        over = tuple(step for step in needed if set(vectors_of(contribution, claims, (step,))) & set(lacking) - known)
        for step in over:  # peers keep what is asked for until then
            if step not in since or since[step] + LEAST_ROUNDS > assignment.round + self._rules.kept_rounds:
                raise NotNow(f"there was no time to bring own vectors of step {step}")
        return over

    async def _answered(self, assignment: Assignment, ask: AskAudit, *, needs_weights: bool) -> AuditAnswer:
        computing = await self._child.process()
        if needs_weights and assignment.state != self._child.loaded:
            weights, teacher = await self._host.parameters(assignment.state)
            await computing.load(weights, teacher)
            self._child.loaded = assignment.state
        self._began_s = asyncio.get_running_loop().time()
        found = await computing.answer(ask)
        while found.said == AuditAnswerKind.WORKING:
            await self._rest(found.cpu_ms / 1000)
            found = await computing.go_on()
        self._deaths = 0
        await self._rest(found.cpu_ms / 1000)
        return found

    async def _start(self) -> Computing:
        self._live_status.say(f"computes contributions of others again for the run, for {self.share}% of the time at most")
        return await self._host.start()

    async def _rest(self, cpu_s: float) -> None:
        """A microbatch took so long: rest until the share is kept."""
        self._cpu_s += cpu_s
        self._live_status.update(audits_cpu_s=round(self._cpu_s))
        await self._child.rest(self._began_s, cpu_s)
        self._began_s = asyncio.get_running_loop().time()

    # What comes to nothing.

    def _is_given_up(self, one: _Open) -> bool:
        """Return whether a contribution could not be judged in this round, a moment ago."""
        now_s = asyncio.get_running_loop().time()
        return one.given_up is not None and one.given_up[0] == self._host.newest_round and now_s < one.given_up[1]

    def _give_up(self, one: _Open, reason: str) -> None:
        one.given_up = self._host.newest_round, asyncio.get_running_loop().time() + AGAIN_S
        logger.info("not judged now round=%d reason=%s", one.round, reason)

    async def _ended(self, one: _Open, reason: str) -> None:
        """Give a contribution up at which what computes has ended; audit no more where that happens again and again."""
        await self._child.release()
        self._give_up(one, reason)
        self._deaths += 1
        if self._deaths >= _DEATHS:
            self._live_status.say("audits no more: the process that computes has ended again and again")


def _digest(assignment: Assignment) -> bytes:
    return bytes(assignment.header.contribution.digest)
