"""The lines between hosts of a network, as one program: each host has a tun device, and this carries every packet from one to the other.

A packet comes out as long after it went in as its way takes, whatever it is (TCP, UDP, ICMP), in the order in which it went in; nothing is
lost on the way. What was carried is counted. Linux, root. Not a test: ``far_network.py`` starts it and says what the hosts are.

    python delay_line.py TABLE       TABLE is a JSON file, see ``Table``
"""

import contextlib
import ctypes
import fcntl
import heapq
import json
import mmap
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

DEVICE = "line"  # of each host
READY = b"ready\n"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MAX_PACKET = 65_536
_AT_A_TIME = 64  # packets of a host before it is the next one's turn
_DESTINATION = slice(16, 20)  # of an IPv4 packet


@dataclass(frozen=True, slots=True)
class Table:
    """The hosts, in one order everywhere, and the ways between them."""

    namespaces: list[str]
    addresses: list[str]  # IPv4
    one_way_us: list[list[int]]
    carried: str  # file of as many 64-bit integers as there are pairs, first those from the first host: bytes, with IP's headers

    def save(self, path: Path) -> None:
        """Write it for the program."""
        path.write_text(json.dumps(asdict(self)))


def carried_bytes(path: Path, num_hosts: int) -> list[list[int]]:
    """Return the bytes that went from each host to each other one so far."""
    counted = struct.unpack(f"={num_hosts * num_hosts}q", path.read_bytes())
    return [list(counted[start : start + num_hosts]) for start in range(0, len(counted), num_hosts)]


def _open_device(namespace: str) -> int:
    """Return a host's device, which is there; this process is in the host's namespace from then on."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _carry(devices: Sequence[int], places: dict[bytes, int], one_way_s: Sequence[Sequence[float]], carried: memoryview) -> None:
    """Carry packets until the process is ended."""
    hosts = {device: place for place, device in enumerate(devices)}
    under_way: list[tuple[float, int, int, bytes]] = []  # a heap: when it comes out, its number, where, and the packet
    number = 0
    while True:
        left_s = max(under_way[0][0] - time.monotonic(), 0.0) if under_way else None
        ready, _, _ = select.select(devices, (), (), left_s)
        for device in ready:
            origin = hosts[device]
            with contextlib.suppress(BlockingIOError):  # nothing more
                for _ in range(_AT_A_TIME):
                    packet = os.read(device, _MAX_PACKET)
                    target = places.get(packet[_DESTINATION]) if packet[0] >> 4 == 4 else None
                    if target is not None:
                        number += 1
                        carried[origin * len(devices) + target] += len(packet)
                        heapq.heappush(under_way, (time.monotonic() + one_way_s[origin][target], number, devices[target], packet))
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, device, packet = heapq.heappop(under_way)
            os.write(device, packet)


def main() -> None:
    """Be the lines until the process is ended."""
    table = Table(**json.loads(Path(sys.argv[1]).read_text()))
    # It goes before all other programs: on a busy computer lines are no longer than on one at rest.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with open(table.carried, "w+b") as file:
        file.truncate(8 * len(table.namespaces) ** 2)
        carried = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    devices = [_open_device(namespace) for namespace in table.namespaces]
    places = {socket.inet_aton(address): place for place, address in enumerate(table.addresses)}
    os.write(sys.stdout.fileno(), READY)
    _carry(devices, places, [[way_us / 1e6 for way_us in row] for row in table.one_way_us], carried)


if __name__ == "__main__":
    main()
