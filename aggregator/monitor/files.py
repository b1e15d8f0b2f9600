"""The page and what it is made of: the files of the folder static/, read once, each with a tag of its bytes and compressed beforehand."""

import gzip
from dataclasses import dataclass
from pathlib import Path

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
