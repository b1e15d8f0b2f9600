"""What a host is called in a run: a digest that all peers of the run on it share, and that says nothing else."""

import uuid
from pathlib import Path

from manta_swarm.protocol.affinity import HOST_BYTES
from manta_swarm.protocol.signing import sha256

_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # another one for each copy of a virtual machine, which may share the machine's
_IS_RANDOM = 1 << 40  # of what uuid says: it found no address of hardware, and the number is another one in each process


def host_digest(run: bytes) -> bytes:
    """Return a digest (16 bytes) that is the same for all peers of a run on this host until it starts anew; nothing where it has no name.

    It says nothing but that: in another run, and after a restart of the host, it is another one.
    """
    machine, boot = next((text for path in _MACHINE_IDS if (text := _read(path))), ""), _read(_BOOT_ID)
    if not machine and not boot:
        number = uuid.getnode()
        if number & _IS_RANDOM:
            return b""
        machine = f"{number:012x}"
    return sha256(b"\n".join((b"manta/host/v1", run, machine.encode(), boot.encode())))[:HOST_BYTES]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
