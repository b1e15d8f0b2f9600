"""manta-peer doctor: looks at this computer, and at the run, and yields what it finds as it goes."""

import asyncio
import contextlib
import os
import platform
import resource
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from manta_swarm.network.addresses import check_peer_address
from manta_swarm.network.peer_status import PeerStatus
from manta_swarm.peer.commands import diagnoses
from manta_swarm.peer.commands.about import table_of
from manta_swarm.peer.commands.diagnoses import Diagnosis, Severity
from manta_swarm.peer.commands.report import is_running
from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.contact.run_locator import find_addresses
from manta_swarm.peer.limits import sensors
from manta_swarm.peer.limits.sensors import THIS_COMPUTER
from manta_swarm.peer.store import read_last_run
from manta_swarm.protocol.errors import MantaError, Unreachable, UserError
from manta_swarm.protocol.footprint import data_bytes, peer_disk
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.records import Round
from manta_swarm.protocol.signing import PublicKey
from manta_swarm.runtime.disk import IDENTITY, load_identity

if TYPE_CHECKING:
    from manta_swarm.network.node import Node
    from manta_swarm.peer.contact.visiting import Visit

_PARTS = ("torch", "torchvision", "hivemind")
_CARDS = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAYS = "0x10de", "0x03"


def of_this_computer(config: PeerConfig) -> Iterator[Diagnosis]:
    """Yield what is found without a network, the quick things first."""
    free = shutil.disk_usage(_existing(config.dir)).free
    yield diagnoses.disk(free, str(config.dir))
    yield _key(config.dir)
    yield diagnoses.threads(_usable_threads(), os.cpu_count() or 1, config.cpu_threads)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield diagnoses.files(None if limit == resource.RLIM_INFINITY else limit)
    try:
        THIS_COMPUTER.check(config.limits)
    except UserError as error:
        yield Diagnosis("limits", Severity.BAD, str(error))
    programs = _programs()
    yield programs
    if programs.state is not Severity.BAD:
        yield _arithmetic()
        gpus, workers = _gpus(config)
        yield gpus
        yield diagnoses.memory(psutil.virtual_memory().available, workers)


async def of_the_run(config: PeerConfig) -> AsyncIterator[Diagnosis]:
    """Yield what is found of the run that the settings name, or that was joined last."""
    try:
        addresses, _ = find_addresses(config, read_last_run(config.dir))
    except UserError:
        yield Diagnosis("run", Severity.NOTE, "none is known", "give --initial-peers, as the operator printed it, to look at that run too")
        return
    from manta_swarm.peer.contact.visiting import visiting  # hivemind takes seconds, and what was found before may say that it is missing

    try:
        async with visiting(config) as visit:
            for address in addresses:
                took_s = await _round_trip_s(visit.node, check_peer_address(address)) if address in visit.node.entered_by else None
                yield diagnoses.aggregator(address, address in visit.node.entered_by, took_s)
            async for diagnosis in _of_visit(visit, config):
                yield diagnosis
    except MantaError as error:
        for address in addresses:
            yield diagnoses.aggregator(address, False, None)
        yield Diagnosis("run", Severity.BAD, str(error))


async def _of_visit(visit: "Visit", config: PeerConfig) -> AsyncIterator[Diagnosis]:
    from manta_swarm.network.reach import Reachable, measure

    manifest, newest = visit.manifest, None
    try:
        newest = await visit.newest()
        where = f"round {0 if newest is None else newest.round} of {manifest.num_rounds}"
        yield Diagnosis("run", Severity.GOOD, f"{manifest.name} ({visit.signed.run.hex()[:16]}), {where}")
        if not visit.log.operators.is_alone:
            answers = [await _round_trip_s(visit.node, key) for key in visit.log.operators.keys]
            yield diagnoses.operators([took_s is not None for took_s in answers], visit.log.operators.quorum)
        ahead_s, took_s = await visit.node.clock_ahead_s(visit.operator)
        yield diagnoses.clock(ahead_s, took_s)
    except MantaError as error:
        yield Diagnosis("log", Severity.BAD, str(error), "ask the operator whether the run's log is up")
    yield await asyncio.to_thread(_data, visit.signed, config)
    yield await asyncio.to_thread(_room, manifest, newest, config)
    reach = await measure(visit.node, [visit.operator])
    is_told = reach.reachable is Reachable.OUTBOUND and not config.listen_addresses
    state = Severity.GOOD if reach.serves_others or is_told else Severity.NOTE
    yield Diagnosis("reachability", state, reach.words)
    yield await asyncio.to_thread(_links, config.dir)


async def _round_trip_s(node: "Node", key: PublicKey) -> float | None:
    begun_s = time.monotonic()
    try:
        await node.clock_ahead_s(key)
    except Unreachable:
        return None
    return time.monotonic() - begun_s


def _links(directory: Path) -> Diagnosis:
    """Return how the peer of this folder reaches its cohort peers, or reached them when it last ran."""
    try:
        status = PeerStatus.read(directory)
    except MantaError as error:
        return Diagnosis("links", Severity.NOTE, str(error))
    if status is None or not status.cohort_peers:
        return Diagnosis("links", Severity.NOTE, "no cohort peers are known here: a peer links itself to those of its cohort when it runs")
    is_slow = "libp2p" in status.links
    said = "let cohort peers reach this peer's TCP ports, or theirs be reached: averaging by libp2p takes longer" if is_slow else ""
    return Diagnosis("links", Severity.NOTE if is_slow else Severity.GOOD, f"cohort peers: {status.links}", said)


def _room(manifest: Manifest, newest: Round | None, config: PeerConfig) -> Diagnosis:
    from manta_swarm.peer.contact.visiting import sizes_of

    data = 0 if config.data_root is not None else data_bytes(manifest, config.data_limit)
    keeps = peer_disk(manifest, sizes_of(manifest), table_of(manifest, newest), data).usual
    lacking = max(0, keeps - _size_of(config.dir))
    return diagnoses.room(shutil.disk_usage(_existing(config.dir)).free, lacking, str(config.dir))


def _size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory; a peer that runs there may remove some meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _data(signed: SignedManifest, config: PeerConfig) -> Diagnosis:
    from manta_swarm.peer.features.plugged_in import PLUGGED_IN
    from manta_swarm.peer.train.data import check_supported

    try:
        manifest = signed.open()
        check_supported(manifest)
        PLUGGED_IN.check(config, manifest)
        if manifest.shards:
            return diagnoses.travelling(manifest.dataset, manifest.shards[0].size_bytes, config.data_limit)
        PLUGGED_IN.load(config, manifest, config.data_root)
    except MantaError as error:
        return Diagnosis("data", Severity.BAD, str(error))
    return Diagnosis("data", Severity.GOOD, f"{manifest.dataset} is here, and is the run's")


def _programs() -> Diagnosis:
    versions = []
    for name in _PARTS:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            return Diagnosis(
                "programs", Severity.BAD, f"{name} is not installed", "install Manta with its extra: pip install 'manta-swarm[swarm]'"
            )
    try:
        import torchvision  # noqa: F401 - whether it fits torch is seen by importing it
    except (ImportError, RuntimeError, OSError) as error:
        remedy = "install torch and torchvision anew, both from the same index (https://pytorch.org/get-started/locally/)"
        return Diagnosis("programs", Severity.BAD, f"{', '.join(versions)}; torchvision does not load ({_short(error)})", remedy)
    return Diagnosis("programs", Severity.GOOD, f"Python {platform.python_version()}, {', '.join(versions)}")


def _arithmetic() -> Diagnosis:
    from manta_swarm.automl.training.update import self_test

    try:
        self_test()
    except MantaError as error:
        return Diagnosis(
            "arithmetic", Severity.BAD, str(error), "this computer, or its build of torch, cannot take part: try another build"
        )
    return Diagnosis("arithmetic", Severity.GOOD, "the same bits as everywhere")


def _gpus(config: PeerConfig) -> tuple[Diagnosis, int]:
    """Return what is found of the GPUs, and how many worker processes there will be."""
    import torch

    from manta_swarm.peer.workers.devices import choose_devices

    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to count them, no device is to be opened
    counts = torch.cuda.device_count() if torch.cuda.is_available() else 0
    diagnosis = diagnoses.gpus(
        wants_none=config.gpus == "none",
        cards=_cards(),
        driver=sensors.driver(),
        found=sensors.gpus(),
        torch_cuda=torch.version.cuda,
        torch_counts=counts,
        version=torch.__version__,
    )
    try:
        devices = choose_devices(config.gpus, config.workers, config.cpu_threads)
    except UserError as error:
        return Diagnosis("GPUs", Severity.BAD, str(error)), 0
    return diagnosis, 0 if devices.is_in_process else len(devices.workers)


def _cards() -> int:
    """Return how many display devices of NVIDIA's the computer's bus has; 0 where it does not say."""
    count = 0
    with contextlib.suppress(OSError):
        for device in _CARDS.iterdir():
            with contextlib.suppress(OSError):
                is_display = (device / "class").read_text().startswith(_DISPLAYS)
                count += is_display and (device / "vendor").read_text().strip() == _NVIDIA
    return count


def _key(directory: Path) -> Diagnosis:
    path = directory / IDENTITY
    if not path.exists():
        return Diagnosis("key", Severity.NOTE, f"none yet: the first manta-peer join makes {path}")
    try:
        load_identity(path)
    except MantaError as error:
        return Diagnosis("key", Severity.BAD, str(error))
    running = ", and a peer runs with it" if is_running(directory) else ""
    return Diagnosis("key", Severity.GOOD, f"{path}{running}", "keep a copy: manta-peer identity backup FILE")


def _usable_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
