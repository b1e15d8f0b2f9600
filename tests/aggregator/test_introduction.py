"""What an operator's program says when it begins, and the address that it comes back to."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.introduction import LastAddress, introduction
from manta_swarm.aggregator.status import AggregatorStatus
from tests.audited import audited_ledger


def test_who_audits_and_when_a_round_is_paid_is_said() -> None:
    for auditors, named in ((1, "1 named auditor"), (4, "4 named auditors")):
        ledger = audited_ledger(auditors=auditors)
        status = AggregatorStatus(run=ledger.run.hex(), name="digits", num_rounds=40)
        lines = list(introduction(status, ledger, num_weights=1000, keep_bodies=4))
        assert (
            f"100 % of the contributions of proven peers are computed again, by {named}: a round is paid after 6 rounds, "
            "or once the run is settled"
        ) in lines


@pytest.mark.parametrize("listen", ["/ip4/0.0.0.0/tcp/31000", "/ip4/127.0.0.1/tcp/31000"])
def test_an_address_with_a_port_is_taken_as_it_is_and_again_where_none_is_given(tmp_path: Path, listen: str) -> None:
    one = LastAddress(tmp_path)
    assert one.choose(listen) == listen
    one.remember((f"{listen}/p2p/12D3KooW",))
    again = LastAddress(tmp_path)
    assert again.choose(None) == listen  # the line that volunteers have names it
    again.remember((f"{listen}/p2p/12D3KooW",))
    assert LastAddress(tmp_path).choose(None) == listen
    assert LastAddress(tmp_path).choose("/ip4/127.0.0.1/tcp/31001") == "/ip4/127.0.0.1/tcp/31001"


@pytest.mark.parametrize("listen", [None, "/ip4/0.0.0.0/tcp/0", "/ip4/127.0.0.1/tcp/0"])
def test_a_free_port_stays_the_same_after_a_restart(tmp_path: Path, listen: str | None) -> None:
    first = LastAddress(tmp_path)
    asked = first.choose(listen)
    assert asked.endswith("/tcp/0")
    first.remember(("/ip4/10.0.0.7/tcp/45678/p2p/12D3KooW", "/ip4/127.0.0.1/tcp/45678/p2p/12D3KooW"))
    assert LastAddress(tmp_path).choose(listen) == asked.removesuffix("0") + "45678"
    assert LastAddress(tmp_path).choose("/ip4/1.2.3.4/tcp/0") == "/ip4/1.2.3.4/tcp/0"  # another address was asked for


def test_a_spoilt_memory_of_the_port_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "listen").write_bytes(b"\xff\xfe")
    assert LastAddress(tmp_path).choose(None) == "/ip4/0.0.0.0/tcp/0"
    (tmp_path / "listen").write_text("")
    assert LastAddress(tmp_path).choose(None) == "/ip4/0.0.0.0/tcp/0"
