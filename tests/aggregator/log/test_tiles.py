"""An exported log holds what the log holds, grows with it, and is checked from its files alone: by us, and by Go's own packages."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.copies import verify
from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.tiles import export, verifier_keys
from manta_swarm.aggregator.log.witnessed import Witnessed, keep_witnessed
from manta_swarm.protocol.cosignatures import cosign, with_cosignatures
from manta_swarm.protocol.errors import StorageError, UserError
from manta_swarm.protocol.notes import head_text, origin, sign_tree_head
from manta_swarm.protocol.operators import Operators
from tests.aggregator.small_run import (
    ENTRIES,
    OPERATOR,
    OTHER_OPERATOR,
    PEERS,
    STRANGER,
    create,
    grow,
    opened_head,
    reopen,
    signed_manifest,
    training_spec_of,
)
from tests.programs_needed import GO_PACKAGES

CHECKER = Path(__file__).parents[3] / "benchmarks" / "tlog" / "main.go"
ROUNDS = -(-300 // ENTRIES)  # more than a full tile


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log of more than a full tile, and an export of it that was brought up to date twice."""
    folder = tmp_path_factory.mktemp("made")
    with create(folder / "aggregator", signed_manifest()) as log:
        for rounds in (1, 2, ROUNDS):
            grow(log, rounds)
            done = export(folder / "aggregator", folder / "public")
            assert (done.head, done.new_entries) == (opened_head(log), rounds * ENTRIES)
    return folder


@pytest.fixture
def exported(made: Path, tmp_path: Path) -> Path:
    """A copy of the export; that of the log is the test's ``directory``."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "public"


@pytest.fixture
def grown(exported: Path, directory: Path) -> Iterator[Log]:
    """The log that was exported."""
    with reopen(directory) as log:
        yield log


def test_an_export_shows_what_the_log_holds(grown: Log, exported: Path) -> None:
    shown = verify(exported, training_spec_of=training_spec_of)
    assert (shown.run, shown.operators) == (grown.ledger.run, (OPERATOR.public_key,))
    assert (shown.head, shown.rounds, shown.credits) == (opened_head(grown), grown.ledger.round, grown.ledger.credits())


def test_an_export_in_steps_is_the_export_at_once_and_partial_tiles_of_before(exported: Path, directory: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    export(directory, again)
    at_once = {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    in_steps = {path.relative_to(exported): path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    assert at_once.items() <= in_steps.items()
    assert all(path.parent.suffix == ".p" for path in in_steps.keys() - at_once.keys())
    assert export(directory, again).num_files == 0


def test_a_first_export_that_was_cut_off_is_done_again(log: Log, directory: Path, tmp_path: Path) -> None:
    grow(log, 3)
    to = tmp_path / "public"
    export(directory, to)
    (to / "checkpoint").unlink()
    (to / "tile" / "entries" / f"000.p/{3 * ENTRIES}").write_bytes(b"cut")
    assert export(directory, to).new_entries == 3 * ENTRIES
    assert verify(to, training_spec_of=training_spec_of).rounds == 3


def test_what_killed_exports_left_half_written_goes_at_the_next_one(log: Log, directory: Path, tmp_path: Path) -> None:
    grow(log, 1)
    to = tmp_path / "public"
    to.mkdir()
    (to / "manifest.cbor.part").write_bytes(b"cut")  # at its first file
    export(directory, to)
    left = to / "tile" / "entries" / "000.p" / "5.part"
    left.write_bytes(b"cut")
    grow(log, 1)
    export(directory, to)
    assert not list(to.rglob("*.part"))
    assert verify(to, training_spec_of=training_spec_of).rounds == 2


def test_every_damaged_or_missing_file_is_named(exported: Path, tmp_path: Path) -> None:
    used = verify(exported, training_spec_of=training_spec_of)
    newest = [path for path in exported.rglob("*") if path.is_file() and (path.parent.suffix != ".p" or _is_newest(path, used.head.size))]
    assert len(newest) >= 8
    for number, path in enumerate(newest):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(exported, copy)
        there = copy / path.relative_to(exported)
        if there.name == "key":  # for other tools: the manifest names the key
            continue
        if number % 2:
            there.unlink()
        else:
            data = bytearray(there.read_bytes())
            data[len(data) // 2] ^= 1
            there.write_bytes(data)
        with pytest.raises(UserError, match=copy.name):
            verify(copy, training_spec_of=training_spec_of)
        shutil.rmtree(copy)


def _is_newest(partial: Path, size: int) -> bool:
    row = partial.parent.parent.name
    there = size >> 8 * (0 if row == "entries" else int(row))
    return int(partial.name) == there % 256 and int(partial.parent.name.removesuffix(".p")) == there // 256


def test_an_export_never_goes_back_and_never_mixes_two_logs(directory: Path, exported: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    before = {path: path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    with create(old, signed_manifest()) as older:
        grow(older, 1)
        with pytest.raises(UserError, match="one of the two is older"):
            export(old, exported)
    other = tmp_path / "other"
    with create(other, signed_manifest("other")), pytest.raises(UserError, match="another run"):
        export(other, exported)
    others = tmp_path / "others"
    with create(others, signed_manifest(operators=(OPERATOR, OTHER_OPERATOR)), OTHER_OPERATOR), pytest.raises(StorageError, match="1 of 2"):
        export(others, exported)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("mine")
    for folder in (tmp_path / "letters", directory):
        with pytest.raises(UserError, match="no exported log: choose a new folder"):
            export(directory, folder)
    with pytest.raises(UserError, match="no exported log"):
        verify(tmp_path / "letters")
    assert {path: path.read_bytes() for path in exported.rglob("*") if path.is_file()} == before


def test_a_log_whose_entries_are_not_under_its_tree_is_not_exported(log: Log, directory: Path, tmp_path: Path) -> None:
    grow(log, 1)
    log._connection.execute("UPDATE entries SET bytes = x'00' WHERE position = 1")
    with pytest.raises(StorageError, match="entries 0 to"):
        export(directory, tmp_path / "public")
    assert not (tmp_path / "public" / "checkpoint").exists()


@pytest.mark.needs("go", str(GO_PACKAGES / "src/golang.org/x/mod"))
def test_gos_own_packages_verify_an_export(exported: Path, directory: Path, grown: Log, tmp_path: Path) -> None:
    log, older = grown, tmp_path / "older"
    shutil.copy(exported / "checkpoint", older)
    grow(log, 2)
    note = log.tree_head
    cosigned = [cosign(head_text(opened_head(log)), 1_700_000_000 + number, witness) for number, witness in enumerate(PEERS[:2])]
    keep_witnessed(directory, [Witnessed(opened_head(log), note, each) for each in cosigned])
    export(directory, exported)

    go = {"GO111MODULE": "off", "GOPATH": str(GO_PACKAGES), "GOCACHE": str(tmp_path / "cache"), "GOFLAGS": ""}
    subprocess.run(["go", "build", "-o", tmp_path / "checker", CHECKER], env={**os.environ, **go}, check=True)

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run([tmp_path / "checker", exported, older], capture_output=True, text=True, check=False)

    held = check()
    size = log.ledger.size
    assert held.returncode == 0, held.stderr
    assert held.stdout.splitlines() == [
        f"{size} entries are under the signed root {opened_head(log).root.hex()}; operators: 1, witnesses: 2",
        f"the tree of {size} entries, cosigned by 2, is a prefix of it",
        f"the tree of {size - 2 * ENTRIES} entries is a prefix of it",
    ]
    good = (exported / "checkpoint").read_text()
    forged = with_cosignatures(note, [replace(cosigned[0], time_s=1)])
    (exported / "checkpoint").write_text(forged)
    assert check().returncode == 1
    with pytest.raises(UserError, match="does not hold"):
        verify(exported, training_spec_of=training_spec_of)
    (exported / "checkpoint").write_text(good)
    assert verify(exported, training_spec_of=training_spec_of).witnesses == tuple(
        (size, each) for each in sorted(cosigned, key=lambda one: one.key)
    )
    three, text = [OPERATOR, OTHER_OPERATOR, STRANGER], head_text(opened_head(log))
    keys = (exported / "key").read_text()
    (exported / "key").write_text(verifier_keys(Operators(log.ledger.run, tuple(each.public_key for each in three), 3)))
    (exported / "checkpoint").write_text(good + cosign(text, 1_700_000_000, OTHER_OPERATOR).line + cosign(text, 1, OPERATOR).line)
    assert "; operators: 2, witnesses: 2\n" in check().stdout
    other = sign_tree_head(replace(opened_head(log), size=1), origin(log.ledger.run), STRANGER).rpartition("\n\n")[2]
    (exported / "checkpoint").write_text(good + other)  # an operator's line that does not hold
    assert check().returncode == 1
    (exported / "key").write_text(keys)
    (exported / "checkpoint").write_text(good)
    bundle = exported / "tile" / "entries" / "000"
    data = bundle.read_bytes()
    bundle.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert check().returncode == 1
