"""The peer as a service of the person's own systemd: starts with their session, needs no root, and ends as Ctrl-C ends it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.disk import replace_file

NAME = "manta-peer.service"
_STOP_S = 120  # to hand in what is trained; then systemd kills it, and what was signed is kept
_AGAIN_S = 30  # after it failed; not after a mistake in its settings (2), or where the log is not what it signed (3): both need a person
_ANSWER_S = 30.0
_MEMORY_MAX, _TASKS_MAX = "80%", 4096  # of all its processes together: a fault in it ends it, and not the computer


def unit_text(directory: Path) -> str:
    """Return the unit for the peer of a directory, with the program that runs now."""
    command = [sys.executable, "-P", "-m", "manta_swarm.peer.cli", "join", "--dir", str(directory.absolute())]
    return f"""\
# Written by manta-peer service install. Settings are in {directory.absolute()}/peer.toml.
[Unit]
Description=Manta peer: trains in a run within the limits that you set

[Service]
ExecStart={" ".join(map(_quoted, command))}
KillSignal=SIGINT
KillMode=mixed
TimeoutStopSec={_STOP_S}
Restart=on-failure
RestartSec={_AGAIN_S}
RestartPreventExitStatus=2 3 4
SuccessExitStatus=130
Nice=10
Environment=PYTHONUNBUFFERED=1
# Of this computer's memory: what a peer needs hangs on the run's data and on its workers. To change it: systemctl --user edit {NAME}
MemoryMax={_MEMORY_MAX}
TasksMax={_TASKS_MAX}

[Install]
WantedBy=default.target
"""


def install(directory: Path, *, starts: bool) -> list[str]:
    """Write the unit, and let systemd start the peer now and with each session unless ``starts`` says no; return what to tell.

    Raises:
        UserError: this computer has no systemd, or a service is installed.
    """
    _require_systemd()
    path = unit_path()
    if path.exists():
        raise UserError(f"{path} is there already: manta-peer service remove, or edit it")
    if "\n" in str(directory):
        raise UserError("a service's directory cannot have a line's end in its name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the directory {path.parent}: {error.strerror}") from error
    replace_file(path, unit_text(directory).encode())
    said = [f"wrote {path}"]
    if not starts:
        return [*said, f"start it with: systemctl --user daemon-reload && systemctl --user enable --now {NAME}"]
    problem = _systemctl("daemon-reload") or _systemctl("enable", "--now", NAME)
    if problem:
        return [*said, f"systemd did not start it ({problem}); when it can: systemctl --user enable --now {NAME}"]
    return [
        *said,
        f"started; it starts with each session of yours; what it says: journalctl --user -u {NAME}",
        "to have it run while you are not logged in: loginctl enable-linger",
    ]


def remove() -> list[str]:
    """Stop the service, after what is trained is handed in, and take the unit away; return what to tell.

    Raises:
        UserError: none is installed, or this computer has no systemd.
    """
    _require_systemd()
    path = unit_path()
    if not path.exists():
        raise UserError(f"no service is installed: there is no {path}")
    problem = _systemctl("disable", "--now", NAME)
    try:
        path.unlink()
    except OSError as error:
        raise UserError(f"cannot remove {path}: {error.strerror}") from error
    if problem:
        return [f"removed {path}; systemd did not answer ({problem}): if the peer still runs, manta-peer leave ends it"]
    _systemctl("daemon-reload")
    return [f"stopped the peer and removed {path}; its key and settings stay where they are"]


def unit_path() -> Path:
    """Return where the person's systemd looks for the unit."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".config") / "systemd" / "user" / NAME


def _require_systemd() -> None:
    if shutil.which("systemctl") is None:
        raise UserError("a service needs systemd, which this computer has not: start manta-peer join by what it has")


def _quoted(word: str) -> str:
    """Return a word of a command as systemd reads it (systemd.service(5), COMMAND LINES): nothing in it is expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _systemctl(*words: str) -> str:
    """Let the person's systemd do something; return why it did not, in a few words, or nothing."""
    try:
        ended = subprocess.run(
            ["systemctl", "--user", *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_STOP_S + _ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return " ".join(ended.stderr.split())[:200] or f"exit code {ended.returncode}" if ended.returncode else ""
