"""Files by round under a budget: what goes, what stays, and what is found again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from manta_swarm.protocol.errors import StorageError
from manta_swarm.runtime.round_folder import NoRoom, RoundFolder

BUDGET = 1000


def write(folder: RoundFolder, round_: int, size: int, suffix: str = "") -> None:
    folder.path(round_, suffix).write_bytes(bytes(size))
    folder.count(round_, size)


def test_before_anything_is_there_nothing_is_made(tmp_path: Path) -> None:
    folder = RoundFolder(tmp_path / "rounds", max_bytes=BUDGET)
    assert (folder.rounds(), folder.num_bytes, folder.prune(100), folder.make_room(1, BUDGET)) == ([], 0, [], [])
    assert not (tmp_path / "rounds").exists()


def test_a_round_is_a_file_a_folder_or_several_files_and_goes_as_a_whole(tmp_path: Path) -> None:
    folder = RoundFolder(tmp_path, max_bytes=BUDGET)
    write(folder, 1, 10)
    folder.path(2).mkdir()
    (folder.path(2) / "below").mkdir()
    (folder.path(2) / "below" / "file").write_bytes(bytes(20))
    folder.count(2, 20)
    write(folder, 3, 30, ".one")
    write(folder, 3, 40, ".two")
    write(folder, 123_456_789, 50)  # nine digits
    for name in ("1", "other", "000000011", "00000001x", "00000012.part"):
        (tmp_path / name).touch()
    again = RoundFolder(tmp_path, max_bytes=BUDGET)
    assert again.rounds() == [1, 2, 3, 11, 123_456_789]  # what a crash left half written is none
    assert again.num_bytes == folder.num_bytes == 150
    assert again.prune(4) == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000011", "00000001x", "00000012.part", "1", "123456789", "other"]
    assert again.prune(13) == [11, 12]


def test_only_names_with_its_prefix_are_its_own(tmp_path: Path) -> None:
    folder = RoundFolder(tmp_path, prefix="round-")
    for name in ("round-00000001.bodies", "00000002", "front.json", "around-00000003"):
        (tmp_path / name).touch()
    assert folder.rounds() == [1]
    assert folder.path(1, ".bodies") == tmp_path / "round-00000001.bodies"
    folder.prune(10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "around-00000003", "front.json"]


def test_where_there_is_no_room_nothing_goes(tmp_path: Path) -> None:
    folder = RoundFolder(tmp_path, max_bytes=BUDGET)
    for round_ in (1, 2, 3):
        write(folder, round_, 300)
    with pytest.raises(NoRoom):
        folder.make_room(2, 800)  # newer rounds never go for older ones
    with pytest.raises(NoRoom):
        folder.make_room(4, 500, pinned=(1, 2))
    assert folder.rounds() == [1, 2, 3]
    assert folder.make_room(4, 500, pinned=(1,)) == [2, 3]
    assert folder.rounds() == [1]


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"):
        RoundFolder(tmp_path / "file").rounds()


class Rounds(RuleBasedStateMachine):
    """Anything in any order, beside a model of it: round -> bytes."""

    @initialize(tmp=st.builds(object))
    def begin(self, tmp: object) -> None:
        self.tmp = next(directories)
        self.folder = RoundFolder(self.tmp, max_bytes=BUDGET)
        self.model: dict[int, int] = {}

    @rule(round_=st.integers(0, 12), size=st.integers(0, 700), pinned=st.sets(st.integers(0, 12), max_size=4))
    def write(self, round_: int, size: int, pinned: set[int]) -> None:
        kept = sum(held for each, held in self.model.items() if each >= round_ or each in pinned)
        try:
            gone = self.folder.make_room(round_, size, pinned)
        except NoRoom:
            assert kept + size > BUDGET
            return
        assert kept + size <= BUDGET
        may_go = sorted(each for each in self.model if each < round_ and each not in pinned)
        assert gone == may_go[: len(gone)]  # the oldest first
        total = sum(self.model.values()) + size
        if gone:  # and none for nothing
            assert total - sum(self.model[each] for each in gone[:-1]) > BUDGET
        for each in gone:
            del self.model[each]
        self.folder.path(round_).mkdir(exist_ok=True)
        (self.folder.path(round_) / str(len(os.listdir(self.folder.path(round_))))).write_bytes(bytes(size))
        self.folder.count(round_, size)
        self.model[round_] = self.model.get(round_, 0) + size

    @rule(oldest=st.integers(0, 13), pinned=st.sets(st.integers(0, 12), max_size=4))
    def prune(self, oldest: int, pinned: set[int]) -> None:
        gone = self.folder.prune(oldest, pinned)
        assert gone == sorted(each for each in self.model if each < oldest and each not in pinned)
        for each in gone:
            del self.model[each]

    @rule()
    def begin_anew(self) -> None:
        self.folder = RoundFolder(self.tmp, max_bytes=BUDGET)

    @invariant()
    def it_is_as_the_model_and_within_its_budget(self) -> None:
        if hasattr(self, "model"):
            assert self.folder.rounds() == sorted(self.model)
            assert self.folder.num_bytes == sum(self.model.values()) <= BUDGET


directories: Iterator[Path] = iter(())
Rounds.TestCase.settings = settings(max_examples=60, stateful_step_count=25)


class TestRounds(Rounds.TestCase):
    @pytest.fixture(autouse=True)
    def places(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        global directories
        folder = tmp_path_factory.mktemp("rounds")
        directories = (Path(mkdtemp(dir=folder)) for _ in count())


_WRITER = """
import sys
from pathlib import Path
from tempfile import mkdtemp
from manta_swarm.runtime.round_folder import RoundFolder
folder = RoundFolder(Path(sys.argv[1]), max_bytes=20_000)
round_ = max(folder.rounds(), default=0)
while True:
    round_ += 1
    folder.make_room(round_, 4000, pinned=(1,))
    folder.path(round_).mkdir()
    for number in range(40):
        (folder.path(round_) / str(number)).write_bytes(bytes(100))
    folder.count(round_, 4000)
    print(round_, flush=True)
"""


def test_killed_at_any_moment_it_goes_on_within_its_budget_with_the_newest_and_the_pinned_rounds(tmp_path: Path) -> None:
    for lines in (7, 1, 12, 3):
        command = [sys.executable, "-c", _WRITER, str(tmp_path / "rounds")]
        (tmp_path / "rounds").mkdir(exist_ok=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            newest = [int(writer.stdout.readline()) for _ in range(lines)][-1]
            os.kill(writer.pid, signal.SIGKILL)
        folder = RoundFolder(tmp_path / "rounds", max_bytes=20_000)
        assert folder.num_bytes <= 20_000
        assert 1 in folder.rounds()
        assert max(folder.rounds()) >= newest
        assert [each for each in folder.rounds() if each > 1] == list(range(min(folder.rounds()[1:]), max(folder.rounds()) + 1))
