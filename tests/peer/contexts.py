"""A peer's context and progress for tests of its parts."""

from typing import Any

from manta_swarm.automl.training.course import RunCourse
from manta_swarm.network.blobs import Shelf
from manta_swarm.network.log_client import Counted, LogClient
from manta_swarm.peer.context import ClaimTerms, Progress, RunContext
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.submit.promises import Promises
from manta_swarm.peer.train.work import ComputeThread
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.pace import Pace
from manta_swarm.protocol.rounds import RoundMachine
from manta_swarm.protocol.signing import Identity, PublicKey


def context_of(
    node: Any,
    identity: Identity,
    signed: SignedManifest,
    board: StatusBoard,
    compute: ComputeThread,
    *,
    store: PeerStore | None = None,
    shelf: Shelf | None = None,
    num_weights: int = 0,
    payout: bytes | None = None,
) -> RunContext:
    """Return the context of a peer of the run that ``signed`` says."""
    manifest = signed.open()
    return RunContext(
        node,
        identity,
        signed,
        manifest,
        RunCourse(manifest),
        num_weights,
        LogClient(node, manifest, signed.run),
        store or board._store,
        board,
        shelf or Shelf(max_bytes=0),
        compute,
        ClaimTerms(PublicKey(payout or identity.public_key)),
    )


class _NoTables:
    async def counted(self, round: int) -> Counted | None:
        raise AssertionError(f"nothing is handed in here, and round {round} is asked for")


def progress_of(machine: RoundMachine, pace: Pace | None = None) -> Progress:
    """Return the progress of a peer that hands nothing in."""
    return Progress(machine, Promises(_NoTables()), pace or Pace())
