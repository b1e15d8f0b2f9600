"""The monitor's process over real sockets: as an aggregator starts it, and as strangers treat it."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.states.opening import OpenedRun
from tests.network.processes import DEADLINE_S, wait_for

pytestmark = pytest.mark.swarm
STREAMS = 3


class Program:
    """One monitor's process."""

    def __init__(self, directory: Path, listening: socket.socket, settings: MonitorSection) -> None:
        where = json.dumps({"fd": listening.fileno(), "is_loopback": True})
        self.line, theirs = socket.socketpair()  # which its parent holds open for as long as it lives
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "manta_swarm.aggregator.monitor.program", str(directory), settings.model_dump_json(), where],
                stdin=theirs.fileno(),
                pass_fds=[listening.fileno()],
            )
        self.address = listening.getsockname()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.address[1]}/"

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=DEADLINE_S)

    def get(self, target: str) -> tuple[int, Any]:
        """Return status and body."""
        with self.connect() as connection:
            connection.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            with connection.makefile("rb") as answer:
                data = answer.read()
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), json.loads(body)

    def round(self) -> int | None:
        status, body = self.get("/api/now")
        return int(body["round"]) if status == 200 else None


@contextmanager
def at_work(directory: Path, settings: MonitorSection | None = None, *, round_: int = 3, port: int = 0) -> Iterator[Program]:
    """A monitor that has read the log up to a round; it is killed at the end."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        program = Program(directory, listening, settings or MonitorSection(streams=STREAMS))
    with program.process, program.line:
        try:
            wait_for(lambda: program.round() == round_, "the monitor has read the log")
            yield program
        finally:
            program.process.kill()


@pytest.fixture(scope="module")
def lasting(played: tuple[Path, OpenedRun]) -> Iterator[Program]:
    """One that strangers ask: it is the same for all of them, and harmed by none."""
    with at_work(played[0]) as program:
        yield program


@pytest.fixture
def program(played: tuple[Path, OpenedRun]) -> Iterator[Program]:
    """One that a test ends."""
    with at_work(played[0]) as program:
        yield program


@contextmanager
def stream(program: Program) -> Iterator[IO[bytes]]:
    """An open event stream, after its first event."""
    with program.connect() as connection, connection.makefile("rb") as lines:
        connection.sendall(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert lines.readline().startswith(b"HTTP/1.1 200")
        while lines.readline() != b"event: now\n":
            pass
        yield lines


def test_streams_are_given_out_up_to_the_limit_and_taken_back(lasting: Program) -> None:
    with stream(lasting), stream(lasting):
        with stream(lasting):
            status, body = lasting.get("/api/events")
            assert status == 503
            assert f"all {STREAMS} streams are taken" in body["error"]["reason"]
            assert lasting.get("/api/now")[0] == 200, "everything else is answered"

        def one_is_free() -> bool:
            with lasting.connect() as connection:
                connection.sendall(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
                return connection.recv(12) == b"HTTP/1.1 200"

        wait_for(one_is_free, "the place of who left is free")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 20_000,
        b"POST /api/now HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n",
        b"GET /api/now HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /api/peers/%00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_request_does_no_harm(lasting: Program, data: bytes) -> None:
    with lasting.connect() as connection:
        try:
            connection.sendall(data)
            answer = connection.recv(16)
        except ConnectionError:
            answer = b""  # it was cut off in the middle
    assert answer[:10] in (b"", b"HTTP/1.1 4", b"HTTP/1.1 5")
    assert lasting.round() == 3


def test_its_log_is_checked_from_outside_by_its_address(lasting: Program, played: tuple[Path, OpenedRun], tmp_path: Path) -> None:
    ledger = played[1].log.ledger
    words = ["ledger", "verify", "--from", f"{lasting.url}tlog/", "--dir", str(tmp_path / "mirror")]
    for ends in ("it is seen here for the first time", f"it goes on from the {ledger.size} entries that were there before"):
        found = CliRunner().invoke(main, [*words, "--run", ledger.run.hex()])
        assert (found.exit_code, found.output.splitlines()[-1]) == (0, ends)
        assert f"verified {ledger.size} entries, 3 rounds" in found.output


def test_it_ends_with_the_one_who_started_it(program: Program) -> None:
    with stream(program) as lines:
        program.line.close()
        assert program.process.wait(DEADLINE_S) == 0
        while lines.readline():
            pass


def test_it_ends_when_it_is_told_to_also_while_somebody_listens(program: Program) -> None:
    with stream(program):
        program.process.terminate()
        assert program.process.wait(DEADLINE_S) == -signal.SIGTERM  # uvicorn ends in good order, and then by the signal itself


def test_it_looks_on_without_the_memory_that_training_takes() -> None:
    code = "import sys; import manta_swarm.aggregator.monitor.program; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=DEADLINE_S).returncode == 0
