"""A log is checked from outside, by the address of who shows it: what it shows is believed only as far as it was signed for."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.cli import main
from manta_swarm.aggregator.log import copies
from manta_swarm.aggregator.log.copies import FolderCopy, LogCheck, VerifiedLog, WebCopy, verify, web_copy
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.mirror import EVIDENCE, ExpectedRun, Mirror, OpenMirror, open_mirror
from manta_swarm.aggregator.log.tiles import export
from manta_swarm.aggregator.log.witnessed import Witnessed, keep_witnessed
from manta_swarm.protocol.cosignatures import cosign
from manta_swarm.protocol.encoding import unpack
from manta_swarm.protocol.errors import OtherHistory, UserError
from manta_swarm.protocol.histories import Departure, Histories
from manta_swarm.protocol.merkle import Tree
from manta_swarm.protocol.notes import TreeHead, head_text, origin, sign_tree_head
from manta_swarm.protocol.signing import peer_name, sha256
from manta_swarm.protocol.tiles import Tile, tile_hashes, tiles_of
from tests.aggregator.log.served import Served, served
from tests.aggregator.small_run import (
    ENTRIES,
    OPERATOR,
    PEERS,
    STRANGER,
    create,
    grow,
    next_round,
    reopen,
    signed_manifest,
    training_spec_of,
)

SIGNED = signed_manifest()
FEW, ALL = 65, 67  # rounds of two states of the log; more than a full bundle of entries
KEPT = Path(__file__).parents[2] / "formats" / "0.1.0" / "log"  # a run's folder
UNKNOWN = ExpectedRun()


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One log at two moments, and another that its operator signed beside it from the first of these on."""
    folder = tmp_path_factory.mktemp("logs")
    with create(folder / "run", SIGNED) as log:
        grow(log, FEW)
        export(folder / "run", folder / "few")
        _witnessed(folder / "run", log)
    shutil.copytree(folder / "run", folder / "forked-run")
    with reopen(folder / "run") as log:
        grow(log, ALL - FEW)
        export(folder / "run", folder / "all")
    with reopen(folder / "forked-run") as log:
        for rounds, name in ((ALL - FEW, "forked"), (1, "forked-more")):
            for number in range(rounds):
                log.commit(next_round(log.ledger, mean=b"another %d" % number))
            export(folder / "forked-run", folder / name)
    return {name: folder / name for name in ("few", "all", "forked", "forked-more")}


def _witnessed(directory: Path, log: Log) -> None:
    keep_witnessed(directory, [Witnessed(log.head, log.tree_head, cosign(head_text(log.head), 1_700_000_000, PEERS[0]))])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


@pytest.fixture
def server(exports: dict[str, Path]) -> Iterator[Served]:
    with served(exports["all"]) as shown:
        yield shown


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_PAUSES_S", (0.0, 0.0))


def opened(server: Served, folder: Path, known: ExpectedRun = UNKNOWN) -> OpenMirror:
    return open_mirror(web_copy(server.url), known, folder)


def checked(server: Served, folder: Path, known: ExpectedRun = UNKNOWN) -> tuple[VerifiedLog, TreeHead | None]:
    """Return what a log shows, and what an earlier call saw."""
    found = opened(server, folder, known)
    try:
        check = LogCheck(found.mirror, training_spec_of=training_spec_of)
        assert list(check.entries())[-1] == check.head.size
        shown = check.shown()
    except BaseException:
        found.lock.release()
        raise
    found.finish()
    return shown, found.before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "mirror.lock"}


def test_a_log_shows_from_outside_what_its_files_show_and_the_folder_is_an_export_of_it(
    server: Served, exports: dict[str, Path], tmp_path: Path
) -> None:
    shown, before = checked(server, tmp_path / "mirror")
    assert (shown, before) == (verify(exports["all"], training_spec_of=training_spec_of), None)
    assert [(size, each.key) for size, each in shown.witnesses] == [(FEW * ENTRIES, PEERS[0].public_key)]
    assert contents(tmp_path / "mirror") == {
        name: data for name, data in contents(exports["all"]).items() if f".p/{FEW * ENTRIES % 256}" not in name
    }
    assert verify(tmp_path / "mirror", training_spec_of=training_spec_of) == shown


def test_what_was_fetched_is_not_fetched_again_and_what_is_new_has_to_go_on_from_it(
    server: Served, exports: dict[str, Path], folder: Path
) -> None:
    server.show(exports["few"])
    few, _ = checked(server, folder)
    server.show(exports["all"])
    server.asked.clear()
    shown, before = checked(server, folder)
    assert (before, shown.rounds) == (few.head, ALL)
    assert {Tile(None, 0).path, Tile(0, 0).path}.isdisjoint(server.asked)
    server.asked.clear()
    assert checked(server, folder) == (shown, shown.head)
    assert set(server.asked) == {"manifest.cbor", "witnessed", "checkpoint", *(tile.path for tile in _edge(shown.head.size))}
    assert not [path for path in folder.rglob("*.p/*") if path.name not in (str(ALL * ENTRIES % 256), "1")]


def _edge(size: int) -> list[Tile]:
    return [tile for tile in tiles_of(size) if not tile.is_full and tile.level is not None]


KILLED = """
import sys
from pathlib import Path
from tests.aggregator.log.test_mirror import UNKNOWN, checked
from tests.aggregator.log.served import Served
checked(Served({}, url=sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_call_that_was_killed_goes_on_where_it_was(server: Served, folder: Path) -> None:
    last = Tile(None, 1, ALL * ENTRIES - 256).path
    server.hanging = {last}
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", KILLED, server.url, str(folder)], env={**os.environ, "PYTHONPATH": str(root)}) as process:
        assert server.hangs.wait(60)
        process.kill()
    assert process.returncode == -9
    assert (server.asked[Tile(None, 0).path], server.asked[last]) == (1, 1)
    server.hanging.clear()
    (folder / "tile" / "entries" / "001.p").mkdir(exist_ok=True)
    (folder / f"{last}.part").write_bytes(b"cut")
    shown, before = checked(server, folder)
    assert before == shown.head
    assert (server.asked[Tile(None, 0).path], server.asked[last]) == (1, 2)
    assert not list(folder.rglob("*.part"))


def test_what_was_damaged_here_is_fetched_again(server: Served, folder: Path) -> None:
    shown, _ = checked(server, folder)
    whole = contents(folder)
    for name in (Tile(None, 0).path, Tile(0, 0).path, Tile(0, 1, shown.head.size - 256).path):
        (folder / name).write_bytes(whole[name][:-1] + bytes([whole[name][-1] ^ 1]))
    assert checked(server, folder) == (shown, shown.head)
    assert contents(folder) == whole


@pytest.mark.parametrize("name", ["tile/0/000", "tile/entries/000", f"tile/0/001.p/{ALL * ENTRIES - 256}", "tile/1/000.p/1"])
def test_a_file_that_was_altered_or_cut_off_is_told_and_not_kept(server: Served, folder: Path, name: str) -> None:
    data = server.files[name]
    for wrong in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        server.files[name] = wrong
        with pytest.raises(UserError, match=r"signed for|cut off"):
            checked(server, folder)
        assert not (folder / name).exists()
    server.files[name] = data
    assert checked(server, folder)[0].rounds == ALL


def test_every_file_that_is_missing_is_told(server: Served, tmp_path: Path) -> None:
    needed = set(server.files) - {"key", "witnessed"} - {name for name in server.files if f".p/{FEW * ENTRIES % 256}" in name}
    assert len(needed) >= 6
    for number, name in enumerate(sorted(needed)):
        data = server.files.pop(name)
        with pytest.raises(UserError, match=f"{name} is not there"):
            checked(server, tmp_path / str(number))
        server.files[name] = data


def test_heads_that_nobody_signed_or_another_and_notes_that_are_none(server: Served, folder: Path) -> None:
    name, size = origin(SIGNED.run), ALL * ENTRIES
    for note in (
        b"",
        b"\xff",
        sign_tree_head(TreeHead(name, size, bytes(32)), name, STRANGER).encode(),
        sign_tree_head(TreeHead("elsewhere", size, bytes(32)), name, OPERATOR).encode(),
        sign_tree_head(TreeHead(name, size, bytes(32)), name, OPERATOR).encode(),  # by a liar
    ):
        server.files["checkpoint"] = note
        with pytest.raises(UserError, match=r"does not hold|no text|not those that its head was signed for"):
            checked(server, folder)
        assert not (folder / "checkpoint").exists()
    server.files["manifest.cbor"] = server.files["manifest.cbor"][:-1]
    with pytest.raises(UserError, match=r"manifest\.cbor does not hold"):
        checked(server, folder)


def test_a_log_whose_entries_break_the_rules_is_told_though_it_is_signed(server: Served, exports: dict[str, Path], folder: Path) -> None:
    entries = [b"no entry"]
    tree, name = Tree(), origin(SIGNED.run)
    tree.append(sha256(b"\x00" + entries[0]))
    server.files = {
        "manifest.cbor": server.files["manifest.cbor"],
        "checkpoint": sign_tree_head(TreeHead(name, 1, tree.root()), name, OPERATOR).encode(),
        Tile(0, 0, 1).path: tree.root(),
        Tile(None, 0, 1).path: b"\x00\x08no entry",
    }
    with pytest.raises(UserError, match="entry 0 does not hold"):
        checked(server, folder)


def test_a_log_that_went_back_is_told(server: Served, exports: dict[str, Path], folder: Path) -> None:
    checked(server, folder)
    before = contents(folder)
    server.show(exports["few"])
    with pytest.raises(OtherHistory, match=f"went back: this computer saw {ALL * ENTRIES} .* shows {FEW * ENTRIES}, the first of those"):
        checked(server, folder)
    assert contents(folder) == before
    server.show(exports["all"])
    assert checked(server, folder)[0].rounds == ALL


@pytest.mark.parametrize("name", ["forked", "forked-more"])
def test_a_log_that_was_forked_is_told_and_both_heads_are_kept(server: Served, exports: dict[str, Path], folder: Path, name: str) -> None:
    checked(server, folder)
    before = contents(folder)
    server.show(exports[name])
    for _ in range(2):
        with pytest.raises(OtherHistory, match="forked"):
            checked(server, folder)
    after = contents(folder)
    found = unpack(Histories, after.pop(EVIDENCE), max_bytes=1 << 20).check()
    assert after == before
    assert found.departure is (Departure.FORKED if name == "forked" else Departure.UNPROVEN)
    ended = CliRunner().invoke(main, ["ledger", "check-proof", str(folder / EVIDENCE)])
    assert ended.exit_code == (0 if name == "forked" else 5)


def test_a_log_that_was_forked_and_shows_less_is_told(server: Served, exports: dict[str, Path], folder: Path) -> None:
    server.show(exports["forked-more"])
    checked(server, folder)
    server.show(exports["all"])
    with pytest.raises(OtherHistory, match="went back, or was forked"):
        checked(server, folder)


def test_a_head_counts_as_seen_before_what_it_covers_is_here(server: Served, exports: dict[str, Path], folder: Path) -> None:
    opened(server, folder).lock.release()
    server.show(exports["few"])
    with pytest.raises(OtherHistory, match="went back"):
        checked(server, folder)


def test_who_hangs_or_never_ends_is_given_up(server: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.endless = {"manifest.cbor"}
    with pytest.raises(UserError, match="does not hold"):
        checked(server, folder)
    server.endless = {"tile/entries/000"}
    with pytest.raises(UserError, match="not what the log's head was signed for"):
        checked(server, folder)
    monkeypatch.setattr(copies, "_FILE_S", 0.0)
    with pytest.raises(UserError, match="too slow"):
        checked(server, folder)
    monkeypatch.undo()
    monkeypatch.setattr(copies, "_PAUSES_S", (0.0,))
    monkeypatch.setattr(copies, "_SILENCE_S", 0.2)
    server.endless, server.hanging = set(), {"tile/entries/000"}
    began_s = time.monotonic()
    with pytest.raises(UserError, match="timed out"):
        checked(server, folder)
    assert time.monotonic() - began_s < 30
    assert server.asked["tile/entries/000"] >= 2  # it is asked again


def test_a_server_that_is_busy_is_asked_again_once_it_has_answered(server: Served, folder: Path) -> None:
    server.busy.update({"tile/entries/000": 2, "checkpoint": 1})
    assert checked(server, folder)[0].rounds == ALL
    server.busy.update({"manifest.cbor": 1})
    with pytest.raises(UserError, match="HTTP 503"):
        checked(server, folder.with_name("again"))


def test_nobody_is_sent_elsewhere(server: Served, tmp_path: Path) -> None:
    with served(tmp_path) as elsewhere:
        server.moved = {"tile/0/000": f"{elsewhere.url}\x1b[31m"}
        with pytest.raises(UserError, match=r"points to .*x1b\[31m', which is not followed"):
            checked(server, tmp_path / "mirror")
        assert not elsewhere.asked


def test_another_run_or_operator_than_is_known_is_refused(server: Served, folder: Path) -> None:
    right = ExpectedRun.of(SIGNED.run.hex()[:16], [peer_name(OPERATOR.public_key), OPERATOR.public_key.hex()])
    assert checked(server, folder, right)[0].rounds == ALL
    with pytest.raises(UserError, match=f"of another run than --run says: of {SIGNED.run.hex()}"):
        checked(server, folder, ExpectedRun.of("0" * 64, []))
    with pytest.raises(UserError, match=f"operators are {peer_name(OPERATOR.public_key)}"):
        checked(server, folder, ExpectedRun.of(None, [peer_name(STRANGER.public_key)]))


def test_a_folder_of_something_else_is_left_as_it_is(server: Served, exports: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("mine")
    with create(tmp_path / "run", SIGNED):
        pass
    with create(tmp_path / "other-run", signed_manifest("other")):
        export(tmp_path / "other-run", tmp_path / "other")
    for name, why in (("letters", "no log that was fetched"), ("run", "a run's own folder"), ("other", "another run")):
        before = contents(tmp_path / name)
        with pytest.raises(UserError, match=why):
            checked(server, tmp_path / name)
        assert contents(tmp_path / name) == before


def test_one_call_at_a_time_writes_in_a_folder(server: Served, folder: Path) -> None:
    first = opened(server, folder)
    with pytest.raises(UserError, match="another manta-aggregator ledger verify uses"):
        checked(server, folder)
    first.lock.release()
    assert checked(server, folder)[0].rounds == ALL


def test_without_a_folder_it_lies_in_the_cache_and_an_address_keeps_its_run(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    web = web_copy(server.url)
    first = open_mirror(web, UNKNOWN, None)
    first.lock.release()
    assert first.folder == Path(platformdirs.user_cache_dir("manta")) / "logs" / SIGNED.run.hex()
    other = signed_manifest("other")
    with create(tmp_path / "other-run", other):
        export(tmp_path / "other-run", tmp_path / "other")
    server.show(tmp_path / "other")
    with pytest.raises(OtherHistory, match=f"had the log of run {SIGNED.run.hex()} before, and now has that of {other.run.hex()}"):
        open_mirror(web, UNKNOWN, None)
    asked = open_mirror(web, ExpectedRun.of(other.run.hex(), []), None)
    asked.lock.release()
    assert asked.folder.name == other.run.hex()
    open_mirror(web, UNKNOWN, None).lock.release()


def test_the_tree_of_a_mirror_is_that_of_its_leaves(tmp_path: Path) -> None:
    tree, name = Tree(), origin(SIGNED.run)
    for size in (0, 1, 255, 256, 257, 65_535, 65_536, 65_537):
        for number in range(tree.size, size):
            tree.append(sha256(b"%d" % number))
        for tile in tiles_of(size):
            path = tmp_path / tile.path
            if tile.level is not None and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(tile_hashes(tree, tile))
        note = sign_tree_head(TreeHead(name, size, tree.root()), name, OPERATOR)
        mirror = Mirror(FolderCopy(tmp_path), tmp_path / f"mirror-{size}", SIGNED, {"checkpoint": note})
        for earlier in {1, 2, 100, 256, 257, 65_535, 65_536, size - 1, size} & set(range(size + 1)):
            assert mirror.root(earlier) == tree.root(earlier)
            assert mirror.consistency_proof(earlier) == tree.consistency_proof(earlier)


@pytest.mark.parametrize(
    "url",
    ["ftp://h/", "https://", "https://h/?x", "https://h/#x", "https://u@h/", "https://h:0/", "https://h:x/", "http://h/ /", "https://h/\n"],
)
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(UserError, match="no address of a log"):
        web_copy(url)


@pytest.mark.parametrize(
    ("url", "is_open"),
    [("http://127.0.0.1:1/", False), ("http://[::1]/", False), ("http://localhost/", False), ("http://h/", True), ("https://h/", False)],
)
def test_where_others_may_be_on_the_line(url: str, is_open: bool) -> None:
    assert WebCopy(url).is_open_to_others is is_open


def test_the_command_prints_what_the_files_show(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "public")
    expected = CliRunner().invoke(main, ["ledger", "check-export", str(tmp_path / "public")]).output
    with served(tmp_path / "public") as shown:
        words = ["ledger", "verify", "--from", shown.url, "--dir", str(tmp_path / "mirror")]
        first = CliRunner().invoke(main, words)
        assert (first.exit_code, first.output.startswith(expected)) == (0, True)
        assert first.output.removeprefix(expected).splitlines() == [
            "it is seen here for the first time",
            "whoever shows it may have made up the whole run: compare the run's id or the key with what you know, by --run or --key",
        ]
        again = CliRunner().invoke(main, [*words, "--run", expected.split()[1]])
        assert again.output.removeprefix(expected).splitlines() == [
            f"it goes on from the {verify(tmp_path / 'public').head.size} entries that were there before"
        ]
        wrong = CliRunner().invoke(main, [*words, "--run", "f" * 64])
        assert (wrong.exit_code, wrong.output.count("\n")) == (2, 1)
