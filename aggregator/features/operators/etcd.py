"""The few calls of etcd 3 that a lease needs, through its JSON gateway, over several endpoints: whichever answers.

Nothing is believed of what etcd says but who may write, and whether it can be asked at all: what the log says hangs on signatures.
"""

import asyncio
import base64
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from manta_swarm.protocol.errors import Unreachable

_MAX_ANSWER_BYTES = 65_536
_TIMEOUT_S = 1.5  # of one endpoint; the next one is asked after it
_ERRORS = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a key in etcd."""

    value: bytes
    revision: int  # of the store when the key was made


def check_endpoint(url: str) -> str:
    """Return the address of an etcd.

    Raises:
        ValueError: it is none.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/") and not parts.query
        _ = parts.port
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(f'{url!r} is no address of an etcd: write one like "http://127.0.0.1:2379"')
    return url.rstrip("/")


class Etcd:
    """One etcd, or a cluster of them. Calls run in a thread of their own; any of them may raise ``Unreachable``."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        """Ask these (``check_endpoint``), the one that answered last first."""
        self._endpoints = list(endpoints)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="etcd")

    async def holder(self, key: str) -> Holder | None:
        """Return who has the key; None: nobody."""
        found = (await self._ask("kv/range", {"key": _to_base64(key.encode())})).get("kvs", [])
        return _holder(found[0]) if found else None

    async def grant(self, ttl_s: int) -> str:
        """Return a new lease's id."""
        return str((await self._ask("lease/grant", {"TTL": ttl_s}))["ID"])

    async def take(self, key: str, value: bytes, lease: str) -> Holder | None:
        """Have the key under a lease if nobody has it; None: somebody has."""
        name = _to_base64(key.encode())
        answer = await self._ask(
            "kv/txn",
            {
                "compare": [{"target": "CREATE", "key": name, "result": "EQUAL", "create_revision": "0"}],
                "success": [{"request_put": {"key": name, "value": _to_base64(value), "lease": lease}}],
            },
        )
        return Holder(value, int(answer["header"]["revision"])) if answer.get("succeeded") is True else None

    async def renew(self, lease: str) -> bool:
        """Let a lease begin anew; False: it is over."""
        answer = await self._ask("lease/keepalive", {"ID": lease})
        return int(answer["result"].get("TTL", 0)) > 0

    async def revoke(self, lease: str) -> None:
        """End a lease, and so free its key."""
        await self._ask("lease/revoke", {"ID": lease})

    def close(self) -> None:
        """Wait for the calls under way."""
        self._threads.shutdown(wait=True)

    async def _ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask_each, path, request)
        except _ERRORS as error:  # an answer without what it should have is as good as none
            raise Unreachable(f"etcd gives no answer that can be used: {type(error).__name__} {error}") from error

    def _ask_each(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        reasons = []
        for url in self._endpoints:
            try:
                answer = _post(url, path, request)
            except _ERRORS as error:
                reasons.append(f"{url}: {error}")
                self._endpoints = [*(each for each in self._endpoints if each != url), url]
                continue
            return answer
        raise Unreachable(f"no etcd answers ({'; '.join(reasons)})")


def _post(url: str, path: str, request: dict[str, Any]) -> dict[str, Any]:
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", f"/v3/{path}", json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        # A renewal is a stream of one answer, each a line.
        data = response.readline(_MAX_ANSWER_BYTES) if path == "lease/keepalive" else response.read(_MAX_ANSWER_BYTES)
        answer = json.loads(data)
        if response.status != 200:
            raise ValueError(f"it says {response.status}: {answer.get('error', '')!s:.100}")
        if not isinstance(answer, dict):
            raise ValueError("it answers with no object")
        return answer
    finally:
        connection.close()


def _holder(found: dict[str, Any]) -> Holder:
    return Holder(base64.b64decode(found["value"]), int(found["create_revision"]))


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
