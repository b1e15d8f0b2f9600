"""Where the monitor may listen: a mistake is one line that names the address, once."""

import re
import socket

import pytest

from manta_swarm.aggregator.monitor.settings import MonitorSection, address_to_show, check_address, open_listener
from manta_swarm.protocol.errors import UserError


@pytest.mark.parametrize(
    "host", ["a..b", ".", "a" * 64 + ".example", "\udcff", "nul\0byte", "no such name", "203.0.113.5", "[fe80::1%nope]"]
)
def test_a_host_where_nobody_can_listen_is_refused_in_one_line(host: str) -> None:
    with pytest.raises(UserError) as refused:
        check_address(f"{host}:80", MonitorSection())
    told = str(refused.value)
    assert told.startswith("cannot listen on ")
    assert told.endswith("): give another --monitor HOST:PORT, or --no-monitor")
    assert told.isprintable()
    assert "attempting" not in told
    assert len(re.findall(":80", told)) == 1


def test_an_address_that_is_taken_is_named_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError) as refused:
            open_listener(address, MonitorSection())
    told = str(refused.value)
    assert told.count(address.rpartition(":")[2]) == 1
    assert "already in use" in told


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0"])
def test_a_name_and_an_address_are_listened_on(address: str) -> None:
    listen_address = open_listener(address, MonitorSection())
    assert listen_address is not None
    with listen_address.socket:
        assert listen_address.is_loopback
        assert listen_address.url == f"http://{address.partition(':')[0]}:{listen_address.socket.getsockname()[1]}/"


def test_the_address_that_people_are_told_compares_the_run() -> None:
    assert address_to_show("http://127.0.0.1:8787/", "0123456789abcdef" + 48 * "0") == "http://127.0.0.1:8787/#run=0123456789abcdef"
