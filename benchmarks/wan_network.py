"""Sites of several hosts behind shaped links, and a server at a third place, in network namespaces of this computer (Linux, root).

    site a: hosts -- switch == link == internet == link == switch -- hosts: site b
                                          |
                                        server

Only the two links are shaped, by tbf, in both directions; there is no delay on them but that of their queues. Nothing is connected
to this computer's own network. One such network at a time: whoever comes second waits for nobody and says so, and whoever comes after a
``kill -9`` first removes what was left.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import namespaces
from tests.namespaces import add_bridge, cable, give_address, make, on_host, plug, run, take

PREFIX = "manta-wan-"
SITES = ("a", "b")
BURST_BYTES = 32 * 1024
QUEUE_MS = 300  # what a link holds back before it drops
_INTERNET, _SERVER = f"{PREFIX}internet", f"{PREFIX}server"
_SERVER_ADDRESS = "10.60.0.2"
_UPLINK = "uplink"


@dataclass(frozen=True, slots=True)
class Host:
    """A computer of the network."""

    namespace: str
    site: str  # "" for the server
    address: str

    def command(self, *words: str) -> list[str]:
        """Return the command that runs ``words`` on it."""
        return on_host(self.namespace, *words)


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes that the links carried, by site; with all headers."""

    up: dict[str, int]
    down: dict[str, int]

    def __sub__(self, other: "Carried") -> "Carried":
        return Carried(*({site: mine[site] - its[site] for site in mine} for mine, its in ((self.up, other.up), (self.down, other.down))))


def why_not() -> str | None:
    """Return why this computer cannot have such a network, in one line; None: it can."""
    if sys.platform != "linux" or shutil.which("ip") is None or shutil.which("tc") is None:
        return "this benchmark needs Linux with ip and tc (Debian: iproute2)"
    if os.geteuid() != 0:
        return "this benchmark makes network namespaces: run it as root"
    return None


class Network(namespaces.Network):
    """The network. Use with ``with``: inside, the hosts are there; at the end they, their processes and their files are gone."""

    def __init__(self, hosts_a_site: int) -> None:
        """Make it with ``with``."""
        super().__init__(PREFIX)
        self.directory = Path(tempfile.gettempdir()) / "manta-wan"  # for the files of all that runs here; short: sockets are in it
        self.server = Host(_SERVER, "", _SERVER_ADDRESS)
        self.hosts = [
            Host(f"{PREFIX}{site}{number}", site, f"10.{50 + place}.0.{10 + number}")
            for place, site in enumerate(SITES)
            for number in range(hosts_a_site)
        ]

    def shape(self, mbit: float | None) -> None:
        """Let each link carry so many Mbit/s in each direction; None: as many as it can."""
        for site in SITES:
            for namespace, device in ((_INTERNET, f"to-{site}"), (_switch(site), _UPLINK)):
                with suppress(subprocess.CalledProcessError):  # there was none
                    run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
                if mbit is not None:
                    shape = ("tbf", "rate", f"{mbit:g}mbit", "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms")
                    run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *shape)

    def carried(self) -> Carried:
        """Return what the links have carried so far, behind their queues."""
        found = {each["ifname"]: each["stats64"] for each in json.loads(run("ip", "-n", _INTERNET, "-s", "-j", "link"))}
        ways = {way: {site: int(found[f"to-{site}"][way]["bytes"]) for site in SITES} for way in ("rx", "tx")}
        return Carried(up=ways["rx"], down=ways["tx"])

    def _take(self, name: socket.socket) -> None:
        if not take(PREFIX, name):
            raise SystemExit("such a network is in use already: wait until that benchmark is over")

    def _clean(self) -> None:
        try:
            super()._clean()
        except RuntimeError as error:
            raise SystemExit(str(error)) from error
        if self.directory.is_symlink() or self.directory.exists():
            if self.directory.is_symlink() or self.directory.stat().st_uid != os.geteuid():
                raise SystemExit(f"{self.directory} is somebody else's")
            shutil.rmtree(self.directory, ignore_errors=True)

    def _build(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for namespace in (_INTERNET, _SERVER, *(_switch(site) for site in SITES), *(host.namespace for host in self.hosts)):
            make(namespace)
        run("ip", "netns", "exec", _INTERNET, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for place, site in enumerate(SITES):
            add_bridge(_switch(site), "bridge")
            cable(_INTERNET, f"to-{site}", _switch(site), _UPLINK)
            plug(_switch(site), _UPLINK, "bridge")
            give_address(_INTERNET, f"to-{site}", f"10.{50 + place}.0.1")
        cable(_INTERNET, "to-server", _SERVER, "eth")
        give_address(_INTERNET, "to-server", "10.60.0.1")
        give_address(_SERVER, "eth", _SERVER_ADDRESS, "10.60.0.1")
        for host in self.hosts:
            port = f"port-{host.namespace.removeprefix(PREFIX)}"
            cable(_switch(host.site), port, host.namespace, "eth")
            plug(_switch(host.site), port, "bridge")
            give_address(host.namespace, "eth", host.address, f"10.{50 + SITES.index(host.site)}.0.1")


def _switch(site: str) -> str:
    return f"{PREFIX}switch-{site}"


def failed(error: subprocess.CalledProcessError) -> str:
    """Return what a command of this module said when it failed, in one line."""
    words: Sequence[str] = error.cmd
    return f"{' '.join(words)}: {(error.stderr or '').strip()}"
