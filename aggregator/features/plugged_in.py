"""All features of an operator's program, and which of them one has: the one place that knows them all."""

from collections.abc import Callable

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.audits.audits import Audits
from manta_swarm.aggregator.features.feature import Feature
from manta_swarm.aggregator.features.fronts import Fronts
from manta_swarm.aggregator.features.operators.leadership import among_others
from manta_swarm.aggregator.features.sidecars import AuditorSidecar, GatewaySidecar
from manta_swarm.aggregator.features.witness.cosigning import Cosigning
from manta_swarm.aggregator.log.contents import SNAPSHOTS
from manta_swarm.aggregator.monitor.observers import MonitorBeside
from manta_swarm.aggregator.monitor.settings import open_listener
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.signing import key_named

MakeFeature = Callable[[RunContext, Start], Feature | None]


def _operators(context: RunContext, asked: Start) -> Feature | None:
    is_alone = Operators.of(context.manifest, context.ledger.run).is_alone
    return None if is_alone else among_others(context, asked.config.operators.etcd)


def _audits(context: RunContext, asked: Start) -> Feature | None:
    return Audits(context, round(asked.config.aggregator.audit_disk_gb * 1e9)) if context.manifest.is_audited else None


def _auditor(context: RunContext, asked: Start) -> Feature | None:
    return AuditorSidecar(context, asked.config.aggregator.audit_share, data_root=asked.data_root) if context.manifest.is_audited else None


def _gateway(context: RunContext, asked: Start) -> Feature | None:
    return None if asked.gateway is None else GatewaySidecar(context, asked.gateway, data_root=asked.data_root, threads=asked.threads)


def _fronts(context: RunContext, asked: Start) -> Feature | None:
    every, directory = asked.config.aggregator.front_every, context.directory / SNAPSHOTS
    return Fronts(context.node, context.log, context.opened.signed, directory, every=every) if every else None


def _cosigning(context: RunContext, asked: Start) -> Feature | None:
    return Cosigning(context.endpoint, context.log, context.directory, [key_named(name) for name in asked.config.aggregator.witnesses])


def _monitor(context: RunContext, asked: Start) -> Feature | None:
    monitor_socket = open_listener(asked.page, asked.config.monitor)
    return None if monitor_socket is None else MonitorBeside(context.directory, asked.config.monitor, monitor_socket, asked.data_root)


# In the order in which they are told of an event. A plain run is served without any of them.
PLUGGED_IN: tuple[MakeFeature, ...] = (_operators, _audits, _auditor, _gateway, _fronts, _cosigning, _monitor)


def features_of(context: RunContext, asked: Start) -> tuple[Feature, ...]:
    """Return the features that an operator has in a run.

    Raises:
        UserError: one that the person asked for cannot be had; the message says what to do.
        StorageError: the disk refuses.
    """
    found = [make(context, asked) for make in PLUGGED_IN]
    return tuple(one for one in found if one is not None)
