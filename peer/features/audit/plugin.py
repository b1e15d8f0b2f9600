"""Plugs in auditing of others, and the keeping of what audits of this peer's own work need."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from manta_swarm.network.vectors import VectorsFolder
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.context import RunContext
from manta_swarm.peer.features.audit.auditor import AuditContext, Auditor, Volunteers
from manta_swarm.peer.features.audit.computing import Process
from manta_swarm.peer.features.audit.evidence import Evidence
from manta_swarm.peer.features.audit.fetching import Fetching
from manta_swarm.peer.features.feature import Feature
from manta_swarm.peer.features.plugin import Plugin, Setting
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.store import FETCHED
from manta_swarm.peer.train.data import HeldData
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import MAX_COHORT
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.verdicts import AuditRules

if TYPE_CHECKING:
    from manta_swarm.peer.session import Session

_VALUE_BYTES = 4


class Auditing(Feature):
    """Computes contributions of others again, for a share of the time."""

    def __init__(self, context: RunContext, rules: AuditRules, held: HeldData, *, does_nothing_else: bool = False) -> None:
        """Audit nothing before limits are told and it is open.

        Args:
            context: of the run.
            rules: of its audits.
            held: the data that are here.
            does_nothing_else: this peer leaves once there is nothing to audit any more.
        """
        self._context = context
        self._rules = rules
        self._held = held
        self._does_nothing_else = does_nothing_else
        self._limits = Limits()
        self._is_paused = False
        self._auditor: Auditor | None = None  # while it is open

    @contextlib.asynccontextmanager
    async def open(self, session: "Session") -> AsyncIterator[None]:
        """Audit meanwhile.

        Raises:
            StorageError: the disk refuses.
        """
        auditor = self._auditor = self._made(session)
        self.limit(self._limits)
        if self._is_paused:
            auditor.pause()
        keeping = asyncio.create_task(self._keep(auditor, session))
        try:
            yield
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    async def _keep(self, auditor: Auditor, session: "Session") -> None:
        try:
            await auditor.keep()
        finally:
            if self._does_nothing_else:
                session.leave()

    def _made(self, session: "Session") -> Auditor:
        context = self._context
        vector_bytes, steps = _VALUE_BYTES * context.num_weights, context.manifest.exchange.local_steps
        most = vector_bytes * (steps + MAX_COHORT * (steps + 1))  # of a contribution of which all is needed
        directory = context.store.run_path(context.run)
        fetched = VectorsFolder(directory / FETCHED, kept_rounds=self._rules.pending_rounds + 1, max_bytes=most)

        line = context.log.line
        return Auditor(
            AuditContext(context.identity, context.run, self._rules, line, context.live_status),
            _Host(session, directory / FETCHED, self._held.root),
            Fetching(context.node, line, fetched, vector_bytes),
            Volunteers(directory / "distrusted"),
            does_nothing_else=self._does_nothing_else,
        )

    @property
    def fault(self) -> str:
        """Say so where it was to do nothing else, and could not do that any more."""
        is_broken = self._auditor is not None and self._auditor.is_broken
        return "--audit-only: it could not audit any more" if self._does_nothing_else and is_broken else ""

    def on_commit(self, entry: Round) -> None:
        """There may be something new to audit."""
        if self._auditor is not None:
            self._auditor.committed()

    def limit(self, limits: Limits) -> None:
        """Work at most for the share of the time that the person gives."""
        self._limits = limits
        if self._auditor is not None:
            self._auditor.limit(limits.audit, limits.duty)

    def pause(self) -> None:
        """Compute nothing, and have no process, until ``resume``."""
        self._is_paused = True
        if self._auditor is not None:
            self._auditor.pause()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        if self._auditor is not None:
            self._auditor.resume()


class _Host:
    """A session, as its auditor sees it. Implements ``peer.features.audit.auditor.AuditHost``."""

    def __init__(self, session: "Session", fetched: Path, root: Path | None) -> None:
        """What computes finds what was brought in the folder ``fetched``, and data in ``root``."""
        self._session = session
        self._fetched = fetched
        self._root = root

    @property
    def newest_round(self) -> int:
        return self._session.progress.newest_round

    @property
    def is_finished(self) -> bool:
        return self._session.is_finished()

    async def parameters(self, state: bytes) -> tuple[Tensor, Tensor | None]:
        return await self._session.states.parameters(state)

    async def body(self, root: bytes) -> bytes:
        return await self._session.states.body(root)

    async def start(self) -> Process:
        return await Process.start(self._session.context.signed, self._fetched, self._root)


class AuditPlugin(Plugin):
    """Adds, in a run that is audited, what keeps evidence of this peer's work, and the auditor of others' work."""

    def check(self, config: PeerConfig, manifest: Manifest) -> None:
        """Refuse ``--audit-only`` in a run that has no audits."""
        if config.audit_only and not manifest.is_audited:
            raise UserError(f"--audit-only: the run {manifest.name} has no audits; leave it out to train")

    def features(self, of: Setting) -> Sequence[Feature]:
        """Return the features that keep the evidence and that audit; where this peer cannot audit, and was asked to, that is said, or
        refused.
        """
        config, context, rules = of.config, of.context, of.context.manifest.audit_rules
        kept = () if rules is None else (Evidence(context, of.progress, rules, has_light=bool(config.gateway)),)
        why = "this run has no audits" if rules is None else _why_not(config, of.held)
        if rules is None or why:
            if config.audit_only:
                raise UserError(f"--audit-only: it cannot audit, for {why}")
            if config.audit:
                context.live_status.say(f"audits nothing: {why}")
            return kept
        if config.audit_only:
            _talk_first(context, config.initial_peers)
        return (*kept, Auditing(context, rules, of.held, does_nothing_else=config.audit_only))


def _why_not(config: PeerConfig, held: HeldData) -> str:
    if config.view is not None:
        return "it has one view of the run's data"
    return "it has a part of the run's data (--data-limit)" if held.train else ""


def _talk_first(context: RunContext, addresses: tuple[str, ...]) -> None:
    """Have a peer talk first to the operator whose address it was given for the run."""
    line = context.log.line
    for key in line.operators.keys:
        if any(address.endswith(f"/p2p/{peer_name(key)}") for address in addresses):
            line.prefer(key)
