"""The state that a peer holds, the copy that may become it, its teacher, and the bytes of all of them that others may fetch.

A state is assigned in two ways only: the prepared copy, once a commit names its digest, and a state that was reached from a commit and
checked against it. Which of them is due is decided by ``protocol.rounds.RoundMachine``. The teacher, an earlier state that later rounds
learn from too, is named by digest in every state that needs it: whoever holds a state can tell whether it was given the right one.
"""

import contextlib
import logging
from collections.abc import Sequence

from torch import Tensor

from automl.schedule import Plan
from automl.update import State, next_state, state_bytes, state_digest, state_from_bytes, state_num_bytes, teacher_digest
from peer.work import ComputeThread
from protocol.errors import Unreachable
from protocol.records import Manifest
from protocol.rounds import Standing
from protocol.signing import PublicKey
from swarm.mean import Mean, max_mean_bytes
from swarm.rpc import Endpoint
from swarm.transfer import Shelf, fetch

SHELF = 4  # means and states kept for others: two rounds' worth

logger = logging.getLogger("manta.peer")


class States:
    """One peer's state."""

    def __init__(self, endpoint: Endpoint, shelf: Shelf, manifest: Manifest, plan: Plan, num_weights: int, compute: ComputeThread) -> None:
        """Hold no state yet; what others may need of what is held later goes on the ``shelf``, with room for ``SHELF``."""
        self._endpoint = endpoint
        self._manifest = manifest
        self._plan = plan
        self._num_weights = num_weights
        self._compute = compute
        self._shelf = shelf
        self._held: State | None = None
        self._prepared: tuple[bytes, State] | None = None  # a next state and its digest
        self._teacher: tuple[bytes, Tensor] | None = None  # the digest of its state, and its parameters

    @property
    def held(self) -> State:
        """The state that training goes on from; to be asked for only once there is one."""
        assert self._held is not None
        return self._held

    async def prepare(self, mean: Mean) -> bytes:
        """Compute the next state on a copy, keep it, and return its digest; the state stays as it is."""
        self._shelf.put(mean.data)
        self._prepared = await self._after(mean)
        return self._prepared[0]

    def adopt_prepared(self, digest: bytes) -> State:
        """Make the prepared copy the state: a commit names ``digest``."""
        assert self._prepared is not None
        assert self._prepared[0] == digest
        return self.adopt(self._prepared[1])

    def adopt(self, state: State) -> State:
        """Make ``state``, that of a commit, the state."""
        self._held, self._prepared = state, None
        data = state_bytes(state)
        self._shelf.put(data)
        if state.round == self._plan.teacher_round:
            self._teacher = (self._shelf.pin(data), state.parameters)
        return state

    async def teacher(self, providers: Sequence[PublicKey]) -> tuple[bytes, Tensor] | None:
        """Return what the round after the held state learns from too: its state's digest and parameters; None: the samples alone.

        Fetched once, and then served to others for as long as this peer lives.

        Raises:
            Unreachable: it is not here, and nobody gives it.
            EncodingError: what has the digest is no state of this run's supernet.
        """
        digest = teacher_digest(self.held, self._plan)
        if digest is None:
            return None
        if self._teacher is None or self._teacher[0] != digest:
            data = await fetch(self._endpoint, digest, providers, max_bytes=self._max_state_bytes)
            parameters = state_from_bytes(data, self._num_weights).parameters
            self._teacher = (self._shelf.pin(data), parameters)
        return self._teacher

    async def reach(self, target: Standing, held: Standing | None, providers: Sequence[PublicKey]) -> State:
        """Return the state of the commit ``target``, checked against its digest, from the copy, the mean or the state's own bytes.

        Args:
            held: where the state that is held stands.
            providers: who may have the mean or the state.

        Raises:
            Unreachable: nobody gives either.
            EncodingError: the committed mean or state is none of this run's supernet.
        """
        if self._prepared is not None and self._prepared[0] == target.state:
            return self._prepared[1]
        if self._held is not None and held is not None and held.round + 1 == target.round and target.mean is not None:
            with contextlib.suppress(Unreachable):  # then the state itself may be had
                data = self._shelf.get(target.mean)
                if data is None:
                    data = await fetch(self._endpoint, target.mean, providers, max_bytes=max_mean_bytes(self._num_weights))
                digest, state = await self._after(Mean.parse(data, self._num_weights, self._manifest.swarm_codec))
                if digest == target.state:
                    self._shelf.put(data)
                    return state
                logger.error("the committed mean leads to another state here: fetching the state round=%d", target.round)
        data = await fetch(self._endpoint, target.state, providers, max_bytes=self._max_state_bytes)
        return state_from_bytes(data, self._num_weights)

    @property
    def _max_state_bytes(self) -> int:
        return state_num_bytes(self._num_weights, self._manifest.optimizer)

    async def _after(self, mean: Mean) -> tuple[bytes, State]:
        before = self.held

        def compute() -> tuple[bytes, State]:
            state = next_state(before, mean.values, self._plan)
            return state_digest(state), state

        return await self._compute.run(compute)
