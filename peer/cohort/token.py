"""The token that peers of one person show each other: in the environment, or in a file that the first peer makes."""

import os
import re
import secrets
import stat
from pathlib import Path

import platformdirs

from manta_swarm.protocol.cohorts import TOKEN_BYTES
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.disk import make_directory

VARIABLE = "MANTA_COHORT_TOKEN"
_FILE = "cohort-token"
_MAX_BYTES = 256


def load_token() -> bytes:
    """Return the token of this person's cohorts (32 bytes); it is made where there is none yet.

    Raises:
        UserError: what there is cannot be a token, or others can read it; the message says what to do.
    """
    text = os.environ.get(VARIABLE)
    if text:
        return _token(text, VARIABLE)
    path = _path()
    try:
        if not path.exists():
            make_directory(path.parent)
            _make(path)
        return _token(_read(path), str(path))
    except OSError as error:
        raise UserError(f"cannot read or make {path}: {error.strerror}; mend that, or set {VARIABLE} to 64 hex digits") from error


def check_token() -> None:
    """Refuse a token that cannot be one, where there is one; none is made.

    Raises:
        UserError: see ``load_token``.
    """
    if os.environ.get(VARIABLE) or _path().exists():
        load_token()


def _path() -> Path:
    return Path(os.environ.get("MANTA_STATE_DIR") or platformdirs.user_state_dir("manta")) / _FILE


def _make(path: Path) -> None:
    """Make the file, whole at once; whoever else does so at the same time may be the first."""
    part = path.with_name(f"{_FILE}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # unlike a rename it replaces nothing
    except FileExistsError:
        pass
    finally:
        part.unlink()


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise UserError(f"{path} is no file of yours; move it away, and a new one is made")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise UserError(f"{path} can be read by others; make a new one, or run: chmod 600 {path}")
        return os.read(descriptor, _MAX_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def _token(text: str, where: str) -> bytes:
    if not re.fullmatch(f"[0-9a-fA-F]{{{2 * TOKEN_BYTES}}}", text.strip()):
        raise UserError(f"{where} is no cohort's token: it has {2 * TOKEN_BYTES} hex digits, as `openssl rand -hex {TOKEN_BYTES}` makes")
    return bytes.fromhex(text.strip())
