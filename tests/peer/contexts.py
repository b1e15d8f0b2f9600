"""A peer's context and progress for tests of its parts, and an answer that does not come."""

import asyncio
from typing import Any

from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.log_client import LogClient, ProvenContribution
from manta_swarm.peer.context import NewestCommits, Progress, RunContext
from manta_swarm.peer.status import LiveStatus
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.submit.promises import Promises
from manta_swarm.peer.train.work import ClaimTerms, ComputeThread
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.rounds import RoundMachine
from manta_swarm.protocol.signing import Identity, PublicKey


async def never(_caller: PublicKey, _request: bytes) -> bytes:
    """Do not answer."""
    await asyncio.Event().wait()
    return b""


def context_of(
    node: Any,
    identity: Identity,
    signed: SignedManifest,
    live_status: LiveStatus | None = None,
    compute: ComputeThread | None = None,
    *,
    store: PeerStore | None = None,
    blob_store: BlobStore | None = None,
    num_weights: int = 0,
    payout: bytes | None = None,
    **changes: Any,
) -> RunContext:
    """Return the context of a peer of the run that ``signed`` says; what a test does not give, and does not need, is not there."""
    manifest = signed.open()
    given: dict[str, Any] = {
        "training_spec": RunTrainingSpec(manifest),
        "log": None if node is None else LogClient(node, manifest, signed.run),
        "store": store or (None if live_status is None else live_status._store),
        "live_status": live_status,
        "blob_store": blob_store or BlobStore(max_bytes=0),
        "compute": compute,
        "terms": ClaimTerms(identity, signed.run, PublicKey(payout or identity.public_key)),
        **changes,
    }
    return RunContext(node=node, identity=identity, signed=signed, manifest=manifest, num_weights=num_weights, **given)


class _NoTables:
    async def counted(self, round: int) -> ProvenContribution | None:
        raise AssertionError(f"nothing is handed in here, and round {round} is asked for")


def progress_of(machine: RoundMachine, pace: Pace | None = None) -> Progress:
    """Return the progress of a peer that hands nothing in."""
    return Progress(machine, Promises(_NoTables()), NewestCommits(machine._manifest), pace or Pace())


def progress_in(context: RunContext) -> Progress:
    """Return the progress of a peer that has this context, and knows nothing of the run yet."""
    machine = RoundMachine(context.manifest, context.run, context.key, context.training_spec)
    return Progress.at_start(context.manifest, machine, context.log)
