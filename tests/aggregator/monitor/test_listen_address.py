"""Where the monitor may listen: a mistake is one line that names the address, once."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from manta_swarm.aggregator.monitor.settings import (
    DEFAULT_ADDRESS,
    MonitorSection,
    MonitorSocket,
    address_to_show,
    check_address,
    open_listener,
)
from manta_swarm.protocol.errors import UserError

USUAL = MonitorSection()


@contextmanager
def opened(asked: str | None) -> Iterator[MonitorSocket]:
    listen_address = open_listener(asked, USUAL)
    assert listen_address is not None
    with listen_address.socket:
        yield listen_address


@pytest.mark.parametrize(
    "host", ["a..b", ".", "a" * 64 + ".example", "\udcff", "nul\0byte", "no such name", "203.0.113.5", "[fe80::1%nope]"]
)
def test_a_host_where_nobody_can_listen_is_refused_in_one_line(host: str) -> None:
    with pytest.raises(UserError) as refused:
        check_address(f"{host}:80", USUAL)
    told = str(refused.value)
    assert told.startswith("cannot listen on ")
    assert told.endswith("): give another --monitor HOST:PORT, or --no-monitor")
    assert told.isprintable()
    assert "attempting" not in told
    assert len(re.findall(":80", told)) == 1


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "1.2.3.4.5:80", "no.such.host.invalid:80", "127.0.0.1:99999"])
def test_what_is_no_address_is_said_in_one_line(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        open_listener(address, USUAL)


def test_an_address_that_was_given_and_is_taken_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        of_file = MonitorSection(address=address)
        for asked, settings, where in ((address, USUAL, ":"), (None, of_file, r", which is \[monitor\] address in the run file: .*, or")):
            for look in (open_listener, check_address):
                with pytest.raises(UserError, match=rf"cannot listen on {address} \(Address .*in use\){where} give another --monitor HOST"):
                    look(asked, settings)
    check_address(address, USUAL)
    check_address(None, of_file)


@pytest.mark.parametrize(("host", "is_loopback"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_an_address_is_listened_at_and_shown_as_people_open_it(host: str, is_loopback: bool) -> None:
    with opened(f"{host}:0") as listen_address:
        assert listen_address.is_loopback == is_loopback
        assert listen_address.url == f"http://{host}:{listen_address.socket.getsockname()[1]}/"


def test_the_usual_address_gives_way_to_a_free_port() -> None:
    """Whoever else has it: another aggregator, or this test's second page."""
    with opened(None) as first, opened(None) as second:
        assert first.url != second.url
        assert second.is_loopback
    with pytest.raises(UserError), opened(DEFAULT_ADDRESS), opened(DEFAULT_ADDRESS):
        pass
    check_address(DEFAULT_ADDRESS, USUAL)
    check_address(None, USUAL)


def test_no_address_is_no_monitor() -> None:
    assert open_listener("", USUAL) is None
    assert open_listener(None, MonitorSection(address="")) is None
    check_address("", USUAL)


def test_the_address_that_people_are_told_compares_the_run() -> None:
    assert address_to_show("http://127.0.0.1:8787/", "0123456789abcdef" + 48 * "0") == "http://127.0.0.1:8787/#run=0123456789abcdef"
