"""The monitor's HTTP: routes to answers, their statuses and headers, and the page's own files; what is asked again soon is made once.

Read only, and without state of its own: no cookie, no login. On loopback it answers only to names of this computer, or a page elsewhere
could read it through the browser of whoever looks at that page (DNS rebinding).
"""

import gzip
import ipaddress
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from manta_swarm.aggregator.monitor.answers import Answers
from manta_swarm.aggregator.monitor.asking import NotAnswered, RequestParameters
from manta_swarm.aggregator.monitor.ledger_answers import LedgerAnswers, public_file
from manta_swarm.aggregator.monitor.metrics import MEDIA_TYPE, RunMetrics
from manta_swarm.aggregator.monitor.present import Present
from manta_swarm.aggregator.monitor.shown import Json
from manta_swarm.aggregator.monitor.sight import Sight
from manta_swarm.aggregator.monitor.streams import EventStreams
from manta_swarm.aggregator.monitor.trusted import TrustAnswers
from manta_swarm.protocol.errors import MantaError
from manta_swarm.protocol.signing import sha256

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain; charset=utf-8",
}
_OTHER = "text/plain; charset=utf-8"  # licences
_PACKED = {".png", ".ico", ".woff2"}  # compressed as they are

MAX_TARGET_BYTES = 2048
_CACHED, _CACHED_BYTES = 256, 16 * 1024 * 1024
_WORTH_PACKING = 1024
_FAULTS_TOLD = 100  # different ones: strangers choose what they ask for
_FOR_EVER = "public, max-age=31536000, immutable"
_OF_PAGE = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_OF_REST = {"content-security-policy": "default-src 'none'"}  # few bytes: the first view has forty answers
_OF_ALL = {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}
_EVENT_STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]

logger = logging.getLogger("manta.monitor")
Answer = Callable[..., Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page, with its tag; also compressed, unless that gains nothing."""

    media_type: str
    tag: str  # for the headers ETag and If-None-Match
    data: bytes
    compressed: bytes | None


def load_files(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Return the files under ``folder`` by their path in it, with slashes; nothing else is ever read."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            compressed = None if path.suffix in _PACKED else gzip.compress(data, 9, mtime=0)
            found[path.relative_to(folder).as_posix()] = StaticFile(
                media_type=_TYPES.get(path.suffix, _OTHER),
                tag=f'"{sha256(data).hex()[:24]}"',
                data=data,
                compressed=compressed if compressed is not None and len(compressed) < len(data) else None,
            )
    return found


@dataclass(frozen=True, slots=True)
class _Made:
    """An answer as it is sent."""

    data: bytes
    packed: bytes | None


class MonitorApp:
    """The monitor as an ASGI application."""

    def __init__(
        self,
        sight: Sight,
        present: Present,
        answers: Answers,
        streams: EventStreams,
        files: dict[str, StaticFile],
        host_names: Collection[str] | None,
    ) -> None:
        """Answer of what ``sight`` sees; ``host_names``: beside those of this computer; None: to any name."""
        self._sight = sight
        self._present = present
        self._streams = streams
        self._run_metrics = RunMetrics(sight, present, streams)
        self._files = files
        self._host_names = None if host_names is None else {name.lower() for name in host_names}
        self._faults_told: set[str] = set()
        self._cache: OrderedDict[str, _Made] = OrderedDict()
        self._routed = Starlette(
            routes=[
                Route("/", self._page),
                Route("/static/{name:path}", self._static),
                Route("/metrics", self._metrics),
                Route("/api/pictures/{name}.png", self._picture),
                Route("/tlog/{name:path}", self._public_log),
                *self._api_routes(answers),
            ],
            exception_handlers={HTTPException: _http_error, NotAnswered: _not_answered, MantaError: self._fault, 500: _crash},
        )
        self._routed.router.redirect_slashes = False

    def next_moment(self) -> None:
        """Forget the answers that were made before: something is new."""
        self._cache.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = _OF_ALL | (_OF_PAGE if scope["path"] == "/" else _OF_REST)  # also of a 304, whose headers replace the page's
                message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in more.items())]
            elif scope["method"] == "HEAD":
                message["body"] = b""
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, sending)
        elif scope["path"] == "/api/events":
            await self._events(scope, receive, sending)
        else:
            await self._routed(scope, receive, sending)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not even looked at; None: it is."""
        if scope["method"] not in ("GET", "HEAD"):
            return _error(405, "the monitor only shows: GET and HEAD", {"allow": "GET, HEAD"})
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            return _error(414, f"a path and its query have at most {MAX_TARGET_BYTES} bytes")
        if self._host_names is not None:
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or not _is_this_computer(hosts[0], self._host_names):
                return _error(421, "this page is for this computer; a name of a reverse proxy goes into host_names of the run file")
        return None

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["query_string"]:
            await _error(400, "this route has no parameters")(scope, receive, send)
        elif scope["method"] == "HEAD":
            await Response(headers={"content-type": "text/event-stream"})(scope, receive, send)
        elif self._streams.is_full:
            self._streams.refused += 1
            text = f"all {self._streams.limit} streams are taken; ask /api/now now and then, or come back later"
            await _error(503, text, {"retry-after": "30"})(scope, receive, send)
        else:
            await self._streams.serve(scope, receive, send, list(_EVENT_STREAM))

    def _api_routes(self, answers: Answers) -> list[Route]:
        span, page = ("from", "to", "points"), ("offset", "limit")
        ledger, trust = LedgerAnswers(self._sight), TrustAnswers(self._sight, self._present)
        plain: dict[str, tuple[Answer, tuple[str, ...]]] = {
            "/api/run": (answers.run, ()),
            "/api/manifest": (answers.manifest, ()),
            "/api/now": (answers.now, ()),
            "/api/series": (answers.series, span),
            "/api/quality": (answers.quality, span),
            "/api/fronts": (answers.fronts, ("limit", "cost")),
            "/api/members-front": (answers.members_front, ()),
            "/api/pictures": (answers.pictures, ()),
            "/api/peers": (answers.peers, (*page, "sort", "order", "cohort", "state", "query")),
            "/api/peers/{of}": (answers.peer, ("before", "limit")),
            "/api/swarm": (answers.swarm, ()),
            "/api/rounds": (answers.rounds, ("before", "limit")),
            "/api/rounds/{of}": (answers.round, page),
            "/api/timeline": (answers.timeline, ("limit",)),
            "/api/traffic": (answers.traffic, ()),
            "/api/ledger/head": (ledger.head, ()),
            "/api/ledger/heads": (ledger.heads, ("limit",)),
            "/api/ledger/entries": (ledger.entries, ("before", "limit")),
            "/api/ledger/entries/{of}": (ledger.entry, ()),
            "/api/ledger/proof": (ledger.proof, ("index", "size")),
            "/api/ledger/consistency": (ledger.consistency, ("old", "new")),
            "/api/ledger/credits": (ledger.credits, page),
            "/api/trust": (trust.overview, ()),
            "/api/trust/keys": (trust.keys, page),
            "/api/trust/audits": (trust.audits, page),
            "/api/trust/faults": (trust.faults, page),
            "/api/trust/contributions/{of}": (trust.contribution, ()),
        }
        return [Route(path, self._answering(answer, known)) for path, (answer, known) in plain.items()]

    def _answering(self, answer: Answer, known: tuple[str, ...]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            query = request.scope["query_string"].decode("latin-1")
            target = f"{request.scope['path']}?{query}"
            made = self._cache.get(target)
            if made is None:
                of = request.path_params.values()
                made = _made(await answer(RequestParameters(query, known), *of))
                self._keep(target, made)
            return _packed(request, made.data, made.packed, "application/json", {"cache-control": "no-store"})

        return answered

    def _keep(self, target: str, made: _Made) -> None:
        self._cache[target] = made
        while len(self._cache) > _CACHED or sum(len(one.data) for one in self._cache.values()) > _CACHED_BYTES:
            self._cache.popitem(last=False)

    async def _page(self, request: Request) -> Response:
        return self._file(request, INDEX)

    async def _static(self, request: Request) -> Response:
        return self._file(request, request.path_params["name"])

    def _file(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise NotAnswered(404, "there is no such file")
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if file.tag in [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        return _packed(request, file.data, file.compressed, file.media_type, headers)

    async def _picture(self, request: Request) -> Response:
        data = self._sight.pictures.get(request.path_params["name"])
        if data is None:
            raise NotAnswered(404, "there is no such picture; the newest are in /api/pictures")
        return Response(data, media_type="image/png", headers={"cache-control": _FOR_EVER})

    async def _public_log(self, request: Request) -> Response:
        RequestParameters(request.scope["query_string"].decode("latin-1"), ())
        file = await public_file(self._sight, request.path_params["name"])
        kept = _FOR_EVER if file.is_final else "no-cache"
        return Response(file.data, media_type=file.media_type, headers={"cache-control": kept})

    async def _fault(self, _: Request, error: Exception) -> Response:
        """Answer that the run's files cannot be read. Only the program's log gets the error, once, as it has paths in it."""
        told = str(error)
        if told not in self._faults_told and len(self._faults_told) < _FAULTS_TOLD:
            self._faults_told.add(told)
            logger.warning("the run's files cannot be read reason=%s", told)
        return _error(503, "the run's files cannot be read now; the monitor's log says why", {"retry-after": "2"})

    async def _metrics(self, request: Request) -> Response:
        made = generate_latest(self._run_metrics.registry)
        return _packed(request, made, gzip.compress(made, 5, mtime=0), MEDIA_TYPE, {"cache-control": "no-store"})


def _made(answer: Json) -> _Made:
    data = json.dumps(answer, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    return _Made(data, gzip.compress(data, 5, mtime=0) if len(data) > _WORTH_PACKING else None)


def _packed(request: Request, data: bytes, packed: bytes | None, media_type: str, headers: dict[str, str]) -> Response:
    headers = {**headers, "vary": "accept-encoding"}
    if packed is not None and _takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(packed, headers={**headers, "content-encoding": "gzip", "content-type": media_type})
    return Response(data, headers={**headers, "content-type": media_type})


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.split(","):
        coding, _, weight = part.strip().partition(";")
        if coding.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _is_this_computer(host: str, names: Collection[str]) -> bool:
    """Return whether the value of a Host header names this computer, with any port: a tunnel may have another one at its other end."""
    name = host.lower()
    if name.startswith("["):
        name, bracket, port = name[1:].partition("]")
        port = port.removeprefix(":") if bracket else "no port"
    else:
        name, _, port = name.partition(":")
    if port and not (port.isascii() and port.isdecimal()):
        return False
    if name == "localhost" or name in names:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _error(status: int, reason: str, headers: dict[str, str] | None = None, **more: object) -> Response:
    body = json.dumps({"error": {"status": status, "reason": reason, **more}}, ensure_ascii=False).encode()
    return Response(body, status, {"cache-control": "no-store", **(headers or {})}, media_type="application/json")


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(
        error.status_code, "there is no such page; docs/reference/api.md has the routes" if error.status_code == 404 else error.detail
    )


async def _not_answered(_: Request, error: Exception) -> Response:
    assert isinstance(error, NotAnswered)
    return _error(error.status, error.reason, {"retry-after": "2"} if error.status == 503 else None, **error.more)


async def _crash(request: Request, error: Exception) -> Response:
    logger.error("a request failed path=%s", request.scope["path"], exc_info=error)
    return _error(500, "this is a fault of the monitor's; its log has it")
