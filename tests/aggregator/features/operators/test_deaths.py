"""An operator of several that dies before any of its writes is on the disk: what was promised and decided is there when it comes back."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from manta_swarm.protocol.errors import Unreachable
from tests.aggregator.features.operators.four import FOUR, Four
from tests.aggregator.real_run import everybodys
from tests.memory_log import until

pytestmark = pytest.mark.virtual_time

LEADER, FOLLOWER, NEXT, AWAY = 0, 1, 2, 3


class Dead(Unreachable):
    """The program has ended."""


class Deaths:
    """Ends the program of one operator before a write of its reaches the disk, and lets none after that reach it."""

    def __init__(self, directory: Path, sync: Callable[[int], None]) -> None:
        """``directory`` has a folder for each operator; ``sync`` is the system's."""
        self._directory = directory
        self._sync = sync
        self._dying = -1
        self._left = 0

    def await_(self, place: int, writes: int) -> None:
        """Let the operator at ``place`` die after so many writes more."""
        self._dying, self._left = place, writes

    def let_live(self) -> None:
        """Nobody dies from now on."""
        self._dying = -1

    @property
    def has_come(self) -> bool:
        """Whether it has died."""
        return self._dying >= 0 and self._left < 0

    def sync(self, file: int) -> None:
        """Do as ``os.fsync``; a folder's is of the same write as the file's before it."""
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path.is_relative_to(self._directory / str(self._dying)) and not path.is_dir():
            self._left -= 1
            if self._left < 0:
                raise Dead("killed")
        self._sync(file)


def has_gone_on(four: Four, place: int) -> bool:
    """Return whether an operator has the leader's log, and the state that it leads to."""
    run, state = four.runs[place], four.runs[place].state_keeper.state
    assert state is not None
    return run.log.head == four.runs[LEADER].log.head and state.round == run.log.ledger.round and not four.own_operators[place].store.kept


@pytest.mark.parametrize("dying", [LEADER, FOLLOWER], ids=["the leader", "a follower"])
async def test_who_dies_before_any_of_its_writes_has_all_it_promised_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: int
) -> None:
    deaths = Deaths(tmp_path, os.fsync)
    monkeypatch.setattr(os, "fsync", deaths.sync)
    async with Four(tmp_path) as four:
        for writes in count():
            log = four.runs[LEADER].log
            round_, contributions = log.ledger.round + 1, everybodys(log.ledger)[:2]
            digests = {one.digest for one in contributions}
            have_inclusion_promises = is_committed = False
            deaths.await_(dying, writes)
            try:
                leader, _ = await four.write(LEADER, 2 * writes + 1)
                await leader.store([(round_, one.kept) for one in contributions])
                have_inclusion_promises = True
                await four.commit(leader, LEADER, contributions)
                is_committed = True
                await until(lambda: deaths.has_come or has_gone_on(four, FOLLOWER))
            except Dead:
                assert dying == LEADER
            has_died = deaths.has_come
            await four.kill(dying)
            deaths.let_live()
            await four.start(dying)
            four.lost = lambda sender, receiver, _method: FOUR[AWAY].public_key in (sender, receiver)  # no quorum without who had died
            second, kept = await four.write(NEXT, 2 * writes + 2)
            log = four.runs[NEXT].log
            assert log.ledger.round == round_ or not is_committed
            if log.ledger.round < round_:
                assert digests <= set(kept) or not have_inclusion_promises
                await second.store([(round_, one.kept) for one in contributions])
                await four.commit(second, NEXT, contributions)
            four.lost = lambda *_: False
            await four.until_all_have(round_, range(4))
            assert {one.contribution for one in log.ledger.table_at(round_) or ()} == digests
            assert len(four.heads(range(4))) == 1
            if not has_died:
                break
        assert writes > 7  # a promise, two of what is kept, what was accepted and signed, and three of the log and after it


async def test_what_a_death_tore_off_a_file_of_contributions_is_not_in_the_way_of_the_next_ones(tmp_path: Path) -> None:
    async with Four(tmp_path) as four:
        bodies = tmp_path / str(FOLLOWER) / "bodies" / "round-00000001.bodies"
        await four.kill(FOLLOWER)
        bodies.parent.mkdir()
        bodies.write_bytes(bytes(100))  # of which nothing else remembers anything
        await four.start(FOLLOWER)
        four.lost = lambda sender, receiver, _method: FOUR[AWAY].public_key in (sender, receiver)
        leader, _ = await four.write(LEADER, 1)
        contributions = await four.store(leader, LEADER)
        await four.kill(FOLLOWER)
        assert len((await four.start(FOLLOWER)).contributions.held) == len(contributions)
