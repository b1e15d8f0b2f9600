"""The run's log over HTTP: ``/api/ledger`` with entries, heads and proofs (docs/reference/api.md), and the log as files below /tlog/."""

import asyncio
from base64 import b64encode
from dataclasses import dataclass
from itertools import islice

from manta_swarm.aggregator.log.contents import CHECKPOINT
from manta_swarm.aggregator.log.storage import MANIFEST
from manta_swarm.aggregator.log.tiles import KEY, log_bytes, verifier_keys
from manta_swarm.aggregator.log.witnessed import WITNESSED, checkpoint, newest_witnessed
from manta_swarm.aggregator.monitor.asking import MOST, NotAnswered, RequestParameters, number_in_path
from manta_swarm.aggregator.monitor.shown import Json, shown_head, shown_witness
from manta_swarm.aggregator.monitor.sight import KEPT_HEADS, Sight
from manta_swarm.aggregator.monitor.tables import OpenedEntry, Said, fields, opened
from manta_swarm.protocol.admission import Admission, Revocation
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.merkle import leaf_hash
from manta_swarm.protocol.records import Contribution, Round
from manta_swarm.protocol.signing import peer_name
from manta_swarm.protocol.tiles import Tile
from manta_swarm.protocol.verdicts import Settlement, Verdict

MAX_ENTRIES, MAX_ACCOUNTS, MAX_EARNERS = 100, 200, 64

_TEXT = "text/plain; charset=utf-8"


class LedgerAnswers:
    """Makes the answers of ``/api/ledger``; a method raises ``NotAnswered`` where a request has none."""

    def __init__(self, sight: Sight) -> None:
        """Answer from what ``sight`` sees."""
        self._sight = sight

    async def head(self, asked: RequestParameters) -> Json:
        """``/api/ledger/head``"""
        newest = self._sight.newest_head
        if newest is None:
            raise NotAnswered(503, "no tree head was read yet; ask again in a moment")
        return shown_head(newest)

    async def heads(self, asked: RequestParameters) -> Json:
        """``/api/ledger/heads``"""
        shown = [shown_head(one) for one in reversed(self._sight.heads)][: asked.number("limit", 1, KEPT_HEADS, 20)]
        witnessed = self._sight.witnessed
        for one in shown:
            one["note"] = checkpoint(one["note"], witnessed)
        return {"heads": shown, "witnesses": list(map(shown_witness, witnessed))}

    async def entries(self, asked: RequestParameters) -> Json:
        """``/api/ledger/entries``"""
        size = self._sight.size
        before, limit = asked.number("before", 0, MOST, size), asked.number("limit", 1, MAX_ENTRIES, 20)
        end = min(before, size)
        start = max(0, end - limit)
        entries = await asyncio.to_thread(self._sight.log.entries, start, end)
        shown = [_shown_entry(index, entry, opened(entry)) for index, entry in enumerate(entries, start)]
        return {"size": size, "entries": shown[::-1], "more_before": start if start else None}

    async def entry(self, asked: RequestParameters, text: str) -> Json:
        """``/api/ledger/entries/{index}``"""
        index = self._index(number_in_path(text, "an entry"), self._sight.size)
        (entry,) = await asyncio.to_thread(self._sight.log.entries, index, index + 1)
        one = opened(entry)
        return {**_shown_entry(index, entry, one), "entry": b64encode(entry).decode(), "fields": fields(one)}

    async def proof(self, asked: RequestParameters) -> Json:
        """``/api/ledger/proof``"""
        size = self._sight.size
        of_size = asked.number("size", 0, size, size)
        index = asked.optional("index", 0, MOST)
        if index is None:
            raise NotAnswered(400, "the parameter index is missing: that of the entry")
        index = self._index(index, of_size)
        (entry,) = await asyncio.to_thread(self._sight.log.entries, index, index + 1)
        proof = await asyncio.to_thread(self._sight.log.inclusion_proof, index, of_size)
        return {"index": index, "size": of_size, "leaf_hash": leaf_hash(entry).hex(), "proof": [hash_.hex() for hash_ in proof]}

    async def consistency(self, asked: RequestParameters) -> Json:
        """``/api/ledger/consistency``"""
        size = self._sight.size
        new = asked.number("new", 0, size, size)
        old = asked.optional("old", 0, MOST)
        if old is None or old > new:
            raise NotAnswered(400, f"the parameter old is a number from 0 to {new}, the size of an earlier tree")
        proof = await asyncio.to_thread(self._sight.log.consistency_proof, old, new)
        return {"old": old, "new": new, "proof": [hash_.hex() for hash_ in proof]}

    async def credits(self, asked: RequestParameters) -> Json:
        """``/api/ledger/credits``"""
        offset, limit = asked.number("offset", 0, MOST, 0), asked.number("limit", 1, MAX_ACCOUNTS, 50)
        found = self._sight.credits
        return {
            "total": len(found.by_account),
            "offset": offset,
            "pool_paid": found.paid,
            "pool_pending": found.pending,
            "is_settled": self._sight.view.is_settled,
            "is_private": self._sight.manifest.is_private,
            "credits": [
                {
                    "account": peer_name(account),
                    "key": account.hex(),
                    "credit": earned.credit,
                    "paid": earned.paid,
                    "pending": earned.pending,
                    "num_peers": len(found.earners[account]),
                    "peers": [peer_name(key) for key in found.earners[account][:MAX_EARNERS]],
                    "trains": account in self._sight.view.peers,
                }
                for account, earned in islice(found.by_account.items(), offset, offset + limit)
            ],
        }

    def _index(self, index: int, size: int) -> int:
        if index >= size:
            raise NotAnswered(404, f"there is no entry {index} in a log of {size}")
        return index


def _shown_entry(index: int, entry: bytes, one: OpenedEntry) -> Json:
    said = one.said
    key = _signer(said)
    return {
        "index": index,
        "kind": one.kind,
        "leaf_hash": leaf_hash(entry).hex(),
        "size_bytes": len(entry),
        "round": said.round if isinstance(said, Contribution | Round | Verdict) else None,
        "peer": None if key is None else peer_name(key),
    }


def _signer(said: Said) -> bytes | None:
    """Return whose entry it is: a key that has signed it; None: of a round, or of the settlement."""
    match said:
        case Contribution():
            return said.founder
        case Verdict():
            return said.auditor
        case Admission():
            return said.key
        case Revocation():
            return said.operator
        case Round() | Settlement():
            return None


@dataclass(frozen=True, slots=True)
class PublicFile:
    """A file as it is sent."""

    data: bytes
    media_type: str
    is_final: bool  # it never changes


async def public_file(sight: Sight, name: str) -> PublicFile:
    """Return a file of the log that ``sight`` sees, up to the newest tree head that the monitor has looked at.

    Raises:
        NotAnswered: there is none of that name, or not yet.
        StorageError: the log is damaged, or the disk fails.
    """
    if name == CHECKPOINT:
        if sight.newest_head is None:
            raise NotAnswered(503, "the monitor has not read the log yet")
        return PublicFile(checkpoint(sight.newest_head.note, sight.witnessed).encode(), _TEXT, is_final=False)
    if name == WITNESSED:
        newest = newest_witnessed(sight.witnessed)
        if newest is None:
            raise NotAnswered(404, "no witness has cosigned a head of this log yet")
        return PublicFile(newest.encode(), _TEXT, is_final=False)
    if name == KEY:
        return PublicFile(verifier_keys(sight.operators).encode(), _TEXT, is_final=True)
    if name == MANIFEST:
        return PublicFile(pack(sight.signed), "application/octet-stream", is_final=True)
    try:
        tile = Tile.named(name)
    except EncodingError as error:
        raise NotAnswered(404, "there is no such file; C2SP's tlog-tiles says how they are called") from error
    if tile.first + tile.width > sight.size >> tile.row:
        raise NotAnswered(404, "the log has not grown to that yet")
    data = await asyncio.to_thread(log_bytes, sight.log, tile)
    return PublicFile(data, "application/octet-stream", is_final=True)
