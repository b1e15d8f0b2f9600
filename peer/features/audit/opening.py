"""With what a peer in a run audits, if it can at all: the auditor, made of what the peer has."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from manta_swarm.network.vectors import VectorsFolder
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.features.audit.auditor import Auditor
from manta_swarm.peer.features.audit.computing import Process
from manta_swarm.peer.features.audit.fetching import Fetching
from manta_swarm.peer.features.audit.volunteers import Volunteers
from manta_swarm.peer.features.shards.session import Held
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.session import PeerLoop
from manta_swarm.peer.status import StatusBoard
from manta_swarm.peer.store import FETCHED, PeerStore
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.signing import Identity, peer_name

_VALUE_BYTES = 4


def check_run(config: PeerConfig, manifest: Manifest) -> None:
    """Refuse ``--audit-only`` in a run that has no audits.

    Raises:
        UserError: so it is.
    """
    if config.audit_only and not manifest.is_audited:
        raise UserError(f"--audit-only: the run {manifest.name} has no audits; leave it out to train")


def auditor_of(
    config: PeerConfig, identity: Identity, signed: SignedManifest, held: Held, loop: PeerLoop, board: StatusBoard
) -> Auditor | None:
    """Return the auditor of a peer, which audits nothing before it was told its limits; None: it cannot, which is said if it was asked for.

    Args:
        config: the person's settings.
        identity: signs what is found.
        signed: the run's manifest.
        held: has the data.
        loop: knows the run.
        board: shows what was done.

    Raises:
        UserError: the peer is to do nothing else.
        StorageError: the disk refuses.
    """
    manifest = signed.open()
    rules = manifest.audit_rules
    why = _why_not(config, held) if rules is not None else "this run has no audits"
    if rules is None or why:
        if config.audit_only:
            raise UserError(f"--audit-only: it cannot audit, for {why}")
        if config.audit:
            board.say(f"audits nothing: {why}")
        return None
    if config.audit_only:
        _talk_first(loop, config.initial_peers)

    async def start() -> Process:
        board.say(f"computes contributions of others again for the run, for {auditor.share}% of the time at most")
        return await Process.start(signed, folder, held.root)

    store, vector_bytes = PeerStore(config.dir), _VALUE_BYTES * loop.num_weights
    folder = store.run_path(signed.run) / FETCHED
    steps = manifest.exchange.local_steps
    most = vector_bytes * (steps + MAX_COHORT * (steps + 1))  # of a contribution of which all is needed
    fetched = VectorsFolder(folder, kept_rounds=rules.pending_rounds + 1, max_bytes=most)
    line = loop.log.line
    auditor = Auditor(
        identity,
        signed.run,
        rules,
        loop.known,
        line,
        Fetching(loop.node, line, fetched, vector_bytes),
        start,
        board,
        Volunteers(store.run_path(signed.run) / "distrusted"),
        does_nothing_else=config.audit_only,
    )
    loop.on_commit = auditor.committed
    return auditor


@contextlib.asynccontextmanager
async def audits_open(auditor: Auditor | None, limits: Limits, over: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Audit, where there is an auditor, for as long as the context is entered; ``over`` is called where it has nothing to do any more."""
    if auditor is None:
        yield
        return
    auditor.limit(limits.audit, limits.duty)
    keeping = asyncio.create_task(auditor.keep())
    keeping.add_done_callback(lambda _: over())
    try:
        yield
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping


def _why_not(config: PeerConfig, held: Held) -> str:
    if config.view is not None:
        return "it has one view of the run's data"
    return "it has a part of the run's data (--data-limit)" if held.train else ""


def _talk_first(loop: PeerLoop, addresses: tuple[str, ...]) -> None:
    """Have a peer talk to the operator first at whose address it was told that the run is."""
    for key in loop.log.line.operators.keys:
        if any(address.endswith(f"/p2p/{peer_name(key)}") for address in addresses):
            loop.log.line.prefer(key)
