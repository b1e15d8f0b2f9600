"""The log as files over HTTP, below /tlog/: what ``aggregator.log.tiles`` exports, made as it is asked for (C2SP tlog-tiles)."""

import asyncio
from dataclasses import dataclass

from manta_swarm.aggregator.log.contents import CHECKPOINT
from manta_swarm.aggregator.log.storage import MANIFEST
from manta_swarm.aggregator.log.tiles import KEY, log_bytes, verifier_keys
from manta_swarm.aggregator.log.witnessed import WITNESSED, checkpoint, newest_witnessed
from manta_swarm.aggregator.monitor.asking import NotAnswered
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.tiles import Tile

_TEXT = "text/plain; charset=utf-8"


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
