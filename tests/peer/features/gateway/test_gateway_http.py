"""A gateway over HTTP: a real server on loopback, light contributors, and strangers who are up to no good."""

import asyncio
import datetime
import ipaddress
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from manta_swarm.protocol.signed import Signed
from manta_swarm.runtime.console import PrintingConsole

pytest.importorskip("uvicorn", reason="the extra swarm is not installed")

from manta_swarm.network import http_server
from manta_swarm.network.http_server import counted_as
from manta_swarm.network.traffic import PIECE_BYTES, Traffic
from manta_swarm.peer.config import GatewayUrl, PeerConfig, check_join
from manta_swarm.peer.features.gateway import http
from manta_swarm.peer.features.gateway.http import serving
from manta_swarm.peer.features.light import light, session
from manta_swarm.peer.features.light.client import GatewayClient, NotKnown
from manta_swarm.peer.features.light.session import contribute
from manta_swarm.peer.features.light.work_gate import BlockingTraffic, WorkGate
from manta_swarm.protocol.errors import EncodingError, RemoteFault, Unreachable, UserError
from manta_swarm.protocol.light import LeaseRequest, ReturnFate
from manta_swarm.protocol.records import InclusionPromise
from manta_swarm.protocol.signing import peer_name, sha256
from manta_swarm.runtime.listen_address import ListenAddress
from tests.memory_log import until
from tests.peer.gateways import GATEWAY, LIGHTS, Gateway, Light, gateway_with, gathered_by

DOOR = ListenAddress("127.0.0.1", 0)


def client_of(address: str, *, of: str = "") -> GatewayClient:
    return GatewayClient([GatewayUrl.of(f"{address}#{of}")])


@asynccontextmanager
async def over_http(listen_address: ListenAddress = DOOR) -> AsyncIterator[tuple[Gateway, str]]:
    """Yield a gateway that is served, and where; what the client does belongs in threads, for it is synchronous."""
    async with gateway_with() as gateway, serving(gateway.service, listen_address) as address:
        yield gateway, address


@contextmanager
def connections(address: str, count: int = 1) -> Iterator[list[socket.socket]]:
    """Yield connections to a server, on which nothing was sent."""
    host, port = address.partition("://")[2].rstrip("/").split(":")
    with ExitStack() as opened:
        yield [opened.enter_context(socket.create_connection((host, int(port)), timeout=30)) for _ in range(count)]


def signed_request(gateway: Gateway, number: int) -> Signed[LeaseRequest]:
    key = LIGHTS[number].public_key
    return Signed.sign(LeaseRequest(gateway.signed.run, GATEWAY.public_key, key, 0, 0), LIGHTS[number])


async def test_a_lease_is_done_over_http_from_the_welcome_to_the_inclusion_promise() -> None:
    async with over_http() as (gateway, address):
        cohort_session = await gateway.convene()
        client = client_of(address, of=peer_name(GATEWAY.public_key))
        assert (await asyncio.to_thread(client.welcome)).manifest == gateway.signed
        with pytest.raises(RemoteFault, match="is 12D3"):  # another key than was meant
            await asyncio.to_thread(client_of(address, of=peer_name(LIGHTS[0].public_key)).welcome)
        answer = await asyncio.to_thread(client.lease, signed_request(gateway, 0))
        lease = answer.lease[0].open()
        weights = await asyncio.to_thread(client.blob, lease.weights, lease.weights_bytes)
        samples = await asyncio.to_thread(client.blob, lease.samples, lease.samples_bytes)
        done = Light(gateway, 0).work.do(lease, weights, samples, WorkGate())
        for _ in range(2):
            assert (await asyncio.to_thread(client.give_back, done.back)).fate == ReturnFate.HELD
        gathered = await gathered_by(gateway, cohort_session)
        await cohort_session.tell(gateway.accepted(*gathered.claims))
        assert (await asyncio.to_thread(client.word, done.back.name)).fate == ReturnFate.TAKEN
        assert client.bytes_down > lease.weights_bytes + lease.samples_bytes
        with pytest.raises(NotKnown):
            await asyncio.to_thread(client.word, sha256(b"another return"))
        with pytest.raises(NotKnown):
            await asyncio.to_thread(client.blob, sha256(b"another blob"), 10)
        with pytest.raises(EncodingError):
            await asyncio.to_thread(client.blob, lease.weights, lease.weights_bytes - 1)


async def test_what_http_carries_is_counted_and_held_back_with_all_else_that_the_peer_sends_and_receives(gateway: Gateway) -> None:
    traffic = Traffic()
    async with serving(gateway.service, DOOR, traffic) as address:
        await gateway.convene()
        client = client_of(address)
        lease = (await asyncio.to_thread(client.lease, signed_request(gateway, 0))).lease[0].open()
        assert (traffic.sent.total, traffic.received.total) == (client.bytes_down, client.bytes_up)
        traffic.sent.limit = 1  # a byte a second: what was unused is a piece
        fetching = asyncio.create_task(asyncio.to_thread(client.blob, lease.weights, lease.weights_bytes))
        before = client.bytes_down
        await until(lambda: traffic.sent.is_awaited)
        assert before < traffic.sent.total < before + 4 * PIECE_BYTES < before + lease.weights_bytes
        assert not fetching.done()
        traffic.sent.limit = None
        assert len(await fetching) == lease.weights_bytes
        assert traffic.sent.total == client.bytes_down
        traffic.received.limit = 1
        traffic.received.count(PIECE_BYTES)
        asking = asyncio.create_task(asyncio.to_thread(client.lease, signed_request(gateway, 0)))
        await until(lambda: traffic.received.is_awaited)
        assert not asking.done()
        traffic.received.limit = None
        assert (await asking).lease


async def test_a_light_contributor_holds_back_what_it_sends_and_receives() -> None:
    async with over_http() as (gateway, address):
        await gateway.convene()
        traffic = Traffic()
        client = GatewayClient([GatewayUrl.of(address)], BlockingTraffic(traffic, asyncio.get_running_loop()))
        lease = (await asyncio.to_thread(client.lease, signed_request(gateway, 0))).lease[0].open()
        assert (traffic.sent.total, traffic.received.total) == (client.bytes_up, client.bytes_down)
        for flow, ask in (
            (traffic.received, lambda: client.blob(lease.weights, lease.weights_bytes)),
            (traffic.sent, lambda: client.lease(signed_request(gateway, 0))),
        ):
            flow.limit = 1
            flow.count(PIECE_BYTES)
            asking = asyncio.create_task(asyncio.to_thread(ask))
            await until(lambda flow=flow: flow.is_awaited)
            assert not asking.done()
            flow.limit = None
            assert await asking


def _status(address: str, path: str, data: bytes | None = None, method: str | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address.rstrip("/") + path, data, method=method), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_what_is_malformed_unknown_or_too_long_gets_a_status_of_its_own() -> None:
    async with over_http() as (gateway, address):
        await gateway.convene()
        for path, data, status in (
            ("/light/v1/leases", b"", 400),
            ("/light/v1/leases", bytes(100), 400),
            ("/light/v1/leases", bytes(1000), 413),
            ("/light/v1/returns", bytes(100), 400),
            ("/light/v1/returns", bytes(gateway.service.max_return_bytes + 1), 413),
            ("/light/v1/blobs/" + "0" * 64, None, 404),
            ("/light/v1/blobs/..%2f..%2fetc%2fpasswd", None, 404),
            ("/light/v1/words/" + "A" * 64, None, 404),
            ("/light/v1/leases", None, 405),
            ("/", None, 404),
        ):
            assert await asyncio.to_thread(_status, address, path, data) == status, path


async def test_an_address_that_asks_too_often_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_AT_ONCE", 3.0)
    monkeypatch.setattr(http, "_REQUESTS_A_SECOND", 0.001)
    async with over_http() as (_, address):
        client = client_of(address)
        for _ in range(3):
            await asyncio.to_thread(client.welcome)
        with pytest.raises(Unreachable, match="too many requests"):
            await asyncio.to_thread(client.welcome)


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("unknown", "unknown"),
    ],
)
def test_an_ipv6_network_is_counted_as_one_address(host: str, counted: str) -> None:
    assert counted_as(host) == counted


async def test_no_more_comes_back_at_once_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_BEGINS_S", 60.0)
    async with over_http() as (gateway, _):
        monkeypatch.setattr(http, "_RETURNS_BYTES", 2 * gateway.service.max_return_bytes)
        async with serving(gateway.service, DOOR) as address:
            with connections(address) as (slow,):
                slow.sendall(b"POST /light/v1/returns HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
                goes_on = b"HTTP/1.1 100 Continue\r\n\r\n"  # it is being read
                assert await asyncio.to_thread(slow.recv, len(goes_on), socket.MSG_WAITALL) == goes_on
                assert await asyncio.to_thread(_status, address, "/light/v1/returns", bytes(100)) == 503
                slow.sendall(bytes(100))
                assert b"400" in await asyncio.to_thread(slow.recv, 1000)
            assert await asyncio.to_thread(_status, address, "/light/v1/returns", bytes(100)) == 400


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(1000):  # what TLS says of an end, too
            pass
    except ConnectionResetError:
        pass
    return True


async def test_where_all_places_are_held_for_nothing_a_newcomer_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MAX_CONNECTIONS", 2)
    async with over_http() as (_, address):
        with connections(address, 2) as silent:
            await asyncio.to_thread(client_of(address).welcome)
            assert await asyncio.to_thread(silent[0].recv, 1) == b""


async def test_returns_that_do_not_come_give_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_BEGINS_S", 0.0)
    async with over_http() as (gateway, _):
        monkeypatch.setattr(http, "_RETURNS_BYTES", 2 * gateway.service.max_return_bytes)
        async with serving(gateway.service, DOOR) as address:
            head = b"POST /light/v1/returns HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.%d\r\nContent-Length: 100\r\n%s\r\n"
            with connections(address, 2) as slow:
                for number, each in enumerate(slow):
                    each.sendall(head % (number, b"Expect: 100-continue\r\n"))
                    assert b"100 Continue" in await asyncio.to_thread(each.recv, 1000)  # it is being read
                assert await asyncio.to_thread(_status, address, "/light/v1/returns", bytes(100)) == 400
                assert await asyncio.to_thread(slow[0].recv, 1) == b""


async def test_a_contributor_goes_on_through_a_gateway_that_is_away_and_comes_back_and_ends_with_its_run(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(light, "_AGAIN_S", (0.05, 0.2))
    monkeypatch.setattr(light, "_PAUSE_S", (0.05, 0.1))

    printed: list[str] = []

    def seen() -> list[str]:
        printed.append(capsys.readouterr().out)
        return printed

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen_address = ListenAddress("127.0.0.1", port)
    config = PeerConfig(dir=tmp_path, light=True, gateway=(f"http://127.0.0.1:{port}/",))
    contributing = asyncio.create_task(contribute(config, PrintingConsole()))
    for round_ in range(2):
        await until(lambda round_=round_: "".join(seen()).count("waiting for a gateway: no answer from http://127.0.0.1") > round_)
        async with serving(gateway.service, listen_address):
            cohort_session = await gateway.convene(gateway.after(round_))
            await until(lambda cohort_session=cohort_session: len(cohort_session.members) == 2)
            gathered = await gathered_by(gateway, cohort_session)
            await cohort_session.tell(gateway.accepted(*gathered.claims))
            await until(lambda round_=round_: f"the log has it round={round_ + 1}" in "".join(seen()))
    gateway.service.finish()
    async with serving(gateway.service, listen_address):
        assert await contributing
    assert "run finished taken=2 samples=" in "".join(seen())


def test_ctrl_c_at_a_contributors_first_line_lets_it_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_said = threading.Event()

    class Impatient(PrintingConsole):
        def say(self, text: str) -> None:
            if text.startswith("waiting for a gateway"):
                os.kill(os.getpid(), signal.SIGINT)
                is_said.set()

    def in_thread(work: Callable[[], None]) -> "Future[None]":
        future = started(work)
        assert is_said.wait(60)  # the event loop takes no turn before
        return future

    started = session._in_thread
    monkeypatch.setattr(session, "_in_thread", in_thread)
    config = PeerConfig(dir=tmp_path, light=True, gateway=("http://127.0.0.1:1/",))
    assert not asyncio.run(contribute(config, Impatient()))


async def test_an_inclusion_promise_that_the_operator_did_not_sign_is_believed_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(light, "_PAUSE_S", (0.05, 0.1))
    async with over_http() as (gateway, address):
        config = PeerConfig(dir=tmp_path, light=True, gateway=(address,), run=gateway.signed.run.hex())
        contributing = asyncio.create_task(contribute(config, PrintingConsole()))
        cohort_session = await gateway.convene()
        await until(lambda: len(cohort_session.members) == 2)
        gathered = await gathered_by(gateway, cohort_session)
        accepted = gateway.accepted(*gathered.claims)
        forged = Signed.sign(InclusionPromise(gateway.signed.run, 1, accepted.contribution.digest), GATEWAY)
        await cohort_session.tell(replace(accepted, inclusion_promise=forged))
        gateway.service.finish()
        assert await contributing
    printed = capsys.readouterr().out
    assert "its gateway shows an inclusion promise that does not hold" in printed
    assert "run finished taken=0 samples=0" in printed


async def test_a_contributor_that_is_told_another_run_than_the_gateways_ends_with_a_line(tmp_path: Path) -> None:
    async with over_http() as (gateway, address):
        config = PeerConfig(dir=tmp_path, light=True, gateway=(address,), run="ab" * 32)
        with pytest.raises(UserError, match=f"is a gateway of run {gateway.signed.run.hex()}"):
            await contribute(config, PrintingConsole())


def _certificate(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "gateway.crt", directory / "gateway.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return paths


async def test_with_a_certificate_it_is_https_and_one_that_nobody_vouches_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = _certificate(tmp_path)
    async with over_http(ListenAddress("127.0.0.1", 0, certificate, key)) as (_, address):
        assert address.startswith("https://")
        with pytest.raises(Unreachable, match="certificate"):
            await asyncio.to_thread(client_of(address).welcome)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert (await asyncio.to_thread(client_of(address).welcome)).gateway == GATEWAY.public_key


async def test_connections_that_never_begin_with_tls_hold_no_place_that_a_newcomer_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = _certificate(tmp_path)
    monkeypatch.setattr(http, "_MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "_ASKING_S", 2.0)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with over_http(ListenAddress("127.0.0.1", 0, certificate, key)) as (_, address):
        with connections(address, 3) as silent:
            silent[2].sendall(b"this is no TLS")
            assert await asyncio.to_thread(_is_closed, silent[2])
            for each in silent[:2]:
                await asyncio.to_thread(client_of(address).welcome)
                assert await asyncio.to_thread(_is_closed, each)


async def test_a_certificate_that_is_none_a_key_with_a_passphrase_and_a_port_in_use_are_said_in_a_line(
    gateway: Gateway, tmp_path: Path
) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    certificate, key = _certificate(tmp_path)
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"passphrase")
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for address, says in (
            (ListenAddress("127.0.0.1", 0, tmp_path / "none.pem", tmp_path / "none.pem"), "PEM files that belong together"),
            (ListenAddress("127.0.0.1", 0, certificate, key), "without a passphrase"),  # and nobody is asked for it
            (ListenAddress("127.0.0.1", taken.getsockname()[1]), "cannot listen on 127"),
        ):
            with pytest.raises(UserError, match=says):
                await serving(gateway.service, address).__aenter__()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lease_only": True}, "are for a gateway"),
        ({"gateway_cert": "gateway.crt", "gateway_key": "gateway.key"}, "are for a gateway"),
        ({"gateway": ("127.0.0.1:1", "127.0.0.1:2")}, "one HOST:PORT"),
        ({"gateway": ("127.0.0.1:1",), "view": "left"}, "leave --gateway or --view out"),
        ({"gateway": ("192.0.2.1:1",)}, "cannot listen on 192.0.2.1:1"),
    ],
)
def test_settings_of_a_gateway_that_do_not_fit_are_refused_before_anything_else(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_join(PeerConfig.model_validate(settings))


@pytest.mark.parametrize("address", ["", "8080", ":8080", "host", "host:", "host:x", "host:70000", "host:" + 5000 * "1", "http://host:80"])
def test_an_address_to_listen_on_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(UserError, match="give HOST:PORT"):
        ListenAddress.at(address)


@pytest.mark.parametrize(
    "url", ["", "host:8080", "ftp://host/", "http://", "http://host:x/", "http://me@host/", "http://host/?a=b", "http://host:0/"]
)
def test_a_url_of_a_gateway_is_http_with_a_host(url: str) -> None:
    with pytest.raises(UserError, match="give the URL"):
        GatewayUrl.of(url)


def test_a_url_may_have_a_path_and_the_key_that_it_has_to_be() -> None:
    assert GatewayUrl.of("https://example.org/manta/#12D3KooX") == GatewayUrl("https://example.org/manta", "12D3KooX")
    assert ListenAddress.at("[::1]:8080") == ListenAddress("::1", 8080)
    with pytest.raises(UserError, match="go together"):
        ListenAddress.at("host:80", Path("a"))


def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        gone = threading.Event()

        def endless() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                try:
                    while True:
                        connection.sendall(bytes(2**16))
                except OSError:
                    gone.set()

        thread = threading.Thread(target=endless)
        thread.start()
        with pytest.raises(EncodingError, match="an answer of more than"):
            client_of(f"http://127.0.0.1:{port}/").welcome()
        assert gone.wait(30)
        thread.join(30)
