"""A little internet in network namespaces of this computer (Linux, root, iptables): hosts with a public address, behind routers that
translate theirs, and behind walls.

Addresses on the "internet" look public, so that programs take them for such; nothing is connected to this computer's own network. Kinds:

    public       an address of its own, everybody can call it
    firewalled   an address of its own, and a wall that lets in only what belongs to a connection that it opened
    cone         behind a router that keeps ports: what it sends from a port has the same port outside, whomever it calls
    symmetric    behind a router that draws another port for each call

Each translated host has a router and a LAN of its own; ``behind`` puts another one on the LAN of a host that is there.
"""

import json
from dataclasses import dataclass

from tests import namespaces
from tests.namespaces import add_bridge, cable, give_address, make, on_host, plug, run

KINDS = ("public", "cone", "symmetric", "firewalled")
PREFIX = "manta-nat-"
_SWITCH = f"{PREFIX}internet"
_NET = "5.5.5"  # looks public, and exists only here
_DEVICE, _OUTSIDE, _INSIDE = "eth", "wan", "lan"


@dataclass(frozen=True, slots=True)
class Host:
    """A computer of the network."""

    name: str
    kind: str
    address: str  # its own; a private one behind a router
    router: str = ""  # the namespace of its router

    @property
    def namespace(self) -> str:
        """Where it runs."""
        return f"{PREFIX}{self.name}"

    def command(self, *words: str) -> list[str]:
        """Return the command that runs ``words`` on it."""
        return on_host(self.namespace, *words)


def why_not() -> str | None:
    """Return why this computer cannot have such a network, in one line; None: it can."""
    return namespaces.why_not(("-t", "nat", "-A", "POSTROUTING", "-o", "lo", "-j", "MASQUERADE"), "translate addresses")


class Internet(namespaces.Network):
    """The network. Use with ``with``: at the end its hosts and all that runs on them are gone. One such network at a time."""

    def __init__(self) -> None:
        """Make it with ``with``."""
        super().__init__(PREFIX)
        self.hosts: dict[str, Host] = {}
        self._last_public = 0
        self._last_lan = 0

    def _build(self) -> None:
        make(_SWITCH)
        add_bridge(_SWITCH, "bridge")

    def add(self, name: str, kind: str) -> Host:
        """Add a host of ``kind``, with a router of its own where it needs one."""
        if kind in ("public", "firewalled"):
            host = Host(name, kind, self._next_public())
            make(host.namespace)
            self._connect(host.namespace, _DEVICE, host.address)
            if kind == "firewalled":
                _wall(host.namespace, _DEVICE)
        else:
            router = f"{PREFIX}router-{name}"
            self._make_router(router, kind)
            host = self._on_lan(name, kind, router, 2)
        self.hosts[name] = host
        return host

    def behind(self, name: str, other: Host) -> Host:
        """Add a host on the LAN of another one, behind the same router."""
        used = sum(host.router == other.router for host in self.hosts.values())
        host = self.hosts[name] = self._on_lan(name, other.kind, other.router, 2 + used)
        return host

    # Building.

    def _next_public(self) -> str:
        self._last_public += 1
        return f"{_NET}.{self._last_public}"

    def _connect(self, namespace: str, device: str, address: str) -> None:
        """Plug a namespace into the internet."""
        port = f"port{address.rpartition('.')[2]}"
        cable(_SWITCH, port, namespace, device)
        plug(_SWITCH, port, "bridge")
        give_address(namespace, device, address)

    def _make_router(self, router: str, kind: str) -> None:
        make(router)
        self._connect(router, _OUTSIDE, self._next_public())
        run("ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        add_bridge(router, _INSIDE)
        self._last_lan += 1
        give_address(router, _INSIDE, f"192.168.{self._last_lan}.1")
        random = ("--random-fully",) if kind == "symmetric" else ()
        _iptables(router, "-t", "nat", "-A", "POSTROUTING", "-o", _OUTSIDE, "-j", "MASQUERADE", *random)
        _iptables(router, "-P", "FORWARD", "DROP")
        _iptables(router, "-A", "FORWARD", "-m", "state", "--state", "ESTABLISHED,RELATED", "-j", "ACCEPT")
        _iptables(router, "-A", "FORWARD", "-i", _INSIDE, "-j", "ACCEPT")
        _wall(router, _OUTSIDE)

    def _on_lan(self, name: str, kind: str, router: str, place: int) -> Host:
        lan = next(
            each["addr_info"][0]["local"] for each in json.loads(run("ip", "-n", router, "-j", "-4", "addr", "show", "dev", _INSIDE))
        )
        host = Host(name, kind, f"{lan.rpartition('.')[0]}.{place}", router)
        make(host.namespace)
        port = f"port{place}"
        cable(router, port, host.namespace, _DEVICE)
        plug(router, port, _INSIDE)
        give_address(host.namespace, _DEVICE, host.address, gateway=lan)
        return host


def _wall(namespace: str, device: str) -> None:
    """Drop what comes in by a device, but for what belongs to connections that were opened from inside."""
    _iptables(namespace, "-A", "INPUT", "-i", device, "-m", "state", "--state", "ESTABLISHED,RELATED", "-j", "ACCEPT")
    _iptables(namespace, "-A", "INPUT", "-i", device, "-j", "DROP")


def _iptables(namespace: str, *words: str) -> None:
    run("ip", "netns", "exec", namespace, "iptables", "-w", *words)
