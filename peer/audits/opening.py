"""With what a peer in a run audits, if it can at all: the desk, made of what the peer has."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from peer.audits.auditor import Auditor
from peer.audits.desk import AuditDesk
from peer.audits.needs import most_bytes
from peer.config import PeerConfig
from peer.limits.limits import Limits
from peer.loop import PeerLoop
from peer.shards.session import Held
from peer.status import StatusBoard
from peer.store import PeerStore
from protocol.audits import MAX_KEPT_ROUNDS
from protocol.manifest import Manifest, SignedManifest
from protocol.signing import Identity
from swarm.vectors import VectorsFolder


def desk_of_audits(
    config: PeerConfig, identity: Identity, signed: SignedManifest, held: Held, loop: PeerLoop, board: StatusBoard
) -> AuditDesk | None:
    """Return the desk of a peer, which audits nothing before it was told its limits; None: it cannot, which is said if it was asked for.

    Args:
        config: the person's settings.
        identity: signs what is found.
        signed: the run's manifest.
        held: has the data.
        loop: knows the run.
        board: shows what was done.
    """
    manifest = signed.open()
    why = _why_not(config, manifest, held)
    if why:
        if config.audit:
            board.say(f"audits nothing: {why}")
        return None

    async def start() -> Auditor:
        board.say(f"computes lots of others again for the run, for {board.status.limits.get('audit', '0%')} of the time at most")
        return await Auditor.start(signed, folder, held.root)

    folder, most = PeerStore(config.dir).fetched_path(signed.run), most_bytes(manifest, loop.num_weights)
    fetched = VectorsFolder(folder, kept_rounds=MAX_KEPT_ROUNDS, max_bytes=most)
    for claim in fetched.claims:  # of an earlier life
        fetched.keep_only(claim, ())
    desk = AuditDesk(loop.node, loop.log.line, identity, manifest, signed.run, loop.known, start, board, fetched, loop.num_weights)
    loop.on_commit = desk.committed
    return desk


def _why_not(config: PeerConfig, manifest: Manifest, held: Held) -> str:
    if not manifest.trust.is_audited:
        return "this run has no audits"
    if config.view is not None:
        return "it has one view of the run's data"
    return "it has a part of the run's data (--data-limit)" if held.train else ""


@contextlib.asynccontextmanager
async def audits_open(desk: AuditDesk | None, limits: Limits) -> AsyncIterator[None]:
    """Audit, where there is a desk, for as long as the context is entered."""
    if desk is None:
        yield
        return
    desk.limit(limits.audit, limits.duty)
    keeping = asyncio.create_task(desk.keep())
    try:
        yield
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
