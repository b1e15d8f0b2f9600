"""From a person's settings to a peer in a run: find it, see if this computer can train it, build what computes, then the session."""

import asyncio
import logging
import os
import signal
import socket
from dataclasses import dataclass
from typing import Protocol

import torch

from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.automl.latency.table import TORCH, LatencyTable
from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.microbatches import Worker
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import self_test
from manta_swarm.network import timeouts
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.log_client import LogClient, serve_manifest
from manta_swarm.network.node import Node
from manta_swarm.network.peer_status import SEEKING, STARTING, PeerStatus
from manta_swarm.network.rpc import OwnNode
from manta_swarm.network.traffic import Traffic
from manta_swarm.peer.cohort.cohort_membership import Choice, FirstCohort
from manta_swarm.peer.cohort.token import load_token
from manta_swarm.peer.commands.keys import own_identity
from manta_swarm.peer.commands.tables import load_table, publish_table
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.entering import NotThere, enter, fetch_checked_manifest, start_node
from manta_swarm.peer.contact.run_locator import find_addresses
from manta_swarm.peer.contact.visiting import num_weights
from manta_swarm.peer.context import Progress, RunContext
from manta_swarm.peer.control import Control
from manta_swarm.peer.dashboard.live import shown_live
from manta_swarm.peer.features.feature import Features
from manta_swarm.peer.features.plugged_in import PLUGGED_IN
from manta_swarm.peer.features.plugin import Arrival, Setting
from manta_swarm.peer.limits.limited import LimitedPeer
from manta_swarm.peer.limits.limiter import Limiter
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.peer.limits.sensors import THIS_COMPUTER, Sensors
from manta_swarm.peer.session import Session
from manta_swarm.peer.status import LiveStatus, advice
from manta_swarm.peer.store import PeerStore
from manta_swarm.peer.train.data import HeldData, check_supported
from manta_swarm.peer.train.sizing import Sizing
from manta_swarm.peer.train.work import ClaimTerms, ComputeThread
from manta_swarm.peer.workers.devices import DeviceChoice, Devices
from manta_swarm.peer.workers.pool import IdlePool, InProcess, ThrottledPool, WorkerPool
from manta_swarm.peer.workers.processes import ProcessPool, WorkerData
from manta_swarm.protocol.cohorts import affinity_token, cohort_name
from manta_swarm.protocol.errors import FoundGuilty, MantaError, UserError
from manta_swarm.protocol.footprint import in_words, usual_vectors_bytes
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.rounds import RoundMachine
from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.runtime.console import PrintingConsole
from manta_swarm.runtime.disk import only_process
from manta_swarm.runtime.signals import Signals, hearing
from manta_swarm.runtime.tasks import unless_set

_WORTH_SAYING = 500_000_000  # bytes of disk
_STORE_BYTES, _STORE_VECTORS = 32 * 1024 * 1024, 12  # of bodies, means and states kept for others, or as much as so many means

logger = logging.getLogger("manta.peer")


class MakeWorker(Protocol):
    """Makes what computes microbatches in this process (``automl.training.microbatches.Worker``)."""

    def __call__(self, supernet_name: str, dataset: Dataset, device: str) -> Worker:
        """Return a worker on the device that torch calls so."""


@dataclass(frozen=True, slots=True)
class _Own:
    """What a peer brings to any run."""

    config: PeerConfig
    store: PeerStore
    devices: DeviceChoice
    limiter: Limiter
    make_worker: MakeWorker
    identity: Identity
    live_status: LiveStatus


@dataclass(frozen=True, slots=True)
class _Met:
    """The run that a peer has met, and how."""

    node: OwnNode  # as it takes part
    traffic: Traffic  # of that node
    signed: SignedManifest
    addresses: tuple[str, ...]  # that lead to it, as somebody says


async def join(
    config: PeerConfig, make_worker: MakeWorker = Worker, sensors: Sensors = THIS_COMPUTER, console: PrintingConsole | None = None
) -> None:
    """Take part in a run until it is finished or the person leaves.

    ``make_worker`` makes what computes the microbatches in this process; ``sensors`` say what limits ask for;
    ``console`` says what happens.

    Raises:
        UserError: the settings, the run or the data do not fit; the message says what to do.
        MantaError: the network or this machine failed.
    """
    choice = DeviceChoice("none" if config.audit_only else config.gpus, config.workers, torch.get_num_threads())
    choice.with_threads(config.cpu_threads)
    if config.cpu_threads is not None:
        torch.set_num_threads(config.cpu_threads)
    self_test()
    store = PeerStore(config.dir)
    with only_process(store.directory):
        console = console or PrintingConsole()
        identity = own_identity(store, console)
        status = PeerStatus(peer_name(identity.public_key), identity.public_key.hex(), stage=SEEKING)
        live_status = LiveStatus(store, status, console)
        limiter = Limiter(config.limits, config.dir, sensors, live_status)
        async with Control(store.directory, limiter), shown_live(console, limiter):
            await unless_set(limiter.called_off, _join(_Own(config, store, choice, limiter, make_worker, identity, live_status)))
    if limiter.called_off.is_set():
        console.say("left, before it took part")


async def _join(own: _Own) -> None:
    last = own.store.last_run()
    addresses, expected_run = find_addresses(own.config, last)
    peers = last.peers if last is not None and expected_run == last.run else ()
    node, own_node, signed = await _enter(own, addresses, peers, expected_run)
    try:
        await _take_part(own, _Met(own_node, node.traffic, signed, addresses))
    finally:
        await node.close()


async def _enter(
    own: _Own, addresses: tuple[str, ...], peers: tuple[str, ...], expected_run: str | None
) -> tuple[Node, OwnNode, SignedManifest]:
    """Return a node that has met the run, the same as it takes part, and the run's manifest; while nobody is there, wait until somebody is.

    ``addresses`` lead to it, as somebody says; ``peers`` did when this peer was in it last.

    Raises:
        UserError: see ``peer.contact.entering``; or the run does not admit this peer.
    """
    config, store, identity = own.config, own.store, own.identity
    pause_s, said = timeouts.RUN_AGAIN_S[0], ""
    while True:
        try:
            node = await start_node(config, identity, store.identity_path, (*addresses, *peers), expected_run)
            try:
                signed = await fetch_checked_manifest(node, addresses, expected_run)
                return node, await enter(node, identity, store, config, signed, trains=not config.audit_only), signed
            except BaseException:
                await node.close()
                raise
        except NotThere as error:
            if str(error) != said:
                said = str(error)
                own.live_status.say(f"{error}; it is tried again until somebody answers (Ctrl-C ends that)")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, timeouts.RUN_AGAIN_S[1])


def _make_pool(
    own: _Own, manifest: Manifest, dataset: Dataset, limits: Limits, devices: Devices, compute: ComputeThread, held: HeldData
) -> tuple[WorkerPool, Dataset]:
    """Return what trains this peer's microbatches, and the data set; with worker processes it lies in the memory that all share."""
    if own.config.audit_only:
        return IdlePool(build(space_named(manifest.supernet)).num_weights), dataset
    if (pool := PLUGGED_IN.make_pool(own.config, manifest, dataset, devices, compute)) is not None:
        return pool, dataset
    if devices.is_in_process:
        return InProcess(own.make_worker(manifest.supernet, dataset, devices.name), compute), dataset
    data = WorkerData.of(dataset, held.root, held.train)
    graphs = own.config.cuda_graphs
    processes = ProcessPool(manifest.supernet, data, devices.workers, gpu_memory=limits.gpu_memory, cuda_graphs=graphs)
    return processes, data.here(dataset)


async def _take_part(own: _Own, met: _Met) -> None:
    manifest = met.signed.open()
    check_supported(manifest)
    PLUGGED_IN.check(own.config, manifest)
    vector_bytes = 4 * await asyncio.to_thread(num_weights, manifest)
    blob_store = BlobStore(max_bytes=max(_STORE_BYTES, _STORE_VECTORS * vector_bytes))
    async with PLUGGED_IN.bring(Arrival(own.config, met.node, met.traffic, met.signed, blob_store, own.limiter, own.live_status)) as held:
        own.live_status.update(stage=STARTING)
        await _train(own, met, held)


async def _train(own: _Own, met: _Met, held: HeldData) -> None:
    config, store, identity, live_status = own.config, own.store, own.identity, own.live_status
    node, signed = met.node, met.signed
    manifest, limits = signed.open(), own.limiter.limits
    devices = own.devices.with_threads(limits.cpu_threads)
    dataset = held.part_of(await asyncio.to_thread(PLUGGED_IN.load, config, manifest, held.root))
    compute = ComputeThread()
    pool, dataset = await asyncio.to_thread(_make_pool, own, manifest, dataset, limits, devices, compute, held)
    resting = ThrottledPool(pool, thread=None if isinstance(pool, ProcessPool) else compute)
    first_cohort = _first_cohort(config, manifest, signed.run)
    log = LogClient(node, manifest, signed.run)
    terms = ClaimTerms(identity, signed.run, config.payout_key or identity.public_key, held.claimed)
    training_spec = RunTrainingSpec(manifest)
    context = RunContext(
        node, identity, signed, manifest, training_spec, pool.num_weights, log, store, live_status, held.blob_store, compute, terms
    )
    progress = Progress.at_start(manifest, RoundMachine(manifest, signed.run, identity.public_key, training_spec), log)
    live_status.update(
        run=signed.run.hex(),
        name=manifest.name,
        cohort=first_cohort.label,
        device=devices.name,
        num_rounds=manifest.num_rounds,
        is_private=manifest.is_private,
        account="" if config.payout_key in (None, identity.public_key) else str(config.payout),
    )
    table = None if config.latency_table is None else load_table(config.latency_table, manifest.supernet)
    features = PLUGGED_IN.features(Setting(config, context, progress, held, dataset, pool, met.traffic))
    sizing = _sizing_of(config, manifest, table, features)
    store.remember_run(signed.run, met.addresses)
    await serve_manifest(node, signed)
    if table is not None:
        await publish_table(node, identity, signed.run, held.blob_store, table)
    with live_status:
        _introduce(config, context, first_cohort, dataset, "" if config.audit_only else devices.description)
        if sizing is None and config.size is not None:
            live_status.say("--size changes nothing here: in a data-parallel run all cohorts train the same networks")
        session = Session(context, progress, resting, first_cohort, features, sizing, trains=not config.audit_only)
        processes = pool if isinstance(pool, ProcessPool) else None
        limited = LimitedPeer(session, resting, processes, met.traffic, limits, own.devices)
        await own.limiter.attach(limited)
        watching = asyncio.create_task(own.limiter.watch())
        watching.add_done_callback(limited.ends_with)
        try:
            await _until_told_to_stop(session, live_status, limited)
        finally:
            watching.cancel()
        _say_end(session)
        if fault := session.features.fault:
            raise UserError(fault)
        if session.guilty is not None:
            raise FoundGuilty(f"{live_status.status.verdict}. {advice()}")


def _introduce(config: PeerConfig, context: RunContext, first_cohort: FirstCohort, dataset: Dataset, computes_on: str) -> None:
    """Say which run this is, and with what the peer takes part."""
    live_status, manifest = context.live_status, context.manifest
    where = _in_cohort(first_cohort.choice, first_cohort.label)
    live_status.say(f"run {manifest.name} ({context.run.hex()[:16]}) as peer {live_status.status.peer[-8:]} {where}")
    if computes_on:
        live_status.say(f"computes on {computes_on}")
        if (disk := usual_vectors_bytes(manifest.exchange, manifest.audit_rules, context.num_weights)) >= _WORTH_SAYING:
            live_status.say(f"audits of this run may ask for vectors of its work: about {in_words(disk)} of this disk")
    if isinstance(dataset, ShardedImages | ShardedPairs) and not manifest.shards and (missing := dataset.shards.missing()):
        live_status.say(
            f"{len(missing)} shards of {dataset.name} are missing or cut, {missing[0]} first: microbatches that need them are left out"
        )
    if live_status.status.account:
        live_status.say(f"its credit adds up to account {live_status.status.account}")


def _say_end(session: Session) -> None:
    """Say how it ended."""
    live_status, status = session.context.live_status, session.context.live_status.status
    word = "run finished" if status.finished else "left the run"
    live_status.say(f"{word} round={status.round} state={status.state[:12]} rounds_counted={status.rounds_counted} pid={os.getpid()}")
    if session.ended and session.guilty is None:
        live_status.say(f"{session.ended}; your key and your credit stay as they are")
    live_status.tell("end", finished=status.finished, round=status.round, state=status.state, rounds_counted=status.rounds_counted)


def _first_cohort(config: PeerConfig, manifest: Manifest, run: bytes) -> FirstCohort:
    """Return what decides which cohort this peer is in.

    Raises:
        UserError: see ``load_token``.
    """
    label = cohort_name(config.cohort, socket.gethostname())
    if manifest.is_private and config.private_noise is not None:
        return FirstCohort(Choice.NOISE, label)
    if config.audit_only:
        return FirstCohort(Choice.AUDITOR, label)
    if config.gateway:
        return FirstCohort(Choice.GATEWAY, label)
    if config.alone:
        return FirstCohort(Choice.ALONE, label)
    if config.cohort is not None:
        return FirstCohort(Choice.LABEL, label, load_token())
    if manifest.cohorts == "affinity":
        return FirstCohort(Choice.AFFINITY, label, affinity_token(run))
    return FirstCohort(Choice.HOST, label, load_token())


def _sizing_of(config: PeerConfig, manifest: Manifest, table: bytes | None, features: Features) -> Sizing | None:
    """Return what finds the size that this computer is fast enough for; None: in this run cohorts have none."""
    if manifest.algorithm != "model-parallel":
        return None
    latencies = None if table is None else LatencyTable.from_bytes(table)
    if latencies is not None and latencies.conditions.runtime != TORCH:
        latencies = None  # microbatches are trained by torch: another runtime's times say little of them, and soon they are measured
    return Sizing(Plan.of(manifest), manifest.microbatch_samples, given=config.size, table=latencies, helped=features)


def _in_cohort(choice: Choice, cohort: str) -> str:
    if choice.is_alone:
        return "alone"
    return "in a cohort with whoever of the run is near" if choice is Choice.AFFINITY else f"in cohort {cohort}"


async def _until_told_to_stop(session: Session, live_status: LiveStatus, limited: LimitedPeer | None = None) -> None:
    """Run the session; the first Ctrl-C, or word to ``limited``, or a terminal that is closed, lets it hand in what is trained;
    the second Ctrl-C stops it at once."""
    running = asyncio.create_task(session.run())
    ending = _Ending(session, live_status, running)
    is_with_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with hearing(signal.SIGINT, signal.SIGTERM, *(() if is_with_nohup else (signal.SIGHUP,))) as signals:
        listening = [asyncio.create_task(ending.listen(signals))]
        if limited is not None:
            listening.append(asyncio.create_task(ending.hear(limited)))
        try:
            await running
        except asyncio.CancelledError:
            if not ending.is_at_once:
                raise
            raise Stopped from None
        except BaseExceptionGroup as group:
            raise _first_of_ours(group) from group
        finally:
            for task in listening:
                task.cancel()


class _Ending:
    """How a person ends a session: the first word lets it hand in what is trained, the second ends it at once."""

    def __init__(self, session: Session, live_status: LiveStatus, running: "asyncio.Task[None]") -> None:
        self._session = session
        self._live_status = live_status
        self._running = running
        self._told = 0

    @property
    def is_at_once(self) -> bool:
        """Whether it ends without handing in."""
        return self._told > 1

    def _leave(self) -> None:
        """Say it once more."""
        self._told += 1
        self._live_status.update(is_leaving=True)
        if self.is_at_once:
            self._running.cancel()
            return
        leaving = "leaving as soon as what is trained is handed in; press Ctrl-C again to stop at once"
        self._live_status.say(leaving if self._session.trains else "leaving")
        self._session.leave()

    async def hear(self, limited: LimitedPeer) -> None:
        """Take each of the person's words, until this is cancelled."""
        while True:
            if await limited.next_word():
                self._told = max(self._told, 1)
            self._leave()

    async def listen(self, signals: Signals) -> None:
        """Take each signal for a word, until this is cancelled."""
        while True:
            number = await signals.next()
            if number is not signal.SIGHUP or not self._told:  # a terminal that is closed tells it more than once
                self._leave()


class Stopped(MantaError):
    """The person stopped the program at once."""


def _first_of_ours(group: BaseExceptionGroup[BaseException]) -> BaseException:
    own, other = group.split(MantaError)
    failures = other or own
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]  # type: ignore[assignment]
    assert failures is not None
    return failures
