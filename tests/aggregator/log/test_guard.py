"""Before which words a log signs nothing after a start, in virtual time."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.guard import PLACE, RollbackGuard, is_marked_restored, mark_restored
from manta_swarm.aggregator.log.log import Log
from manta_swarm.network import timeouts
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import ProvenRound, open_round_receipt
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.small_run import OPERATOR, PEERS, STRANGER, create, grow, reopen, signed_manifest
from tests.consoles import Lines
from tests.network.virtual_time import now, run_virtual

KEYS = [PublicKey(peer.public_key) for peer in PEERS]


def proven(log: Log, round_: int) -> ProvenRound:
    """Return a round of the log."""
    index = log.ledger.index_at(round_)
    assert index is not None
    return open_round_receipt(log.receipt(index), Operators(log.ledger.run, (OPERATOR.public_key,), 1))


class Start:
    """One start on a folder."""

    def __init__(self, directory: Path, log: Log, *, is_newest: bool = False) -> None:
        self.log = log
        self.said = Lines()
        self.guard = RollbackGuard(directory, log, self.said, is_newest=is_newest)

    async def lifted_at(self, *words: tuple[float, PublicKey, int]) -> float | None:
        """Return when it is lifted if peers say which round they hold at these times; None: not within an hour."""

        async def speak() -> None:
            for at, key, round_ in words:
                await asyncio.sleep(at - now())
                self.guard.heard(key, proven(self.log, round_) if round_ else None)

        speaking = asyncio.create_task(speak())
        try:
            async with asyncio.timeout(3600):
                await self.guard.lifted()
            return now()
        except TimeoutError:
            return None
        finally:
            speaking.cancel()


def lifted_at(directory: Path, *words: tuple[float, PublicKey, int], is_newest: bool = False) -> float | None:
    """Return when a start on ``directory`` may sign."""
    found: list[float | None] = []

    async def story() -> None:
        with reopen(directory) as log:
            found.append(await Start(directory, log, is_newest=is_newest).lifted_at(*words))

    run_virtual(story())
    return found[0]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A folder of a log of three rounds that was started before."""
    directory = tmp_path / "run"
    with create(directory, signed_manifest()) as log:
        grow(log, 3)
    assert lifted_at(directory) == timeouts.HEARD_S
    assert (directory / PLACE).exists()
    return directory


def test_a_new_run_waits_for_nobody(tmp_path: Path) -> None:
    create(tmp_path, signed_manifest()).close()
    assert lifted_at(tmp_path) == 0


def test_a_restart_waits_for_those_of_the_last_table_but_not_for_long(directory: Path) -> None:
    assert lifted_at(directory, *((at, key, 3) for at, key in enumerate(KEYS, 1))) == len(KEYS)
    assert lifted_at(directory, (1, KEYS[0], 3)) == timeouts.HEARD_S
    assert lifted_at(directory, (1, KEYS[0], 2), (1, KEYS[1], 3), (2, KEYS[2], 0)) == 2


def test_a_copy_of_the_folder_waits_for_a_word(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    assert lifted_at(copy) is None
    assert lifted_at(copy, (20, KEYS[1], 2), (30, PublicKey(STRANGER.public_key), 3)) is None
    assert lifted_at(copy, (20, KEYS[1], 3)) == 20
    assert lifted_at(copy) == timeouts.HEARD_S  # it is the run's folder from then on


def test_a_folder_from_a_backup_waits_for_a_word_also_after_more_starts(directory: Path) -> None:
    mark_restored(directory)
    assert lifted_at(directory) is None
    assert is_marked_restored(directory)
    assert lifted_at(directory, (5, KEYS[0], 3)) == timeouts.HEARD_S  # the others are heard too, if they are there
    assert not is_marked_restored(directory)


def test_the_operators_word_is_one_too_but_peers_are_heard_first(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    assert lifted_at(copy, is_newest=True) == timeouts.HEARD_S
    assert json.loads((copy / PLACE).read_text())["inode"] == (copy / "log.sqlite3").stat().st_ino


def test_a_folder_of_before_there_were_marks_is_taken_as_it_is(directory: Path) -> None:
    (directory / PLACE).unlink()
    assert lifted_at(directory) == timeouts.HEARD_S


@pytest.mark.parametrize("damaged", ["{", "[]", '{"inode": null}'])
def test_a_folder_whose_mark_is_damaged_may_be_a_copy_and_waits_for_a_word(directory: Path, damaged: str) -> None:
    (directory / PLACE).write_text(damaged)
    assert lifted_at(directory) is None
    assert lifted_at(directory, (20, KEYS[1], 3)) == 20
    assert lifted_at(directory) == timeouts.HEARD_S  # the mark is written anew
    (directory / PLACE).write_text(damaged)
    assert lifted_at(directory, is_newest=True) == timeouts.HEARD_S


def test_a_folder_whose_mark_is_damaged_is_refused_among_several_operators(directory: Path) -> None:
    (directory / PLACE).write_text("")
    with reopen(directory) as log:
        with pytest.raises(UserError, match=r"may be a copy, for its place\.json is damaged or cannot be read: .* start with --newest"):
            RollbackGuard(directory, log, Lines()).check_newest()
        RollbackGuard(directory, log, Lines(), is_newest=True).check_newest()
        RollbackGuard(directory, log, Lines()).check_newest()  # it was noted


def test_a_mark_that_cannot_be_read_is_not_taken_for_one_that_is_not_there(directory: Path) -> None:
    (directory / PLACE).unlink()
    (directory / PLACE).mkdir()
    assert lifted_at(directory) is None
