"""A run's directory, opened or made: its log, its state keeper on the log's state, its contributions, and the shards that it hands out."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from manta_swarm.aggregator.intake.bodies import Bodies
from manta_swarm.aggregator.log.contents import BODIES, SNAPSHOTS
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import DATABASE, read_manifest
from manta_swarm.aggregator.settings.config import RunConfig, no_shards
from manta_swarm.aggregator.settings.inviting import auditor_key
from manta_swarm.aggregator.states.replay import TableCollector, replayed
from manta_swarm.aggregator.states.state_keeper import StateKeeper
from manta_swarm.automl.data.dataset import Dataset
from manta_swarm.automl.data.shards.layout import shard_name, travelling
from manta_swarm.automl.data.shards.sharded import ShardedImages, ShardedPairs
from manta_swarm.automl.training.snapshot import load_snapshot
from manta_swarm.automl.training.update import State, initial_state, state_digest, state_pieces
from manta_swarm.codec.coding import body_num_bytes
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.file_blobs import FileBlob, FileName
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import PIECE_BYTES, SignedManifest, TravellingShards
from manta_swarm.protocol.signing import Digest, Identity

_STORE_BYTES = 256 * 1024 * 1024


def travelling_of(config: RunConfig, dataset: Dataset) -> tuple[TravellingShards, ...]:
    """Return what peers need to know to get the shards from others; nothing where they do not travel.

    Raises:
        UserError: they are to, and the data set is not in shards.
    """
    if not config.data.share_shards:
        return ()
    if not isinstance(dataset, ShardedImages | ShardedPairs):
        raise no_shards(dataset.name)
    return (travelling(dataset.shards.list),)


def lend_shards(blob_store: BlobStore, dataset: Dataset) -> int:
    """Hand out the list of the shards and all of them; return how many there are. None of them is read before somebody asks for it.

    Raises:
        UserError: one is missing, or of another size.
    """
    assert isinstance(dataset, ShardedImages | ShardedPairs)
    list_, folder = dataset.shards.list, dataset.shards.folder
    names = [
        FileName(folder / shard_name(number), Digest(shard.pieces), shard.size_bytes, PIECE_BYTES)
        for number, shard in enumerate(list_.shards)
    ]
    missing = [name.path for name in names if not name.is_here]
    if missing:
        raise UserError(
            f"{len(missing)} shards of {dataset.name} are missing or cut, {missing[0]} first: who hands them out needs all of them; "
            "copy them there, or write share_shards = false for a new run"
        )
    blob_store.pin(Blob.cut(pack(list_), PIECE_BYTES))
    for name in names:
        blob_store.lend(name.root, FileBlob(name))
    return len(names)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run's directory, opened."""

    signed: SignedManifest
    log: Log
    state_keeper: StateKeeper
    bodies: Bodies


def open_run(config: RunConfig, directory: Path, identity: Identity, dataset: Dataset, first_state: Path | None = None) -> OpenedRun:
    """Return the run of ``directory``; make it from ``config`` if the directory has none.

    Args:
        config: the run file.
        directory: the run's.
        identity: the operator's.
        dataset: that of the run file.
        first_state: a snapshot, with whose weights a new run begins.

    Raises:
        UserError: the directory holds another run than the run file describes, or the snapshot is of another supernet.
        StorageError: the disk fails, or holds less than was promised.
    """
    if not (directory / DATABASE).exists():
        return _new_run(config, directory, identity, dataset, first_state)
    if first_state is not None:
        raise UserError(f"{directory} holds a run already, which has its first state: choose another --dir, or leave --first-state out")
    signed = read_manifest(directory)
    manifest = signed.open()
    with contextlib.ExitStack() as undo:
        tables, keep = TableCollector(), config.bodies

        def on_round(ledger: Ledger) -> None:
            tables.take(ledger)
            tables.forget_before(ledger.round - keep)

        log = undo.enter_context(Log.open(directory, identity, on_round=on_round))
        rules = manifest.audit_rules  # of the run, whose auditor may be another than the one beside this folder by now
        auditor = None if rules is None else rules.named[0]
        if config.manifest(identity, manifest.initial_state, dataset, travelling_of(config, dataset), auditor) != manifest:
            raise UserError(
                f"{directory} holds another run ({manifest.name}, {signed.run.hex()[:16]}) than the run file describes: "
                "give that run's file, or a new directory with --dir"
            )
        opened = _opened(config, directory, signed, log, dataset)
        _catch_up(opened, tables)
        undo.pop_all()
    return opened


def _new_run(config: RunConfig, directory: Path, identity: Identity, dataset: Dataset, first_state: Path | None) -> OpenedRun:
    state = initial_state(config.plan(dataset))
    if first_state is not None:
        state = _with_weights_of(first_state, state, config.plan(dataset).supernet)
    auditor = auditor_key(directory) if config.is_audited else None
    manifest = config.manifest(identity, state_digest(state), dataset, travelling_of(config, dataset), auditor)
    signed = SignedManifest.sign(manifest, identity)
    state_keeper = _state_keeper(config, directory, signed, dataset)
    state_keeper.snapshots.save(state)  # before the log: what it promises has to be here
    with contextlib.ExitStack() as undo:
        log = undo.enter_context(Log.create(directory, signed, identity))
        state_keeper.adopt(state)
        state_keeper.save(state, log.head, log.tree_head)
        opened = OpenedRun(signed, log, state_keeper, _bodies(config, directory, signed, state))
        undo.pop_all()
    return opened


def _with_weights_of(snapshot: Path, state: State, supernet: str) -> State:
    """Return a run's first state with the weights of a snapshot; moments begin at zero, as in every run.

    Raises:
        UserError: it is no snapshot, or one of another supernet.
    """
    found, metadata = load_snapshot(snapshot)
    if metadata.get("supernet") != supernet or found.parameters.shape != state.parameters.shape:
        raise UserError(f"{snapshot} has the weights of {metadata.get('supernet')}, the run file asks for {supernet}")
    return State(0, found.parameters.clone(), state.moments)


def _opened(config: RunConfig, directory: Path, signed: SignedManifest, log: Log, dataset: Dataset) -> OpenedRun:
    """Return the run with the newest snapshot that is not ahead of the log as the state keeper's state."""
    state_keeper = _state_keeper(config, directory, signed, dataset)
    rounds = [round_ for round_ in state_keeper.snapshots.rounds() if round_ <= log.ledger.round]
    if not rounds:
        raise StorageError(f"{directory / SNAPSHOTS} holds no state of the run; restore it from a backup")
    state_keeper.adopt(state_keeper.snapshots.load(rounds[-1], log.ledger.state_at(rounds[-1])))
    assert state_keeper.state is not None
    return OpenedRun(signed, log, state_keeper, _bodies(config, directory, signed, state_keeper.state))


def _catch_up(opened: OpenedRun, tables: TableCollector) -> None:
    """Compute what was committed and not saved before this start."""
    log, state_keeper = opened.log, opened.state_keeper
    state = state_keeper.state
    assert state is not None
    missing = range(state.round + 1, log.ledger.round + 1)
    if any(number not in tables.rounds for number in missing):
        raise StorageError(f"no snapshot near the log's last round, {log.ledger.round}, is here; restore the snapshots from a backup")
    rounds = [tables.rounds[number] for number in missing]
    codec = log.ledger.manifest.exchange.codec
    for after in replayed(state, rounds, opened.bodies, state_keeper.training_spec, codec):
        state_keeper.adopt(after)
        if after.round == state_keeper.plan.teacher_round:
            state_keeper.snapshots.save(after)
    if missing:
        assert state_keeper.state is not None
        state_keeper.save(state_keeper.state, log.head, log.tree_head)
    else:
        state_keeper.snapshots.certify(state.round, log.head, log.tree_head)  # which a crash may have come before


def _state_keeper(config: RunConfig, directory: Path, signed: SignedManifest, dataset: Dataset) -> StateKeeper:
    keep_rounds = config.bodies
    return StateKeeper(directory / SNAPSHOTS, signed.open(), signed.run, dataset, keep_snapshots=config.snapshots, keep_rounds=keep_rounds)


def _bodies(config: RunConfig, directory: Path, signed: SignedManifest, state: State) -> Bodies:
    size = body_num_bytes(signed.open().exchange.codec, state.parameters.numel())
    return Bodies(directory / BODIES, body_bytes=size, keep=config.bodies)


def filled_blob_store(log: Log, state_keeper: StateKeeper) -> BlobStore:
    """Return a blob store with what newcomers need: the current state, and the one that the rounds to come learn from too.

    Raises:
        StorageError: the snapshot of the latter is gone or damaged.
    """
    blob_store = BlobStore(max_bytes=_STORE_BYTES)
    put_state(blob_store, log, state_keeper)
    return blob_store


def put_state(blob_store: BlobStore, log: Log, state_keeper: StateKeeper) -> None:
    """Put the current state into the blob store, and the one that the rounds to come learn from too.

    Raises:
        StorageError: the snapshot of the latter is gone or damaged.
    """
    assert state_keeper.state is not None
    blob_store.put(Blob.of(state_pieces(state_keeper.state)), "state")
    teacher = state_keeper.teacher(log.ledger)
    if teacher is not None:
        blob_store.pin(Blob.of(state_pieces(teacher)))
