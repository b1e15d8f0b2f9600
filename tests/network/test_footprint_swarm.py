"""What `manta-peer about` and `manta-aggregator check` say that a run takes is what it takes, within a factor of two.

And whoever types `about` or `doctor`, or watches the run as a witness, is no computer at work.
"""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.monitor.settings import MonitorSection
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.sections import ExchangeSection, TrustSection
from manta_swarm.automl.training.settings import first_min_exponent
from manta_swarm.peer.control import look
from manta_swarm.protocol.signing import peer_name
from tests import forked
from tests.network.processes import DEADLINE_S, Programs, read_json, small_run
from tests.network.test_travelling_swarm import _make_set as make_set

pytestmark = pytest.mark.swarm

PEERS = ("one", "two")
CODEC, STEPS = "topk-192-4", 3
TRUST = TrustSection(mode="audited", audit_percent=100, newcomer_percent=100, kept_rounds=4, pending_rounds=7)
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


def audited_run_with_shards() -> RunConfig:
    """Return a run of short rounds of several steps and sparse contributions, whose data travel and whose claims are audited."""
    batch = 64 * STEPS
    config = small_run(
        rounds=10_000, first_open_s=2.0, min_open_s=1.0, max_open_s=4.0, target_batch=batch, weight_cap=batch // 2, max_claim_samples=batch
    )
    sections = {
        "trust": TRUST,
        "exchange": ExchangeSection(local_steps=STEPS, codec=CODEC, first_min_exponent=first_min_exponent(CODEC)),
        "data": config.data.model_copy(update={"dataset": "shards-noise", "share_shards": True}),
        "monitor": MonitorSection(evaluate_share=0),
    }
    return config.model_copy(update=sections)


def typed(program: str, *arguments: str | Path) -> str:
    """Return what a command prints that ends without an error."""
    ended = forked.run(program, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def said(text: str, words: str) -> float:
    """Return the bytes that ``text`` says where ``words`` has its only group."""
    found = re.search(words.replace("SIZE", r"([0-9.]+ [kMG]B)"), text)
    assert found is not None, f"nothing like {words!r} in:\n{text}"
    number, unit = found[1].split()
    return float(number) * UNITS[unit]


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory that others write into and remove from."""
    sizes = []
    for path in directory.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:
            continue
    return sum(sizes)


def is_near(measured: float, forecast: float) -> bool:
    """Return whether one is at most twice the other."""
    return forecast / 2 <= measured <= 2 * forecast


def assert_near(measured: float, forecast: float) -> None:
    assert is_near(measured, forecast), (measured, forecast)


def asked(url: str, target: str) -> Any:
    with urllib.request.urlopen(url + target, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read())


def test_what_a_run_takes_is_what_was_said_and_who_asks_for_it_is_not_at_work(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_set(data)
    config = audited_run_with_shards()
    with Programs(tmp_path, config) as programs:
        forecast = typed("manta_swarm.aggregator.cli", "check", tmp_path / "run.toml", "--data-root", data, "--peers", "2")
        aggregator = programs.start_aggregator("--data-root", str(data), "--monitor", "127.0.0.1:0")
        there = ("--initial-peers", aggregator["addresses"][0], "--dir", tmp_path / "nobody")
        for name in PEERS:
            programs.start_peer(name, name)
        where = ("--of", aggregator["addresses"][0], "--dir", str(tmp_path / "witness"))
        programs.start_command("witness", "-P", "-m", "manta_swarm.aggregator.cli", "witness", *where)
        before = typed("manta_swarm.peer.cli", "about", *there)

        def traffic(name: str) -> tuple[int, int]:
            status = look(tmp_path / name)
            return status.received_bytes, status.sent_bytes

        def round_now() -> int:
            return int(programs.status("aggregator")["round"])

        def all_counted() -> bool:
            return all(programs.status(name).get("rounds_counted", 0) for name in PEERS)

        programs.wait_until(all_counted, "both peers count")
        first, first_round = {name: traffic(name) for name in PEERS}, round_now()
        assert "ok    disk for the run: the run takes about 0.0" in typed("manta_swarm.peer.cli", "doctor", *there, "--gpus", "none")
        programs.wait_for_round(first_round + TRUST.pending_rounds + 4)
        about = ""

        def is_of_both() -> bool:
            nonlocal about
            about = typed("manta_swarm.peer.cli", "about", *there)
            return "with 2 contributions" in about

        programs.wait_until(is_of_both, "a round has the contributions of both")
        programs.wait_until(lambda: "cosigned round=" in programs.log("witness"), "the witness cosigned")

        # Who was looked at and counted.
        keys = {str(programs.status(name)["key"]) for name in PEERS}
        live = read_json(tmp_path / "aggregator" / "status.json")
        assert set(live["heard"]) == keys
        assert live["calls"]["manifest"]["calls"] >= 3  # and the others had called

        def of_now() -> tuple[int, int]:
            found = asked(aggregator["monitor"], "api/now")["peers"]
            return found["known"], found["present"]

        programs.wait_until(lambda: of_now() == (2, 2), "the page has heard of both a moment ago")
        assert {one["peer"] for one in asked(aggregator["monitor"], "api/peers")["peers"]} == {
            peer_name(bytes.fromhex(key)) for key in keys
        }
        assert asked(aggregator["monitor"], "api/trust")["computers"] == 2

        # What the peers took, and the aggregator.
        once = said(about, "downloaded once, when you join: SIZE")
        assert once == said(before, "downloaded once, when you join: SIZE")
        fetched, sent = (
            said(about, r"downloaded: SIZE a round"),
            said(about, r"sent: SIZE a round") + said(about, r"once you are proven, SIZE a round"),
        )
        disk, payout_receipt = said(about, "on the disk: about SIZE"), said(about, "and SIZE more a round that counts you")
        most = said(about, "at most SIZE\n")
        folder, log = said(forecast, r"on its disk: SIZE in all"), said(forecast, "the log, SIZE a round")
        last, rounds = {name: traffic(name) for name in PEERS}, round_now() - first_round
        for name in PEERS:
            assert_near(first[name][0], once)
            assert_near((last[name][0] - first[name][0]) / rounds, fetched)
            assert_near((last[name][1] - first[name][1]) / rounds, sent)
            taken = size_of(tmp_path / name)
            assert_near(taken, disk + payout_receipt * round_now())
            assert taken <= most
        programs.wait_until(lambda: size_of(tmp_path / "aggregator") >= folder / 2, "audits have what they ask for")
        assert_near(size_of(tmp_path / "aggregator"), folder + log * round_now())
