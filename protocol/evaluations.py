"""How good architectures of a committed state are, asked of a run's members: the question, the signed answer, and whether two agree.

They travel from node to node and are never logged. An answer has each held-out sample's loss by itself, in whole numbers: so a search can
tell luck from merit, and two answers can be compared sample by sample. Two computers differ in the last bits of what they compute, hence
a tolerance: far more than computers of different kinds were seen to differ by, far less than would change what a search takes.
"""

import sys
from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.fields import MAX_ROUND, check_digest
from manta_swarm.protocol.signed import Signed, Signing
from manta_swarm.protocol.signing import Digest, sha256

METHOD = "evaluate"
PARTS = ("search", "test")  # halves of the held-out data

MAX_ARCHITECTURES = 4  # of one question
MAX_SAMPLES = 100_000  # of one part
MAX_LOSS = 1 << 20  # in units
LOSS_UNITS = 10_000  # of a nat, or of a pixel
FIGURE_UNITS = 1_000_000
MAX_FIGURES = 4

MAX_QUESTION_BYTES = 4096
MAX_RESULT_BYTES = 4 * MAX_SAMPLES + MAX_SAMPLES // 8 + 1024
MAX_ANSWER_BYTES = MAX_ARCHITECTURES * MAX_RESULT_BYTES + 512
MAX_WORD_BYTES = MAX_ANSWER_BYTES + 512
MAX_WAIT_MS = 3_600_000

# Of two answers to one question. See ``difference``.
_SAMPLE_UNITS, _SAMPLE_SHARE = 100, 50  # a loss may differ by a hundredth of a nat or a fiftieth of itself, whichever is more
_MEAN_UNITS = 20  # the mean loss by two thousandths
_FEW = 100  # one sample of so many may be an exception, and one more
_FIGURE_SHARE, _FIGURE_LEAST = 50, 2_000  # a figure by a fiftieth of itself, or so many millionths

_NONCE_BYTES = 16
_MAX_TEXT = 400  # an architecture's
_MAX_REASON = 200
_FIGURE_LIMIT = 1 << 40

Shape = tuple[int, bool, int]  # see Result.shape


@dataclass(frozen=True, slots=True)
class Question:
    """Asks how good some architectures are on a half of the held-out data, with a state's weights."""

    run: bytes
    round: int  # whose commit names the state
    state: bytes  # its digest
    part: str
    architectures: tuple[str, ...]
    nonce: bytes  # drawn by who asks: an answer to another question, of whatever time, is none to this one

    def __post_init__(self) -> None:
        check_digest(self.run, "run")
        check_digest(self.state, "state")
        if not 0 <= self.round <= MAX_ROUND:
            raise ValueError("round out of range")
        if self.part not in PARTS:
            raise ValueError("no half of the held-out data")
        if not 1 <= len(self.architectures) <= MAX_ARCHITECTURES or len(set(self.architectures)) != len(self.architectures):
            raise ValueError(f"a question is for 1 to {MAX_ARCHITECTURES} different architectures")
        if not all(1 <= len(each) <= _MAX_TEXT and each.isascii() and each.isprintable() for each in self.architectures):
            raise ValueError("what is no architecture's text")
        if len(self.nonce) != _NONCE_BYTES:
            raise ValueError(f"a nonce has {_NONCE_BYTES} bytes")

    @property
    def digest(self) -> Digest:
        """Return what an answer names the question by."""
        return sha256(pack(self))


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of one architecture."""

    losses: bytes  # of each sample in units, 4 bytes each, little-endian
    wrong: bytes  # classification: bit p % 8 of byte p // 8 says that sample p got a wrong class; stereo: none
    figures: tuple[int, ...]  # what does not follow from these, in millionths; classification: none; stereo: EPE, D1, bad-3

    def __post_init__(self) -> None:
        count = self.num_samples
        if len(self.losses) % 4 or not 1 <= count <= MAX_SAMPLES or max(self.loss_units()) > MAX_LOSS:
            raise ValueError("no losses of samples")
        if self.wrong and (len(self.wrong) != -(-count // 8) or int.from_bytes(self.wrong, "little") >> count):
            raise ValueError("bits for more samples than there are, or for fewer")
        if len(self.figures) > MAX_FIGURES or not all(0 <= each < _FIGURE_LIMIT for each in self.figures):
            raise ValueError("figures out of range")

    @property
    def num_samples(self) -> int:
        """How many samples it is of."""
        return len(self.losses) // 4

    @property
    def shape(self) -> Shape:
        """What results of the same samples have in common: how many there are, whether they have classes, and how many figures."""
        return self.num_samples, bool(self.wrong), len(self.figures)

    def loss_units(self) -> "array[int]":
        """Return the losses, in units."""
        found = array("i", self.losses)
        if sys.byteorder == "big":
            found.byteswap()
        if found and min(found) < 0:
            raise ValueError("a loss out of range")
        return found

    def wrong_places(self) -> "array[int]":
        """Return which samples got a wrong class, ascending."""
        return array("i", (place for place in range(8 * len(self.wrong)) if self.wrong[place // 8] >> place % 8 & 1))

    @classmethod
    def of(cls, losses: "array[int]", wrong: "array[int] | None", figures: tuple[int, ...]) -> "Result":
        """Return the result of these losses, in units, and these samples that got a wrong class; None: there are no classes."""
        ordered = array("i", losses)
        if sys.byteorder == "big":
            ordered.byteswap()
        bits = bytearray(0 if wrong is None else -(-len(losses) // 8))
        for place in wrong or ():
            bits[place // 8] |= 1 << place % 8
        return cls(ordered.tobytes(), bytes(bits), figures)


@dataclass(frozen=True, slots=True)
class Answer:
    """A member's signed answer to a question: what it measured."""

    signing: ClassVar[Signing] = Signing("evaluation", MAX_ANSWER_BYTES, by="key")

    run: bytes
    key: bytes  # the member's
    question: bytes  # its digest
    data: bytes  # digest of the data set, as in the manifest
    results: tuple[Result, ...]  # in the question's order

    def __post_init__(self) -> None:
        for what in ("run", "key", "question", "data"):
            check_digest(getattr(self, what), what)
        if not 1 <= len(self.results) <= MAX_ARCHITECTURES:
            raise ValueError("an answer of no results, or of too many")


class QuestionFate(IntEnum):
    """What became of a question at a member."""

    HELD = 0  # it is measured, now or soon: ask again
    DONE = 1
    LATER = 2  # not now: the member rests, or has others' questions
    NEVER = 3  # its person does not want it, or it cannot


@dataclass(frozen=True, slots=True)
class EvaluationWord:
    """What a member says to a question."""

    fate: int  # of QuestionFate
    reason: str  # with LATER and NEVER
    wait_ms: int  # with HELD and LATER: when to ask again
    answer: tuple[Signed[Answer], ...]  # with DONE

    def __post_init__(self) -> None:
        if self.fate not in tuple(QuestionFate) or len(self.answer) != (self.fate == QuestionFate.DONE):
            raise ValueError("a word without its meaning")
        if len(self.reason) > _MAX_REASON or not self.reason.isprintable() or not 0 <= self.wait_ms <= MAX_WAIT_MS:
            raise ValueError("a reason that cannot be shown, or too long a wait")


def checked(signed: Signed[Answer], question: Question, key: bytes, data: bytes) -> tuple[Result, ...]:
    """Return the results of a member's answer to a question.

    Args:
        signed: the answer.
        question: the one that it has to answer.
        key: of who has to have signed it.
        data: the digest that the manifest names.

    Raises:
        RemoteFault: it is no answer of this member to this question on this data, or none that can be true.
    """
    answer = signed.open()
    if (answer.run, answer.key, answer.question) != (question.run, key, question.digest):
        raise EncodingError("an answer to another question, or another member's")
    if answer.data != data:
        raise EncodingError("an answer that was measured on other data")
    if len(answer.results) != len(question.architectures):
        raise EncodingError("not as many results as architectures were asked for")
    if len({each.shape for each in answer.results}) != 1:
        raise EncodingError("results that are not of the same samples")
    return answer.results


def difference(one: Result, other: Result) -> str:
    """Return what two results of the same architecture, state and samples contradict each other in; "" where they agree.

    A sample's losses may differ by 0.01 or a fiftieth, the mean by 0.002; in one sample of a hundred, and one more, they may differ by any
    amount, or in the class being right. A figure may differ by 0.002 or a fiftieth.
    """
    count = one.num_samples
    if one.shape != other.shape:
        return f"{count} and {other.num_samples} samples" if count != other.num_samples else "results of different tasks"
    exceptions = count // _FEW + 1
    classes = (int.from_bytes(one.wrong, "little") ^ int.from_bytes(other.wrong, "little")).bit_count()
    if classes > exceptions:
        return f"{classes} of {count} samples right by one and wrong by the other"
    mine, theirs = one.loss_units(), other.loss_units()
    far = sum(abs(a - b) > max(_SAMPLE_UNITS, max(a, b) // _SAMPLE_SHARE) for a, b in zip(mine, theirs, strict=True))
    if far > exceptions:
        return f"the losses of {far} of {count} samples"
    apart = abs(sum(mine) - sum(theirs))
    if apart > _MEAN_UNITS * count:
        return f"mean losses that are {apart / count / LOSS_UNITS:.4f} apart"
    if any(abs(a - b) > max(_FIGURE_LEAST, max(a, b) // _FIGURE_SHARE) for a, b in zip(one.figures, other.figures, strict=True)):
        return "figures that losses do not tell"
    return ""


def differing(one: tuple[Result, ...], other: tuple[Result, ...]) -> str:
    """Return what two answers to the same question contradict each other in; "" where they agree."""
    return next((found for mine, theirs in zip(one, other, strict=True) if (found := difference(mine, theirs))), "")
