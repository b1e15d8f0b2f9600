"""Fetches, checks and serves the run's states, and brings a peer that was away to the newest one.

It fetches whatever is fewest bytes, and compares the state that this leads to with the digest in the log before it holds it. The teacher,
an earlier state that later rounds learn from too, is named by digest in every state that needs it: whoever holds a state can tell whether
it was given the right one.
"""

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manta_swarm.automl.training.update import State, next_state, state_from_pieces, state_piece_sizes, state_pieces, teacher_digest
from manta_swarm.codec.coding import Body, body_num_bytes, group_sizes, parse
from manta_swarm.codec.mean import mean_of
from manta_swarm.codec.vectors import joined, vector_group_sizes
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.sync.spot_checker import SpotChecker
from manta_swarm.peer.sync.spread import BlobDistribution
from manta_swarm.protocol.errors import EncodingError, MantaError, Unreachable
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.rounds import CommitRef
from manta_swarm.protocol.table import Weighed
from manta_swarm.runtime.tasks import together, unless_set, wait_within

_WEIGHED_BYTES = 128  # of what a contribution weighs as it travels, about
_BODIES_AT_ONCE = 4

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to get a committed state, and about how many bytes it takes to fetch."""

    name: str  # "bodies" | "mean" | "state"
    num_bytes: int


def ways(
    target: CommitRef, held: CommitRef | None, bodies_here: int, manifest: Manifest, num_weights: int, knows_min_exponents: bool
) -> list[Way]:
    """Return the ways to ``target`` from what is held, that of the fewest bytes first.

    Args:
        target: a commit.
        held: where the state stands that is held.
        bodies_here: how many bodies of the target's table are here, this peer's own and those that others told of.
        manifest: of the run.
        num_weights: N.
        knows_min_exponents: whether the min exponent of the commit before is known here, which bodies need; older ones need those
            before it.
    """
    found = [Way("state", sum(state_piece_sizes(num_weights, manifest.optimizer, manifest.exchange.local_steps)))]
    if target.entry is not None and held is not None and held.round + 1 == target.round:
        found.append(Way("mean", sum(vector_group_sizes(num_weights))))
        if knows_min_exponents:
            count = target.entry.contributions
            body = body_num_bytes(manifest.exchange.codec, num_weights)
            found.append(Way("bodies", max(count - bodies_here, 0) * body + count * _WEIGHED_BYTES))
    return sorted(found, key=lambda way: way.num_bytes)


def next_stop(
    path: Sequence[CommitRef], held: CommitRef | None, manifest: Manifest, num_weights: int, min_exponents: Container[int]
) -> CommitRef:
    """Return the commit to reach next: the newest one, or the next one where going on round by round takes fewer bytes than its state.

    So a newcomer whose line is so slow that rounds go by while it fetches the state fetches that once.

    Args:
        path: the commits after the one held that are known, oldest first.
        held: where the state stands that is held.
        manifest: of the run.
        num_weights: N.
        min_exponents: the rounds whose min exponents are known.
    """
    newest = path[-1]
    if held is None or [each.round for each in path] != list(range(held.round + 1, newest.round + 1)):
        return newest
    befores = (held, *path[:-1])
    steps = [
        ways(each, before, 0, manifest, num_weights, before.round in min_exponents) for each, before in zip(path, befores, strict=True)
    ]
    num_bytes = sum(min(way.num_bytes for way in step if way.name != "state") for step in steps)
    state = next(way for way in steps[-1] if way.name == "state")
    return path[0] if num_bytes < state.num_bytes else newest


class States:
    """Holds one peer's newest state, gets what leads to the next, and serves both to others."""

    def __init__(self, context: RunContext, spread: BlobDistribution) -> None:
        """Hold no state yet; ``spread`` gets what leads to one.

        What others may need of what is held later goes into the context's blob store.
        """
        self._distribution = spread
        self._manifest = context.manifest
        self._training_spec = context.training_spec
        self._plan = context.training_spec.plan
        self._num_weights = context.num_weights
        self._compute = context.compute
        self._blob_store = context.blob_store
        self._held: State | None = None
        self._teacher: tuple[bytes, Tensor] | None = None  # the digest of its state, and its parameters
        self._own_bodies: dict[bytes, tuple[Blob, Body]] = {}  # by root, the newest few
        self._no_way_to = 0  # the newest round that could not be reached from the one before

    @property
    def held(self) -> State:
        """The state that training goes on from; to be asked for only once there is one."""
        assert self._held is not None
        return self._held

    def keep_body(self, blob: Blob, body: Body) -> None:
        """Remember a body that this peer made: it may be in a table soon, and only then others may have it."""
        self._own_bodies[blob.root] = blob, body
        while len(self._own_bodies) > 2:
            del self._own_bodies[next(iter(self._own_bodies))]

    def next_stop(self, path: Sequence[CommitRef], held: CommitRef | None, min_exponents: Container[int]) -> CommitRef:
        """Return the commit of ``path`` to reach next; see the function of this name."""
        stop = next_stop(path, held, self._manifest, self._num_weights, min_exponents)
        return path[-1] if stop.round <= self._no_way_to else stop

    async def reach(self, target: CommitRef, held: CommitRef | None, min_exponents: Mapping[int, int]) -> Blob | None:
        """Make the state of the commit ``target`` the state, checked against its digest.

        Args:
            target: a commit of the log.
            held: where the state that is held stands.
            min_exponents: min exponents of the newest commits, by round.

        Returns:
            The mean, where that is the way that led there: it may be checked.

        Raises:
            Unreachable: nobody gives what is needed, or it is none of this run's.
        """
        # The own one is most likely in the table, and if not, it is asked for.
        bodies_here = max(bool(self._own_bodies), self._distribution.num_bodies(target.round))
        knows_min_exponents = target.round - 1 in min_exponents
        problems = []
        try:
            async with asyncio.timeout(timeouts.FETCH_S):
                for way in ways(target, held, bodies_here, self._manifest, self._num_weights, knows_min_exponents):
                    try:
                        state, mean = await self._by(way, target, held, min_exponents)
                    except MantaError as error:
                        logger.info("no way by %s round=%d reason=%s", way.name, target.round, error)
                        problems.append(f"by {way.name}: {error}")
                        continue
                    blob = await self._compute.run(lambda reached: Blob.of(state_pieces(reached)), state)
                    if blob.root == target.state:
                        self._adopt(state, blob)
                        return mean
                    logger.error("the committed %s leads to another state here round=%d", way.name, target.round)
                    problems.append(f"by {way.name}: it leads to another state")
        except TimeoutError:
            problems.append(f"not within {timeouts.FETCH_S:g} s")
        self._no_way_to = max(self._no_way_to, target.round)
        raise Unreachable("; ".join(problems))

    async def teacher(self) -> tuple[bytes, Tensor] | None:
        """Return what the round after the held state learns from too: its state's digest and parameters; None: the samples alone.

        Fetched once, and then served to others for as long as this peer lives.

        Raises:
            Unreachable: it is not here, and nobody gives it.
            EncodingError: what has the digest is no state of this run's supernet.
        """
        held = self.held
        digest = teacher_digest(held, self._plan)
        if digest is None:
            return None
        if self._plan.phase(held.round + 1).teaches_itself:
            return digest, held.parameters
        if self._teacher is None or self._teacher[0] != digest:
            blob = await self._state(digest)
            parameters = state_from_pieces(blob.pieces, self._num_weights).parameters
            self._teacher = (self._blob_store.pin(blob), parameters)
        return self._teacher

    async def parameters(self, digest: bytes) -> tuple[Tensor, Tensor | None]:
        """Return the parameters of a committed state, not the held one only, and of what the round after it learns from too.

        Raises:
            Unreachable: it is not here, and nobody gives it any more.
            EncodingError: what has the digest is no state of this run's supernet.
        """
        state = state_from_pieces((await self._state(digest)).pieces, self._num_weights)
        if self._plan.phase(state.round + 1).teaches_itself:
            return state.parameters, state.parameters
        teacher = teacher_digest(state, self._plan)
        if teacher is None:
            return state.parameters, None
        if self._teacher is not None and self._teacher[0] == teacher:
            return state.parameters, self._teacher[1]
        return state.parameters, state_from_pieces((await self._state(teacher)).pieces, self._num_weights).parameters

    async def body(self, root: bytes) -> bytes:
        """Return a body of a committed table by its root; it is handed out from then on.

        Raises:
            Unreachable: nobody gives it any more.
        """
        sizes = group_sizes(self._manifest.exchange.codec, self._num_weights)
        return (await self._distribution.blob(root, sizes, "body", may_be_old=True)).join()

    def _adopt(self, state: State, blob: Blob) -> None:
        """Make ``state``, that of a commit, the state: one assignment."""
        self._held = state
        self._blob_store.put(blob, "state")
        if state.round == self._plan.teacher_round:
            self._teacher = (self._blob_store.pin(blob), state.parameters)

    async def _by(self, way: Way, target: CommitRef, held: CommitRef | None, min_exponents: Mapping[int, int]) -> tuple[State, Blob | None]:
        if way.name == "state":
            blob = await self._state(target.state)
            return await self._compute.run(state_from_pieces, blob.pieces, self._num_weights), None
        assert target.entry is not None
        assert held is not None
        if way.name == "mean":
            blob = await self._distribution.blob(target.entry.mean, vector_group_sizes(self._num_weights), "mean")
            return await self._compute.run(self._after, self.held, blob), blob
        weighed = await self._distribution.weighed(target.entry)
        if any(one.round - 1 not in min_exponents for one in weighed):
            raise Unreachable("contributions on bases from before this peer came")
        bodies = await together(*(self._body(one.body) for one in weighed), at_once=_BODIES_AT_ONCE)
        return await self._compute.run(self._after_bodies, self.held, weighed, bodies, min_exponents), None

    async def _body(self, root: bytes) -> Body:
        own = self._own_bodies.get(root)
        if own is not None:
            self._blob_store.put(own[0], "body")
            return own[1]
        codec = self._manifest.exchange.codec
        blob = await self._distribution.blob(root, group_sizes(codec, self._num_weights), "body")
        return await self._compute.run(lambda: parse(codec, blob.join(), self._num_weights))

    def _after(self, state: State, blob: Blob) -> State:
        return next_state(state, torch.from_numpy(joined(blob.pieces, self._num_weights)), self._plan)

    def _after_bodies(
        self,
        state: State,
        weighed: Sequence[Weighed],
        bodies: Sequence[Body],
        min_exponents: Mapping[int, int],
    ) -> State:
        weights, clipped = [one.weight for one in weighed], [one.clipped for one in weighed]
        try:
            masks = [self._training_spec.coverage(one.round, one.cohort) for one in weighed]
            mean = mean_of(weights, clipped, bodies, [min_exponents[one.round - 1] for one in weighed], self._num_weights, masks)
        except (KeyError, ValueError) as error:
            raise EncodingError(f"weights that no log may have in a table: {error}") from error
        return next_state(state, torch.from_numpy(mean), self._plan)

    async def _state(self, digest: bytes) -> Blob:
        sizes = state_piece_sizes(self._num_weights, self._manifest.optimizer, self._manifest.exchange.local_steps)
        return await self._distribution.blob(digest, sizes, "state", may_be_old=True)


class CatchingUp:
    """Brings this peer to the newest committed state."""

    def __init__(self, context: RunContext, progress: Progress, states: States, spot_checker: SpotChecker) -> None:
        """Prepare.

        Args:
            context: of the run.
            progress: says what is missing, and is told what is held.
            states: fetches it.
            spot_checker: computes some of it again.
        """
        self._context = context
        self._progress = progress
        self._states = states
        self._spot_checker = spot_checker
        self._checking: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Check nothing any more."""
        for check in self._checking:
            check.cancel()

    async def catch_up(self, tasks: asyncio.TaskGroup) -> None:
        """Fetch what leads to the newest commit, or a step towards it, check it, and make it the state; ``tasks`` has what goes on then."""
        machine, commits, live_status = self._progress.machine, self._progress.commits, self._context.live_status
        now_ms = self._context.clock.now_ms
        target = self._states.next_stop(machine.path, machine.held, commits.min_exponents)
        started_ms = now_ms()
        try:
            mean = await unless_set(self._progress.leaving, self._states.reach(target, machine.held, commits.min_exponents))
        except Unreachable as error:
            logger.info("catching up failed round=%d reason=%s", target.round, error)
            if target is not machine.missing:
                return  # there is the newest one's state as well
            live_status.wait_for(f"somebody who has the state of round {target.round}")
            await wait_within(self._progress.changed, timeouts.LOG_AGAIN_S[0])
            return
        if self._progress.leaving.is_set():
            return
        self._progress.lap.mark("fetch")
        proven_commit = commits.proven_commit(target.round)
        if mean is not None and proven_commit is not None and self._spot_checker.wants(proven_commit.proven.round):
            self._checking.add(check := tasks.create_task(self._spot_checker.check(proven_commit.receipt, proven_commit.proven, mean)))
            check.add_done_callback(self._checking.discard)
        first = machine.held is None
        machine.caught_up(target.state, took_long=2 * (now_ms() - started_ms) > self._progress.open_ms(self._context.manifest))
        live_status.update(waiting_for="", stage=machine.stage.value, round=target.round, state=target.state.hex())
        live_status.write()
        if first:
            live_status.update(joined_at_round=target.round)
            live_status.say(f"state fetched and checked round={target.round} state={target.state.hex()[:12]}")
