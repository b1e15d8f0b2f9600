"""What is no request that the monitor answers: the right status, a reason, and nothing but what it is meant to show."""

import os
from pathlib import Path

import pytest

from manta_swarm.aggregator.monitor.app import INDEX, load_files
from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.states.opening import OpenedRun
from tests.aggregator.monitor.asgi import LOCAL, Shown
from tests.aggregator.real_run import PEERS

ROUTES = (
    "/api/run",
    "/api/manifest",
    "/api/now",
    "/api/series",
    "/api/quality",
    "/api/fronts",
    "/api/members-front",
    "/api/pictures",
    "/api/peers",
    f"/api/peers/{PEERS[0].public_key.hex()}",
    "/api/swarm",
    "/api/rounds",
    "/api/rounds/1",
    "/api/timeline",
    "/api/traffic",
    "/api/ledger/head",
    "/api/ledger/heads",
    "/api/ledger/entries",
    "/api/ledger/entries/0",
    "/api/ledger/proof?index=0",
    "/api/ledger/consistency?old=0",
    "/api/ledger/credits",
    "/api/trust",
    "/api/trust/keys",
    "/api/trust/audits",
    "/api/trust/faults",
    "/metrics",
    "/",
    "/static/index.html",
)
LATER = ("js/known.js", "js/trust_part.js")  # are asked for when somebody compares a key, and in a run with audits
FILES = ("/tlog/checkpoint", "/tlog/tile/0/000.p/10", "/tlog/tile/entries/000.p/7")  # the page asks for none of them


@pytest.mark.parametrize("target", [*ROUTES, *FILES])
def test_every_route_answers_and_says_nothing_but_get_and_head(shown: Shown, target: str) -> None:
    got, head = shown.get(target), shown.get(target, method="HEAD")
    assert (got.status, head.status) == (200, 200)
    assert head.body == b""
    assert got.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in got.headers["content-security-policy"]
    assert "unsafe" not in got.headers["content-security-policy"]
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert shown.get(target, method=method).status == 405


@pytest.mark.parametrize("target", [route for route in ROUTES if route.startswith("/api/")])
def test_an_unknown_doubled_or_malformed_parameter_is_refused(shown: Shown, target: str) -> None:
    start = target + ("&" if "?" in target else "?")
    for parameter in ("wrong=1", "limit=1&limit=1", "callback=alert"):
        got = shown.get(start + parameter)
        assert got.status == 400, parameter
        assert "parameter" in got.reason


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/api/rounds?limit=0", 400),
        ("/api/rounds?limit=201", 400),
        ("/api/rounds?limit=1e3", 400),
        ("/api/rounds?limit=%EF%BC%91", 400),  # a digit, but none of ours
        ("/api/rounds?before=%FF", 400),
        ("/api/series?points=1", 400),
        ("/api/series?points=2001", 400),
        ("/api/series?from=5&to=2", 400),
        ("/api/quality?from=5&to=2", 400),
        ("/api/peers?sort=secret", 400),
        ("/api/peers?state=gone", 400),
        ("/api/peers?query=" + "x" * 129, 400),
        ("/api/ledger/proof", 400),
        ("/api/ledger/proof?index=x", 400),
        ("/api/ledger/proof?index=19", 404),
        ("/api/ledger/proof?index=7&size=7", 404),
        ("/api/ledger/proof?index=0&size=20", 400),
        ("/api/ledger/consistency", 400),
        ("/api/ledger/consistency?old=8&new=7", 400),
        ("/api/ledger/consistency?old=1&new=20", 400),
        ("/api/ledger/entries/19", 404),
        ("/api/ledger/entries/99999999999999999999999", 404),
        ("/api/rounds/0", 404),
        ("/api/rounds/4", 404),
        ("/api/rounds/one", 404),
        ("/api/peers/12D3KooWnobody", 404),
        ("/api/peers/" + "a" * 500, 404),
        ("/api/peers/..%2f..%2fidentity.key", 404),
        ("/api/pictures/0123456789abcdef0123456789abcdef.png", 404),
        ("/api/pictures/..%2F..%2Fidentity.key.png", 404),
        ("/static/../program.py", 404),
        ("/static/%2e%2e/program.py", 404),
        ("/static/..%2f..%2f..%2fidentity.key", 404),
        ("/static//etc/passwd", 404),
        ("/static/", 404),
        ("/static/index.html%00.png", 404),
        ("/tlog/", 404),
        ("/tlog/identity.key", 404),
        ("/tlog/tile/0/000", 404),
        ("/tlog/tile/0/000.p/20", 404),
        ("/tlog/tile/1/000.p/1", 404),
        ("/tlog/tile/0/000.p/019", 404),
        ("/tlog/checkpoint?size=7", 400),
        ("/api", 404),
        ("/api/", 404),
        ("/api/now/", 404),
        ("//", 404),
        ("/api/now?" + "x" * 2_048, 414),
        ("/" + "x" * 2_100, 414),
    ],
)
def test_what_cannot_be_answered_gets_its_status_and_a_reason(shown: Shown, target: str, status: int) -> None:
    got = shown.get(target)
    assert got.status == status
    assert 10 < len(got.reason) < 500
    assert "Traceback" not in got.reason


def test_nothing_is_read_but_the_page_and_the_log(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    files = load_files()
    assert all(not name.startswith(("/", "..")) for name in files)
    for name in ("identity.key", "log.sqlite3", "manifest.cbor", "status.json"):
        for target in (f"/{name}", f"/static/{name}", f"/static/../../../{name}", f"/api/pictures/{name}", f"/{played[0]}/{name}"):
            assert shown.get(target).status == 404


def test_a_link_out_of_the_page_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<p>")
    (tmp_path / "secret").write_text("key")
    os.symlink(tmp_path / "secret", tmp_path / "page" / "open.txt")
    assert list(load_files(tmp_path / "page")) == ["index.html"]


@pytest.mark.parametrize("host", ["127.0.0.1:8787", "localhost", "LOCALHOST:1", "[::1]:8787", "127.1.2.3"])
def test_on_loopback_this_computer_has_these_names(shown: Shown, host: str) -> None:
    assert shown.get("/api/now", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "localhost.", "", "[::1", "127.0.0.1:x", "10.0.0.1"]
)
def test_on_loopback_another_name_is_a_page_that_means_no_good(shown: Shown, host: str) -> None:
    for target in ("/api/now", "/", "/api/events", "/metrics"):
        assert shown.get(target, headers={"host": host}).status == 421
    assert shown.get("/api/now", headers={}).status == 421


def test_names_of_a_reverse_proxy_are_let_in_and_elsewhere_every_name_is(played: tuple[Path, OpenedRun]) -> None:
    behind = Shown(played[0], settings=MonitorSection(host_names=("Monitor.example.org",)))
    assert behind.get("/api/now", headers={"host": "monitor.example.org"}).status == 200
    assert behind.get("/api/now", headers={"host": "evil.example"}).status == 421
    public = Shown(played[0], is_loopback=False)
    assert public.get("/api/now", headers={"host": "anything.example"}).status == 200


def test_answers_are_packed_for_who_takes_that(shown: Shown) -> None:
    packed = shown.get("/api/run", headers={**LOCAL, "accept-encoding": "br, gzip;q=0.8"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["cache-control"] == "no-store"
    assert packed.json == shown.get("/api/run").json
    assert "content-encoding" not in shown.get("/api/run", headers={**LOCAL, "accept-encoding": "gzip;q=0"}).headers


def test_the_page_is_packed_and_asked_for_again_only_when_it_changed(shown: Shown) -> None:
    got = shown.get("/", headers={**LOCAL, "accept-encoding": "gzip"})
    assert (got.headers["content-type"], got.headers["content-encoding"]) == ("text/html; charset=utf-8", "gzip")
    again = shown.get("/", headers={**LOCAL, "if-none-match": f'"other", W/{got.headers["etag"]}'})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["content-security-policy"] == got.headers["content-security-policy"]  # a browser takes it for the page's
    assert shown.get("/", headers={**LOCAL, "if-none-match": '"other"'}).status == 200


def test_scripts_and_styles_have_the_types_that_browsers_want(shown: Shown) -> None:
    for name in load_files():
        got = shown.get(f"/static/{name}")
        wanted = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
        assert got.headers["content-type"].startswith(wanted.get(Path(name).suffix, "text/plain"))


def test_the_first_view_is_at_most_100_kb(shown: Shown) -> None:
    """The page, all that it is made of, and each answer that it might begin with, with their headers."""
    gzip = {**LOCAL, "accept-encoding": "gzip"}
    names = [name for name in load_files() if name not in (INDEX, *LATER) and not name.endswith("LICENSE")]  # the index is "/"
    targets = ["/", *(f"/static/{name}" for name in names), *(route for route in ROUTES[:-3] if not route.startswith("/api/trust"))]
    sizes = {}
    for target in targets:
        got = shown.get(target, headers=gzip)
        sizes[target] = len(got.body) + sum(len(name) + len(value) + 4 for name, value in got.headers.items())
    assert sum(sizes.values()) < 100_000, sizes
