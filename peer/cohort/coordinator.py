"""The founder's side of adding the vectors of a roster: who owns which part, whether all of it came, whose sums count.

First whoever has direct links to everybody owns a part. An owner that is gone, late, or tells of other bytes than were announced, is no
owner for some rounds, and the founder adds everything itself, once more. So nobody's word but the founder's decides who counts.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manta_swarm.codec.residuals import DIGEST_BYTES
from manta_swarm.network import timeouts
from manta_swarm.peer.cohort.all_reduce import AllReduce, Lacking, Vector, is_same, squared_norms
from manta_swarm.peer.cohort.cohort_session import CohortContext
from manta_swarm.peer.cohort.messages import (
    ADD,
    MAX_ATTEMPTS,
    MAX_PART_REPORTS_BYTES,
    NORM_BYTES,
    PLAN,
    Add,
    AddAnswer,
    PartReport,
    Plan,
    PlanAnswer,
    VectorSummary,
)
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import MantaError, RemoteFault, Unreachable
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.tasks import off_loop

LATE, NO_VECTOR, BAD_VECTOR = "too late", "its vector cannot be had", "its vector is another one than it said"
_SHARED_PARTS = 4  # of 2^16 values; a vector of fewer parts, 768 KiB at most, the founder adds by itself
_TOLERANCE = 1e-3  # of a mean's norm

logger = logging.getLogger("manta.cohort")


@dataclass(frozen=True, slots=True)
class Reduced:
    """The mean of what some members gave, and how the others know it."""

    mean: Vector  # (N,)
    digests: bytes  # of its parts
    turn: int


class NoMean(ValueError):
    """The vectors are finite, and their mean is not."""


class Coordinator:
    """Lets the owners add the members' vectors once: those of a local step, or those that are given at the end."""

    def __init__(self, context: CohortContext, base: CommitRef, step: int, reducing: AllReduce) -> None:
        """Prepare.

        Args:
            context: what this peer's cohort sessions share.
            base: of the work.
            step: H for the end.
            reducing: this peer's side of it as one of the members.
        """
        self._context = context
        self._key = context.links.key
        self._base = base
        self._step = step
        self._is_audited = context.manifest.is_audited
        self._reducing = reducing
        self._plan: Plan | None = None  # by which all parts came
        self._said: Mapping[PublicKey, VectorSummary] = {}
        self._turn = 0
        self.refused: dict[PublicKey, str] = {}  # who did not bring what it said, and why

    async def gather(self, said: Mapping[PublicKey, VectorSummary], timeout_ms: float) -> tuple[PublicKey, ...]:
        """Let the members send each owner its part; return those whose vectors are there, as they said. The others are in ``refused``.

        Args:
            said: what each member, and this peer, says of its vector.
            timeout_ms: how long owners wait for what the others send.
        """
        self._said = said
        members = tuple(sorted(said))
        owners = self._owners(members)
        for attempt in range(MAX_ATTEMPTS):
            plan = self._plan = Plan(self._base.commit, self._step, attempt, round(timeout_ms), owners, members)
            poor_owners = await self._carry_out(plan)
            members = tuple(key for key in members if key not in self.refused)
            if poor_owners is None:
                return members
            self._blame(poor_owners)
            owners = (self._key,)
        return members

    async def add(self, keys: Sequence[PublicKey], weights: Sequence[int], readers: Sequence[PublicKey], timeout_ms: float) -> Reduced:
        """Return the mean of what these members gave, which the owners send to ``readers``, and to this peer.

        Raises:
            NoMean: it is not finite.
            Unreachable: an owner is gone, and its parts with it.
        """
        assert self._plan is not None
        made = await self._add_by(self._plan, keys, weights, readers, timeout_ms)
        if isinstance(made, Reduced):
            return made
        self._blame(made)
        if self._plan.attempt + 1 < MAX_ATTEMPTS:
            again = Plan(self._base.commit, self._step, self._plan.attempt + 1, round(timeout_ms), (self._key,), tuple(keys))
            self._plan = again
            if await self._carry_out(again) is None and not self.refused.keys() & set(keys):
                made = await self._add_by(again, keys, weights, readers, timeout_ms)
                if isinstance(made, Reduced):
                    return made
        raise Unreachable("parts of the members' vectors are gone with who had them")

    def _owners(self, members: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
        """Return who adds a part each: this peer, and whoever has direct links to all."""
        parts = self._reducing.num_parts
        if parts < _SHARED_PARTS or not self._context.may_share:
            return (self._key,)
        poor_owners, round_ = self._context.poor_owners, self._base.round + 1
        linked = {key: {*self._said[key].linked, key} for key in members if key != self._key and not poor_owners.covers(key, round_)}
        able = [key for key, others in linked.items() if others >= set(members)]
        return tuple(sorted([self._key, *able[: parts - 1]]))

    def _blame(self, poor_owners: set[PublicKey]) -> None:
        for key in poor_owners:
            logger.info("poor owner round=%d peer=%s", self._base.round + 1, key.hex()[:8])
            self._context.poor_owners.note(key, self._base.round + 1)

    # Gathering.

    async def _carry_out(self, plan: Plan) -> set[PublicKey] | None:
        """Carry a plan out. Return None if all is there but what is ``refused``; else which owners are to blame that it is not."""
        loop, is_shared = asyncio.get_running_loop(), len(plan.owners) > 1
        budget_s = plan.left_ms / 1000
        until_s = loop.time() + budget_s
        following = loop.create_task(self._reducing.follow(plan))
        told = {PublicKey(key): loop.create_task(self._tell(key, PLAN, plan, budget_s)) for key in plan.members if key != self._key}
        gone: set[PublicKey] = set()  # who hung up, or takes no part any more
        failed: set[PublicKey] = set()
        pending: set[asyncio.Task[Any]] = {following, *told.values()}
        try:
            while pending and not (gone and is_shared):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for key, telling in told.items():
                    if key not in failed and telling.done() and telling.exception() is not None:
                        failed.add(key)
                        if loop.time() < until_s:
                            gone.add(key)
                            self._reducing.lack(key)  # not waited for any more
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        if gone and is_shared:
            self._refuse(gone, NO_VECTOR)
            return gone & set(map(PublicKey, plan.owners))
        answers = {key: task.result() for key, task in told.items() if key not in failed}
        return self._check(plan, following.result(), answers)

    async def _tell(self, key: bytes, method: str, message: Plan | Add, budget_s: float) -> bytes:
        timeout_s = budget_s + timeouts.NEAR_S
        return await self._context.links.call(PublicKey(key), method, pack(message), timeout_s=timeout_s, largest=MAX_PART_REPORTS_BYTES)

    def _check(self, plan: Plan, own: Sequence[PartReport], answers: Mapping[PublicKey, bytes]) -> set[PublicKey] | None:
        """Compare what the owners got with what the members said; as ``_carry_out``."""
        here = {report.key: report for report in own}
        first = self._reducing.owned(plan, self._key).start
        for key in map(PublicKey, plan.members):
            if key == self._key:
                continue
            if key not in here:
                self._refuse({key}, NO_VECTOR)
            elif not is_same(here[key], self._said[key], first, is_audited=self._is_audited):
                self._refuse({key}, BAD_VECTOR)
        poor_owners: set[PublicKey] = set()
        for owner in map(PublicKey, plan.owners):
            if owner != self._key and owner not in self.refused and not self._is_complete(plan, owner, answers.get(owner)):
                poor_owners.add(owner)
        return poor_owners or None if not self.refused.keys() & set(plan.owners) else poor_owners

    def _is_complete(self, plan: Plan, owner: PublicKey, answer: bytes | None) -> bool:
        if answer is None:
            return False
        try:
            reports = {report.key: report for report in unpack(PlanAnswer, answer, max_bytes=MAX_PART_REPORTS_BYTES).reports}
        except RemoteFault:
            return False
        parts = self._reducing.owned(plan, owner)
        for key in map(PublicKey, plan.members):
            if key == owner or key in self.refused:
                continue
            report = reports.get(key)
            size = (parts.stop - parts.start) * NORM_BYTES
            if report is None or len(report.norms) != size:
                return False
            if not is_same(report, self._said[key], parts.start, is_audited=self._is_audited):
                return False
        return True

    def _refuse(self, keys: set[PublicKey], reason: str) -> None:
        for key in keys:
            self.refused.setdefault(key, reason)

    # Adding.

    async def _add_by(
        self, plan: Plan, keys: Sequence[PublicKey], weights: Sequence[int], readers: Sequence[PublicKey], timeout_ms: float
    ) -> Reduced | set[PublicKey]:
        """Return the mean, or the owners that are to blame that there is none."""
        self._turn += 1
        readers = tuple(sorted({*readers, self._key}))
        add = Add(self._base.commit, self._step, plan.attempt, self._turn, tuple(keys), tuple(weights), readers)
        owners = [PublicKey(key) for key in plan.owners]
        adding = [self._reducing.add(add) if key == self._key else self._added_by(key, add, timeout_ms / 1000) for key in owners]
        found = dict(zip(owners, await asyncio.gather(*adding, return_exceptions=True), strict=True))
        poor_owners = set[PublicKey]()
        digests: dict[PublicKey, bytes] = {}
        for key, answer in found.items():
            parts = self._reducing.owned(plan, key)
            if isinstance(answer, bytes) and len(answer) in (0, (parts.stop - parts.start) * DIGEST_BYTES):
                digests[key] = answer
            elif isinstance(answer, bytes | MantaError) and key != self._key:
                poor_owners.add(key)
            elif isinstance(answer, BaseException):
                raise answer
        if poor_owners:
            return poor_owners
        if not all(digests.values()):
            raise NoMean("the mean of finite vectors is not finite")
        named = b"".join(digests[key] for key in owners)
        try:
            mean = await self._reducing.mean(self._turn, named, timeout_ms / 1000 + timeouts.NEAR_S)
        except Lacking as error:
            return {key for key in owners if any(part in range(*self._reducing.owned(plan, key).indices(2**31)) for part in error.parts)}
        large = await off_loop(mean.size, lambda: self._too_large(plan, keys, mean))
        return large or Reduced(mean, named, self._turn)

    async def _added_by(self, key: PublicKey, add: Add, budget_s: float) -> bytes:
        return unpack(AddAnswer, await self._tell(key, ADD, add, budget_s), max_bytes=MAX_PART_REPORTS_BYTES).digests

    def _too_large(self, plan: Plan, keys: Sequence[PublicKey], mean: Vector) -> set[PublicKey]:
        """Return the owners whose part of the mean is longer than every member's: no mean is."""
        norms = np.frombuffer(squared_norms(mean), "<f8")
        said = np.stack([np.frombuffer(self._said[key].norms, "<f8") for key in keys])
        assert said.shape[1] * NORM_BYTES == norms.nbytes
        found = set[PublicKey]()
        for owner in map(PublicKey, plan.owners):
            parts = self._reducing.owned(plan, owner)
            longest = float(said[:, parts].sum(axis=1).max())
            if owner != self._key and not float(norms[parts].sum()) <= longest * (1 + _TOLERANCE) ** 2:
                found.add(owner)
        return found
