"""A real etcd for tests, on loopback, in a folder of its own. Who uses it is marked ``needs_etcd``."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

# Says by its exit code whether the etcd at an address takes writes: in a program, for it may be that only another host gets there.
_HEALTH = """import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=1)
connection.request("GET", "/health")
sys.exit(b"true" not in connection.getresponse().read(1000))
"""
needs_etcd = pytest.mark.needs("etcd")


class RealEtcd:
    """One process of it, alone or in a cluster; it may be stopped, and started again with what it knew."""

    def __init__(
        self, directory: Path, place: int = 0, peer_urls: Sequence[str] = (), *, url: str = "", on_host: Sequence[str] = ()
    ) -> None:
        """Prepare one on loopback, or somewhere else.

        Args:
            directory: for its files.
            place: among those of its cluster.
            peer_urls: by which those of its cluster meet.
            url: where it is asked.
            on_host: the words that run a command where it runs.
        """
        peer_urls = peer_urls or (free_url(),)
        self._log = directory / f"etcd-{place}.log"
        self.url = url or free_url()
        self._on_host = tuple(on_host)
        self._command = [
            *on_host, "etcd", "--name", f"etcd-{place}", "--data-dir", str(directory / f"etcd-{place}"), "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", peer_urls[place], "--initial-advertise-peer-urls", peer_urls[place],
            "--initial-cluster", ",".join(f"etcd-{each}={peer_url}" for each, peer_url in enumerate(peer_urls)), "--log-level", "error",
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
        ask = [*self._on_host, sys.executable, "-I", "-c", _HEALTH, self.url.removeprefix("http://")]
        return subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, if it runs."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None


@contextlib.contextmanager
def etcds_in(directory: Path, count: int) -> Iterator[list[RealEtcd]]:
    """Yield a running cluster of so many."""
    peer_urls = [free_url() for _ in range(count)]
    directory.mkdir(exist_ok=True)
    with running([RealEtcd(directory, place, peer_urls) for place in range(count)]) as etcds:
        yield etcds


@contextlib.contextmanager
def running(etcds: list[RealEtcd]) -> Iterator[list[RealEtcd]]:
    """Yield a cluster, once it runs."""
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


def free_url() -> str:
    """Return an address on loopback where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
