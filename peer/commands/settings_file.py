"""The settings file that ``manta-peer init`` writes: every setting, what it means, and its default, all commented out."""

import textwrap
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from manta_swarm.peer.config import PeerConfig
from manta_swarm.peer.limits.limits import Limits
from manta_swarm.protocol.errors import UserError
from manta_swarm.runtime.disk import make_directory, replace_file

NAME = "peer.toml"
_WIDTH = 100
_EXAMPLES = {  # of settings whose default is nothing, and where an example says more than the default
    "initial_peers": '["/ip4/203.0.113.7/tcp/31000/p2p/12D3Koo..."]',
    "run": '"0123..."',
    "invitation": '"invitation.txt"',
    "payout": '"12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"',
    "cohort": '"our-lab"',
    "workers": "4",
    "size": "1",
    "gateway": '["0.0.0.0:8080"]',
    "gateway_cert": '"/etc/manta/cert.pem"',
    "gateway_key": '"/etc/manta/key.pem"',
    "data_root": '"/data"',
    "private_data": '"/data/mine"',
    "private_noise": "1.0",
    "private_clip": "1.0",
    "private_epsilon": "10",
    "tell_accuracy": "false",
    "view": '"left"',
    "latency_table": '"latency.json"',
    "duty": '"60%"',
    "cpu_threads": "4",
    "gpu_memory": '"6GB"',
    "max_temperature": '"80C"',
    "max_upload": '"10Mbit"',
    "max_download": '"50Mbit"',
    "when_idle": '"5min"',
    "schedule": '"22:00-07:00"',
    "on_ac": "true",
    "evaluation": '"10%"',
}


def write_settings(directory: Path) -> Path:
    """Write the file into ``directory``, which is made if it is not there; return where it is.

    Raises:
        UserError: there is one.
        StorageError: the disk refuses.
    """
    path = directory / NAME
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} is there already: edit it, or move it away")
    make_directory(directory)
    replace_file(path, settings_text().encode())
    return path


def settings_text() -> str:
    """Return the settings file's text."""
    fields = {name: field for name, field in PeerConfig.model_fields.items() if name != "dir"}  # a file does not say where it is
    limits = [name for name in fields if name in Limits.model_fields]
    others = [name for name in fields if name not in Limits.model_fields]
    parts = [
        "# Settings of manta-peer. A flag is stronger (--max-upload for max_upload), and so is a variable (MANTA_MAX_UPLOAD).\n"
        "# Take away the # before those that you want to set.",
        "# --- What a run may take of this computer; manta-peer limits changes it while a peer runs.",
        *(_entry(name, fields[name]) for name in limits),
        "# --- Everything else.",
        *(_entry(name, fields[name]) for name in others),
    ]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, field: FieldInfo) -> str:
    said = textwrap.wrap(field.description or "", _WIDTH)
    value = _EXAMPLES.get(name) or ("..." if field.default is None else _toml(field.default))
    return "\n".join([*(f"# {line}" for line in said), f"#{name} = {value}"])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
