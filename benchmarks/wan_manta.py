"""Manta on the network of ``wan.py``: a cohort at each site, the aggregator at the third place, real programs on their own hosts.

Peers of one cohort pass each other their vectors through memory although each has a network of its own: a site is one computer with
several processes here. What goes between the sites, and to and from the aggregator, goes over the links.
"""

import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scale_programs import Place
from scale_swarm import Logged, Moment, Swarm, run_config
from wan_network import SITES, Carried, Network

PORT = 31000
WARM_UP_ROUNDS = 3  # at each speed: the length of a round settles
COHORTS = ("labels", "affinity", "token")  # a label and a token for each site, or neither, and each peer of somebody else
SETTLED_S = 240.0  # until those of a site have found each other
ENDLESS = 100_000  # rounds: nobody waits for the last one


@dataclass(frozen=True, slots=True)
class Vector:
    """What is exchanged: the weights of a supernet."""

    name: str
    supernet: str
    num_weights: int
    microbatch_s: float  # how long a microbatch takes; 0: as long as it needs, it is trained


@dataclass(frozen=True, slots=True)
class Setting:
    """How it is exchanged."""

    local_steps: int
    codec: str
    microbatches: int  # of a peer and round that the run aims at
    cohorts: str = "labels"  # one of COHORTS

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"H = {self.local_steps}, {self.codec}" + ("" if self.cohorts == "labels" else f", {self.cohorts}")


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Rounds of one vector, setting and link."""

    rounds: int
    seconds: float  # a round, from commit to commit
    computing: float  # part of the time that peers were in microbatches, mean of the peers
    least: float  # that of the peer with the least
    beside_s: float  # a round less a peer's microbatches in it
    up_mb: float  # over a site's link and round, mean of the sites
    down_mb: float
    contributions: float  # of a round
    claims: float
    laps: dict[str, float]  # seconds a round as the peers log them, mean of the peers
    divergent: int  # programs whose state is not that of the log's round


@dataclass(frozen=True, slots=True)
class Mark:
    """The swarm and the network at one moment."""

    moment: Moment
    carried: Carried
    round: int


def measure(
    network: Network, vector: Vector, setting: Setting, mbits: Sequence[float], num_rounds: int, say: Callable[[str], None]
) -> dict[float, Exchanged]:
    """Return what one swarm needs at each speed of the links, one after the other; it starts while they are fast."""
    directory = network.directory / f"{vector.name}-{setting.local_steps}-{setting.codec}-{setting.cohorts}"
    directory.mkdir()
    with _swarm(network, vector, setting, directory) as swarm:
        network.shape(None)
        swarm.start(lambda line: None)
        swarm.gate.touch()
        if setting.cohorts != "labels":
            say(f"Manta, {vector.name}, {setting.name}: {_found(swarm, network, setting.cohorts)}")
        marks: dict[float, tuple[Mark, Mark]] = {}
        for mbit in mbits:
            network.shape(mbit)
            start = swarm.round + WARM_UP_ROUNDS
            say_it = _prefixed(say, f"Manta, {vector.name}, {setting.name}, {mbit:g} Mbit/s: ")
            swarm.rounds(lambda line: None, start, start)
            before = _mark(swarm, network, start)
            swarm.rounds(say_it, start + 1, start + num_rounds)
            marks[mbit] = before, _mark(swarm, network, start + num_rounds)
        network.shape(None)
        end = swarm.round + 1
        swarm.rounds(lambda line: None, end, end)  # so that no microbatch of the rounds that count is under way
        logged = swarm.logged()
        return {mbit: _exchanged(swarm, logged, *pair) for mbit, pair in marks.items()}


def _swarm(network: Network, vector: Vector, setting: Setting, directory: Path) -> Swarm:
    tokens = {site: secrets.token_hex(32) for site in SITES}
    places = {
        f"{host.site}{number}": Place(
            directory / f"{host.site}{number}",
            listen=f"/ip4/{host.address}/tcp/{PORT}",
            namespace=host.namespace,
            cohort=f"site-{host.site}" if setting.cohorts == "labels" else None,
            token=tokens[host.site] if setting.cohorts == "labels" else secrets.token_hex(32),
            finds_cohort_peers=setting.cohorts != "labels",
            machine=None if setting.cohorts == "labels" else secrets.token_hex(16),
        )
        for number, host in enumerate(network.hosts)
    }
    config = run_config(
        "wan",
        len(places),
        ENDLESS,
        microbatches=setting.microbatches,
        microbatch_s=vector.microbatch_s or 1.0,
        supernet=vector.supernet,
        local_steps=setting.local_steps,
        codec=setting.codec,
        cohorts="affinity" if setting.cohorts == "affinity" else "token",
    )
    server = network.server
    aggregator = Place(directory / "aggregator", listen=f"/ip4/{server.address}/tcp/{PORT}", namespace=server.namespace)
    return Swarm(directory, config, places, dict.fromkeys(places, vector.microbatch_s), aggregator)


def _found(swarm: Swarm, network: Network, cohorts: str) -> str:
    """Wait until all know who is near, and those of a site have found each other where they are to; return what they found, in words."""
    sites = {f"{host.site}{number}": host.site for number, host in enumerate(network.hosts)}
    cohort_peers = len(sites) // len(SITES) - 1 if cohorts == "affinity" else 0
    started_s = time.monotonic()
    while time.monotonic() < started_s + SETTLED_S:
        told = {name: swarm.peer(name) for name in swarm.peers}
        if all(
            status.members == len(sites) and status.cohort_peers == cohort_peers and (cohort_peers or status.near)
            for status in told.values()
        ):
            break
        time.sleep(0.5)
    else:
        raise SystemExit(f"they did not settle within {SETTLED_S:.0f} s: {told}")
    groups: dict[str, list[str]] = {}
    for name, status in told.items():
        groups.setdefault(status.cohort if cohort_peers else name, []).append(name)
    words = " | ".join(" ".join(names) for names in groups.values())
    why = "; ".join(sorted({status.why if cohort_peers else f"near: {status.near}" for status in told.values()}))
    return f"after {time.monotonic() - started_s:.0f} s cohorts are {words} ({why})"


def _prefixed(say: Callable[[str], None], prefix: str) -> Callable[[str], None]:
    return lambda line: say(prefix + line)


def _mark(swarm: Swarm, network: Network, round_: int) -> Mark:
    return Mark(swarm.moment(), network.carried(), round_)


def _exchanged(swarm: Swarm, logged: Logged, before: Mark, after: Mark) -> Exchanged:
    count = after.round - before.round
    rounds = range(before.round + 1, after.round + 1)
    seconds = after.moment.time_s - before.moment.time_s
    microbatches_s = [
        sum(microbatch.within_s(before.moment.time_s, after.moment.time_s) for microbatch in swarm.microbatches(name))
        for name in swarm.peers
    ]
    carried = after.carried - before.carried
    laps = [swarm.laps(name, rounds[0], rounds[-1]) for name in swarm.peers]
    return Exchanged(
        rounds=count,
        seconds=seconds / count,
        computing=statistics.mean(microbatches_s) / seconds,
        least=min(microbatches_s) / seconds,
        beside_s=(seconds - statistics.mean(microbatches_s)) / count,
        up_mb=_mean(carried.up.values()) / count / 1e6,
        down_mb=_mean(carried.down.values()) / count / 1e6,
        contributions=_mean(logged.rows[round_] for round_ in rounds),
        claims=_mean(logged.claims[round_] for round_ in rounds),
        laps={what: _mean(lap.get(what, 0.0) for lap in laps) for what in sorted({what for lap in laps for what in lap})},
        divergent=swarm.divergent(logged),
    )


def _mean(values: Iterable[float]) -> float:
    return statistics.mean(values)


def as_json(found: Mapping[tuple[str, Setting, float], Exchanged]) -> list[dict[str, Any]]:
    """Return all of it for a JSON file."""
    return [{"vector": name, **asdict(setting), "mbit": mbit, **asdict(exchanged)} for (name, setting, mbit), exchanged in found.items()]
