"""Hosts at known distances, in network namespaces of this computer (Linux, root, /dev/net/tun): short ways inside sites, long ones between.

Each host has an address of its own that looks public, in a network where nobody else is, and is a computer for itself: it has a machine
id, and reads no memory of another one. So nothing but the time that a way takes says who is near. Nothing is connected to this computer's
own network. ``delay_line.py`` is the ways.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import namespaces
from tests.faults.delay_line import DEVICE, READY, Table, carried_bytes
from tests.namespaces import END_S, make, on_host, run

PREFIX = "manta-far-"
_LINES = f"{PREFIX}lines"
_NET = "5.6"  # looks public, and exists only here
_QUEUE = 10_000  # packets that a device holds back
_LINE_PROGRAM = Path(__file__).with_name("delay_line.py")
_ENTER = 'mount --bind "$0" /etc/machine-id && exec "$@"'


@dataclass(frozen=True, slots=True)
class Host:
    """A computer of the network."""

    name: str
    site: str
    address: str
    machine_id: Path  # a file with it

    @property
    def namespace(self) -> str:
        """Where it runs."""
        return f"{PREFIX}{self.name}"

    def command(self, *words: str) -> list[str]:
        """Return the command that runs ``words`` on it: under the same process id, as another computer's root."""
        return on_host(self.namespace, *_own_root(self.machine_id, *words))


def why_not() -> str | None:
    """Return why this computer cannot have such a network, in one line; None: it can."""
    if sys.platform != "linux" or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "needs Linux with ip and unshare (Debian: iproute2, util-linux)"
    if os.geteuid() != 0:
        return "makes network namespaces, which only root can"
    if not Path("/etc/machine-id").is_file():
        return "gives each host a machine id of its own, in the place of /etc/machine-id, which is not there"
    probe = f"manta-probe-{os.getpid()}"
    with tempfile.NamedTemporaryFile() as file:
        own_root = ["ip", "netns", "exec", probe, *_own_root(Path(file.name), "true")]
        line = ["ip", "-n", probe, "tuntap", "add", DEVICE, "mode", "tun"]
        for command, what in (
            (["ip", "netns", "add", probe], "make a network namespace"),
            (line, "make a tun device"),
            (own_root, "make a user namespace"),
        ):
            tried = subprocess.run(command, capture_output=True, text=True)
            if tried.returncode:
                subprocess.run(["ip", "netns", "del", probe], capture_output=True)
                return f"cannot {what}: {tried.stderr.strip()}"
    run("ip", "netns", "del", probe)
    return None


def _own_root(machine_id: Path, *words: str) -> list[str]:
    """Return the command that runs ``words`` with another machine id, and with no right to look into other computers' processes."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _ENTER, str(machine_id), *words]


class FarNetwork(namespaces.Network):
    """The network. Use with ``with``: at the end its hosts and all that runs on them are gone. One such network at a time."""

    def __init__(self, directory: Path, sites: Mapping[str, str], *, inside_ms: float, between_ms: float) -> None:
        """Make it with ``with``.

        Args:
            directory: for files.
            sites: of each host, by name, the site.
            inside_ms: how long it takes there and back to a host of the same site.
            between_ms: the same to one of another site.
        """
        super().__init__(PREFIX)
        self._directory = directory
        self._carried = directory / "carried"
        self._ways_us = {True: round(500 * inside_ms), False: round(500 * between_ms)}
        self.hosts = {
            name: Host(name, site, f"{_NET}.{place + 1}.1", directory / f"{name}.machine-id")
            for place, (name, site) in enumerate(sites.items())
        }

    def _build(self) -> None:
        for host in self.hosts.values():
            _build(host)
        self._start_lines()

    def carried(self) -> dict[tuple[str, str], int]:
        """Return the bytes that went from each host to each other one so far, with IP's headers."""
        found = carried_bytes(self._carried, len(self.hosts))
        return {(one, other): found[i][j] for i, one in enumerate(self.hosts) for j, other in enumerate(self.hosts) if i != j}

    def _start_lines(self) -> None:
        hosts = list(self.hosts.values())
        ways = [[self._ways_us[one.site == other.site] for other in hosts] for one in hosts]
        table = Table([host.namespace for host in hosts], [host.address for host in hosts], ways, str(self._carried))
        table.save(self._directory / "lines.json")
        make(_LINES)  # so that it ends with the network
        command = on_host(_LINES, sys.executable, "-P", str(_LINE_PROGRAM), str(self._directory / "lines.json"))
        lines = self._held.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        self._held.callback(lines.kill)
        assert lines.stdout is not None
        if lines.stdout.readline() != READY:
            raise RuntimeError(f"the lines ended with exit code {lines.wait(END_S)}")


def _build(host: Host) -> None:
    host.machine_id.write_text(f"{secrets.token_hex(16)}\n")
    make(host.namespace)
    run("ip", "-n", host.namespace, "tuntap", "add", DEVICE, "mode", "tun")
    run("ip", "-n", host.namespace, "link", "set", DEVICE, "txqueuelen", str(_QUEUE), "up")
    run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/32", "dev", DEVICE)
    run("ip", "-n", host.namespace, "route", "add", "default", "dev", DEVICE)
