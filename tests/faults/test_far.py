"""Two sites of two peers each, 1 ms there and back inside a site and 40 ms between them, in network namespaces (Linux, root, /dev/net/tun).

No two peers share a host or a local network, and nobody has a label: only the time that calls take says who is near. With affinity those of
a site are a cohort, where a token decides nobody is in one.
"""

import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from manta_swarm.aggregator.settings.config import RunConfig
from tests.faults.far_network import FarNetwork, why_not
from tests.faults.scene import ENDLESS, Scene, cohort_run, quick_run

pytestmark = [pytest.mark.swarm, pytest.mark.faults, pytest.mark.needs("ip", "unshare"), pytest.mark.timeout(1200)]

PORT = 31000
SITES = {"a-1": "a", "a-2": "a", "b-1": "b", "b-2": "b"}
COHORT_PEERS = (("a-1", "a-2"), ("b-1", "b-2"))
INSIDE_MS, BETWEEN_MS = 1.0, 40.0  # there and back
ROUNDS = 8  # that are looked at

MakeNetwork = Callable[[float], FarNetwork]


@pytest.fixture
def make_network(tmp_path: Path) -> MakeNetwork:
    """Return what makes the network, given how many milliseconds it takes there and back inside a site."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return lambda inside_ms: FarNetwork(tmp_path, {"aggregator": "log", **SITES}, inside_ms=inside_ms, between_ms=BETWEEN_MS)


class Apart(Scene):
    """Programs on hosts of their own, each of another person."""

    def __init__(self, directory: Path, config: RunConfig, cohorts: Literal["affinity", "token"], network: FarNetwork) -> None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"cohorts": cohorts})})
        super().__init__(directory, config)
        self._network = network

    def listen(self, name: str) -> str:
        """All have a port of their own, at the one address of their hosts."""
        return f"/ip4/{self._network.hosts[name].address}/tcp/{PORT}"

    def command(self, name: str, *arguments: str) -> list[str]:
        """Run it on its host."""
        return self._network.hosts[name].command(sys.executable, *arguments)

    def start_all(self) -> None:
        """Start the aggregator, and peers without a label."""
        self.start_aggregator()
        aggregator = self.status("aggregator")
        where = ("--initial-peers", aggregator["addresses"][0], "--run", aggregator["run"])
        for name in SITES:
            own = ("--listen", self.listen(name), "--dir", str(self.directory / name), "--gpus", "none", "--verbose")
            environment = {"MANTA_COHORT_TOKEN": secrets.token_hex(32), "MANTA_STATE_DIR": str(self.directory / f"{name}-state")}
            self.start_command(name, "-P", "-m", "manta_swarm.peer.cli", "join", *where, *own, environment=environment)

    def key(self, name: str) -> str:
        return str(self.status(name)["key"])

    def told(self, field: str) -> dict[str, object]:
        """Return what each peer's status says."""
        return {name: self.status(name).get(field) for name in SITES}

    def sent(self) -> tuple[int, int, int]:
        """Return the newest round, and the bytes of a pair and direction so far, of pairs of a site and of pairs of two, mean of them."""
        inside, between = [], []
        for (one, other), count in self._network.carried().items():
            if one in SITES and other in SITES:
                (inside if SITES[one] == SITES[other] else between).append(count)
        return self.status("aggregator")["round"], sum(inside) // len(inside), sum(between) // len(between)

    def show_sent(self, what: str, before: tuple[int, int, int]) -> tuple[int, int]:
        """Print, and return, the bytes of a pair and direction a round since then, inside the sites and between them."""
        rounds, inside, between = (now - then for now, then in zip(self.sent(), before, strict=True))
        print(f"{what}: kB of a pair and direction a round: inside {inside / rounds / 1e3:.0f}, between {between / rounds / 1e3:.0f}")
        return inside // rounds, between // rounds


def test_with_affinity_those_of_a_site_find_each_other_by_the_time_that_calls_take(tmp_path: Path, make_network: MakeNetwork) -> None:
    with make_network(INSIDE_MS) as network, Apart(tmp_path, cohort_run(), "affinity", network) as scene:
        scene.start_all()
        scene.wait_until(lambda: set(scene.told("cohort_peers").values()) == {1}, "each has a cohort peer")
        cohorts = scene.told("cohort")
        print(f"affinity: {cohorts}; {scene.told('why')}; {scene.told('round_trips')}")
        assert all(cohorts[name] == cohorts[cohort_peer] for name, cohort_peer in COHORT_PEERS)
        assert len(set(cohorts.values())) == len(COHORT_PEERS)
        assert all(re.fullmatch(r"at most \d+(\.\d)? ms from 1 other", str(why)) for why in scene.told("why").values())
        sent = scene.sent()
        for name, cohort_peer in COHORT_PEERS:
            keys = scene.key(name), scene.key(cohort_peer)
            scene.wait_until(lambda keys=keys: len(scene.rounds_together(*keys)) >= ROUNDS, f"{name} and {cohort_peer} contribute together")
        scene.show_sent("affinity", sent)
        scene.end(*SITES)
        scene.assert_all_agree(*SITES, lost=dict.fromkeys(SITES, ENDLESS))  # four peers on a busy computer: a microbatch may be too late


def test_with_a_token_nobody_is_grouped_though_it_is_known_who_is_near(tmp_path: Path, make_network: MakeNetwork) -> None:
    config = quick_run(target_batch=512, weight_cap=128, first_open_s=3.0, min_open_s=3.0)
    with make_network(INSIDE_MS) as network, Apart(tmp_path, config, "token", network) as scene:
        scene.start_all()
        scene.wait_until(lambda: set(scene.told("members").values()) == {len(SITES)}, "all know all")
        scene.wait_until(lambda: all(scene.told("near").values()), "each knows who is near")
        print(f"token: near {scene.told('near')}")
        assert all(re.fullmatch(r"at most \d+(\.\d)? ms from 1 other", str(near)) for near in scene.told("near").values())
        scene.rounds_go_on(1)
        sent = scene.sent()
        scene.rounds_go_on(ROUNDS)
        scene.show_sent("token", sent)
        assert set(scene.told("cohort_peers").values()) == {0}
        assert not any(scene.rounds_together(scene.key(name), scene.key(cohort_peer)) for name, cohort_peer in COHORT_PEERS)
        scene.end(*SITES)
        scene.assert_all_agree(*SITES, lost=dict.fromkeys(SITES, ENDLESS))
