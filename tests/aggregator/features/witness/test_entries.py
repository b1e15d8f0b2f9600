"""A witness that keeps entries: all that is under a head before it is cosigned, as an export that a run goes on from."""

import asyncio
import shutil
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.witness.entries import FOLDER, KeptEntries
from manta_swarm.aggregator.features.witness.http import serving
from manta_swarm.aggregator.features.witness.program import Witness
from manta_swarm.aggregator.features.witness.rule import WitnessMemory
from manta_swarm.aggregator.log.copies import FolderCopy, WebCopy, verify
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.moving import recover
from manta_swarm.protocol.errors import RemoteFault, StorageError, Unreachable, UserError
from manta_swarm.runtime.listen_address import ListenAddress
from tests.aggregator.features.witness.test_program import SIGNED, WITNESS, Scene, end
from tests.aggregator.small_run import ENTRIES, create, grow, reopen, signed_manifest, training_spec_of, verified

pytestmark = pytest.mark.virtual_time

BUNDLE = 256 // ENTRIES  # rounds that fill one


class Keeping(Scene):
    """A log with its services, and a witness that keeps entries."""

    def witness(self) -> "asyncio.Task[None]":
        self.memory = WitnessMemory(self.directory, WITNESS, SIGNED)
        self.entries = KeptEntries(self.directory / FOLDER, SIGNED)
        endpoint = self.network.endpoint(WITNESS.public_key)
        return asyncio.create_task(Witness(endpoint, self.memory, self.directory, self.said, self.entries).follow())


@pytest.fixture
def scene(tmp_path: Path) -> Keeping:
    return Keeping(tmp_path)


async def test_a_folder_that_lost_its_newest_entries_gets_them_back_from_a_witness(tmp_path: Path, scene: Keeping) -> None:
    run, old = tmp_path / "run", tmp_path / "old"
    with create(run, SIGNED) as log:
        await scene.serve(run, log)
        task = scene.witness()
        scene.commit(3)
        await scene.cosigned(3 * ENTRIES)
    shutil.copytree(run, old)
    with reopen(run) as log:
        await scene.serve(run, log)
        for rounds in (1, BUNDLE):
            scene.commit(rounds)
            await scene.cosigned(log.head.size)
        await end(task)
        newest, scene.size = log.head, log.head.size
    shown = verify(scene.directory / FOLDER, training_spec_of=training_spec_of)
    assert (shown.head, shown.rounds) == (newest, 4 + BUNDLE)
    async with serving(scene.memory, ListenAddress.at("127.0.0.1:0"), scene.directory / FOLDER) as url:
        again = tmp_path / "again"
        shutil.copytree(old, again)
        done = await asyncio.to_thread(recover, again, WebCopy(url), training_spec_of=training_spec_of)
        assert (done.head, done.new_entries) == (newest, scene.size - 3 * ENTRIES)
        for name in ("../identity.key", "newest", "tile/entries/999"):
            with pytest.raises(UserError, match="404"):
                await asyncio.to_thread(WebCopy(url).read, name, 100)
    assert recover(old, FolderCopy(tmp_path / "witness" / FOLDER), training_spec_of=training_spec_of).head == verified_head(old)
    assert verified(old).rounds == 4 + BUNDLE


def verified_head(directory: Path) -> object:
    with reopen(directory) as log:
        return log.head


async def extended(entries: KeptEntries, log: Log, *, lies: dict[int, bytes] | None = None, last: int | None = None) -> None:
    """Have all entries of a log, of which some are others, and of which no more than a number of bundles come."""

    async def fetch(index: int, width: int) -> list[bytes]:
        if last is not None and index > last:
            raise Unreachable("away")
        found = log.entries(256 * index, width)
        return [(lies or {}).get(256 * index + place, entry) for place, entry in enumerate(found)]

    await entries.extend(log.head, log.tree_head, fetch)


def test_entries_that_are_not_under_the_head_are_not_kept_and_the_true_ones_are_still_taken(tmp_path: Path) -> None:
    with create(tmp_path / "run", SIGNED) as log:
        grow(log, 2)
        entries = KeptEntries(tmp_path / "kept", SIGNED)
        asyncio.run(extended(entries, log))
        grow(log, 2 * BUNDLE)
        for place in (2 * ENTRIES + 1, 300, log.head.size - 1, 0):
            with pytest.raises(RemoteFault):
                asyncio.run(extended(entries, log, lies={place: b"another"}))
            assert entries.size == 2 * ENTRIES
        with pytest.raises(Unreachable):
            asyncio.run(extended(entries, log, last=1))
        asyncio.run(extended(entries, log))
        assert entries.size == log.head.size
        assert verify(tmp_path / "kept", training_spec_of=training_spec_of).head == log.head


def test_what_a_start_was_cut_off_in_is_no_harm_and_partial_tiles_do_not_accumulate(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with create(tmp_path / "run", SIGNED) as log:
        for _ in range(8):
            grow(log, 1)
            entries = KeptEntries(folder, SIGNED)
            with pytest.raises(Unreachable):
                asyncio.run(extended(entries, log, last=-1))
            (folder / "checkpoint.part").write_text("cut off")
            asyncio.run(extended(KeptEntries(folder, SIGNED), log))
        entries = KeptEntries(folder, SIGNED)
        assert not (folder / "checkpoint.part").exists()
        for _ in range(8):
            grow(log, 1)
            asyncio.run(extended(entries, log))
        assert len(list(folder.rglob("*.p/*"))) <= 4  # of the newest checkpoint and the one before: a bundle and a tile each
        grow(log, BUNDLE)
        asyncio.run(extended(entries, log))
        grow(log, 1)
        asyncio.run(extended(entries, log))
        assert verify(folder, training_spec_of=training_spec_of).head == log.head


def test_a_damaged_or_another_logs_folder_is_told_of(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with create(tmp_path / "run", SIGNED) as log:
        grow(log, 2)
        asyncio.run(extended(KeptEntries(folder, SIGNED), log))
    with pytest.raises(UserError, match="another run"):
        KeptEntries(folder, signed_manifest("other"))
    (bundle,) = (folder / "tile" / "entries").rglob("*.p/*")
    bundle.write_bytes(bundle.read_bytes()[:-1])
    with pytest.raises(StorageError, match="remove that folder alone"):
        KeptEntries(folder, SIGNED)
