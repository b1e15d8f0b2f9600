"""Questions and signed answers of evaluation: what strangers' bytes are refused, and when two answers agree."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol import evaluations
from manta_swarm.protocol.encoding import encode, pack, to_value, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, SignatureError
from manta_swarm.protocol.evaluations import Answer, EvaluationWord, Question, QuestionFate, Result, checked, difference
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, sha256

PEER, OTHER = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
RUN, DATA = sha256(b"run"), sha256(b"data")
QUESTION = Question(RUN, 7, sha256(b"state"), "search", ("r32 u1.0:k3e3", "r28"), b"n" * 16)
LOSSES = array("i", [100 * place for place in range(300)])


def _result(losses: "array[int]" = LOSSES, wrong: tuple[int, ...] = (3, 299), figures: tuple[int, ...] = ()) -> Result:
    return Result.of(losses, array("i", wrong), figures)


ANSWER = Answer(RUN, PEER.public_key, QUESTION.digest, DATA, (_result(), _result(wrong=())))


def test_a_result_keeps_losses_and_places() -> None:
    result = _result()
    assert result.num_samples == 300
    assert result.loss_units() == LOSSES
    assert result.wrong_places() == array("i", [3, 299])
    assert not Result.of(LOSSES, None, (1, 2, 3)).wrong


@given(st.lists(st.integers(0, evaluations.MAX_LOSS), min_size=1, max_size=40), st.data())
def test_what_was_packed_is_read_again(losses: list[int], data: st.DataObject) -> None:
    wrong = sorted(data.draw(st.sets(st.integers(0, len(losses) - 1))))
    result = _result(array("i", losses), tuple(wrong))
    again = unpack(Result, pack(result), max_bytes=evaluations.MAX_RESULT_BYTES)
    assert (again, again.wrong_places().tolist(), again.loss_units().tolist()) == (result, wrong, losses)


def test_the_largest_answer_fits_its_bound() -> None:
    largest = _result(array("i", [evaluations.MAX_LOSS]) * evaluations.MAX_SAMPLES, (5,), (2**39,) * evaluations.MAX_FIGURES)
    answer = Answer(RUN, PEER.public_key, QUESTION.digest, DATA, (largest,) * evaluations.MAX_ARCHITECTURES)
    assert len(pack(answer)) <= evaluations.MAX_ANSWER_BYTES
    word = EvaluationWord(int(QuestionFate.DONE), "", 0, (Signed.sign(answer, PEER),))
    assert len(pack(word)) <= evaluations.MAX_WORD_BYTES
    longest = replace(QUESTION, architectures=tuple(chr(97 + place) * 400 for place in range(evaluations.MAX_ARCHITECTURES)))
    assert len(pack(longest)) <= evaluations.MAX_QUESTION_BYTES


@pytest.mark.parametrize(
    "changes",
    [
        {"run": b"short"},
        {"state": b""},
        {"round": -1},
        {"part": "train"},
        {"architectures": ()},
        {"architectures": ("r28", "r28")},
        {"architectures": tuple(f"r{place}" for place in range(1, 6))},
        {"architectures": ("r" * 401,)},
        {"architectures": ("r28\n",)},
        {"architectures": ("",)},
        {"nonce": b"n"},
    ],
)
def test_a_malformed_question_is_refused(changes: dict[str, object]) -> None:
    fields = [changes.get(name, to_value(getattr(QUESTION, name))) for name in ("run", "round", "state", "part", "architectures", "nonce")]
    with pytest.raises(EncodingError):
        unpack(Question, encode(tuple(fields)), max_bytes=evaluations.MAX_QUESTION_BYTES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        (b"", b"", ()),
        (b"\x00" * 3, b"", ()),
        (b"\xff" * 4, b"", ()),  # below zero
        ((evaluations.MAX_LOSS + 1).to_bytes(4, "little"), b"", ()),
        (b"\x00" * 4, b"\x00\x00", ()),
        (b"\x00" * 4, b"\x02", ()),  # a bit of a sample that is not there
        (b"\x00" * 4, b"", (-1,)),
        (b"\x00" * 4, b"", (2**41,)),
        (b"\x00" * 4, b"", (0,) * 5),
        (b"\x00" * 4 * (evaluations.MAX_SAMPLES + 1), b"", ()),
    ],
)
def test_a_malformed_result_is_refused(fields: tuple[bytes, bytes, tuple[int, ...]]) -> None:
    with pytest.raises(EncodingError):
        unpack(Result, encode(fields), max_bytes=2 * evaluations.MAX_RESULT_BYTES)


def test_a_word_without_its_meaning_is_refused() -> None:
    signed = Signed.sign(ANSWER, PEER)
    for fields in (
        (7, "", 0, ()),
        (int(QuestionFate.DONE), "", 0, ()),
        (int(QuestionFate.HELD), "", 0, (signed,)),
        (int(QuestionFate.LATER), "a\nb", 0, ()),
        (int(QuestionFate.HELD), "", -1, ()),
    ):
        with pytest.raises(ValueError, match=r"word|reason"):
            EvaluationWord(*fields)


def test_an_answer_is_its_members_to_that_question_on_that_data() -> None:
    assert checked(Signed.sign(ANSWER, PEER), QUESTION, PEER.public_key, DATA) == ANSWER.results
    with pytest.raises(SignatureError):
        Signed.sign(ANSWER, OTHER).open()
    for changes in (
        {"run": sha256(b"another run")},
        {"question": replace(QUESTION, nonce=b"m" * 16).digest},  # one of before, sent again
        {"data": sha256(b"other data")},
        {"results": ANSWER.results[:1]},
        {"results": (_result(), _result(LOSSES[:200], (3,)))},
    ):
        with pytest.raises(RemoteFault):
            checked(Signed.sign(replace(ANSWER, **changes), PEER), QUESTION, PEER.public_key, DATA)  # type: ignore[arg-type]
    with pytest.raises(RemoteFault):  # another member's, who signed it itself
        checked(Signed.sign(replace(ANSWER, key=OTHER.public_key), OTHER), QUESTION, PEER.public_key, DATA)


def _moved(by: int, count: int) -> "array[int]":
    return array("i", (loss + by if place < count else loss for place, loss in enumerate(LOSSES)))


def test_last_bits_and_a_few_samples_make_no_difference() -> None:
    assert difference(_result(), _result()) == ""
    assert difference(_result(), _result(_moved(15, 300))) == ""
    assert difference(_result(), _result(_moved(1000, 4))) == ""
    assert difference(_result(), _result(wrong=(3, 4, 5, 6, 7, 8, 299))) != ""
    assert difference(_result(), _result(wrong=(3, 4, 5, 6, 299))) == ""


def test_a_lie_is_a_difference() -> None:
    assert "samples" in difference(_result(), _result(LOSSES[:299], (3,)))
    assert "losses of" in difference(_result(), _result(_moved(2000, 5)))
    assert "mean losses" in difference(_result(), _result(_moved(60, 300)))
    assert "samples right" in difference(_result(), _result(wrong=tuple(range(0, 300, 7))))
    assert "figures" in difference(_result(figures=(1_000_000,)), _result(figures=(1_021_000,)))
    assert difference(_result(figures=(1_000_000,)), _result(figures=(1_019_000,))) == ""
