"""From a person's settings to a peer in a run: find the run, check its manifest and the data, build what computes, then the loop."""

import asyncio
import logging
import os
import signal
import socket
from dataclasses import dataclass

import torch

from automl.data.digits import load as load_dataset
from automl.training import Worker
from automl.update import self_test
from peer.config import PeerConfig
from peer.loop import PeerLoop
from peer.status import PeerStatus, StatusBoard
from peer.store import PeerStore
from protocol.cohorts import cohort_name
from protocol.errors import MantaError, RemoteFault, Unreachable, UserError
from protocol.records import Manifest, SignedManifest
from protocol.signing import Identity, peer_name
from swarm import codec, local_runs
from swarm.disk import load_identity, only_process
from swarm.log_client import fetch_manifest, serve_manifest
from swarm.node import Node, parse_address

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class Device:
    """What a peer computes on."""

    name: str  # torch's name
    description: str


def choose_device(gpus: str) -> Device:
    """Return the device for ``--gpus``: one GPU where there is one and it is wanted, else the CPU."""
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == "none" or gpus == "0" or available == 0:
        reason = "no GPU was found" if gpus not in ("none", "0") else "as --gpus says"
        threads = f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
        return Device("cpu", f"the CPU with {threads} ({reason})")
    more = f"; the other {available - 1} stay idle: several GPUs in one peer are not supported yet" if available > 1 else ""
    return Device("cuda:0", f"one GPU, {torch.cuda.get_device_name(0)}{more}")


def find_addresses(config: PeerConfig, store: PeerStore) -> tuple[tuple[str, ...], str | None]:
    """Return addresses to join by, and the id of the run to expect there, if one is known.

    Raises:
        UserError: none was given and none is known.
    """
    if config.initial_peers:
        return config.initial_peers, config.run
    last = store.last_run()
    if last is not None and config.run in (None, last[0]):
        return last[1], last[0]
    for local in local_runs.find():
        if config.run in (None, local.run):
            return local.addresses, local.run
    raise UserError(
        "no run was found: give the address that the operator printed with --initial-peers (or MANTA_INITIAL_PEERS), "
        "or start an aggregator on this computer with manta-aggregator start"
    )


def _what_to_try(config: PeerConfig, expected_run: str | None) -> str:
    """Return what a person can do when nobody answers; a run on this computer may be the one that is meant."""
    others = [local for local in local_runs.find() if local.run != expected_run]
    if config.initial_peers or not others:
        return "check the address, and that the aggregator runs and its port is open"
    return f"that is the run joined last; for {others[0].name}, which runs on this computer, add --run {others[0].run}"


async def join(config: PeerConfig) -> None:
    """Take part in a run until it is finished or the person leaves.

    Raises:
        UserError: the settings, the run or the data do not fit; the message says what to do.
        MantaError: the network or this machine failed.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    self_test()
    store = PeerStore(config.dir)
    with only_process(store.directory):
        identity = load_identity(store.identity_path)
        addresses, expected_run = find_addresses(config, store)
        try:
            node = await Node.start(identity, store.identity_path, listen=config.listen, initial_peers=addresses)
        except Unreachable as error:
            raise UserError(f"{error}: {_what_to_try(config, expected_run)}") from error
        try:
            signed = await _fetch_checked_manifest(node, addresses, expected_run)
            await _take_part(config, node, identity, store, signed, addresses)
        finally:
            await node.close()


async def _fetch_checked_manifest(node: Node, addresses: tuple[str, ...], expected_run: str | None) -> SignedManifest:
    problems = []
    for address in addresses:
        try:
            signed = await fetch_manifest(node, parse_address(address)[0])
            signed.open()
        except Unreachable as error:
            problems.append(str(error))
            continue
        except RemoteFault as error:
            raise UserError(f"the manifest that {address} serves is refused ({error}); ask the operator for the right address") from error
        if expected_run is not None and signed.run.hex() != expected_run:
            raise UserError(
                f"{address} serves run {signed.run.hex()}, not {expected_run}; check --run, or give the address of that run's aggregator"
            )
        return signed
    raise UserError(f"no manifest could be fetched ({'; '.join(problems)}); ask the operator whether the run is up")


def _check_supported(manifest: Manifest) -> None:
    if manifest.task != "classification":
        raise UserError(f"this version of Manta cannot train {manifest.task!r}; install the version that the operator names")
    for name in (manifest.cohort_codec, manifest.swarm_codec):
        if name not in codec.NAMES:
            raise UserError(f"this version of Manta does not know the codec {name!r}; install the version that the operator names")


async def _take_part(
    config: PeerConfig, node: Node, identity: Identity, store: PeerStore, signed: SignedManifest, addresses: tuple[str, ...]
) -> None:
    manifest = signed.open()
    _check_supported(manifest)
    device = choose_device(config.gpus)
    dataset = await asyncio.to_thread(load_dataset, manifest.dataset)
    if dataset.digest != manifest.data_digest:
        raise UserError(
            f"the data set {manifest.dataset!r} on this computer is not the run's (its digest is {dataset.digest.hex()[:16]}, "
            f"the manifest says {manifest.data_digest.hex()[:16]}): install the library versions that the operator names"
        )
    worker = await asyncio.to_thread(Worker, manifest.supernet, dataset, device.name)
    cohort = cohort_name(config.cohort, socket.gethostname())
    status = PeerStatus(
        peer=peer_name(identity.public_key),
        key=identity.public_key.hex(),
        run=signed.run.hex(),
        name=manifest.name,
        cohort=cohort,
        device=device.name,
        num_rounds=manifest.num_rounds,
    )
    store.remember_run(signed.run, addresses)
    await serve_manifest(node, signed)
    with StatusBoard(store, status) as board:
        board.say(f"run {manifest.name} ({signed.run.hex()[:16]}) as peer {status.peer[-8:]} in cohort {cohort}")
        board.say(f"computes on {device.description}")
        loop = PeerLoop(node, identity, signed, worker, cohort, store, board)
        await _until_told_to_stop(loop, board)
        word = "run finished" if board.status.finished else "left the run"
        board.say(f"{word} round={status.round} state={status.state[:12]} rounds_counted={status.rounds_counted} pid={os.getpid()}")


async def _until_told_to_stop(loop: PeerLoop, board: StatusBoard) -> None:
    """Run the loop; the first Ctrl-C lets it finish its round, the second one stops it at once."""
    events = asyncio.get_running_loop()
    running = asyncio.create_task(loop.run())
    told = 0

    def stop() -> None:
        nonlocal told
        told += 1
        if told == 1:
            board.say("leaving after this round's duties; press Ctrl-C again to stop at once")
            loop.leave()
        else:
            running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        events.add_signal_handler(number, stop)
    try:
        await running
    except asyncio.CancelledError:
        if told < 2:
            raise
        raise Stopped from None
    except BaseExceptionGroup as group:
        raise _first_of_ours(group) from group
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            events.remove_signal_handler(number)


class Stopped(MantaError):
    """The person stopped the program at once."""


def _first_of_ours(group: BaseExceptionGroup[BaseException]) -> BaseException:
    own, other = group.split(MantaError)
    failures = other or own
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]  # type: ignore[assignment]
    assert failures is not None
    return failures
