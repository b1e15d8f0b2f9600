"""What the monitor added up of a log, kept in DIR/monitor/view.kept, so that its next start need not open every entry again.

Of a run with audits the next start has a ledger follow all entries all the same (``aggregator.monitor.audits``); the rest is kept.

It is never believed over the log. It is taken only if it is whole, of this version, run and operator, and if the entries that the log holds
now, each hashed again, have the root that was added up; what came after them is read as ever, and all of it has to have the root that the
newest tree head signs for. In any other case it is thrown away, and the log is read from its beginning.
"""

import asyncio
import json
import logging
import sys
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from manta_swarm.aggregator.log.stored import StoredLog
from manta_swarm.aggregator.monitor.audits import AuditTotals
from manta_swarm.aggregator.monitor.tables import ClaimSeen, RoundColumns
from manta_swarm.aggregator.monitor.view import KEPT_CLAIMS, PeerSeen, View
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, StorageError
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.merkle import Frontier, leaf_hash
from manta_swarm.protocol.rewards import TrainingSpec
from manta_swarm.protocol.signing import peer_name, sha256
from manta_swarm.runtime.disk import replace_file

KEPT = "view.kept"
MAX_BYTES = 256 * 1024 * 1024  # unpacked: 40,000 peers, or a million rounds; of a larger one nothing is kept
_FORM = f"manta view 3, {sys.byteorder}, {version('manta-swarm')}"  # another version may add up otherwise
_HASHED_AT_A_TIME = 512  # 32 MiB of the largest ones
_MUCH = 16_384  # entries: three seconds
_EVERY_S, _SHARE = 60.0, 0.02  # of the time, at most, for keeping
_PEER_NUMBERS = ("claims", "microbatches", "samples", "first_round")
_CLAIM_NUMBERS = ("index", "round", "base_round", "microbatches", "samples", "microbatch_ms", "weight")
_KEY_BYTES, _NUMBER_BYTES, _DIGEST_BYTES = 32, 8, 32

Value = TypeVar("Value", bytes, str)
logger = logging.getLogger("manta.monitor")


@dataclass(frozen=True, slots=True)
class KeptView:
    """A view up to its newest round, in columns: numbers of 64 bits in this computer's order, keys one after the other."""

    form: str
    run: bytes
    operator: bytes
    size: int  # entries
    root: bytes
    rounds: tuple[bytes, ...]  # of ``RoundColumns.columns``
    peers: bytes  # keys
    peer_numbers: tuple[bytes, ...]
    claims_kept: bytes  # of each peer, how many
    claims: tuple[bytes, ...]  # of all peers, in their order
    claim_credits: bytes  # -1: none is known
    claim_payouts: bytes  # places in ``payouts``
    claim_founders: bytes  # places in ``founders``
    claim_cohorts: bytes
    payouts: bytes  # keys
    founders: bytes  # keys
    cohorts: str  # JSON
    paid_keys: bytes  # of a run without audits: who was paid something for an account, once for each
    paid_accounts: bytes  # keys
    paid: bytes  # how much


class Keeping:
    """Keeps the view of one log, and recalls it."""

    def __init__(self, path: Path, signed: SignedManifest, operator: bytes) -> None:
        """Keep it in the file ``path``."""
        self._path = path
        self._signed = signed
        self._operator = operator
        self._size = 0  # of what is kept
        self._next_s = 0.0
        self.reading_to = 0  # entries that there are to be read
        self._is_failing = False

    async def recall(self, log: StoredLog, head_size: int, training_spec: TrainingSpec, told: Callable[[int], None]) -> View | None:
        """Return what was kept, if the log's first entries are those that it is of; ``told`` hears how many of them were hashed.

        Raises:
            StorageError: the log cannot be read.
        """
        try:
            kept = await asyncio.to_thread(self._read)
            if kept is None:
                return None
            if kept.size > head_size:
                raise EncodingError(f"it is of {kept.size} entries, and the log has {head_size}")
            frontier, audits = Frontier(), AuditTotals(self._signed, training_spec)
            while frontier.size < kept.size:
                await asyncio.to_thread(_read_on, frontier, audits, log, min(frontier.size + _HASHED_AT_A_TIME, kept.size))
                told(frontier.size)
            if frontier.root() != kept.root:
                raise EncodingError("it is of other entries than the log's")
            view = View(self._signed, training_spec)
            await asyncio.to_thread(_recall, view, kept, frontier, audits, log)
        except RemoteFault as error:
            logger.warning("what was added up is thrown away path=%s reason=%s", self._path, error)
            return None
        self._size = kept.size
        return view

    async def keep(self, view: View) -> None:
        """Keep what a view has added up, if that is due: it is after a while, and after much was read at a time. Nobody takes entries into
        it meanwhile.
        """
        update = view.folded[0] - self._size
        if not update or (time.monotonic() < self._next_s and (view.size < self.reading_to or update < _MUCH)):
            return
        began_s = time.monotonic()
        failure = await asyncio.to_thread(self._write, view)
        if failure is not None and not self._is_failing:
            logger.warning("what was added up is not kept path=%s reason=%s", self._path, failure)
        self._is_failing, self._size = failure is not None, view.folded[0]
        now_s = time.monotonic()
        self._next_s = now_s + max(_EVERY_S, (now_s - began_s) / _SHARE)

    def _write(self, view: View) -> str | None:
        """Return why it cannot be kept; None: it is."""
        data = pack(_kept_of(view, self._signed.run, self._operator))
        if len(data) > MAX_BYTES:
            return f"{len(data)} bytes are more than {MAX_BYTES}"
        try:
            replace_file(self._path, sha256(data) + zlib.compress(data, 1))
        except StorageError as error:
            return str(error)
        return None

    def _read(self) -> KeptView | None:
        """Return what is in the file; None: there is none.

        Raises:
            EncodingError: it is damaged, or of another version, run or operator.
        """
        try:
            with self._path.open("rb") as file:
                digest, packed = file.read(_DIGEST_BYTES), file.read(MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EncodingError(f"it cannot be read: {error.strerror}") from error
        try:
            data = zlib.decompressobj().decompress(packed, MAX_BYTES)
        except zlib.error as error:
            raise EncodingError("it is damaged") from error
        if sha256(data) != digest:
            raise EncodingError("it is damaged")
        kept = unpack(KeptView, data, max_bytes=MAX_BYTES)
        if (kept.form, kept.run, kept.operator) != (_FORM, self._signed.run, self._operator):
            raise EncodingError("it is of another version, run or operator")
        return kept


def _read_on(frontier: Frontier, audits: AuditTotals, log: StoredLog, end: int) -> None:
    for entry in log.entries(frontier.size, end):
        frontier.append(leaf_hash(entry))
        if audits.ledger is not None:
            audits.follow(entry)


def _kept_of(view: View, run: bytes, operator: bytes) -> KeptView:
    size, root = view.folded
    peers = list(view.peers.values())
    claims = [claim for peer in peers for claim in peer.newest]
    payouts, founders = _places(claim.payout for claim in claims), _places(claim.founder for claim in claims)
    cohorts = _places(claim.cohort for claim in claims)
    paid = {} if view.manifest.is_audited else view.reputation.paid
    return KeptView(
        form=_FORM,
        run=run,
        operator=operator,
        size=size,
        root=root,
        rounds=view.rounds.columns(),
        peers=b"".join(peer.key for peer in peers),
        peer_numbers=tuple(_column(getattr(peer, name) for peer in peers) for name in _PEER_NUMBERS),
        claims_kept=_column(len(peer.newest) for peer in peers),
        claims=tuple(_column(getattr(claim, name) for claim in claims) for name in _CLAIM_NUMBERS),
        claim_credits=_column(-1 if claim.credit is None else claim.credit for claim in claims),
        claim_payouts=_column(payouts[claim.payout] for claim in claims),
        claim_founders=_column(founders[claim.founder] for claim in claims),
        claim_cohorts=_column(cohorts[claim.cohort] for claim in claims),
        payouts=b"".join(payouts),
        founders=b"".join(founders),
        cohorts=json.dumps(list(cohorts)),
        paid_keys=b"".join(key for key, _ in paid),
        paid_accounts=b"".join(account for _, account in paid),
        paid=_column(paid.values()),
    )


def _recall(view: View, kept: KeptView, frontier: Frontier, audits: AuditTotals, log: StoredLog) -> None:
    """Have a new view take what was kept, its newest round read again.

    Raises:
        EncodingError, LedgerError: its columns do not fit together, or not to the log.
        StorageError: the log cannot be read.
    """
    rounds = RoundColumns.of(kept.rounds)
    if (rounds.index_of(rounds.newest) if audits.settlement is None else audits.settlement) != kept.size - 1:
        raise EncodingError("its newest round, or its settlement, is not its newest entry")
    try:
        peers = _peers_of(kept)
        accounts = _keys(kept.paid_accounts)
        audits.recalled(zip(_keys(kept.paid_keys), accounts, _numbers(kept.paid, len(accounts)), strict=True))
    except (ValueError, IndexError, TypeError) as error:  # whole, and yet not what this program writes
        raise EncodingError(f"its columns do not fit together: {error}") from error
    view.recall(frontier, audits, rounds, peers)
    if rounds.newest:
        view.newest = view.table(rounds.newest, log.entries(*view.span(rounds.newest)))


def _peers_of(kept: KeptView) -> dict[bytes, PeerSeen]:
    keys, cohorts = _keys(kept.peers), json.loads(kept.cohorts)
    payouts, founders = _keys(kept.payouts), _keys(kept.founders)
    lengths = _numbers(kept.claims_kept, len(keys))
    if not all(0 < length <= KEPT_CLAIMS for length in lengths):
        raise EncodingError("a peer has as many claims as none can have")
    total = sum(lengths)
    columns = [_numbers(column, total) for column in kept.claims]
    places = zip(*(_numbers(column, total) for column in (kept.claim_payouts, kept.claim_founders, kept.claim_cohorts)), strict=True)
    numbers = zip(*columns, _numbers(kept.claim_credits, total), strict=True)
    peers = {}
    totals = zip(*(_numbers(column, len(keys)) for column in kept.peer_numbers), strict=True)
    for key, length, of_peer in zip(keys, lengths, totals, strict=True):
        newest: deque[ClaimSeen] = deque(maxlen=KEPT_CLAIMS)
        for _ in range(length):
            (*values, credit), (payout, founder, cohort) = next(numbers), next(places)
            named = dict(zip(_CLAIM_NUMBERS, values, strict=True))
            newest.append(
                ClaimSeen(
                    key=key,
                    payout=payouts[payout],
                    founder=founders[founder],
                    cohort=cohorts[cohort],
                    credit=None if credit < 0 else credit,
                    **named,
                )
            )
        peers[key] = PeerSeen(key, peer_name(key), newest=newest, **dict(zip(_PEER_NUMBERS, of_peer, strict=True)))
    return peers


def _places(values: Iterable[Value]) -> dict[Value, int]:
    """Return value -> place, each value once."""
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


def _column(values: Iterable[int]) -> bytes:
    return array("q", values).tobytes()


def _numbers(column: bytes, count: int) -> Sequence[int]:
    if len(column) != _NUMBER_BYTES * count:
        raise EncodingError("a column of another length")
    return array("q", column)


def _keys(data: bytes) -> list[bytes]:
    return [data[start : start + _KEY_BYTES] for start in range(0, len(data), _KEY_BYTES)]
