"""The list of aggregators on this computer: an entry lives as long as its process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from manta_swarm.runtime.local_runs import LocalRun, find, listed

RUN = LocalRun("ab" * 32, "digits", ("/ip4/127.0.0.1/tcp/31000/p2p/12D3KooWabc", "/ip4/192.0.2.1/tcp/31000/p2p/12D3KooWabc"))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MANTA_STATE_DIR", str(tmp_path))
    return tmp_path / "aggregators"


def test_an_aggregator_is_listed_while_it_runs(directory: Path) -> None:
    assert find() == []
    with listed(RUN):
        assert find() == [RUN]
        assert find() == [RUN]
    assert find() == []
    assert list(directory.iterdir()) == []


def test_an_aggregator_that_ends_with_an_error_is_not_listed(directory: Path) -> None:
    with pytest.raises(RuntimeError), listed(RUN):
        raise RuntimeError
    assert find() == []


_LIST = """
import sys
from manta_swarm.runtime.local_runs import LocalRun, listed
with listed(LocalRun("cd" * 32, "other", ("/ip4/127.0.0.1/tcp/1/p2p/12D3KooWdef",))):
    print("listed", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_aggregator_left_is_removed(directory: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", _LIST], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        listed(RUN),
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"listed\n"
        assert {run.name for run in find()} == {"digits", "other"}
        process.kill()
        process.wait()
        assert len(list(directory.iterdir())) == 2
        assert find() == [RUN]
        assert len(list(directory.iterdir())) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"run": "ab"}', '{"run": "ab", "name": "x", "addresses": 7}', "\x00"])
def test_a_file_that_is_being_written_or_is_none_of_ours_offers_nothing(directory: Path, content: str) -> None:
    with listed(RUN):
        (path,) = directory.iterdir()
        path.write_text(content)  # the lock is still held
        assert find() == []
        path.write_text(json.dumps({"run": RUN.run, "name": RUN.name, "addresses": RUN.addresses}))
        assert find() == [RUN]


def test_a_computer_without_the_directory_has_no_aggregators(directory: Path) -> None:
    assert not directory.exists()
    assert find() == []
