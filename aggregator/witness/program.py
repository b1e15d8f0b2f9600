"""A witness of a run's log: it follows the log from outside, cosigns heads by its rule, and says and keeps what does not agree.

It dials out only, so it works behind any router: it asks the log for commits as peers do, over the run's network, where the log's answers
are authenticated by its key, and brings the cosignatures back by the same line. (The files below the monitor's /tlog/ would have to be
reachable for it, and take nothing.) It has no say in the run.

DIR/identity.key   the witness's Ed25519 key, mode 0600
DIR/manifest.cbor  the run that it is a witness of: one only
DIR/head           see ``aggregator.witness.rule``
DIR/newest         the newest commit that it cosigned the head of, as the log proves it: what is shown to a log that went back
DIR/proofs/        what shows that the log does not hold to what it signed
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from aggregator.log.storage import MANIFEST
from aggregator.witness.http import serving
from aggregator.witness.rule import PROOFS, Rule
from protocol.encoding import pack
from protocol.errors import OtherHistory, RemoteFault, StorageError, Unreachable, UserError
from protocol.histories import Departure, Histories, contradict, departure
from protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from protocol.merkle import verify_consistency
from protocol.signing import peer_name
from swarm import waits
from swarm.disk import IDENTITY, disk_errors, load_identity, make_directory, only_process, replace_file, write_durably
from swarm.door import Door
from swarm.log_client import Commitment, LogClient, fetch_manifest
from swarm.log_proofs import departure_from, proof_between
from swarm.messages import MAX_RECEIPT_BYTES
from swarm.node import Node, parse_address
from swarm.rpc import OwnNode

NEWEST = "newest"

logger = logging.getLogger("manta.witness")


class Witness:
    """One witness, following one log."""

    def __init__(self, node: OwnNode, rule: Rule, directory: Path, say: Callable[[str], None]) -> None:
        """Prepare; ``follow`` does the rest.

        Raises:
            StorageError: what was kept cannot be read.
        """
        self._node = node
        self._rule = rule
        self._directory = directory
        self._say = say
        self._log = LogClient(node, rule.signed.open(), rule.signed.run)
        self._newest = self._kept()
        self._left_ms: int | None = None  # how long the open round still is open, as the log said last; None: it is not waited for
        self._fault = ""  # what was said of the log last

    async def follow(self) -> None:
        """Cosign one head after the other, however often the log is away; ends when it is cancelled.

        Raises:
            OtherHistory: the log has two histories; the proof is kept.
            StorageError: what would be signed cannot be remembered.
        """
        pause_s = waits.LOG_AGAIN_S[0]
        while True:
            try:
                if await self._once():
                    pause_s = waits.LOG_AGAIN_S[0]
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
            pause_s = min(2 * pause_s, waits.LOG_AGAIN_S[1])

    async def _once(self) -> bool:
        """Wait for a commit and cosign its head; return whether there was one."""
        asked = 0 if self._newest is None else self._newest.proven.round.round
        told = await self._log.news(self._log.operator, asked, left_ms=self._left_ms)
        self._left_ms = told.left_ms
        newest = told.commitment
        if newest is None or (self._newest is not None and newest.proven.round.round <= asked):
            return False
        await self.take(newest)
        return True

    async def take(self, newest: Commitment) -> None:
        """Cosign the head of a commit if it goes on from the last one, and bring the log the cosignature.

        Raises:
            OtherHistory: it is of another history than that; the proof is kept.
            Unreachable, RemoteFault: the log does not answer, or proves nothing.
        """
        held, head = self._rule.head, newest.proven.tree_head
        self._check_contradiction(newest)
        if head.size < held.size:  # somebody brought a newer one to ``add-checkpoint``
            verify_consistency(head.size, held.size, await self._log.consistency(head.size, held.size), head.root, held.root)
            self._newest = newest
            return
        proof = await proof_between(self._log, held, head)
        if self._newest is not None and departure(held, head, proof) is not None and held == self._newest.proven.tree_head:
            self._accuse(Histories(self._rule.signed, self._newest.receipt, newest.receipt.tree_head, proof))
        cosignature = await asyncio.to_thread(self._rule.cosign, newest.receipt.tree_head, held.size, proof)
        replace_file(self._directory / NEWEST, pack(newest.receipt))
        self._newest = newest
        self._fault = ""
        await self._log.cosigned(head.size, cosignature)
        self._say(f"cosigned round={newest.proven.round.round} entries={head.size} root={head.root.hex()[:12]}")

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
            self._accuse(Histories(self._rule.signed, self._newest.receipt, shown.tree_head, shown.consistency))

    def _check_contradiction(self, newest: Commitment) -> None:
        if self._newest is not None and contradict(self._newest.proven, newest.proven):
            self._accuse(Histories(self._rule.signed, self._newest.receipt, newest.receipt.tree_head, (), (newest.receipt,)))

    def _accuse(self, evidence: Histories) -> None:
        """Keep and say what evidence shows.

        Raises:
            OtherHistory: the log will never go on from what was cosigned.
        """
        shown = evidence.check()
        path = self._directory / PROOFS / f"log-{shown.held.tree_head.size}-{shown.shown.size}.proof"
        make_directory(path.parent)
        write_durably(path, pack(evidence))
        held = shown.held.tree_head.size
        if shown.departure is Departure.WENT_BACK:
            self._complain(
                f"the log shows {shown.shown.size} entries, and has signed for {held}: an older copy, and told so; proof: {path}"
            )
            return
        how = "has signed two histories" if shown.departure is Departure.FORKED else "does not prove that it goes on"
        raise OtherHistory(f"the run's log {how} from the {held} entries that were cosigned; nothing more is; the proof is in {path}")

    def _complain(self, what: str) -> None:
        if what != self._fault:
            self._fault = what
            self._say(what)

    def _kept(self) -> Commitment | None:
        path = self._directory / NEWEST
        if not path.exists():
            return None
        with disk_errors(path), path.open("rb") as file:
            data = file.read(MAX_RECEIPT_BYTES + 1)
        try:
            return self._log.open(data)
        except RemoteFault as error:  # the rule's own memory is another file
            logger.warning("the newest commit that was kept is damaged reason=%s", error)
            return None


async def be_witness(
    of: Sequence[str], directory: Path, *, run: str | None, listen: Door | None, say: Callable[[str], None], stopped: "asyncio.Future[None]"
) -> None:
    """Be a witness of the run that is met at the addresses ``of``, until ``stopped`` is done.

    Raises:
        UserError: an address or the directory cannot be used, or the run is another one than before.
        OtherHistory: the log has two histories; the proof is kept.
        StorageError: the disk fails.
    """
    make_directory(directory)
    with only_process(directory):
        path = directory / IDENTITY
        identity = load_identity(path)
        try:
            node = await Node.start(identity, path, listen=[], initial_peers=of, serves_dht=False)
        except Unreachable as error:
            raise UserError(f"{error}: check --of, and that the aggregator runs and its port is open") from error
        try:
            signed = await _run_of(node, directory, run)
            rule = Rule(directory, identity, signed)
            say(f"witness {peer_name(identity.public_key)} of run {signed.open().name} id {signed.run.hex()}")
            say(f"the last head it cosigned has {rule.head.size} entries" if rule.head.size else "it has cosigned nothing yet")
            async with contextlib.AsyncExitStack() as stack:
                if listen is not None:
                    say(f"answers add-checkpoint at {await stack.enter_async_context(serving(rule, listen))}")
                await _until(stopped, Witness(node, rule, directory, say).follow(), node.watch_daemon())
        finally:
            await node.close()


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
        UserError: nobody serves it, or another run is there.
    """
    path, problems = directory / MANIFEST, []
    kept = _manifest_in(path)
    wanted = kept.run.hex() if kept is not None else run
    if kept is not None and run is not None and run != wanted:
        raise UserError(f"{directory} is of a witness of run {wanted}: a witness is of one run; choose another --dir")
    for address in node.entered_by:
        try:
            signed = await fetch_manifest(node, parse_address(address)[0])
            signed.open()
        except (Unreachable, RemoteFault) as error:
            problems.append(str(error))
            continue
        if wanted is not None and signed.run.hex() != wanted:
            raise UserError(f"{address} serves run {signed.run.hex()}, not {wanted}: check --of and --run, or choose another --dir")
        if kept is None:
            write_durably(path, pack(signed))
        return signed
    raise UserError(f"no manifest could be fetched ({'; '.join(problems)}); check --of, and that the aggregator runs")


def _manifest_in(path: Path) -> SignedManifest | None:
    if not path.exists():
        return None
    with disk_errors(path), path.open("rb") as file:
        data = file.read(MAX_SIGNED_MANIFEST_BYTES + 1)
    try:
        signed = SignedManifest.read(data)
        signed.open()
    except RemoteFault as error:
        raise StorageError(f"{path} is damaged ({error}); begin a new witness in another --dir") from error
    return signed
