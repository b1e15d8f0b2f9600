"""The Pareto front of a committed state, measured by the run's members: DIR/snapshots/front.json, beside the snapshots.

A short evolution over loss and MACs, begun with the front of the last time, so that it gets better from round to round. It costs this
computer next to nothing. Nobody waits for it, and nothing depends on it: what goes wrong is logged, and the next time is another try.
"""

import asyncio
import concurrent.futures
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.features.front_file import FILE, FrontPoint, MembersFront, read_front
from manta_swarm.aggregator.intake.waiting import HasLedger
from manta_swarm.automl.data.dataset import SEARCH
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.constraints import Macs, Region
from manta_swarm.automl.search.evaluators import MembersEvaluator
from manta_swarm.automl.search.evolution import Effort, Point, evolve, front
from manta_swarm.automl.spaces.cost import macs
from manta_swarm.automl.spaces.space import Architecture, space_named
from manta_swarm.network.asked_members import AskedMembers
from manta_swarm.network.neighbours import Neighbours
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.errors import MantaError, Unreachable
from manta_swarm.protocol.evaluations import Result
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signing import PublicKey, peer_name
from manta_swarm.runtime.disk import replace_file

_EFFORT = Effort(population=12, generations=4)

logger = logging.getLogger("manta.fronts")


class Fronts(Feature):
    """Has the Pareto fronts of one run measured, one after the other."""

    def __init__(self, endpoint: Endpoint, log: HasLedger, signed: SignedManifest, directory: Path, *, every: int) -> None:
        """Have a run's members asked each time so many rounds of ``log`` are committed, and keep what they say in ``directory``; 0: never.

        Where data are private nobody can be asked.
        """
        manifest, run = signed.open(), signed.run
        self._every = 0 if manifest.is_private else every
        self._log = log
        self._newest = log.ledger.round, log.ledger.state
        self._due = asyncio.Event()
        self._space = space_named(manifest.supernet)
        self._task = manifest.task
        self._run = run
        self._path = directory / FILE
        self._members = AskedMembers(endpoint, run, manifest.data_digest, Neighbours(endpoint, run))

    def on_committed(self, *, is_leader: bool) -> None:
        """See ``Feature``; one of several operators, the one that writes, has a front measured."""
        ledger = self._log.ledger
        is_new = ledger.round > self._newest[0]
        self._newest = ledger.round, ledger.state
        if is_leader and is_new and self._every and ledger.round % self._every == 0:
            self._due.set()

    async def run(self, addresses: Sequence[str]) -> None:
        """Have fronts measured when they are due, the newest state's each time; ends when it is cancelled.

        Raises:
            StorageError: the disk refuses.
        """
        while True:
            await self._due.wait()
            self._due.clear()
            await self.measure(*self._newest)

    async def measure(self, round_: int, state: bytes) -> bool:
        """Have the front of a round's state measured, and write it; return whether that was done.

        Args:
            round_: committed.
            state: its digest, as the commit names it.

        Raises:
            StorageError: the disk refuses.
        """
        members = self._members
        answered_before, asking = Counter(members.answered), _Asking(members, round_, state)
        scorer = _Measuring(MembersEvaluator(asking, self._task))

        start = [self._space.smallest(), self._space.largest(), *await asyncio.to_thread(self._last)]
        axis = Macs(self._space)
        rng = random.Random(f"{self._run.hex()}:front:{round_}")
        try:
            points = await asking.through(
                partial(evolve, Region(self._space), [axis], scorer, _EFFORT, rng, list(dict.fromkeys(start))[: _EFFORT.population])
            )
        except MantaError as error:
            logger.warning("no front round=%d reason=%s", round_, error)
            return False
        finally:
            for line in members.take_lines():
                logger.warning(line)
        best = [point.architecture for point in front(points)]
        num_members = len(members.answered - answered_before)
        value = MembersFront(
            round=round_,
            state=state.hex(),
            measured=len(points),
            members=num_members,
            samples=len(scorer.measured[best[0]].losses),
            not_believed=tuple(peer_name(PublicKey(key)) for key in members.liars),
            front=tuple(self._point(each, scorer.measured[each]) for each in best),
        )
        await asyncio.to_thread(replace_file, self._path, value.model_dump_json(indent=1, exclude_none=True).encode() + b"\n")
        logger.info("front round=%d measured=%d front=%d members=%d", round_, len(points), len(best), num_members)
        return True

    def _point(self, architecture: Architecture, found: Measured) -> FrontPoint:
        cost = {"text": architecture.text, "macs": macs(architecture, self._space)}
        return FrontPoint.model_validate({**found.quality, **cost, "loss": found.loss})

    def _last(self) -> list[Architecture]:
        """Return the front of the last time; none where there is no such file, or it says nothing of this space."""
        try:
            return [Architecture.parse(point.text, self._space) for point in read_front(self._path.parent).front]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            logger.warning("front not read path=%s reason=%s", self._path, error)
            return []


class _Measuring:
    """Scores architectures by the losses that an evaluator measures, and keeps these."""

    def __init__(self, evaluator: MembersEvaluator) -> None:
        self._evaluator = evaluator
        self.measured: dict[Architecture, Measured] = {}

    def scores(self, architectures: Sequence[Architecture]) -> list[float]:
        found = list(self._evaluator.measure(architectures, SEARCH))
        self.measured.update(zip(architectures, found, strict=True))
        return [-each.loss for each in found]


class _Asking:
    """Members asked from the thread of a search, which ends with the task that waits for it."""

    def __init__(self, members: AskedMembers, round_: int, state: bytes) -> None:
        self._members = members
        self._round = round_
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._answer: concurrent.futures.Future[list[Result]] | None = None
        self._is_over = threading.Event()

    def ask(self, architectures: Sequence[str], part: str) -> Sequence[Result]:
        """Return what members say; only in the thread of ``through``.

        Raises:
            MantaError: they cannot be asked, any more or at all.
        """
        self._answer = asyncio.run_coroutine_threadsafe(self._members.measure(self._round, self._state, architectures, part), self._loop)
        if self._is_over.is_set():
            self._answer.cancel()
        try:
            return self._answer.result()
        except concurrent.futures.CancelledError as error:
            raise Unreachable("nobody waits for it any more") from error

    async def through(self, search: Callable[[], list[Point]]) -> list[Point]:
        """Return what a search comes to that asks; where this is cancelled the search has ended when it returns."""
        searching = asyncio.create_task(asyncio.to_thread(search))
        try:
            return await asyncio.shield(searching)
        finally:
            self._is_over.set()
            if self._answer is not None:
                self._answer.cancel()
            await asyncio.gather(searching, return_exceptions=True)
