"""What an honest log signed is no proof against it: neither for who checks a file, nor for peers that are told."""

import asyncio
from pathlib import Path

import pytest

from manta_swarm.aggregator.cli import main
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.signing import peer_name
from tests.command import typed
from tests.faults.strangers.false_proofs import false_proofs, stranger, two_commits
from tests.network.processes import Programs, small_run

pytestmark = [pytest.mark.swarm, pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")]  # hivemind

ROOT = Path(__file__).resolve().parents[2]
PEERS = ("one", "two")
NOTHING_PROVEN = 5  # the exit code


def test_an_honest_logs_own_heads_accuse_nobody_and_end_nobody(tmp_path: Path) -> None:
    with Programs(tmp_path, small_run(rounds=1000, first_open_s=1.0, min_open_s=0.5)) as programs:
        status = programs.start_aggregator()
        address, run = status["addresses"][0], status["run"]
        for name in PEERS:
            programs.start_peer(name)
        programs.wait_for_round(1)

        proofs, operator = asyncio.run(made_by_a_stranger(address, tmp_path))
        for path in proofs:
            ended = typed(main, "ledger", "check-proof", path, "--run", run)
            assert ended.exit_code == NOTHING_PROVEN, (path, ended)
            assert f"{path} proves nothing against anybody: " in ended.errors
            assert operator.hex() not in f"{ended.output}{ended.errors}"
            assert peer_name(operator) not in f"{ended.output}{ended.errors}"

        attack = ("-m", "tests.faults.strangers", "false_proofs", address, run)
        programs.start_command("stranger", *attack, environment={"PYTHONPATH": str(ROOT)})
        programs.wait_until(lambda: "attacks" in programs.log("stranger").split(), "a peer refuses every proof")
        programs.wait_for_round(programs.status("aggregator")["round"] + 2)
        assert "believed" not in programs.log("stranger")
        for name in PEERS:
            round_ = programs.status("aggregator")["round"]
            programs.wait_until(lambda name=name, round_=round_: programs.status(name)["round"] >= round_, f"{name} goes on")
            assert programs.status(name)["log_fault"] == ""
            assert not list((tmp_path / name).glob("proofs/*"))
            assert "Traceback" not in programs.log(name)


async def made_by_a_stranger(address: str, directory: Path) -> tuple[list[Path], bytes]:
    """Return files that a stranger makes of two heads that it asks the log for, and the operator's key."""
    async with stranger(address) as (_, signed, log):
        made = false_proofs(signed, *await two_commits(log))
    paths = [directory / f"{number}-{type(proof).__name__}.proof" for number, proof in enumerate(made)]
    for path, proof in zip(paths, made, strict=True):
        path.write_bytes(pack(proof))
    return paths, log.operator
