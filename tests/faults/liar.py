"""Nodes of this process that say to a real log, and to real peers, whatever they like."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manta_swarm.aggregator.states.replay import SNAPSHOTS
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.codec.coding import body_groups, body_num_bytes, encode
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import Blob
from manta_swarm.network.log_client import MAX_ANSWER_BYTES, BodyPart, HeaderAnswer, LogClient
from manta_swarm.network.node import Node
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Header
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name
from tests.contributions import header_of
from tests.faults.scene import Scene
from tests.network.processes import LISTEN


@cache
def num_weights_of(directory: Path) -> int:
    """Return N of the run in an aggregator's directory."""
    state, _ = load_snapshot(directory / SNAPSHOTS / "round-00000000.safetensors")
    return state.parameters.numel()


@dataclass(frozen=True, slots=True)
class Made:
    """A contribution with its body."""

    header: Header
    groups: Sequence[bytes | memoryview]

    @property
    def digest(self) -> bytes:
        """What inclusion promises name it by."""
        return self.header.contribution.digest


class Liar:
    """A node under a key of its own. Without lies, what it makes and brings is what an honest peer might."""

    def __init__(self, node: Node, identity: Identity, scene: Scene) -> None:
        """Use ``liars``."""
        self.node = node
        self.identity = identity
        self.run = bytes.fromhex(scene.status("aggregator")["run"])
        self.manifest: Manifest = scene.manifest
        self.log = LogClient(node, self.manifest, self.run)
        self._scene = scene
        self.num_weights = num_weights_of(scene.directory / "aggregator")
        self.training_spec = RunTrainingSpec(self.manifest)

    @property
    def key(self) -> PublicKey:
        """Its own."""
        return self.identity.public_key

    @property
    def name(self) -> str:
        """Its key as the aggregator's status has it."""
        return peer_name(self.key)

    def num_architectures(self, round_: int) -> int:
        """Return how many architectures a round asks of a cohort."""
        return len(self.training_spec.costs(round_, "here"))

    def refused(self) -> dict[str, int]:
        """Return what the aggregator's status says was refused of it, by reason."""
        found: dict[str, int] = self._scene.status("aggregator")["refused_of"].get(self.name, {})
        return found

    def vector(self, scale: float = 1e-3) -> NDArray[np.float32]:
        """Return small random numbers, as a gradient might be: never twice the same."""
        return (np.random.default_rng(secrets.randbits(64)).standard_normal(self.num_weights) * scale).astype(np.float32)

    def body(self, values: NDArray[np.float32] | None = None, ledger: Ledger | None = None) -> bytes:
        """Return the body of ``values`` on the newest base; without any, of small random numbers."""
        ledger = ledger or self._scene.ledger()
        return encode(self.manifest.exchange.codec, self.vector() if values is None else values, ledger.min_exponent_at(ledger.round))

    def made(self, body: bytes | None = None, *, microbatches: tuple[int, ...] | None = None, **changes: Any) -> Made:
        """Return a contribution with this body, or one of small random numbers; the rest is as in ``tests.contributions.header_of``."""
        ledger = self._scene.ledger()
        body = self.body(ledger=ledger) if body is None else body
        codec = self.manifest.exchange.codec
        is_whole = len(body) == body_num_bytes(codec, self.num_weights)
        groups: Sequence[bytes | memoryview] = body_groups(codec, body, self.num_weights) if is_whole else [body]
        microbatches = microbatches or (1,) * self.num_architectures(ledger.round + 1)
        return Made(header_of(ledger, self.identity, microbatches=microbatches, **{"body": Blob.of(groups).root, **changes}), groups)

    async def bring(self, header: Header) -> HeaderAnswer:
        """Return the log's answer to a header."""
        said = await self.node.call(self.log.operator, "header", pack(header), timeout_s=timeouts.HEADER_S)
        return unpack(HeaderAnswer, said, max_bytes=MAX_ANSWER_BYTES)

    async def bring_part(self, made: Made, place: int = 0, data: bytes | memoryview | None = None) -> bytes:
        """Return the log's answer to a group of a body."""
        part = BodyPart(made.digest, place, made.groups[place] if data is None else data)
        return await self.node.call(self.log.operator, "body", part.pack(), timeout_s=timeouts.BODY_S)


@asynccontextmanager
async def liars(scene: Scene, count: int = 1, identities: Sequence[Identity] = ()) -> AsyncIterator[list[Liar]]:
    """Start nodes that know the log, with these keys or new ones; close them at the end."""
    async with AsyncExitStack() as nodes:
        found = []
        for identity in identities or [Identity(secrets.token_bytes(32)) for _ in range(count)]:
            path = scene.directory / f"{identity.public_key.hex()[:16]}.key"
            path.write_bytes(identity.to_libp2p())
            node = await Node.start(identity, path, listen=[LISTEN], initial_peers=scene.status("aggregator")["addresses"][:1])
            nodes.push_async_callback(node.close)
            found.append(Liar(node, identity, scene))
        yield found
