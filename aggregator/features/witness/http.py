"""A witness's HTTP: C2SP tlog-witness's call ``add-checkpoint``, for whoever brings a tree head with its proof; and the entries that it
keeps, as the files of C2SP tlog-tiles. Bounded.
"""

import asyncio
import base64
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from manta_swarm.aggregator.features.witness.rule import OtherLog, OtherSize, OtherTree, WitnessMemory
from manta_swarm.aggregator.log.contents import CHECKPOINT
from manta_swarm.aggregator.log.storage import MANIFEST
from manta_swarm.aggregator.log.tiles import KEY
from manta_swarm.network.http_server import Places, answering
from manta_swarm.protocol.errors import EncodingError, ProofError, RemoteFault, SignatureError, StorageError
from manta_swarm.protocol.merkle import HASH_BYTES
from manta_swarm.protocol.notes import MAX_NOTE_BYTES
from manta_swarm.protocol.tiles import Tile
from manta_swarm.runtime.listen_address import ListenAddress

PATH = "/add-checkpoint"
_FILES = (CHECKPOINT, MANIFEST, KEY)  # beside tiles
MAX_PROOF = 63  # lines
_MAX_BODY_BYTES = MAX_NOTE_BYTES + 64 * (MAX_PROOF + 2)
_MAX_CONNECTIONS = 64
_REQUEST_S = 20.0  # for all of it to come
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")

logger = logging.getLogger("manta.witness")


class _TooLarge(Exception):
    """A body of more bytes than any that is taken."""


def parse(body: bytes) -> tuple[int, tuple[bytes, ...], str]:
    """Return the old size, the proof and the note in the body of a request.

    Raises:
        EncodingError: it is none.
    """
    try:
        head, blank, note = body.decode().partition("\n\n")
    except UnicodeDecodeError as error:
        raise EncodingError("the request is not UTF-8") from error
    old, *lines = head.split("\n")
    found = _OLD.fullmatch(old)
    if found is None or not blank:
        raise EncodingError("a request is: old SIZE, the lines of the proof, an empty line, and the signed tree head")
    if len(lines) > MAX_PROOF:
        raise EncodingError(f"a proof has at most {MAX_PROOF} lines")
    return int(found[1]), tuple(map(_hash, lines)), note


def _hash(line: str) -> bytes:
    try:
        data = base64.b64decode(line, validate=True)
    except ValueError as error:
        raise EncodingError("a line of the proof is not base64") from error
    if len(data) != HASH_BYTES or base64.b64encode(data).decode() != line:
        raise EncodingError("a line of the proof is no hash in base64")
    return data


def app(memory: WitnessMemory, entries: Path | None = None) -> Starlette:
    """Return what answers for a witness; ``entries`` is the folder with those that it keeps, which it shows."""

    async def add(request: Request) -> Response:
        try:
            async with asyncio.timeout(_REQUEST_S):
                old, proof, note = parse(await _body(request))
            cosignature = await asyncio.to_thread(memory.cosign, note, old, proof)
        except (TimeoutError, ClientDisconnect):
            return _no(408, "too slow")
        except _TooLarge:
            return _no(413, f"more than {_MAX_BODY_BYTES} bytes")
        except OtherSize:
            return Response(f"{memory.head.size}\n", 409, media_type="text/x.tlog.size", headers={"content-type": "text/x.tlog.size"})
        except StorageError as error:
            logger.error("not cosigned reason=%s", error)
            return _no(503, "this witness cannot remember what it signs")
        except RemoteFault as error:
            return _no(_status_of(error), str(error))
        return PlainTextResponse(cosignature.line)

    async def show(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            try:
                Tile.named(name)
            except EncodingError as error:
                return _no(404, str(error))
        return await asyncio.to_thread(_file, (entries or Path()) / name)

    routes = [Route(PATH, add, methods=["POST"])]
    return Starlette(routes=routes if entries is None else [*routes, Route("/{name:path}", show, methods=["GET"])])


def _file(path: Path) -> Response:
    try:
        return Response(path.read_bytes(), media_type="application/octet-stream")
    except OSError:
        return _no(404, "it is not here")


def _status_of(error: RemoteFault) -> int:
    """Return the HTTP status that C2SP wants for a refusal."""
    if isinstance(error, OtherLog):
        return 404
    if isinstance(error, OtherTree):
        return 409
    if isinstance(error, SignatureError):
        return 403
    return 422 if isinstance(error, ProofError) else 400


def _no(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status)


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _MAX_BODY_BYTES:
            raise _TooLarge
        parts.append(part)
    return b"".join(parts)


@contextlib.asynccontextmanager
async def serving(memory: WitnessMemory, listen_address: ListenAddress, entries: Path | None = None) -> AsyncIterator[str]:
    """Answer until the end of the context; yields the address, ``http://HOST:PORT/``; ``entries`` as ``app`` has them.

    Raises:
        UserError: see ``ListenAddress.listen``.
    """
    listening, listen_address = listen_address.listen()
    async with answering(app(memory, entries), listening, Places(_MAX_CONNECTIONS, _MAX_CONNECTIONS), "witness"):
        yield listen_address.url
