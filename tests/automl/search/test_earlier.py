import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from manta_swarm.automl.data.dataset import SEARCH, TEST
from manta_swarm.automl.search.constraints import Constraint, Region
from manta_swarm.automl.search.evolution import Effort, Point, front
from manta_swarm.automl.search.journal import EarlierSearch, FileJournal, Journal, Recalling, Settings
from manta_swarm.automl.search.search import Strategy, search
from manta_swarm.automl.spaces.space import STEREO_TINY, TINY, Architecture
from manta_swarm.protocol.errors import UserError
from tests.automl.search.synthetic import Silent, SyntheticEvaluator, macs_of, measured_of, score_of

MACS = macs_of(TINY)
SETTINGS: Settings = {"supernet": TINY.name, "state": "ab", "data": "cd", "seed": 3}
RNG = random.Random(0)
SAMPLED = [TINY.sample(RNG) for _ in range(30)]


def journal_of(path: Path, architectures: Sequence[Architecture], settings: Settings = SETTINGS) -> Path:
    with FileJournal(path, TINY, settings) as journal:
        for architecture in architectures:
            journal.add(SEARCH, architecture, measured_of(architecture, SEARCH))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return journal_of(tmp_path / "search.jsonl", SAMPLED)


def test_the_best_and_some_of_the_front_within_the_limits_are_promising(path: Path) -> None:
    region = Region(TINY, [Constraint(MACS, sorted(map(MACS.of, SAMPLED))[20])])
    found = EarlierSearch(path, TINY).promising(region, [MACS], 8)
    kept = [each for each in SAMPLED if each in region]
    best_first = sorted(kept, key=lambda each: -score_of(each))
    on_the_front = [point.architecture for point in front(Point(each, (MACS.of(each),), score_of(each)) for each in kept)]
    assert len(found) == 8
    assert set(found) <= set(kept)
    assert set(best_first[:4]) <= set(found)
    assert {on_the_front[0], on_the_front[-1]} <= set(found)
    assert EarlierSearch(path, TINY).promising(Region(TINY), [MACS], 1) == [max(SAMPLED, key=score_of)]


def test_a_journal_of_version_1_is_ranked_by_accuracy(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    entries = [{"part": SEARCH, "architecture": each.text, "quality": {"accuracy": score_of(each)}} for each in SAMPLED]
    lines = [{"format": "manta/search/v1", "settings": SETTINGS}, *entries]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"part": "sea')
    earlier = EarlierSearch(path, TINY)
    assert max(SAMPLED, key=score_of) in earlier.promising(Region(TINY), [MACS], 4)
    assert earlier.measured(SEARCH, SAMPLED[0]) is None


def test_what_was_measured_of_the_same_weights_and_data_is_not_measured_again(path: Path) -> None:
    earlier, inner = EarlierSearch(path, TINY), SyntheticEvaluator()
    mixed = [TINY.smallest(), SAMPLED[3], TINY.largest(), SAMPLED[1]]
    assert list(Recalling(inner, earlier).measure(mixed, SEARCH)) == [measured_of(each, SEARCH) for each in mixed]
    assert [architecture for _, architecture in inner.asked] == [TINY.smallest(), TINY.largest()]
    assert list(Recalling(inner, earlier).measure(SAMPLED[:1], TEST)) == [measured_of(SAMPLED[0], TEST)]
    assert earlier.is_of({**SETTINGS, "seed": 4})
    assert not earlier.is_of({**SETTINGS, "state": "ef"})
    assert not earlier.is_of({**SETTINGS, "data": "ef"})
    assert not earlier.is_of({**SETTINGS, "precision": "bf16"})


def test_a_search_that_starts_warm_is_no_worse_than_what_it_started_from(path: Path) -> None:
    region = Region(TINY)
    start = tuple(EarlierSearch(path, TINY).promising(region, [MACS], 3))
    evaluator = SyntheticEvaluator()
    strategy = Strategy(Effort(6, 2), seed=1, has_predictor=False, num_samples=40, start=start)
    found = search(region, [MACS], evaluator, strategy, Journal(), Silent())
    assert [architecture for _, architecture in evaluator.asked][:4] == [TINY.smallest(), *start]
    assert len(found.points) == 12
    assert found.front[-1].search.loss <= min(measured_of(each, SEARCH).loss for each in SAMPLED)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"{}\n", "line 1"),
        (b'{"format": "manta/search/v2", "settings": {"supernet": "stereo-tiny"}}\n', "of a search of stereo-tiny, and this one is of"),
        (b'{"format": "manta/search/v2", "settings": {"supernet": "classifier-tiny"}}\n{}\n', "line 2"),
    ],
)
def test_what_is_no_journal_of_this_supernet_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{words}.*--warm-start"):
        EarlierSearch(path, TINY)
    assert path.read_bytes() == content
    with pytest.raises(UserError):
        EarlierSearch(tmp_path / "missing.jsonl", STEREO_TINY)
