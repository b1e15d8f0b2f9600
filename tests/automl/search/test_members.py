"""What a search makes of members' answers, and what it is told of one that has no network."""

import random
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from manta_swarm.automl.cli import main
from manta_swarm.automl.search.evaluators import MembersEvaluator, measured_of, result_of
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.evaluations import Result
from tests.automl.search.synthetic import measured_of as synthetic

SAMPLED = [TINY.sample(random.Random(index)) for index in range(100)]


def test_what_was_measured_is_the_same_when_it_has_travelled() -> None:
    measured = synthetic(SAMPLED[0], "search")
    again = measured_of(result_of(measured, "classification"), "classification")
    assert (again.losses, again.wrong) == (measured.losses, measured.wrong)
    assert again.quality == {"accuracy": 6 / 8, "loss": pytest.approx(measured.loss)}
    stereo = type(measured)({"epe": 1.25, "d1": 0.5, "bad3": 0.25}, measured.losses, measured.wrong[:0])
    assert measured_of(result_of(stereo, "stereo"), "stereo") == stereo
    for given, taken in (("stereo", "classification"), ("classification", "stereo")):
        with pytest.raises(EncodingError):
            measured_of(result_of(stereo if given == "stereo" else measured, given), taken)


def test_members_are_asked_a_few_dozen_at_a_time_in_the_order_of_the_search() -> None:
    asked: list[int] = []

    class Members:
        def ask(self, architectures: Sequence[str], part: str) -> list[Result]:
            asked.append(len(architectures))
            of = {each.text: each for each in SAMPLED}
            return [result_of(synthetic(of[text], part), "classification") for text in architectures]

    found = list(MembersEvaluator(Members(), "classification").measure(SAMPLED, "test"))
    assert [each.losses for each in found] == [synthetic(each, "test").losses for each in SAMPLED]
    assert asked == [64, 36]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((), "give --snapshot FILE"),
        (("--snapshot", "x", "--peers", "y"), "give --snapshot FILE"),
        (("--snapshot", "x", "--run", "y"), "--run is for --peers"),
        (("--peers", "y", "--workers", "2"), "nothing is measured here"),
        (("--peers", "y", "--data", "digits"), "nothing is measured here"),
        (("--peers", "y", "--latency-ms", "2"), "--latency-ms needs --latency-table"),
        (("--peers", "y"), "this program has no network"),
    ],
)
def test_what_does_not_go_together(typed: tuple[str, ...], said: str) -> None:
    ended = CliRunner().invoke(main, ["find", *typed])
    assert (ended.exit_code, said in ended.stderr) == (2, True), ended.output
