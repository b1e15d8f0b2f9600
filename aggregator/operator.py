"""An operator's node: bootstrap of the DHT, the log, its intake and the follower, from a run file and a directory.

DIR/identity.key      the operator's Ed25519 key, mode 0600
DIR/log.sqlite...     the log (see ``aggregator.log``) and the signed manifest
DIR/snapshots/        model and optimiser state of the newest rounds
DIR/lock              locked while an aggregator (or a peer) runs on DIR
DIR/listen            the address it listened on last: a restart comes back where peers look for it
DIR/status.json       where the run stands, for other programs
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aggregator.config import RunConfig
from aggregator.follower import Evaluation, Follower
from aggregator.intake import Intake
from aggregator.log import Log
from aggregator.storage import DATABASE, read_manifest
from automl.data.catalog import load_dataset
from automl.data.dataset import Dataset
from automl.evaluation import QualityReport
from automl.update import initial_state, self_test, state_bytes, state_digest
from protocol.errors import StorageError, UserError
from protocol.records import SignedManifest
from protocol.signing import Identity
from swarm.disk import load_identity, make_directory, only_process, replace_file
from swarm.local_runs import LocalRun, listed
from swarm.log_client import serve_manifest
from swarm.node import Node
from swarm.transfer import Shelf

logger = logging.getLogger("manta.operator")

_SHELF = 6
_DEFAULT_LISTEN = "/ip4/0.0.0.0/tcp/0"
_FREE_PORT = "/tcp/0"


@dataclass
class OperatorStatus:
    """DIR/status.json."""

    run: str
    name: str
    task: str
    dataset: str
    supernet: str
    num_rounds: int
    pid: int = field(default_factory=os.getpid)
    addresses: tuple[str, ...] = ()
    round: int = 0
    state: str = ""
    ledger_size: int = 0
    ledger_root: str = ""
    quality: QualityReport | None = None
    quality_round: int | None = None
    finished: bool = False
    proposals_refused: dict[str, int] = field(default_factory=dict)


def open_log(config: RunConfig, directory: Path, identity: Identity, dataset: Dataset) -> tuple[Log, SignedManifest, Follower]:
    """Return the run of ``directory``; make it from ``config`` if the directory has none. ``dataset`` is that of the run file.

    Raises:
        UserError: the directory holds another run than the run file describes.
        StorageError: the disk fails, or holds less than was promised.
    """
    snapshots = directory / "snapshots"
    keep = config.follower.keep_snapshots
    if (directory / DATABASE).exists():
        signed = read_manifest(directory)
        manifest = signed.open()
        with contextlib.ExitStack() as undo:
            log = undo.enter_context(Log.open(directory, identity))
            if config.manifest(identity, manifest.initial_state, dataset) != manifest:
                raise UserError(
                    f"{directory} holds another run ({manifest.name}, {signed.run.hex()[:16]}) than the run file describes: "
                    "give that run's file, or a new directory with --dir"
                )
            follower = Follower(snapshots, manifest, signed.run, dataset, keep_snapshots=keep)
            follower.restore(log.ledger)
            follower.certify(log.head, log.tree_head)  # a commit may have been the last thing before a power cut
            undo.pop_all()
        return log, signed, follower
    state = initial_state(config.plan(dataset))
    signed = SignedManifest.sign(config.manifest(identity, state_digest(state), dataset), identity)
    follower = Follower(snapshots, signed.open(), signed.run, dataset, keep_snapshots=keep)
    follower.save(state)
    follower.adopt(state)
    with contextlib.ExitStack() as undo:
        log = undo.enter_context(Log.create(directory, signed, identity))
        follower.certify(log.head, log.tree_head)
        undo.pop_all()
    return log, signed, follower


def filled_shelf(log: Log, follower: Follower) -> Shelf:
    """Return a shelf with what newcomers need: the current state, and the one that the rounds to come learn from too.

    Raises:
        StorageError: the snapshot of the latter is gone or damaged.
    """
    shelf = Shelf(_SHELF)
    assert follower.state is not None
    shelf.put(state_bytes(follower.state))
    teacher = follower.teacher(log.ledger)
    if teacher is not None:
        shelf.pin(state_bytes(teacher))
    return shelf


class Operator:
    """One aggregator at work."""

    def __init__(self, config: RunConfig, directory: Path, say: Callable[[str], None]) -> None:
        """Prepare; ``say`` prints a line for the person."""
        self._config = config
        self._directory = directory
        self._say = say
        self._evaluation_due = asyncio.Event()

    async def run(self, listen: str | None, data_root: Path | None = None) -> None:
        """Serve the run until SIGINT or SIGTERM; ``data_root`` is the folder of data sets that come with no library.

        Raises:
            UserError: the run file, the directory or the address cannot be used.
            StorageError: the log cannot be written any more; what was acknowledged is safe.
        """
        self_test()
        make_directory(self._directory)
        with only_process(self._directory):
            identity_path = self._directory / "identity.key"
            if (self._directory / DATABASE).exists() and not identity_path.exists():
                raise UserError(f"{identity_path} is missing, the key of the log in {self._directory}; restore it from a backup")
            identity = load_identity(identity_path)
            dataset = load_dataset(self._config.data.dataset, data_root)
            self._log, signed, self._follower = open_log(self._config, self._directory, identity, dataset)
            manifest = signed.open()
            self.status = OperatorStatus(
                signed.run.hex(), manifest.name, manifest.task, manifest.dataset, manifest.supernet, manifest.num_rounds
            )
            with self._log:
                shelf = filled_shelf(self._log, self._follower)
                node = await Node.start(identity, identity_path, listen=[self._listen_address(listen)])
                try:
                    await self._serve(node, signed, shelf)
                finally:
                    await node.close()

    async def _serve(self, node: Node, signed: SignedManifest, shelf: Shelf) -> None:
        told = _told_to_stop()
        addresses = tuple(await node.addresses())
        self._remember_address(addresses)
        self.status.addresses = addresses
        await shelf.serve(node)
        await serve_manifest(node, signed)
        self._intake = Intake(node, self._log, self._follower, shelf, self._committed)
        await self._intake.start()
        self._write_status()
        self._say(f"run {self.status.name} id {self.status.run}")
        self._say(f"round {self._log.ledger.round} of {self.status.num_rounds}, {self._log.ledger.size} entries in the log")
        self._say("volunteers join with:")
        for address in _best_first(addresses):
            self._say(f"  manta-peer join --gpus all --initial-peers {address} --run {self.status.run}")
        with listed(LocalRun(self.status.run, self.status.name, addresses)):
            background = [asyncio.create_task(work) for work in (self._evaluate_when_due(), node.watch_daemon())]
            try:
                self._check_evaluation_due()
                await self._until_stopped(told, background)
            finally:
                for task in background:
                    task.cancel()
                self._intake.close()
                self._write_status()

    async def _until_stopped(self, told: "asyncio.Future[None]", background: "list[asyncio.Task[None]]") -> None:
        waits: set[asyncio.Future[None] | asyncio.Future[StorageError]] = {told, self._intake.broken, *background}
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._intake.broken in done:
            raise self._intake.broken.result()
        for task in background:
            if task in done:
                task.result()
        self._say(f"stopped at round {self._log.ledger.round}; start again with the same run file and --dir to go on")

    def _committed(self) -> None:
        ledger = self._log.ledger
        round_ = ledger.round_at(ledger.round)
        assert round_ is not None
        self._say(f"round committed round={ledger.round} peers={len(round_.claims)} entries={ledger.size} state={ledger.state.hex()[:12]}")
        self._write_status()
        self._check_evaluation_due()

    def _check_evaluation_due(self) -> None:
        every = self._config.follower.evaluate_every
        round_ = self._log.ledger.round
        if self._log.ledger.finished or (every and round_ and round_ % every == 0):
            self._evaluation_due.set()

    async def _evaluate_when_due(self) -> None:
        while True:
            await self._evaluation_due.wait()
            self._evaluation_due.clear()
            evaluation = await asyncio.to_thread(self._follower.evaluate)
            self._show(evaluation)

    def _show(self, evaluation: Evaluation) -> None:
        self.status.quality, self.status.quality_round = evaluation.quality, evaluation.round
        self._write_status()
        self._say(f"evaluated round={evaluation.round} {_in_words(evaluation.quality)}")
        if self.status.finished:
            self._say("run finished; the aggregator goes on serving its state until it is stopped")

    def _write_status(self) -> None:
        ledger, status = self._log.ledger, self.status
        status.round, status.state = ledger.round, ledger.state.hex()
        status.ledger_size, status.ledger_root = self._log.head.size, self._log.head.root.hex()
        status.finished = ledger.finished and status.quality_round == ledger.round
        status.proposals_refused = dict(self._intake.refused)
        replace_file(self._directory / "status.json", json.dumps(asdict(status), indent=1).encode())

    def _listen_address(self, listen: str | None) -> str:
        """Return where to listen: a free port is chosen once, and is the same after a restart."""
        self._asked = listen or _DEFAULT_LISTEN
        if self._asked.endswith(_FREE_PORT):
            with contextlib.suppress(FileNotFoundError):
                last = (self._directory / "listen").read_text(errors="replace")
                if last.startswith(self._asked.removesuffix("0")):
                    return last
        return self._asked

    def _remember_address(self, addresses: tuple[str, ...]) -> None:
        if self._asked.endswith(_FREE_PORT):
            port = addresses[0].split("/tcp/")[1].split("/")[0]
            replace_file(self._directory / "listen", f"{self._asked.removesuffix('0')}{port}".encode())


def _told_to_stop() -> "asyncio.Future[None]":
    """Return what is done at the first SIGINT or SIGTERM from now on."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not told.done():
            told.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return told


def _in_words(quality: QualityReport) -> str:
    """Return a report's figures in one line: in percent, or pixels of disparity."""

    def shown(value: float) -> str:
        return f"{value:.1%}" if quality["metric"] == "accuracy" else f"{value:.2f}px"

    spread = f"{shown(min(quality['random']))} to {shown(max(quality['random']))}"
    constant = "" if quality["baseline"] is None else f" constant={shown(quality['baseline'])}"
    return f"{quality['metric']}: largest={shown(quality['largest'])} smallest={shown(quality['smallest'])} random={spread}{constant}"


def _best_first(addresses: tuple[str, ...]) -> list[str]:
    """Return the addresses, those that others can reach before those of this computer alone."""
    return sorted(addresses, key=lambda address: "/ip4/127." in address)
