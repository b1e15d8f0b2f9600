"""What this peer has earned so far: as the log says, and as far as it computed it itself, from the claims of the rounds that counted it.

Credit is a pure function of the log, and a round's part of it one of that round's claims; the more peers, the more bytes. So they are
fetched the more rarely the dearer it is, as means are checked (``peer.rounds.check``): in a small run for each round, in a large one for
some, by lot. What the log says of the others stays its word, and is shown as that. What was found out outlives the program.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from peer.rounds.check import SHARE
from peer.status import StatusBoard
from peer.store import PeerStore
from protocol.course import Course
from protocol.earnings import earned
from protocol.encoding import pack, unpack
from protocol.errors import MantaError, RemoteFault, StorageError
from protocol.manifest import Manifest
from protocol.records import Round
from protocol.signing import sha256
from swarm import waits
from swarm.log_client import Commitment, LogClient
from swarm.messages import CreditWord

_CLAIM_BYTES = 800  # of a contribution of one claim, as it travels, about
_REMEMBERED = 64  # newest rounds that were computed: none is added twice
_MAX_FILE_BYTES = 4096

logger = logging.getLogger("manta.peer")


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known, as it is kept."""

    round: int = 0  # the newest that the log's word counts; 0: it said nothing yet
    credit: int = 0  # by the log's word
    checked: int = 0  # computed here: the sum over ...
    num_checked: int = 0  # ... so many rounds
    newest: tuple[int, ...] = ()  # of these rounds

    def __post_init__(self) -> None:
        if min(self.round, self.credit, self.checked, self.num_checked) < 0 or len(self.newest) > _REMEMBERED:
            raise ValueError("a credit that cannot be")


@dataclass(frozen=True, slots=True)
class _File:
    kept: Kept
    digest: bytes


class Credit:
    """One peer's, in one run."""

    def __init__(
        self,
        manifest: Manifest,
        course: Course,
        key: bytes,
        log: LogClient,
        store: PeerStore,
        run: bytes,
        board: StatusBoard,
        *,
        mean_bytes: int,
        commitment: Callable[[int], Commitment | None],
        rng: random.Random | None = None,
    ) -> None:
        """Know what was kept at the last time.

        Args:
            manifest: the run's.
            course: what its rounds ask for.
            key: whose credit it is.
            log: the line to the log.
            store: where it is kept.
            run: the run's id.
            board: shows it.
            mean_bytes: of a round's mean: what the claims are dear beside.
            commitment: returns one of the newest commits.
            rng: draws which rounds are computed.
        """
        self._manifest = manifest
        self._course = course
        self._key = key
        self._log = log
        self._store = store
        self._run = run
        self._board = board
        self._mean_bytes = mean_bytes
        self._commitment = commitment
        self._rng = rng or random.Random()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._kept = self._load()
        self._show()

    def ask(self, round_: int = 0) -> None:
        """Find out what was earned so far; and in ``round_``, which counted this peer."""
        self._tasks.add(task := asyncio.create_task(self._ask(round_)))
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait for what is being found out, but not for long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=waits.LAST_ROWS_S)

    async def close(self) -> None:
        """Find out nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, round_: int) -> None:
        async with self._turn:
            try:
                word = await self._log.credit(round_)
                found = await self._computed(round_) if round_ and round_ not in self._kept.newest else None
            except MantaError as error:  # the figures are for people: nothing waits for them, and the next word has all of them
                logger.info("credit not told round=%d reason=%s", round_, error)
                return
            self._take(round_, word, found)

    async def _computed(self, round_: int) -> int | None:
        """Return what this peer earned in a round, by its claims; None: they are too dear, or cannot be had."""
        commitment = self._commitment(round_)
        if commitment is None or not self._wants(commitment.proven.round):
            return None
        entry = commitment.proven.round
        try:
            claims = await self._log.claims(round_)
            shares = await asyncio.to_thread(earned, self._manifest, self._course, entry, claims)
        except MantaError as error:
            logger.info("credit not computed round=%d reason=%s", round_, error)
            return None
        return shares.get(self._key, 0)

    def _wants(self, entry: Round) -> bool:
        return self._rng.random() * SHARE * entry.rows * _CLAIM_BYTES < self._mean_bytes

    def _take(self, round_: int, word: CreditWord, found: int | None) -> None:
        kept = self._kept
        if word.round >= kept.round:
            kept = replace(kept, round=word.round, credit=word.credit)
        if found is not None:
            newest = (*kept.newest, round_)[-_REMEMBERED:]
            kept = replace(kept, checked=kept.checked + found, num_checked=kept.num_checked + 1, newest=newest)
        self._kept = kept
        self._save()
        said = word.earned[0] if word.earned else None
        if found is not None and said is not None and found != said:
            self._complain(f"the log says that this peer earned {said} in round {round_}, and its claims come to {found}")
        elif kept.checked > kept.credit:
            said_of = f"the log says that this peer earned {kept.credit} up to round {kept.round}"
            self._complain(f"{said_of}, and the claims of {kept.num_checked} of them come to {kept.checked}")
        self._show(round_, said if found is None else found, is_checked=found is not None)

    def _complain(self, fault: str) -> None:
        if not self._board.status.credit_fault:
            self._board.say(f"{fault}: whoever copies the log sees which is true")
        self._board.update(credit_fault=fault)

    def _show(self, round_: int = 0, last: int | None = None, *, is_checked: bool = False) -> None:
        kept = self._kept
        if kept.round:
            self._board.credit(kept.round, kept.credit, kept.checked, kept.num_checked)
        if last is not None and round_:
            self._board.earned(round_, last, is_checked=is_checked)

    def _load(self) -> Kept:
        data = self._store.load_credit(self._run)
        if data is None:
            return Kept()
        try:
            found = unpack(_File, data, max_bytes=_MAX_FILE_BYTES)
            if found.digest != sha256(pack(found.kept)):
                raise RemoteFault("its digest is another one")
        except RemoteFault as error:  # the log says it again, and nothing else follows from it
            logger.warning("what was kept of the credit is damaged reason=%s", error)
            return Kept()
        return found.kept

    def _save(self) -> None:
        try:
            self._store.save_credit(self._run, pack(_File(self._kept, sha256(pack(self._kept)))))
        except StorageError as error:
            logger.error("credit not kept reason=%s", error)
