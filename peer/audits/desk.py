"""Audits others' lots for the run, in what the person's limits leave (docs/protocol.md, section 27).

After each commit it asks the log what waits for its answer, holds that to what it knows itself of the commits, gets the records and the
weights, those before a later local step from whoever has them, and has a process of low priority compute the lot again. What it found is
signed, and handed in until the log has it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from peer.aside.aside import AsideLost
from peer.aside.turns import Turns
from peer.audits.messages import Ask, Found
from peer.status import StatusBoard
from protocol.audits import DIFFERS, HOLDS, Finding, SignedFinding
from protocol.duties import ASK, MAX_DUTIES_BYTES, AskDuties, Duties, Duty, check_duty
from protocol.encoding import pack, unpack
from protocol.errors import EncodingError, MantaError, RemoteFault, UserError, Weather
from protocol.evidence import Records, evidence_of, records_of
from protocol.manifest import Manifest
from protocol.receipts import ProvenRound
from protocol.records import Claim, SignedClaim, entry_of
from protocol.signing import Identity, PublicKey, peer_name
from swarm import waits
from swarm.operator_line import OperatorLine
from swarm.records import fetch_records
from swarm.rpc import Endpoint, Refused
from swarm.tasks import within
from swarm.vectors import VectorsFolder, fetch_vector

AGAIN_S = 10.0  # until the log is asked again: others may have been asked about something since
_DEATHS = 3  # in a row, until nothing is audited any more

logger = logging.getLogger("manta.audits")


class Audits(Protocol):
    """What computes (``peer.audits.auditor.Auditor``)."""

    def load(self, weights: Tensor, teacher: Tensor | None) -> None:
        """Compute on these from now on."""

    async def answer(self, ask: Ask) -> Found:
        """Return what comes of a lot."""

    async def close(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What this peer knows of the run by itself."""

    round: Callable[[], int]  # the newest commit
    commit: Callable[[int], ProvenRound | None]  # one of the newest, by its round
    weights: Callable[[bytes], Awaitable[tuple[Tensor, Tensor | None]]]  # of a committed state, and of its teacher


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
    ) -> None:
        """Audit nothing yet.

        Args:
            endpoint: asks whoever made a claim for its records.
            line: to the log.
            identity: signs what is found.
            manifest: the run's.
            run: its id.
            known: what this peer knows of the run.
            start: starts what computes.
            board: shows what was done.
            fetched: for vectors of others, as long as they are needed.
        """
        self._fetched = fetched
        self._endpoint = endpoint
        self._line = line
        self._identity = identity
        self._manifest = manifest
        self._run = run
        self._known = known
        self._start = start
        self._board = board
        self._turns = Turns()
        self._auditor: Audits | None = None
        self._loaded: tuple[bytes, bytes] | None = None  # digests of the state that it has, and of the weights before a later step, if any
        self._found: dict[tuple[bytes, int], SignedFinding] = {}  # by claim and lot: until the log asks no more
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
                await self._do_all(await self._duties())
                if self._known.round() == round_:  # else a round was committed while it worked: who asks in each of them is counted on
                    await within(self._turns.changed, AGAIN_S)
        finally:
            await self._release()

    async def _duties(self) -> tuple[Duty, ...]:
        """Return what waits, as the log says; nothing, where it cannot be asked."""
        try:
            asked = pack(AskDuties(self._known.round()))
            answer = await self._line.call(ASK, asked, timeout_s=waits.CALL_S, large_answer=True)
            duties = unpack(Duties, answer, max_bytes=MAX_DUTIES_BYTES).duties
        except (Weather, RemoteFault) as error:
            logger.info("not told what to audit reason=%s", error)
            return ()
        waiting = {(bytes(duty.claim.digest), duty.lot) for duty in duties}
        self._found = {which: found for which, found in self._found.items() if which in waiting}
        return duties

    async def _do_all(self, duties: tuple[Duty, ...]) -> None:
        for duty in duties:
            if not self._turns.may_work:
                return
            which = bytes(duty.claim.digest), duty.lot
            try:
                if which not in self._found:
                    signed = await self._audited(duty)
                    if signed is None:
                        return
                    self._found[which] = signed
                    self._count(signed)
                await self._line.call("extra", entry_of(self._found[which]), timeout_s=waits.CALL_S)
            except AsideLost as error:
                logger.warning("nothing audited reason=%s", error)
                await self._release()
                self._deaths += 1
                if self._deaths >= _DEATHS:
                    self._board.say("audits no more: what computes has ended again and again")
                return
            except UserError as error:
                self._board.say(f"audits no more: {error}")
                self._deaths = _DEATHS
                return
            except MantaError as error:  # it is told again what waits
                logger.info("not audited, or not handed in reason=%s", error)

    async def _audited(self, duty: Duty) -> SignedFinding | None:
        """Return what is found of a claim; None: nothing is to be computed any more.

        Raises:
            Unreachable: its records, or its weights, are not to be had now.
            RemoteFault: the log, or its key, says what cannot be.
            AsideLost, UserError: what computes has ended.
        """
        claim = duty.claim.open()
        state = self._checked(duty, claim)
        records = await self._records(duty.claim, claim)
        before = _weights_before(records, duty.lot)
        if (state, before) != self._loaded:
            weights, teacher = await self._known.weights(state)
            if before:
                weights = await self._vector(duty.claim, claim, before, weights.numel())
            if self._auditor is None:
                self._auditor = await self._start()
            self._auditor.load(weights, teacher)
            self._loaded = state, before
        assert self._auditor is not None
        began_s = asyncio.get_running_loop().time()
        working = await self._turns.work(self._auditor.answer(Ask(duty.claim, records.lots, duty.lot)))
        if working.cancelled():
            await self._release()
            return None
        found = working.result()
        self._deaths = 0
        finding = Finding(
            run=self._run,
            auditor=self._identity.public_key,
            claim=duty.claim.digest,
            round=duty.round,
            row=duty.row,
            check=duty.check,
            lot=duty.lot,
            outcome=HOLDS if found.holds else DIFFERS,
            projection=found.projection,
            evidence=(evidence_of(records, duty.lot),),
        )
        if not found.holds:
            self._board.say(f"audit: a claim of {peer_name(claim.key)} in round {duty.round} differs ({found.reason})")
        await self._turns.rest(began_s, found.cpu_ms / 1000)
        return SignedFinding.sign(finding, self._identity)

    def _checked(self, duty: Duty, claim: Claim) -> bytes:
        """Return the digest of the state that a claim's lots were trained on, by what this peer knows itself.

        Raises:
            RemoteFault: it is no question that the beacon asks.
        """
        after = self._known.commit(duty.round + 1)
        base, state = self._run, self._manifest.initial_state
        if claim.round > 1:
            before = self._known.commit(claim.round - 1)
            if before is None:
                raise EncodingError("a question about a base that is not known here")
            base, state = before.commit, before.round.state
        if after is None:
            raise EncodingError("a question whose beacon is not known here")
        check_duty(duty, claim, self._manifest.trust, run=self._run, base=base, beacon=after.commit)
        return state

    async def _records(self, signed: SignedClaim, claim: Claim) -> Records:
        """Return a claim's records, got from the log or from whoever made it."""
        try:
            return records_of(await fetch_records(self._endpoint, self._line.operator, signed), claim)
        except (Weather, Refused) as error:
            logger.info("no records at the log reason=%s", error)
        return records_of(await fetch_records(self._endpoint, PublicKey(claim.key), signed), claim)

    async def _vector(self, signed: SignedClaim, claim: Claim, digest: bytes, num_values: int) -> Tensor:
        """Return a vector of a claim, got from whoever made it, from its founder, or from the log.

        Raises:
            Unreachable, RemoteFault: none of them hands it out.
            StorageError: the disk refuses.
        """
        *others, last = dict.fromkeys((PublicKey(claim.key), PublicKey(claim.founder), self._line.operator))
        try:
            for key in others:
                try:
                    return await self._vector_of(key, signed, digest, num_values)
                except (Weather, RemoteFault) as error:
                    logger.info("no vector from peer=%s reason=%s", peer_name(key)[-8:], error)
            return await self._vector_of(last, signed, digest, num_values)
        finally:
            await asyncio.to_thread(self._fetched.keep_only, signed.digest, ())

    async def _vector_of(self, key: PublicKey, signed: SignedClaim, digest: bytes, num_values: int) -> Tensor:
        await fetch_vector(self._endpoint, key, signed, digest, num_values, self._fetched)
        values = await asyncio.to_thread(self._fetched.read, signed.digest, digest)
        if values is None:
            raise EncodingError("a vector that is gone from this disk")
        return torch.from_numpy(values)

    def _count(self, signed: SignedFinding) -> None:
        status = self._board.status
        self._board.update(audits=status.audits + 1, audits_against=status.audits_against + (signed.open().outcome == DIFFERS))

    async def _release(self) -> None:
        auditor, self._auditor, self._loaded = self._auditor, None, None
        if auditor is not None:
            await auditor.close()


def _weights_before(records: Records, lot: int) -> bytes:
    """Return the digest of the weights that a lot was trained on, where these are not the base's; else nothing."""
    step = records.lots[lot].step
    return records.steps[step].state if 0 < step < len(records.steps) else b""  # another step is none, and refused where it is computed
