"""A real etcd for tests, on loopback, in a folder of its own; where the machine has none, they are skipped."""

import contextlib
import http.client
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian's etcd-server)")


class RealEtcd:
    """One process of it, alone or in a cluster; it may be stopped, and started again with what it knew."""

    def __init__(self, directory: Path, place: int = 0, peers: Sequence[int] = ()) -> None:
        """Use ``directory``; ``peers`` are the ports by which those of its cluster meet, of which it has the one at ``place``."""
        peers = peers or (free_port(),)
        self._directory = directory
        self._log = directory / f"etcd-{place}.log"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        peer_urls = [f"http://127.0.0.1:{port}" for port in peers]
        self._command = [
            "etcd", "--name", f"etcd-{place}", "--data-dir", str(directory / f"etcd-{place}"), "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", peer_urls[place], "--initial-advertise-peer-urls", peer_urls[place],
            "--initial-cluster", ",".join(f"etcd-{each}={url}" for each, url in enumerate(peer_urls)), "--log-level", "error",
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start it; in a cluster it answers once most of the others run."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until it answers."""
        assert self.process is not None
        deadline = time.monotonic() + 60
        while not self._is_healthy():
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, "etcd does not answer"
            time.sleep(0.05)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read(1000)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, if it runs."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None


@contextlib.contextmanager
def etcds_in(directory: Path, count: int) -> Iterator[list[RealEtcd]]:
    """Yield a running cluster of so many."""
    directory.mkdir(exist_ok=True)
    peers = [free_port() for _ in range(count)]
    etcds = [RealEtcd(directory, place, peers) for place in range(count)]
    try:
        for etcd in etcds:
            etcd.begin()
        for etcd in etcds:
            etcd.wait()
        yield etcds
    finally:
        for etcd in etcds:
            if etcd.process is not None and etcd.process.poll() is None:
                etcd.stop(signal.SIGKILL)


@contextlib.contextmanager
def etcd_in(directory: Path) -> Iterator[RealEtcd]:
    """Yield a running etcd."""
    with etcds_in(directory, 1) as etcds:
        yield etcds[0]


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
