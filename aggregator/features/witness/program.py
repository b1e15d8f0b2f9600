"""A witness of a run's log: it follows the log from outside, cosigns heads by its rule, and says and keeps what does not agree.

It dials out only, so it works behind any router: it asks the log for commits as peers do, over the run's network, where the log's answers
are authenticated by its key, and brings the cosignatures back by the same line. (The files below the monitor's /tlog/ would have to be
reachable for it, and take nothing.) It has no say in the run.

DIR/identity.key   the witness's Ed25519 key, mode 0600
DIR/manifest.cbor  the run that it is a witness of: one only
DIR/head           see ``aggregator.features.witness.rule``
DIR/newest         the newest commit that it cosigned the head of, as the log proves it: what is shown to a log that went back
DIR/log/           see ``aggregator.features.witness.entries``, where it keeps entries
DIR/proofs/        what shows that the log does not hold to what it signed
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from manta_swarm.aggregator.features.witness.entries import FOLDER, KeptEntries
from manta_swarm.aggregator.features.witness.http import serving
from manta_swarm.aggregator.features.witness.rule import PROOFS, WitnessMemory
from manta_swarm.aggregator.log.storage import MANIFEST
from manta_swarm.network import timeouts
from manta_swarm.network.log_client import MAX_RECEIPT_BYTES, LogClient, ProvenCommit, fetch_manifest
from manta_swarm.network.log_proofs import ask_consistency, ask_entries, bring_cosignature, departure_from, proof_between
from manta_swarm.network.node import Node, parse_address
from manta_swarm.network.rpc import OwnNode
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import OtherHistory, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.histories import Departure, Histories, contradict, departure
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.merkle import verify_consistency
from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.runtime.atomic_file import AtomicFile
from manta_swarm.runtime.console import Console
from manta_swarm.runtime.disk import IDENTITY, load_identity, make_directory, only_process, write_durably
from manta_swarm.runtime.listen_address import ListenAddress
from manta_swarm.runtime.tasks import together

NEWEST = "newest"
_BEGIN_ANEW = "begin a new witness in another --dir"

logger = logging.getLogger("manta.witness")


class Witness:
    """One witness, following one log."""

    def __init__(self, node: OwnNode, memory: WitnessMemory, directory: Path, console: Console, entries: KeptEntries | None = None) -> None:
        """Prepare; ``follow`` does the rest. With ``entries`` it keeps all entries under a head, and only then cosigns it.

        Raises:
            StorageError: what was kept cannot be read.
        """
        self._node = node
        self._memory = memory
        self._directory = directory
        self._newest_file = AtomicFile(directory / NEWEST, MAX_RECEIPT_BYTES, is_synced=False)
        self._console = console
        self._entries = entries
        self._log = LogClient(node, memory.signed.open(), memory.signed.run)
        self._newest = self._kept()
        self._left_ms: int | None = None  # how long the open round still is open, as the log said last; None: it is not waited for
        self._fault = ""  # what was said of the log last

    async def follow(self) -> None:
        """Cosign one head after the other, however often the log is away; ends when it is cancelled.

        Raises:
            OtherHistory: the log has two histories; the proof is kept.
            StorageError: what would be signed cannot be remembered.
        """
        pause_s = timeouts.LOG_AGAIN_S[0]
        while True:
            try:
                if await self._once():
                    pause_s = timeouts.LOG_AGAIN_S[0]
                    continue
            except Unreachable as error:
                self._left_ms = None
                logger.info("log not heard reason=%s", error)
                with contextlib.suppress(Unreachable):
                    await self._log.line.meet(self._node)
            except RemoteFault as error:
                self._left_ms = None
                self._complain(f"what the log says is refused: {error}")
                self._log.line.turn_away(str(error))
                await self._compare()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, timeouts.LOG_AGAIN_S[1])

    async def _once(self) -> bool:
        """Wait for a commit and cosign its head; return whether there was one."""
        asked = 0 if self._newest is None else self._newest.proven.round.round
        told = await self._log.next_update(self._log.operator, asked, left_ms=self._left_ms, takes_part=False)
        self._left_ms = told.left_ms
        newest = told.proven_commit
        if newest is None or (self._newest is not None and newest.proven.round.round <= asked):
            return False
        await self.take(newest)
        return True

    async def take(self, newest: ProvenCommit) -> None:
        """Cosign the head of a commit if it goes on from the last one, and bring the log the cosignature.

        Raises:
            OtherHistory: it is of another history than that; the proof is kept.
            Unreachable, RemoteFault: the log does not answer, or proves nothing.
        """
        held, head = self._memory.head, newest.proven.tree_head
        self._check_contradiction(newest)
        if head.size < held.size:  # somebody brought a newer one to ``add-checkpoint``
            verify_consistency(head.size, held.size, await ask_consistency(self._log, head.size, held.size), head.root, held.root)
            self._newest = newest
            return
        proof = await proof_between(self._log, held, head)
        if self._newest is not None and departure(held, head, proof) is not None and held == self._newest.proven.tree_head:
            self._accuse(Histories.shown_after(self._memory.signed, self._newest.receipt, newest.receipt.tree_head, proof))
        if self._entries is not None:
            verify_consistency(held.size, head.size, proof, held.root, head.root)  # before anything is kept of another history
            await self._entries.extend(head, newest.receipt.tree_head, partial(ask_entries, self._log))
        cosignature = await asyncio.to_thread(self._memory.cosign, newest.receipt.tree_head, held.size, proof)
        self._newest_file.write(pack(newest.receipt))
        self._newest = newest
        self._fault = ""
        await bring_cosignature(self._log, head.size, cosignature)
        self._console.say(f"cosigned round={newest.proven.round.round} entries={head.size} root={head.root.hex()[:12]}")

    async def _compare(self) -> None:
        """Show the log the newest head that is known here, and look at the one that it shows: it may be an older copy of itself."""
        if self._newest is None:
            return
        try:
            found, shown = await departure_from(self._log, self._newest)
        except (Unreachable, RemoteFault) as error:
            logger.info("no head reason=%s", error)
            return
        if found is not None:
            self._accuse(Histories.shown_after(self._memory.signed, self._newest.receipt, shown.tree_head, shown.consistency))

    def _check_contradiction(self, newest: ProvenCommit) -> None:
        if self._newest is not None and contradict(self._newest.proven, newest.proven):
            self._accuse(Histories.of_rounds(self._memory.signed, self._newest.receipt, newest.receipt))

    def _accuse(self, evidence: Histories) -> None:
        """Keep and say what evidence shows.

        Raises:
            OtherHistory: the log will never go on from what was cosigned.
        """
        shown = evidence.check()
        path = self._directory / PROOFS / f"log-{shown.held.size}-{shown.shown.size}.proof"
        write_durably(path, pack(evidence))
        held = shown.held.size
        if shown.departure is Departure.ROLLED_BACK:
            self._complain(
                f"the log shows {shown.shown.size} entries, and has signed for {held}: an older copy, and told so; proof: {path}"
            )
            return
        how = "has signed two histories" if shown.departure is Departure.FORKED else "does not prove that it goes on"
        raise OtherHistory(f"the run's log {how} from the {held} entries that were cosigned; nothing more is; the proof is in {path}")

    def _complain(self, what: str) -> None:
        if what != self._fault:
            self._fault = what
            self._console.say(what)

    def _kept(self) -> ProvenCommit | None:
        data = self._newest_file.read()
        try:
            return None if data is None else self._log.open(data)
        except RemoteFault as error:  # the witness's memory is another file
            logger.warning("the newest commit that was kept is damaged reason=%s", error)
            return None


@dataclass(frozen=True, slots=True)
class WitnessSettings:
    """The settings of a witness: which log it follows, and what else it does."""

    of: Sequence[str]  # addresses at which the run is met
    run: str | None  # its id: of no other
    listen: ListenAddress | None  # where C2SP's add-checkpoint is answered
    keep_entries: bool


async def be_witness(asked: WitnessSettings, directory: Path, *, console: Console, stopped: "asyncio.Future[None]") -> None:
    """Be a witness until ``stopped`` is done; while nobody of the run answers it is waited for.

    Raises:
        UserError: an address or the directory cannot be used, or the run is another one than before.
        OtherHistory: the log has two histories; the proof is kept.
        StorageError: the disk fails.
    """
    make_directory(directory)
    with only_process(directory):
        await _until(stopped, _be_witness(asked, directory, load_identity(directory / IDENTITY), console))


async def _be_witness(asked: WitnessSettings, directory: Path, identity: Identity, console: Console) -> None:
    pause_s, said = timeouts.RUN_AGAIN_S[0], ""
    while True:
        try:
            node, signed = await _met(asked, directory, identity)
            break
        except Unreachable as error:
            if str(error) != said:
                said = str(error)
                console.say(f"{said}; it is tried again until somebody answers (else check --of, and that the aggregator runs)")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, timeouts.RUN_AGAIN_S[1])
    try:
        memory = WitnessMemory(directory, identity, signed)
        console.say(f"witness {peer_name(identity.public_key)} of run {signed.open().name} id {signed.run.hex()}")
        console.say(f"the last head it cosigned has {memory.head.size} entries" if memory.head.size else "it has cosigned nothing yet")
        entries = await asyncio.to_thread(KeptEntries, directory / FOLDER, signed) if asked.keep_entries else None
        if entries is not None:
            console.say(f"keeps all entries in {directory / FOLDER}: it has {entries.size}")
        async with contextlib.AsyncExitStack() as stack:
            if asked.listen is not None:
                url = await stack.enter_async_context(serving(memory, asked.listen, directory / FOLDER if asked.keep_entries else None))
                console.say(f"answers add-checkpoint at {url}")
            await together(Witness(node, memory, directory, console, entries).follow(), node.watch_daemon())
    finally:
        await node.close()


async def _met(asked: WitnessSettings, directory: Path, identity: Identity) -> tuple[Node, SignedManifest]:
    """Return a node that met the run, and the run's manifest.

    Raises:
        Unreachable: nobody of it answers.
        UserError: another run is there, or one that is not to be believed.
    """
    node = await Node.start(identity, directory / IDENTITY, listen=[], initial_peers=asked.of, serves_dht=False)
    try:
        return node, await _run_of(node, directory, asked.run)
    except BaseException:
        await node.close()
        raise


async def _until(stopped: "asyncio.Future[None]", *works: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_of(node: Node, directory: Path, run: str | None) -> SignedManifest:
    """Return the manifest of the run that this witness is of: the one that it began with, if there is one.

    Raises:
        Unreachable: nobody answers.
        UserError: what is served is not to be believed, or another run.
    """
    file, problems, away = AtomicFile(directory / MANIFEST, MAX_SIGNED_MANIFEST_BYTES, _BEGIN_ANEW), [], []
    kept = _manifest_in(file)
    wanted = kept.run.hex() if kept is not None else run
    if kept is not None and run is not None and run != wanted:
        raise UserError(f"{directory} is of a witness of run {wanted}: a witness is of one run; choose another --dir")
    for address in node.entered_by:
        try:
            signed = await fetch_manifest(node, parse_address(address)[0])
            signed.open()
        except Unreachable as error:
            away.append(str(error))
            continue
        except RemoteFault as error:
            problems.append(str(error))
            continue
        if wanted is not None and signed.run.hex() != wanted:
            raise UserError(f"{address} serves run {signed.run.hex()}, not {wanted}: check --of and --run, or choose another --dir")
        if kept is None:
            file.write(pack(signed))
        return signed
    if problems:
        raise UserError(f"no manifest could be fetched ({'; '.join(problems)}); check --of, and that the aggregator runs")
    raise Unreachable("; ".join(away))


def _manifest_in(file: AtomicFile) -> SignedManifest | None:
    if (data := file.read()) is None:
        return None
    try:
        signed = SignedManifest.read(data)
        signed.open()
    except RemoteFault as error:
        raise file.damaged(str(error)) from error
    return signed
