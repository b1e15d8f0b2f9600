"""The state that a peer holds, the copy that may become it, and the bytes of both that others may fetch.

A state is assigned in two ways only: the prepared copy, once a commit names its digest, and a state that was reached from a commit and
checked against it. Which of them is due is decided by ``protocol.rounds.RoundMachine``.
"""

import contextlib
import logging
from collections.abc import Sequence

from automl.update import State, next_state, state_bytes, state_digest, state_from_bytes, state_num_bytes
from peer.work import ComputeThread
from protocol.errors import Unreachable
from protocol.records import Manifest
from protocol.rounds import Standing
from protocol.signing import PublicKey
from swarm.mean import Mean, max_mean_bytes
from swarm.rpc import Endpoint
from swarm.transfer import Shelf, fetch

_SHELF = 4  # means and states kept for others: two rounds' worth

logger = logging.getLogger("manta.peer")


class States:
    """One peer's state."""

    def __init__(self, endpoint: Endpoint, manifest: Manifest, num_weights: int, compute: ComputeThread) -> None:
        """Hold no state yet; ``serve`` hands out what is held later."""
        self._endpoint = endpoint
        self._manifest = manifest
        self._num_weights = num_weights
        self._compute = compute
        self._shelf = Shelf(_SHELF)
        self._held: State | None = None
        self._prepared: tuple[bytes, State] | None = None  # a next state and its digest

    @property
    def held(self) -> State:
        """The state that training goes on from; to be asked for only once there is one."""
        assert self._held is not None
        return self._held

    async def serve(self) -> None:
        """Let others fetch means and states by digest."""
        await self._shelf.serve(self._endpoint)

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
        self._shelf.put(state_bytes(state))
        return state

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
        limit = state_num_bytes(self._num_weights, self._manifest.optimizer)
        return state_from_bytes(await fetch(self._endpoint, target.state, providers, max_bytes=limit), self._num_weights)

    async def _after(self, mean: Mean) -> tuple[bytes, State]:
        before = self.held

        def compute() -> tuple[bytes, State]:
            state = next_state(before, mean.values, self._manifest.optimizer, self._manifest.num_rounds)
            return state_digest(state), state

        return await self._compute.run(compute)
