"""Network namespaces of this computer (Linux, root), for tests and benchmarks over several hosts: what all such networks are made of.

Namespaces are known by a prefix. One network of a prefix at a time; whoever comes after a ``kill -9`` first removes what was left.
"""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

END_S = 20.0
_IN_USE_S = 600.0


def run(*words: str) -> str:
    """Return what a command prints.

    Raises:
        CalledProcessError: it failed.
    """
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr.strip())
        raise


def on_host(namespace: str, *words: str) -> list[str]:
    """Return the command that runs ``words`` in a namespace."""
    return ["ip", "netns", "exec", namespace, *words]


def take(prefix: str, name: socket.socket) -> bool:
    """Take the right to the networks of a prefix, which ``name`` has until it is closed; False: somebody else has it."""
    try:
        name.bind(f"\0{prefix}network")  # a name without a file, which is free again when its process is gone
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def take_in_turn(prefix: str, name: socket.socket) -> None:
    """Wait until nobody else has the right to the networks of a prefix, and ``take`` it.

    Raises:
        RuntimeError: somebody has it for too long.
    """
    end_s = time.monotonic() + _IN_USE_S
    while not take(prefix, name):
        if time.monotonic() > end_s:
            raise RuntimeError("such a network is in use for too long")
        time.sleep(0.5)


def remove(prefix: str) -> None:
    """End what runs in the namespaces of a prefix, and remove them.

    Raises:
        RuntimeError: a process does not end.
    """
    left = [each["name"] for each in json.loads(run("ip", "-j", "netns", "list") or "[]") if each["name"].startswith(prefix)]
    end_s = time.monotonic() + END_S
    while pids := [int(pid) for namespace in left for pid in run("ip", "netns", "pids", namespace).split()]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end_s:
            raise RuntimeError(f"processes {pids} do not end")
        time.sleep(0.1)
    for namespace in left:
        run("ip", "netns", "del", namespace)


class Network(ABC):
    """A network of namespaces. Use with ``with``: inside it is there; at the end its hosts and all that runs on them are gone."""

    def __init__(self, prefix: str) -> None:
        """Make it with ``with``; its namespaces' names begin with ``prefix``."""
        self._prefix = prefix
        self._held = ExitStack()  # what goes with it, the last first

    def __enter__(self) -> Self:
        try:
            self._take(self._held.enter_context(socket.socket(socket.AF_UNIX)))
            self._held.callback(self._clean)
            self._clean()
            self._build()
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.close()

    def _take(self, name: socket.socket) -> None:
        """Take the right to it, or fail."""
        take_in_turn(self._prefix, name)

    def _clean(self) -> None:
        """Remove all that such a network leaves, this one's or an earlier one's."""
        remove(self._prefix)

    @abstractmethod
    def _build(self) -> None:
        """Make its hosts."""


def why_not(rule: Sequence[str], what: str) -> str | None:
    """Return why this computer cannot have namespaces in which iptables takes ``rule``, in one line; None: it can. ``what`` that does."""
    if sys.platform != "linux" or shutil.which("ip") is None or shutil.which("iptables") is None:
        return "needs Linux with ip and iptables (Debian: iproute2, iptables)"
    if os.geteuid() != 0:
        return "makes network namespaces, which only root can"
    probe = f"manta-probe-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if tried.returncode:
        return f"cannot make a network namespace: {tried.stderr.strip()}"
    try:
        tried = subprocess.run(on_host(probe, "iptables", "-w", *rule), capture_output=True, text=True)
        return f"cannot {what}: {tried.stderr.strip().splitlines()[0]}" if tried.returncode else None
    finally:
        run("ip", "netns", "del", probe)


def make(namespace: str) -> None:
    """Make a namespace with a loopback."""
    run("ip", "netns", "add", namespace)
    run("ip", "-n", namespace, "link", "set", "lo", "up")


def cable(one: str, device: str, other: str, other_device: str) -> None:
    """Lay a cable between devices of two namespaces."""
    run("ip", "link", "add", device, "netns", one, "type", "veth", "peer", "name", other_device, "netns", other)


def add_bridge(namespace: str, name: str) -> None:
    """Add a switch to a namespace."""
    run("ip", "-n", namespace, "link", "add", name, "type", "bridge")
    run("ip", "-n", namespace, "link", "set", name, "up")


def plug(namespace: str, device: str, bridge: str) -> None:
    """Plug a device into a switch of its namespace."""
    run("ip", "-n", namespace, "link", "set", "dev", device, "master", bridge, "up")


def give_address(namespace: str, device: str, address: str, gateway: str | None = None) -> None:
    """Give a device an address in a network of 256, and its namespace a way out."""
    run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", device)
    run("ip", "-n", namespace, "link", "set", "dev", device, "up")
    if gateway is not None:
        run("ip", "-n", namespace, "route", "add", "default", "via", gateway)
