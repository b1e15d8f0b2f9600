"""A folder that was put back to an earlier moment gets what it lacks out of a copy that others have, or stays as it is."""

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.copies import Copy, FolderCopy, WebCopy, copy_at
from manta_swarm.aggregator.log.guard import EVIDENCE, is_marked_restored, keep_evidence, mark_handed_over, refuse_handed_over
from manta_swarm.aggregator.log.moving import Recovered, recover
from manta_swarm.aggregator.log.storage import TREE_HEAD
from manta_swarm.aggregator.log.tiles import export
from manta_swarm.aggregator.log.witnessed import Witnessed, keep_witnessed
from manta_swarm.protocol.cosignatures import cosign
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import OtherHistory, StorageError, UserError
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.notes import TreeHead, head_text, sign_tree_head
from manta_swarm.protocol.tiles import Tile, open_bundle, pack_bundle
from tests.aggregator.log.served import served
from tests.aggregator.small_run import (
    ENTRIES,
    OPERATOR,
    PEERS,
    STRANGER,
    create,
    grow,
    next_round,
    reopen,
    rfc_root,
    signed_manifest,
    training_spec_of,
    verified,
)

SIGNED = signed_manifest()
OLD, ALL = 2, 65  # rounds: in the folder, and in all; more than a full bundle of entries


@dataclass
class Scene:
    """A folder that lacks rounds, and a copy of the whole log."""

    directory: Path
    public: Path  # an export
    evidence: Histories
    note: str  # of the whole log

    def recover(self, copy: Copy | None = None) -> Recovered:
        return recover(self.directory, copy or FolderCopy(self.public), training_spec_of=training_spec_of)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A scene that tests copy."""
    folder = tmp_path_factory.mktemp("made")
    directory, copy, public = folder / "run", folder / "copy", folder / "public"
    with create(directory, SIGNED) as log:
        grow(log, OLD)
    shutil.copytree(directory, copy)
    with reopen(copy) as log:
        old_note = log.tree_head
    with reopen(directory) as log:
        grow(log, ALL - OLD)
        cosigned = cosign(head_text(log.head), 1_700_000_000, PEERS[0])
        keep_witnessed(directory, [Witnessed(log.head, log.tree_head, cosigned)])
        export(directory, public)
        index = log.ledger.index_at(ALL)
        assert index is not None
        evidence, note = Histories.shown_after(SIGNED, log.receipt(index), old_note, ()), log.tree_head
    shutil.rmtree(directory)
    return Scene(copy, public, evidence, note)


@pytest.fixture
def scene(made: Scene, tmp_path: Path) -> Scene:
    folders = {each.name: Path(shutil.copytree(each, tmp_path / each.name)) for each in (made.directory, made.public)}
    return replace(made, directory=folders["copy"], public=folders["public"])


def test_a_log_that_was_stopped_by_a_newer_head_goes_on_with_all_of_it(scene: Scene) -> None:
    keep_evidence(scene.directory, scene.evidence)
    with pytest.raises(OtherHistory, match="manta-aggregator recover"):
        reopen(scene.directory)
    done = scene.recover()
    assert (done.head.size, done.new_entries, done.ledger.round) == (ALL * ENTRIES, (ALL - OLD) * ENTRIES, ALL)
    assert not (scene.directory / EVIDENCE).exists()
    assert is_marked_restored(scene.directory)  # a peer is asked before anything is signed
    assert (scene.directory / TREE_HEAD).read_text() == scene.note  # without what witnesses signed
    found = verified(scene.directory)
    assert (found.rounds, found.size, found.signed_size) == (ALL, ALL * ENTRIES, ALL * ENTRIES)
    with reopen(scene.directory) as log:
        grow(log, 1)
        assert export(scene.directory, scene.public).new_entries == ENTRIES  # one history
    assert scene.recover().new_entries == 0


def test_a_copy_behind_a_web_server_is_as_good(scene: Scene) -> None:
    with served(scene.public) as shown:
        assert scene.recover(copy_at(shown.url)).new_entries == (ALL - OLD) * ENTRIES
    assert verified(scene.directory).rounds == ALL


def test_what_a_copy_has_is_kept_where_more_is_known_to_be_missing(scene: Scene, tmp_path: Path) -> None:
    half, older = tmp_path / "half", tmp_path / "older"
    shutil.copytree(scene.directory, half)
    recover(half, FolderCopy(scene.public), training_spec_of=training_spec_of)
    with reopen(half) as log:
        grow(log, 3)
        index = log.ledger.index_at(ALL + 3)
        assert index is not None
        newest = Histories.shown_after(SIGNED, log.receipt(index), scene.evidence.heads[1], ())
        assert export(half, older).new_entries
    keep_evidence(scene.directory, newest)
    with pytest.raises(OtherHistory, match="manta-aggregator recover"):
        scene.recover()
    assert verified(scene.directory).rounds == ALL
    assert (scene.directory / EVIDENCE).exists()
    assert scene.recover(FolderCopy(older)).new_entries == 3 * ENTRIES
    assert not (scene.directory / EVIDENCE).exists()


def test_a_folder_whose_run_was_handed_over_stays_so(scene: Scene) -> None:
    mark_handed_over(scene.directory, "another")
    with pytest.raises(UserError, match="handed over"):
        scene.recover()
    assert verified(scene.directory).rounds == OLD
    with pytest.raises(UserError, match="handed over"):
        refuse_handed_over(scene.directory)


def test_a_copy_of_another_history_changes_nothing(scene: Scene, tmp_path: Path) -> None:
    with reopen(scene.directory) as log:
        log.commit(next_round(log.ledger, mean=b"another"))
    before = verified(scene.directory)
    with pytest.raises(UserError, match=r"may not follow|not of one history"):
        scene.recover()
    assert verified(scene.directory) == before
    with create(tmp_path / "shorter", SIGNED) as log:
        grow(log, OLD + 1)
        export(tmp_path / "shorter", tmp_path / "shorter-public")
    with reopen(scene.directory) as log:
        grow(log, 1)
    with pytest.raises(UserError, match="not of one history"):
        scene.recover(FolderCopy(tmp_path / "shorter-public"))


def test_what_does_not_hold_changes_nothing(scene: Scene, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in scene.directory.iterdir() if path.is_file()}
    bundle = Tile(None, 0).path
    name = scene.note.partition("\n")[0]
    size = ALL * ENTRIES
    wrong: list[tuple[str, bytes | None]] = [
        ("checkpoint", None),
        ("checkpoint", b"\xff"),
        ("checkpoint", sign_tree_head(TreeHead(name, size, bytes(32)), name, STRANGER).encode()),
        ("checkpoint", sign_tree_head(TreeHead(name, size, bytes(32)), name, OPERATOR).encode()),
        ("checkpoint", sign_tree_head(TreeHead("elsewhere", size, bytes(32)), name, OPERATOR).encode()),
        ("manifest.cbor", pack(signed_manifest("other"))),
        (bundle, None),
        (bundle, (scene.public / bundle).read_bytes()[:-1]),
        (bundle, (scene.public / bundle).read_bytes()[:-1] + b"?"),
        (Tile(None, 1, size - 256).path, b""),
    ]
    for number, (file, data) in enumerate(wrong):
        copy = tmp_path / f"wrong-{number}"
        shutil.copytree(scene.public, copy)
        (copy / file).unlink() if data is None else (copy / file).write_bytes(data)
        with pytest.raises(UserError):
            scene.recover(FolderCopy(copy))
        if data is None:
            with served(copy) as shown, pytest.raises(UserError):
                scene.recover(WebCopy(shown.url))
    assert {path.name: path.read_bytes() for path in scene.directory.iterdir() if path.name in before} == before
    with pytest.raises(UserError, match="no folder, and no address"):
        copy_at("ftp://somewhere")
    with pytest.raises(UserError, match="cannot be had"):
        scene.recover(WebCopy("http://127.0.0.1:1/"))


def test_a_copy_that_ends_in_the_middle_of_a_round_changes_nothing(scene: Scene) -> None:
    full, rest = Tile(None, 0), Tile(None, 1, ALL * ENTRIES - 256)
    first, last = (open_bundle((scene.public / tile.path).read_bytes(), tile.width) for tile in (full, rest))
    del last[-1]  # the round's entry
    (scene.public / Tile(None, 1, len(last)).path).write_bytes(pack_bundle(last))
    name, entries = scene.note.partition("\n")[0], [*first, *last]
    (scene.public / "checkpoint").write_text(sign_tree_head(TreeHead(name, len(entries), rfc_root(entries)), name, OPERATOR))
    before = verified(scene.directory)
    with pytest.raises(UserError, match="nothing was changed"):
        scene.recover()
    assert verified(scene.directory) == before


def test_a_disk_that_is_full_in_the_middle_leaves_the_folder_as_it_was(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = verified(scene.directory)

    def fails(*_: object) -> None:
        raise StorageError("no room")

    monkeypatch.setattr("manta_swarm.aggregator.log.moving.append_rows", fails)
    with pytest.raises(StorageError, match="no room"):
        scene.recover()
    monkeypatch.undo()
    assert verified(scene.directory) == before
    assert scene.recover().ledger.round == ALL


def test_a_log_at_work_is_left_alone(scene: Scene) -> None:
    with reopen(scene.directory), pytest.raises(UserError, match="uses"):
        asyncio.run(asyncio.to_thread(scene.recover))
