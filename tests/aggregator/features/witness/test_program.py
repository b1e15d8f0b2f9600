"""A witness that follows a log from outside: the log's real services, in a network in memory."""

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.commit.feed import FeedService
from manta_swarm.aggregator.features.witness.cosigning import Cosigning
from manta_swarm.aggregator.features.witness.program import Witness, WitnessSettings, be_witness
from manta_swarm.aggregator.features.witness.rule import WitnessMemory
from manta_swarm.aggregator.log.guard import EVIDENCE
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.tree_heads import TreeHeadService
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.closing import Closing
from manta_swarm.protocol.errors import OtherHistory
from manta_swarm.protocol.signing import Identity, PublicKey, peer_name
from manta_swarm.protocol.table import Weighed
from tests.aggregator.small_run import ENTRIES, OPERATOR, Deaf, create, grow, next_round, reopen, signed_manifest
from tests.consoles import Lines
from tests.memory_log import until

SIGNED = signed_manifest()
WITNESS = Identity(b"\x77" * 32)
ADDRESS = f"/ip4/127.0.0.1/tcp/1/p2p/{peer_name(OPERATOR.public_key)}"


class NoWeights:
    async def of(self, round_: int) -> tuple[Weighed, ...]:
        del round_
        return ()


class Scene:
    """A log with its services, and a witness."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "witness"
        self.directory.mkdir(exist_ok=True)
        self.network = MemoryNetwork()
        self.said = Lines()

    async def serve(self, directory: Path, log: Log) -> None:
        """Let a log answer, in the place of any other."""
        endpoint = self.network.endpoint(PublicKey(OPERATOR.public_key))
        closing = Closing(SIGNED.open().exchange.max_rows)
        self.log, self.feed = log, FeedService(endpoint, log, closing, NoWeights())
        self.heads, self.cosigning = TreeHeadService(endpoint, log, SIGNED, directory, Deaf()), Cosigning(endpoint, log, directory)
        await self.feed.start()
        await self.heads.start()
        await self.cosigning.serve()

    def commit(self, rounds: int = 1) -> None:
        grow(self.log, rounds)
        self.feed.committed()

    def witness(self) -> "asyncio.Task[None]":
        """Start a witness, which remembers what was kept."""
        memory = WitnessMemory(self.directory, WITNESS, SIGNED)
        self.memory = memory
        return asyncio.create_task(Witness(self.network.endpoint(WITNESS.public_key), memory, self.directory, self.said).follow())

    async def cosigned(self, size: int) -> None:
        """Return once the log has the witness's cosignature of a head of that size, and the witness knows."""
        await until(lambda: [each.head.size for each in self.cosigning.witnessed] == [size])
        await until(lambda: any(f"entries={size} " in line for line in self.said))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.virtual_time
async def test_it_cosigns_each_head_and_goes_on_after_a_restart(tmp_path: Path, scene: Scene) -> None:
    with create(tmp_path / "run", SIGNED) as log:
        await scene.serve(tmp_path / "run", log)
        task = scene.witness()
        for rounds in (1, 2, 3):
            scene.commit()
            await scene.cosigned(rounds * ENTRIES)
        await end(task)
        scene.commit(2)
        task = scene.witness()
        assert scene.memory.head.size == 3 * ENTRIES
        await scene.cosigned(5 * ENTRIES)
        await end(task)
    assert sum(line.startswith("cosigned round=") for line in scene.said) == 4


def two_copies(directory: Path) -> tuple[Path, Path]:
    """Return two folders that have a run's log up to its first round."""
    run, copy = directory / "run", directory / "copy"
    with create(run, SIGNED) as log:
        grow(log, 1)
    shutil.copytree(run, copy)
    return run, copy


@pytest.mark.virtual_time
async def test_it_waits_for_a_log_that_is_away(tmp_path: Path, scene: Scene) -> None:
    task = scene.witness()
    await asyncio.sleep(0)  # it has asked by then
    with create(tmp_path / "run", SIGNED) as log:
        await scene.serve(tmp_path / "run", log)
        scene.commit()
        await scene.cosigned(ENTRIES)
        await end(task)


@pytest.mark.virtual_time
async def test_an_older_copy_of_the_log_is_told_and_stops_and_the_whole_one_goes_on(tmp_path: Path, scene: Scene) -> None:
    run, copy = two_copies(tmp_path)
    with reopen(run) as log, reopen(copy) as old:
        await scene.serve(run, log)
        task = scene.witness()
        scene.commit(2)
        await scene.cosigned(3 * ENTRIES)
        await scene.serve(copy, old)
        scene.feed.committed()
        with pytest.raises(OtherHistory, match="8 entries are missing, it is an older copy"):
            await asyncio.wait_for(scene.heads.watch(), 60)
        assert (copy / EVIDENCE).exists()
        await until(lambda: any("an older copy, and told so" in line for line in scene.said))
        assert not task.done()
        await scene.serve(run, log)
        scene.commit()
        await scene.cosigned(4 * ENTRIES)
        await end(task)


@pytest.mark.virtual_time
async def test_of_a_log_that_goes_another_way_it_signs_nothing_and_keeps_a_proof(tmp_path: Path, scene: Scene) -> None:
    run, other = two_copies(tmp_path)
    with reopen(run) as log, reopen(other) as forked:
        await scene.serve(run, log)
        task = scene.witness()
        scene.commit()
        await scene.cosigned(2 * ENTRIES)
        for number in range(2):
            forked.commit(next_round(forked.ledger, mean=b"another %d" % number))
        await scene.serve(other, forked)
        with pytest.raises(OtherHistory, match="signed two histories"):
            await asyncio.wait_for(task, 60)
        assert scene.memory.head == log.head
        assert scene.cosigning.witnessed == []
    (proof,) = (scene.directory / "proofs").iterdir()
    result = CliRunner().invoke(main, ["ledger", "check-proof", str(proof)])
    assert (result.exit_code, "proven: the log has two histories" in result.output) == (0, True), result.output


@pytest.mark.swarm
@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_while_nobody_of_the_run_answers_it_waits_and_says_so_once(tmp_path: Path) -> None:
    async def story() -> list[str]:
        said, stopped = Lines(), asyncio.get_running_loop().create_future()
        asked = WitnessSettings([ADDRESS], None, None, keep_entries=False)
        watching = asyncio.create_task(be_witness(asked, tmp_path / "w", console=said, stopped=stopped))
        await until(lambda: said or watching.done())
        stopped.set_result(None)
        await watching
        return said

    (line,) = asyncio.run(story())
    assert "tried again until somebody answers" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--of", "nowhere"], "is no peer address"),
        (["--of", ADDRESS, "--run", "3f0c"], "64 hexadecimal digits"),
        (["--of", ADDRESS, "--listen", "8080"], "--listen '8080' is no address: give HOST:PORT"),
    ],
)
def test_a_mistake_is_told_in_a_line(tmp_path: Path, words: list[str], told: str) -> None:
    result = CliRunner().invoke(main, ["witness", *words, "--dir", str(tmp_path / "w")])
    assert (result.exit_code, told in result.output) == (2, True), result.output
    assert not (tmp_path / "w").exists()
