"""Peers behind routers and walls, on a little internet of network namespaces (Linux, root, iptables): they train without a port being
opened, and go on when the aggregator is away for a while, or a peer that others can call dies.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manta_swarm.aggregator.settings.config import RunConfig
from tests.faults.nat_network import KINDS, Host, Internet, why_not
from tests.faults.scene import ENDLESS, Scene, cohort_run, quick_run

pytestmark = [pytest.mark.swarm, pytest.mark.needs("ip", "iptables"), pytest.mark.timeout(1200)]

PORT = 31000
HARDEST = ("symmetric", "symmetric")  # nobody can call either: of all pairs the one that is always tried
PAIRS = [pytest.param(one, other, marks=() if (one, other) == HARDEST else pytest.mark.faults) for one in KINDS for other in KINDS]
WORDS = {"public": "public", "cone": "outbound", "symmetric": "outbound", "firewalled": "outbound"}


@pytest.fixture
def internet() -> Iterator[Internet]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with Internet() as network:
        yield network


class Abroad(Scene):
    """Programs on hosts of their own."""

    def __init__(self, directory: Path, config: RunConfig, internet: Internet) -> None:
        super().__init__(directory, config)
        self._internet = internet
        self._started_s: dict[str, float] = {}
        self.hosts: dict[str, Host] = {"aggregator": internet.add("aggregator", "public")}

    def listen(self, name: str) -> str:
        """The aggregator has a port of its own, and all others a free one, at all addresses of their hosts."""
        return f"/ip4/0.0.0.0/tcp/{PORT if name == 'aggregator' else 0}"

    def command(self, name: str, *arguments: str) -> list[str]:
        """Run it on its host."""
        return self.hosts[name].command(sys.executable, *arguments)

    def add(self, name: str, kind: str, cohort: str | None = None, behind: str = "") -> None:
        """Start a peer on a new host of ``kind``, on the LAN of another one's where that is said."""
        self.hosts[name] = self._internet.behind(name, self.hosts[behind]) if behind else self._internet.add(name, kind)
        self.start_again(name, cohort)

    def start_again(self, name: str, cohort: str | None = None) -> None:
        """Start a peer where it was."""
        self._started_s[name] = time.monotonic()
        (self.directory / name / "status.json").unlink(missing_ok=True)  # of its life before
        # Where the aggregator is on no list of this computer: each host is another person's.
        self.start_peer(name, cohort, environment={"MANTA_STATE_DIR": str(self.directory / f"{name}-state")})

    def all_count(self, *names: str) -> None:
        """Return once each has contributed to a round; print how long that took from its start."""
        waiting = set(names)

        def check() -> bool:
            for name in sorted(waiting):
                if self.status(name).get("rounds_counted", 0):
                    waiting.discard(name)
                    print(f"{name}: {self.hosts[name].kind}, counted {time.monotonic() - self._started_s[name]:.1f} s after its start")
            return not waiting

        self.wait_until(check, f"rounds of {', '.join(names)} are counted")

    def all_say(self, *names: str) -> None:
        """Return once each says rightly whether others can call it."""
        expected = {name: WORDS[self.hosts[name].kind] for name in names}
        self.wait_until(lambda: {name: self.status(name).get("reachable") for name in names} == expected, f"each knows: {expected}")
        for name in names:
            print(f"{name}: {self.hosts[name].kind}: {self.status(name)['reach']}")


@pytest.mark.faults
def test_a_public_and_a_translated_peer_train_and_know_who_can_be_called(tmp_path: Path, internet: Internet) -> None:
    with Abroad(tmp_path, quick_run(), internet) as scene:
        scene.start_aggregator()
        scene.add("open", "public")
        scene.add("home", "symmetric")
        scene.all_count("open", "home")
        scene.all_say("open", "home")
        scene.kill_all("aggregator")
        scene.start_aggregator()
        scene.counts_again("home")
        scene.end("open", "home")
        scene.assert_all_agree("open", "home")


@pytest.mark.faults
def test_two_of_each_kind_train_in_one_run_and_go_on_without_whom_they_called(tmp_path: Path, internet: Internet) -> None:
    names = [f"{kind}-{number}" for kind in KINDS for number in (1, 2)]
    with Abroad(tmp_path, quick_run(target_batch=512, weight_cap=128, first_open_s=2.0, min_open_s=2.0), internet) as scene:
        scene.start_aggregator()
        for name in names:
            scene.add(name, name.rpartition("-")[0])
            scene.all_count(name)
        scene.all_say(*names)
        scene.kill_all("aggregator")
        scene.start_aggregator()
        for name in names:
            scene.counts_again(name)
        scene.expect_end("public-1")
        scene.kill_all("public-1")
        others = [name for name in names if name != "public-1"]
        for name in others:
            scene.counts_again(name)
        scene.end(*others)
        # Eight peers on two cores: a microbatch may take so long that it is too old.
        scene.assert_all_agree(*others, lost=dict.fromkeys(others, ENDLESS))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_any_two_train_with_the_aggregator_alone(one: str, other: str, tmp_path: Path, internet: Internet) -> None:
    with Abroad(tmp_path, quick_run(), internet) as scene:
        scene.start_aggregator()
        scene.add("one", one)
        scene.add("other", other)
        scene.all_count("one", "other")
        scene.counts_again("one")
        scene.counts_again("other")
        scene.end("one", "other")
        scene.assert_all_agree("one", "other")


@pytest.mark.faults
def test_cohort_peers_behind_one_router_meet_by_their_local_addresses(tmp_path: Path, internet: Internet) -> None:
    with Abroad(tmp_path, cohort_run(), internet) as scene:
        scene.start_aggregator()
        scene.add("one", "cone", "home")
        scene.add("two", "cone", "home", behind="one")
        scene.add("far", "cone", "home")
        scene.wait_until(
            lambda: scene.status("one").get("cohort_peers") == 1 == scene.status("two").get("cohort_peers"), "two cohort peers meet"
        )
        keys = scene.status("one")["key"], scene.status("two")["key"]
        scene.wait_until(lambda: len(scene.rounds_together(*keys)) > 2, "they contribute together")
        scene.counts_again("far")
        assert scene.status("far")["cohort_peers"] == 0  # behind a router of its own: it holds the token, and nobody can call it
        scene.end("one", "two", "far")
        scene.assert_all_agree("one", "two", "far")


@pytest.mark.faults
def test_a_peer_starts_again_while_the_aggregator_is_away_and_goes_on_when_it_is_back(tmp_path: Path, internet: Internet) -> None:
    with Abroad(tmp_path, quick_run(), internet) as scene:
        scene.start_aggregator()
        scene.add("open", "public")
        scene.add("home", "cone")
        scene.all_count("open", "home")
        last = tmp_path / "home" / "last.json"
        scene.wait_until(lambda: internet.hosts["open"].address in last.read_text(), "a peer that can be called is remembered")
        scene.kill_all("aggregator")
        scene.let_leave("home")
        scene.start_again("home")
        scene.wait_until(lambda: "the run's log" in scene.status("home").get("waiting_for", ""), "it is in the run, and waits for the log")
        scene.start_aggregator()
        scene.all_count("home")
        scene.wait_until(lambda: scene.status("home").get("round", 0) > 0, "it holds a state again")
        scene.end("open", "home")
        scene.assert_all_agree("open", "home")
