"""Hosts on one switch, in network namespaces of this computer (Linux, root, iptables): some can be cut off from others, and joined again.

A cut is silent, as that of a cable far away: what is sent is gone, nothing is refused, and who waits for an answer waits. Addresses look
public, so that programs take them for such; nothing is connected to this computer's own network.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests import namespaces
from tests.namespaces import add_bridge, cable, give_address, make, on_host, plug, run

PREFIX = "manta-split-"
_SWITCH = f"{PREFIX}switch"
_NET = "5.7.7"  # looks public, and exists only here
_DEVICE = "eth"


@dataclass(frozen=True, slots=True)
class Host:
    """A computer of the network."""

    name: str
    address: str

    @property
    def namespace(self) -> str:
        """Where it runs."""
        return f"{PREFIX}{self.name}"

    def command(self, *words: str) -> list[str]:
        """Return the command that runs ``words`` on it."""
        return on_host(self.namespace, *words)


def why_not() -> str | None:
    """Return why this computer cannot have such a network, in one line; None: it can."""
    return namespaces.why_not(("-A", "INPUT", "-s", f"{_NET}.1", "-j", "DROP"), "drop packets")


class SplitNetwork(namespaces.Network):
    """The network. Use with ``with``: at the end its hosts and all that runs on them are gone. One such network at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        """Make it with ``with``; it has a host of each name."""
        super().__init__(PREFIX)
        self.hosts = {name: Host(name, f"{_NET}.{place + 1}") for place, name in enumerate(names)}

    def _build(self) -> None:
        make(_SWITCH)
        add_bridge(_SWITCH, "bridge")
        for place, host in enumerate(self.hosts.values()):
            make(host.namespace)
            cable(_SWITCH, f"port{place}", host.namespace, _DEVICE)
            plug(_SWITCH, f"port{place}", "bridge")
            give_address(host.namespace, _DEVICE, host.address)

    def cut(self, some: Collection[str], others: Collection[str]) -> None:
        """Let nothing through between hosts of one kind and of another, in both directions; what was cut before stays cut."""
        for name in some:
            for other in others:
                address = self.hosts[other].address
                self._iptables(name, "-A", "INPUT", "-s", address, "-j", "DROP")
                self._iptables(name, "-A", "OUTPUT", "-d", address, "-j", "DROP")

    def join(self) -> None:
        """Let everything through again."""
        for name in self.hosts:
            self._iptables(name, "-F")

    def _iptables(self, name: str, *words: str) -> None:
        run(*on_host(self.hosts[name].namespace, "iptables", "-w", *words))
