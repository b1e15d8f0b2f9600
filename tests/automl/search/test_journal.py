import json
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.journal import MAX_LINE_BYTES, FileJournal, Settings
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.protocol.errors import UserError

SETTINGS: Settings = {"state": "ab12", "seed": 3, "macs": 1.5e6, "samples": None}
MEASURED = Measured({"accuracy": 0.75, "loss": 0.1}, array("i", [100, 900, 0, 3000]), array("i", [3]))
SAMPLES = {"losses": [100, 900, 0, 3000], "wrong": [3]}
ONE, OTHER = TINY.smallest(), TINY.largest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with one entry."""
    path = tmp_path / "search.jsonl"
    with FileJournal(path, TINY, SETTINGS) as journal:
        journal.add("search", ONE, MEASURED)
    return path


def test_a_journal_remembers_across_programs(path: Path) -> None:
    with FileJournal(path, TINY, SETTINGS) as journal:
        assert journal.measured("search", ONE) == MEASURED
        assert journal.quality("test", ONE) is None
        journal.add("test", ONE, Measured({"accuracy": 1 / 3}, array("i", [7]), array("i", [0])))
    with FileJournal(path, TINY, SETTINGS) as journal:
        assert journal.quality("test", ONE) == {"accuracy": 1 / 3}
        assert journal.quality("test", OTHER) is None


def test_what_was_added_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    with FileJournal(path, TINY, SETTINGS) as journal:
        journal.add("search", ONE, MEASURED)
        header, entry = path.read_bytes().splitlines()
    assert json.loads(header)["settings"] == SETTINGS
    assert json.loads(entry) == {"part": "search", "architecture": ONE.text, "quality": MEASURED.quality, **SAMPLES}


@settings(max_examples=50)
@given(cut=st.floats(0.0, 1.0, exclude_max=True))
def test_a_line_that_a_kill_cut_short_is_dropped_and_the_rest_kept(cut: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("torn") / "search.jsonl"
    with FileJournal(path, TINY, SETTINGS) as journal:
        journal.add("search", ONE, MEASURED)
        journal.add("search", OTHER, MEASURED)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    num_whole = path.read_bytes().count(b"\n")
    with FileJournal(path, TINY, SETTINGS) as journal:
        assert (journal.quality("search", ONE) is not None) == (num_whole > 1)
        assert journal.quality("search", OTHER) is None
        for architecture in (ONE, OTHER):
            if journal.quality("search", architecture) is None:
                journal.add("search", architecture, MEASURED)
    assert path.read_bytes() == whole


def test_a_journal_of_another_search_names_what_differs(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"seed is 3 there and 4 here, macs is 1500000.0 there and None here; .*--out"):
        FileJournal(path, TINY, {"state": "ab12", "seed": 4, "samples": None})
    assert path.read_bytes() == before


def test_two_programs_do_not_write_one_journal(path: Path) -> None:
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another search"):
            FileJournal(path, TINY, SETTINGS)
        other.stdin.close()
    FileJournal(path, TINY, SETTINGS).close()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"{}",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"part": "search", "architecture": "r32", "quality": {"accuracy": 0.5}}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {"accuracy": NaN}}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {"accuracy": 1e999}}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {"accuracy": "0.5"}}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {"accuracy": true}}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {"epe": 0.5}}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {}}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": 0.5}',
        b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {"accuracy": 0.5}, "more": 1}',
        b'{"part": "search", "architecture": 5, "quality": {"accuracy": 0.5}}',
        *(
            b'{"part": "search", "architecture": "ARCHITECTURE", "quality": {"accuracy": 0.5}, ' + samples + b"}"
            for samples in (
                b'"losses": [1, 2, 3], "wrong": []',
                b'"losses": [1, 2, 3, -1], "wrong": []',
                b'"losses": [1, 2, 3, 4.5], "wrong": []',
                b'"losses": [1, 2, 3, true], "wrong": []',
                b'"losses": [1, 2, 3, 1048577], "wrong": []',
                b'"losses": [1, 2, 3, 4], "wrong": [4]',
                b'"losses": [1, 2, 3, 4], "wrong": [1, 0]',
                b'"losses": [1, 2, 3, 4], "wrong": [1, 1]',
                b'"losses": {}, "wrong": []',
                b'"losses": [1, 2, 3, 4]',
            )
        ),
        b'{"part": "' + b"x" * MAX_LINE_BYTES + b'", "architecture": "ARCHITECTURE", "quality": {"accuracy": 0.5}}',
    ],
)
def test_a_damaged_line_is_named(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line.replace(b"ARCHITECTURE", OTHER.text.encode()) + b"\n")
    with pytest.raises(UserError, match=r"line 3 .*--out"):
        FileJournal(path, TINY, SETTINGS)


@pytest.mark.parametrize(
    "line", [b"{}", b'{"format": "manta/search/v0", "settings": {}}', b'{"format": "manta/search/v1", "settings": 5}', b"5"]
)
def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "search.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(UserError, match="damaged"):
        FileJournal(path, TINY, SETTINGS)
    assert path.read_bytes() == line + b"\n"


def test_a_folder_in_place_of_the_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--out"):
        FileJournal(tmp_path, TINY, SETTINGS)


def test_a_journal_of_version_1_is_read_but_what_it_lacks_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    header = json.dumps({"format": "manta/search/v1", "settings": SETTINGS}).encode()
    before = header + b"\n" + json.dumps({"part": "search", "architecture": ONE.text, "quality": {"accuracy": 0.5}}).encode() + b"\n"
    path.write_bytes(before)
    with FileJournal(path, TINY, SETTINGS) as journal:
        assert journal.quality("search", ONE) == {"accuracy": 0.5}
        assert journal.measured("search", ONE) is None
        assert journal.num_outdated == 1
        journal.add("search", ONE, MEASURED)
        assert journal.num_outdated == 0
    assert path.read_bytes().startswith(before)
    with FileJournal(path, TINY, SETTINGS) as journal:
        assert journal.measured("search", ONE) == MEASURED
        assert journal.quality("search", ONE) == MEASURED.quality


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_LINE_BYTES"])
def test_a_full_journal_is_one_that_can_be_read_and_the_search_goes_on(path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size, many = path.stat().st_size, Measured({"accuracy": 0.5}, array("i", [100, 900, 0, 3000]), array("i", range(4)))
    bound = size if limit == "MAX_BYTES" else max(map(len, path.read_bytes().splitlines())) + 1
    monkeypatch.setattr(f"manta_swarm.automl.search.journal.{limit}", bound)
    with FileJournal(path, TINY, SETTINGS) as journal:
        journal.add("test", OTHER, many)
        assert journal.measured("test", OTHER) == many
    assert path.stat().st_size == size
    with FileJournal(path, TINY, SETTINGS) as journal:
        assert journal.measured("search", ONE) == MEASURED
        assert journal.measured("test", OTHER) is None


def test_what_was_measured_on_other_samples_is_not_put_beside_the_rest(path: Path) -> None:
    with FileJournal(path, TINY, SETTINGS) as journal, pytest.raises(UserError, match="measured on 4 held-out samples, and now it is 2"):
        journal.add("search", OTHER, Measured({"accuracy": 0.5}, array("i", [7, 8]), array("i")))
    with FileJournal(path, TINY, SETTINGS) as journal:
        assert journal.measured("search", OTHER) is None
