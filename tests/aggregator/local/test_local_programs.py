"""What manta-swarm starts: which programs, with what on their command lines and in their environments."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from manta_swarm.aggregator.local.settings import Options, make_settings
from manta_swarm.aggregator.local.swarm import LocalSwarm
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.runtime.child import Child, Program


def given(program: Program, option: str) -> str | None:
    return program.command[program.command.index(option) + 1] if option in program.command else None


def started(options: Options, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Program], str]:
    """Return the aggregator and the peers of a swarm, and what is printed; nothing is really started."""
    found: list[Program] = []

    def start(program: Program) -> Child:
        found.append(program)
        return Child(program, None)  # type: ignore[arg-type]

    monkeypatch.setattr(Child, "start", start)
    printed = io.StringIO()
    swarm = LocalSwarm(make_settings(options), Console(file=printed, width=80), [])
    swarm._start("aggregator", "manta_swarm.aggregator.cli", "start")
    swarm._start_peers(AggregatorStatus(run="ee" * 32, name="test", num_rounds=3, addresses=("/ip4/127.0.0.1/tcp/1",)))
    return found, printed.getvalue()


def test_peers_share_a_token_of_their_swarm_which_no_command_line_and_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = set()
    for directory in ("a", "b"):
        (aggregator, *peers), printed = started(Options(directory=tmp_path / directory, peers=4, cohorts=2), monkeypatch)
        assert "MANTA_COHORT_TOKEN" not in aggregator.environment
        (token,) = {peer.environment["MANTA_COHORT_TOKEN"] for peer in peers}
        assert len(bytes.fromhex(token)) == 32
        assert [given(peer, "--cohort") for peer in peers] == ["cohort-0"] * 2 + ["cohort-1"] * 2
        assert not any(token in word for peer in peers for word in peer.command)
        assert token not in printed
        tokens.add(token)
    assert len(tokens) == 2
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(("workers", "gpus"), [(None, "all"), (1, "none"), (3, "none")])
def test_each_peer_has_as_many_workers_as_were_asked_for(
    workers: int | None, gpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, *peers), _ = started(Options(directory=tmp_path / "new", peers=2, workers=workers), monkeypatch)
    assert [(given(peer, "--gpus"), given(peer, "--workers")) for peer in peers] == [(gpus, workers and str(workers))] * 2
