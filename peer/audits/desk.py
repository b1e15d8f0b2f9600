"""Audits others' lots for the run, and now and then whole claims, in what the person's limits leave (docs/protocol.md, section 27).

After each commit it asks the log what waits for its answer, holds that to what it knows itself of the commits, gets what it takes
(``peer.audits.needs``), and has a process of low priority compute it again. What it found is signed, and handed in until the log has it.

What is cheap comes first: a whole claim is taken up when no single lot waits. What would not be over, or is not, while findings on its
table are taken, is left: nobody is accused of that, and the log's operator looks at it itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from torch import Tensor

from peer.aside.aside import AsideLost
from peer.aside.turns import Turns
from peer.audits.auditor import Rest
from peer.audits.messages import MISSED, Ask, Found
from peer.audits.needs import Base, Known, Needs, Question
from peer.status import StatusBoard
from protocol.audits import DIFFERS, LOT, WHOLE, Finding, SignedFinding
from protocol.duties import ASK, MAX_DUTIES_BYTES, AskDuties, Duties, Duty
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, UserError
from protocol.evidence import evidence_of
from protocol.manifest import Manifest
from protocol.records import Claim, entry_of
from protocol.signing import Identity, peer_name
from swarm import waits
from swarm.operator_line import OperatorLine
from swarm.rpc import Endpoint
from swarm.tasks import within
from swarm.vectors import VectorsFolder

AGAIN_S = 10.0  # until the log is asked again: others may have been asked about something since
_DEATHS = 3  # in a row, until nothing is audited any more

Which = tuple[bytes, str, int]  # a question: claim, check and lot

logger = logging.getLogger("manta.audits")


class Audits(Protocol):
    """What computes (``peer.audits.auditor.Auditor``)."""

    def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """Compute on these from now on."""

    async def answer(self, ask: Ask, rest: Rest) -> Found:
        """Return what comes of a question; ``rest`` after each of several lots."""

    async def close(self) -> None:
        """End it."""


class AuditDesk:
    """One peer's audits."""

    def __init__(
        self,
        endpoint: Endpoint,
        line: OperatorLine,
        identity: Identity,
        manifest: Manifest,
        run: bytes,
        known: Known,
        start: Callable[[], Awaitable[Audits]],
        board: StatusBoard,
        fetched: VectorsFolder,
        num_weights: int,
    ) -> None:
        """Audit nothing yet.

        Args:
            endpoint: asks whoever made a claim for what it has to show.
            line: to the log.
            identity: signs what is found.
            manifest: the run's.
            run: its id.
            known: what this peer knows of the run.
            start: starts what computes.
            board: shows what was done.
            fetched: for vectors of others, as long as they are needed.
            num_weights: N.
        """
        self._line = line
        self._identity = identity
        self._run = run
        self._known = known
        self._start = start
        self._board = board
        self._kept_rounds = manifest.trust.kept_rounds
        self._needs = Needs(endpoint, line, manifest, run, known, fetched, num_weights)
        self._turns = Turns()
        self._auditor: Audits | None = None
        self._loaded: tuple[bytes, bytes] | None = None  # digests of the state that it has, and of the weights before a later step, if any
        self._found: dict[Which, SignedFinding] = {}  # until the log asks no more
        self._tried: dict[Which, int] = {}  # whole claims that came to nothing, with the newest round then: not twice in one
        self._left: dict[Which, int] = {}  # whole claims that take too long, with the round of their table
        self._cpu_s, self._lots = 0.0, 0  # that lots took so far, and how many there were
        self._began_s = 0.0  # of what is being computed, by the loop's clock
        self._deaths = 0

    def limit(self, share: int, duty: int) -> None:
        """Work at most so many hundredths of the time, and no more than lots may; with 0 audit nothing."""
        self._turns.limit(share, duty)

    def pause(self) -> None:
        """Compute nothing, and have no process, until ``resume``."""
        self._turns.pause()

    def resume(self) -> None:
        """Go on."""
        self._turns.resume()

    def committed(self) -> None:
        """The log has a new round."""
        self._turns.changed.set()

    async def keep(self) -> None:
        """Audit what waits for it, until this is cancelled."""
        try:
            while self._deaths < _DEATHS:
                self._turns.changed.clear()
                if not self._turns.may_work:
                    await self._release()
                    await self._turns.changed.wait()
                    continue
                round_ = self._known.round()
                took_long = await self._do_all(await self._duties())
                # Else a round was committed while it worked: who asks in each of them is counted on.
                if self._known.round() == round_ and not took_long:
                    await within(self._turns.changed, AGAIN_S)
        finally:
            await self._release()

    async def _duties(self) -> tuple[Duty, ...]:
        """Return what waits, as the log says, what is cheap first; nothing, where the log cannot be asked."""
        try:
            asked = pack(AskDuties(self._known.round()))
            answer = await self._line.call(ASK, asked, timeout_s=waits.CALL_S, large_answer=True)
            duties = unpack(Duties, answer, max_bytes=MAX_DUTIES_BYTES).duties
            await self._needs.drop_all_but({bytes(duty.claim.digest) for duty in duties if duty.check == WHOLE})
        except MantaError as error:
            logger.info("not told what to audit reason=%s", error)
            return ()
        waiting, newest = set(map(_which, duties)), self._known.round()
        self._found = {which: found for which, found in self._found.items() if which in waiting}
        self._tried = {which: tried for which, tried in self._tried.items() if tried == newest}
        self._left = {which: table for which, table in self._left.items() if not self._is_late(table)}
        return tuple(sorted(duties, key=lambda duty: duty.check != LOT))

    async def _do_all(self, duties: tuple[Duty, ...]) -> bool:
        """Do what waits, at most one whole claim of it; return whether that was done: meanwhile there may be something cheaper."""
        for duty in duties:
            which = _which(duty)
            if which in self._left or which in self._tried or self._is_late(duty.round):
                continue
            if not self._turns.may_work:
                return False
            is_new = which not in self._found
            try:
                await self._do(duty, which)
            except AsideLost as error:
                logger.warning("nothing audited reason=%s", error)
                await self._ended(duty)
                return False
            except UserError as error:
                self._board.say(f"audits no more: {error}")
                self._deaths = _DEATHS
                return False
            except MantaError as error:  # it is told again what waits
                logger.info("not audited, or not handed in reason=%s", error)
                if duty.check == WHOLE and which not in self._found:
                    self._tried[which] = self._known.round()
            if duty.check == WHOLE and is_new and which in self._found:
                return True
        return False

    async def _do(self, duty: Duty, which: Which) -> None:
        """Answer a question, and hand the finding in; raises as ``_audited``, or where the log does not take it."""
        if which not in self._found:
            signed = await self._audited(duty)
            if signed is None:
                return
            self._found[which] = signed
            self._count(signed)
        await self._line.call("extra", entry_of(self._found[which]), timeout_s=waits.CALL_S)

    async def _ended(self, duty: Duty) -> None:
        """What computes has ended at a question."""
        await self._release()
        self._leave(duty)
        self._deaths += 1
        if self._deaths >= _DEATHS:
            self._board.say("audits no more: what computes has ended again and again")

    async def _audited(self, duty: Duty) -> SignedFinding | None:
        """Return what is found of a claim; None: nothing is to be computed any more, or not this.

        Raises:
            Unreachable: what it takes is not to be had now.
            RemoteFault: the log, or its key, says what cannot be.
            AsideLost, UserError: what computes has ended.
        """
        claim = duty.claim.open()
        base = self._needs.base_of(duty, claim)
        if duty.check == WHOLE and self._is_too_long(duty, claim):
            self._leave(duty)
            return None
        working = await self._turns.work(self._computed(duty, claim, base), lambda: not self._is_late(duty.round))
        if working.cancelled():
            await self._release()
            if self._is_late(duty.round):
                self._leave(duty)
            return None
        question, found = working.result()
        await self._rest(found.cpu_ms / 1000, lots=int(duty.check == LOT))  # of a whole claim they are counted one by one
        if found.outcome == MISSED:
            raise EncodingError(found.reason)
        finding = Finding(
            run=self._run,
            auditor=self._identity.public_key,
            claim=duty.claim.digest,
            round=duty.round,
            row=duty.row,
            check=duty.check,
            lot=duty.lot,
            outcome=found.outcome,
            projection=found.projection,
            evidence=(evidence_of(question.records, duty.lot),) if duty.check == LOT else (),
        )
        if found.outcome == DIFFERS:
            what = "a claim" if duty.check == LOT else "a whole claim"
            self._board.say(f"audit: {what} of {peer_name(claim.key)} in round {duty.round} differs ({found.reason})")
        return SignedFinding.sign(finding, self._identity)

    async def _computed(self, duty: Duty, claim: Claim, base: Base) -> tuple[Question, Found]:
        """Get what it takes, and compute it."""
        question = await self._needs.question(duty, claim, base)
        loaded = question.state, question.before
        if loaded != self._loaded:
            weights, teacher = await self._known.weights(question.state)
            if question.before:
                weights = await self._needs.weights_before(duty.claim, claim, question.before)
            if self._auditor is None:
                self._auditor = await self._start()
            self._auditor.load(weights, teacher)
            self._loaded = loaded
        assert self._auditor is not None
        self._began_s = asyncio.get_running_loop().time()
        found = await self._auditor.answer(question.ask, self._rest)
        self._deaths = 0
        return question, found

    async def _rest(self, cpu_s: float, lots: int = 1) -> None:
        """So many lots took so long: rest until the share is kept."""
        self._cpu_s += cpu_s
        self._lots += lots
        await self._turns.rest(self._began_s, cpu_s)
        self._began_s = asyncio.get_running_loop().time()

    def _is_late(self, table: int) -> bool:
        """Return whether findings on the table of a round are taken no more."""
        return self._known.round() - table > self._kept_rounds

    def _is_too_long(self, duty: Duty, claim: Claim) -> bool:
        """Return whether all lots of a claim would take longer than findings are taken, as fast as lots were here so far."""
        newest = self._known.commit(self._known.round())
        if newest is None or not self._lots:
            return False
        left_s = (duty.round + self._kept_rounds - newest.round.round) * newest.round.open_ms / 1000
        return claim.lots * self._cpu_s / self._lots / self._turns.share > left_s

    def _leave(self, duty: Duty) -> None:
        """Try a whole claim no more: it would not be over in time, or what computes has ended at it."""
        if duty.check == WHOLE:
            self._left[_which(duty)] = duty.round
            self._board.update(audits_missed=self._board.status.audits_missed + 1)
            logger.info("a whole claim is left round=%d", duty.round)

    def _count(self, signed: SignedFinding) -> None:
        status, finding = self._board.status, signed.open()
        self._board.update(
            audits=status.audits + (finding.check == LOT),
            whole_audits=status.whole_audits + (finding.check == WHOLE),
            audits_against=status.audits_against + (finding.outcome == DIFFERS),
        )

    async def _release(self) -> None:
        auditor, self._auditor, self._loaded = self._auditor, None, None
        if auditor is not None:
            await auditor.close()


def _which(duty: Duty) -> Which:
    return bytes(duty.claim.digest), duty.check, duty.lot
