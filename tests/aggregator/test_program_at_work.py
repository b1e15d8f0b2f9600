"""The operator's program from its start to its end, with an in-memory node in the place of the real one."""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import manta_swarm.aggregator.program
from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.control import tell_to_stop
from manta_swarm.aggregator.features import plugged_in
from manta_swarm.aggregator.intake.bodies import Bodies
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.program import Aggregator
from manta_swarm.aggregator.settings.config import RunConfig
from manta_swarm.aggregator.settings.start import Start
from manta_swarm.aggregator.states import state_keeper
from manta_swarm.aggregator.status import AggregatorStatus
from manta_swarm.automl.data.shards.layout import shard_name
from manta_swarm.automl.data.shards.writing import shard_images
from manta_swarm.network.log_client import HandIn, LogClient, fetch_manifest
from manta_swarm.network.memory import MemoryEndpoint, MemoryNetwork
from manta_swarm.network.rates import CallLimits, CallRates
from manta_swarm.network.rpc import Refused
from manta_swarm.network.shutdown_notices import ShutdownNotice, ShutdownNotices
from manta_swarm.network.traffic import Traffic
from manta_swarm.protocol.errors import OwnFault, StorageError
from manta_swarm.protocol.records import Round, open_entry
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.runtime import control
from manta_swarm.runtime.clock import SystemClock
from tests.aggregator.made import Made
from tests.aggregator.real_run import CONFIG, PEERS, everybodys
from tests.automl.data.files import noise, write_picture
from tests.memory_log import until
from tests.network.virtual_time import LOOP_CLOCK

pytestmark = pytest.mark.virtual_time

ADDRESS = "/ip4/127.0.0.1/tcp/31000/p2p/12D3KooW"


class MemoryNode(MemoryEndpoint):
    """Stands in for ``network.node.Node``."""

    def __init__(self, network: MemoryNetwork, key: PublicKey) -> None:
        super().__init__(network, key)
        self.ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_closed = False
        self.traffic = Traffic()
        self.rates = CallRates(CallLimits(), self)

    async def addresses(self) -> list[str]:
        return [ADDRESS]

    async def watch_daemon(self) -> None:
        await self.ends

    async def close(self) -> None:
        self.is_closed = True


class Program:
    """An operator's program at work."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, config: RunConfig = CONFIG, data_root: Path | None = None) -> None:
        self.directory, self.network = directory, MemoryNetwork()
        self.lines: list[str] = []
        self._said = asyncio.Event()

        async def start(
            identity: Identity, _path: Path, *, listen: list[str], initial_peers: tuple[str, ...], limits: CallLimits
        ) -> MemoryNode:
            assert initial_peers == ()
            assert limits == config.limits.calls()
            assert listen == ["/ip4/127.0.0.1/tcp/31000"]
            self.node = self.network.endpoints[identity.public_key] = MemoryNode(self.network, identity.public_key)
            return self.node

        patch.setattr(manta_swarm.aggregator.program.Node, "start", start)
        for clock in ("now_ms", "now_s"):
            patch.setattr(SystemClock, clock, getattr(LOOP_CLOCK, clock))
        aggregator = Aggregator(Start(config, directory, "/ip4/127.0.0.1/tcp/31000", data_root, page=""), self)
        self.running = asyncio.create_task(aggregator.run())
        self.aggregator = aggregator

    @property
    def context(self) -> RunContext:
        assert self.aggregator.session is not None
        return self.aggregator.session.context

    def say(self, text: str) -> None:
        self.lines.append(text)
        self._said.set()

    async def says(self, words: str) -> None:
        """Return once it has said that."""
        async with asyncio.timeout(60):
            while not any(words in line for line in self.lines):
                assert not self.running.done(), self.running.result()
                self._said.clear()
                await self._said.wait()

    async def a_round(self, num_peers: int = len(PEERS)) -> list[Made]:
        """Hand in what so many have for the next round; return once it is committed."""
        ledger = self.context.log.ledger
        round_, contributions = ledger.round + 1, everybodys(ledger)[:num_peers]
        clients = [LogClient(self.network.endpoint(one.peer.public_key), ledger.manifest, ledger.run) for one in contributions]
        handed = await asyncio.gather(*(client.hand_in(one.header, one.groups) for client, one in zip(clients, contributions, strict=True)))
        assert all(each.inclusion_promise is not None for each in handed)
        await self.says(f"round committed round={round_}")
        return contributions

    async def shows(self, **fields: object) -> AggregatorStatus:
        """Return its status once it has these fields, which a thread writes."""
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            status = await asyncio.to_thread(AggregatorStatus.read, self.directory)
            if status is not None and all(getattr(status, name) == value for name, value in fields.items()):
                return status
        raise AssertionError(status)


@contextlib.asynccontextmanager
async def started(
    directory: Path, patch: pytest.MonkeyPatch, config: RunConfig = CONFIG, data_root: Path | None = None
) -> AsyncIterator[Program]:
    """An operator's program that takes what is handed in; it leaves no task and no thread."""
    program = Program(directory, patch, config, data_root)
    try:
        await program.says("volunteers join with:")
        await until(lambda: "header" in program.node.handlers)  # before that nothing is taken
        yield program
    finally:
        program.running.cancel()
        await asyncio.wait({program.running})
    assert program.node.is_closed
    assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()  # no task is left but this
    ours = {"checks", "bodies", "log", "rounds", "snapshots"}
    assert not [thread for thread in threading.enumerate() if thread.name.split("_")[0] in ours]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "aggregator"


@pytest.fixture
def program(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AbstractAsyncContextManager[Program]:
    return started(directory, monkeypatch)


async def ended_by_hand(program: Program) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(60):
        await program.running


async def test_it_serves_a_run_says_how_that_goes_and_ends_by_hand(directory: Path, program: Program) -> None:
    key = program.node.key
    signed = await fetch_manifest(program.network.endpoint(PEERS[0].public_key), key)
    assert signed == program.context.opened.signed
    assert program.lines[0] == f"run real id {signed.run.hex()}"
    assert f"  manta-peer join --gpus all --initial-peers {ADDRESS} --run {signed.run.hex()}" in program.lines
    assert any(line.startswith("a run of friends: credit is for what peers say") for line in program.lines)
    await program.shows(round=0, addresses=(ADDRESS,))
    with pytest.raises(Refused):
        await program.network.endpoint(PEERS[0].public_key).call(key, "header", b"\x9b", timeout_s=5)
    for _ in range(2):
        contributions = await program.a_round()
    ledger = program.context.log.ledger
    status = await program.shows(round=2)
    assert (status.round, status.state, status.ledger_size) == (2, ledger.state.hex(), 8)
    assert (status.counted, status.open_ms, status.refused) == (3 * 4 * 32, ledger.open_ms, {"malformed": 1})
    assert list(status.refused_of.values()) == [{"malformed": 1}]
    assert isinstance(open_entry(program.context.log.entry(3)), Round)
    await ended_by_hand(program)
    assert program.lines[-1] == "stopped at round 2; start again with the same run file and --dir to go on"
    found = verify_directory(directory)
    assert (found.rounds, set(found.credits)) == (2, {one.peer.public_key for one in contributions})


async def test_a_plain_aggregator_serves_a_plain_run_without_any_feature(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugged_in, "PLUGGED_IN", ())
    monkeypatch.setattr(state_keeper, "NUM_RANDOM", 1)  # what it evaluates at the end takes longest here
    plain = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"rounds": 1})})
    async with started(directory, monkeypatch, plain) as program:
        assert program.aggregator.session is not None
        assert not program.aggregator.session.features
        contributions = await program.a_round()
        await program.says("run finished")
        status = await program.shows(round=1, finished=True, settled=True)
        assert (status.operators, status.audits, status.gateway) == (None, None, "")
        await ended_by_hand(program)
        found = verify_directory(directory)
        assert (found.rounds, set(found.credits)) == (1, {one.peer.public_key for one in contributions})


async def test_a_second_start_goes_on_and_keeps_the_inclusion_promises_of_the_first(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(directory, monkeypatch) as program:
        await program.a_round()
        ledger = program.context.log.ledger
        one = everybodys(ledger)[0]
        client = LogClient(program.network.endpoint(one.peer.public_key), ledger.manifest, ledger.run)
        handed = await client.hand_in(one.header, one.groups)
        await ended_by_hand(program)
    async with started(directory, monkeypatch) as program:
        await program.says(f"round committed round={handed.round}")
        table = program.context.log.ledger.table_at(handed.round)
        assert table is not None
        assert one.digest in [listed.contribution for listed in table]
        await ended_by_hand(program)


async def test_a_disk_that_refuses_ends_it_with_what_to_do(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("no room; make some, then start again")

    monkeypatch.setattr(Bodies, "append", refuse)
    handing_in = asyncio.create_task(program.a_round())
    with pytest.raises(StorageError, match="no room; make some"):
        async with asyncio.timeout(60):
            await program.running
    handing_in.cancel()
    await asyncio.wait({handing_in})


async def test_a_status_that_cannot_be_written_is_no_reason_to_stop(
    directory: Path, caplog: pytest.LogCaptureFixture, program: Program
) -> None:
    (directory / "status.json.part").mkdir()
    await program.a_round()
    await ended_by_hand(program)
    assert "status not written" in caplog.text


async def test_a_damaged_shard_of_its_test_images_does_not_end_the_log(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        write_picture(tmp_path / "own" / str(number % 10) / f"{number}.png", noise(32, 32, seed=number))
    shards = shard_images(tmp_path / "own", tmp_path / "few", lambda _done, _total: None)
    (tmp_path / "few" / shard_name(len(shards.shards) - 1)).unlink()
    sections = {"run": {"rounds": 2}, "data": {"dataset": "shards-few"}, "aggregator": {"evaluate_every": 1}}
    config = CONFIG.model_copy(update={name: getattr(CONFIG, name).model_copy(update=changes) for name, changes in sections.items()})
    async with started(directory, monkeypatch, config, tmp_path) as program:
        await program.a_round()
        await program.says("not evaluated round=1: the shard")
        await program.a_round(num_peers=1)  # of the last round who is slower than it would be refused
        await program.says("not evaluated round=2: the shard")
        await program.says("run finished")
        await program.shows(finished=True, quality=None)


async def test_a_daemon_that_ends_ends_it_too(program: Program) -> None:
    program.node.ends.set_exception(OwnFault("the daemon has ended"))
    with pytest.raises(OwnFault, match="the daemon has ended"):
        await program.running


async def test_a_run_that_is_ended_for_good_keeps_its_promises_first_and_tells_its_peers(directory: Path, program: Program) -> None:
    ledger = program.context.log.ledger
    made, other = everybodys(ledger)[:2]
    peer = program.network.endpoint(made.peer.public_key)
    shutdown_notices = ShutdownNotices([program.node.key], ledger.run)
    await shutdown_notices.start(peer)
    program.node.ways = {PublicKey(made.peer.public_key): [], PublicKey(other.peer.public_key): []}
    client = LogClient(peer, ledger.manifest, ledger.run)
    assert (await client.hand_in(made.header, made.groups)).inclusion_promise is not None
    reason = "the lab moves"
    assert await asyncio.to_thread(tell_to_stop, directory, is_over=True, reason=reason) == "stopping"
    assert (await asyncio.to_thread(tell_to_stop, directory, is_over=False, reason="")).startswith("it is stopping already")
    late = LogClient(program.network.endpoint(other.peer.public_key), ledger.manifest, ledger.run)
    assert (await late.hand_in(other.header, other.groups)).status is HandIn.LATER
    await program.running
    assert program.context.log.ledger.round == 1  # what had an inclusion promise is in
    assert await shutdown_notices.next() == (program.node.key, ShutdownNotice(ledger.run, 1, reason))
    assert f"1 node was told that the log ends: {reason}" in program.lines


async def test_words_that_are_none_stop_nothing(directory: Path, program: Program) -> None:
    for words in ("stop", "[]", '{"is_over": 3, "reason": ""}', json.dumps({"is_over": 0, "reason": "two\nlines"})):
        assert await asyncio.to_thread(control.tell, directory, words, who="aggregator") == "unknown words"
    await program.a_round()
    assert await asyncio.to_thread(tell_to_stop, directory, is_over=False, reason="") == "stopping"
    await program.running
    assert any("start again" in line for line in program.lines)
