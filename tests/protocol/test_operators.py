"""A tree head counts by the lines of enough different operators: signatures under the log's name, or cosignatures."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.cosignatures import cosign
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import EncodingError, ProofError, SignatureError
from manta_swarm.protocol.histories import Histories
from manta_swarm.protocol.manifest import MAX_OPERATORS, SignedManifest
from manta_swarm.protocol.notes import TreeHead, head_text, sign_tree_head
from manta_swarm.protocol.operators import MAX_COUNTED_BYTES, Operators
from manta_swarm.protocol.signing import Identity, sha256
from tests.runs import manifest_of

FOUR = [Identity(bytes([seed]) * 32) for seed in range(1, 5)]
STRANGER = Identity(b"s" * 32)
SIGNED = SignedManifest.sign(manifest_of(FOUR[0], operators=tuple(each.public_key for each in FOUR), quorum=3), FOUR[0])
OPERATORS = Operators.of_signed(SIGNED)
HEAD, OTHER = (TreeHead(OPERATORS.name, 7, sha256(what)) for what in (b"one", b"other"))


def note_of(head: TreeHead, signers: list[Identity], cosigners: list[Identity], name: str = OPERATORS.name) -> str:
    """Return a note with lines of these, in this order."""
    text = head_text(head)
    signed = [sign_tree_head(head, name, each).removeprefix(f"{text}\n") for each in signers]
    return f"{text}\n" + "".join([*signed, *(cosign(text, 1_800_000_000, each).line for each in cosigners)])


# No more than a note may have: hypothesis draws long lists now and then.
SOME = st.lists(st.sampled_from([*FOUR, STRANGER]), max_size=12)


@given(signers=SOME, cosigners=SOME)
def test_a_head_counts_by_different_operators_one_of_whom_signs_as_the_log(signers: list[Identity], cosigners: list[Identity]) -> None:
    if not signers and not cosigners:
        return  # no note
    note = note_of(HEAD, signers, cosigners)
    by = {each.public_key for each in (*signers, *cosigners)} - {STRANGER.public_key}
    assert OPERATORS.signers(note).keys == by
    assert OPERATORS.counts(note) == (len(by) >= 3 and any(each is not STRANGER for each in signers))
    if OPERATORS.counts(note):
        assert OPERATORS.open(note) == HEAD
        least = OPERATORS.quorum_note(note)
        assert OPERATORS.open(least) == HEAD
        assert least.count("\n— ") == 3
        assert len(OPERATORS.signers(least).keys) == 3


def test_the_lines_of_the_most_operators_fit_into_a_receipt() -> None:
    many = [Identity(bytes([seed]) * 32) for seed in range(MAX_OPERATORS)]
    operators = Operators(SIGNED.run, tuple(each.public_key for each in many), MAX_OPERATORS)
    note = note_of(TreeHead(operators.name, 2**62, bytes(32)), many[:1], many[1:])
    assert operators.open(note).size == 2**62
    assert len(note.encode()) <= MAX_COUNTED_BYTES


def test_a_line_of_an_operator_that_does_not_hold_spoils_the_note() -> None:
    good = note_of(HEAD, FOUR[:1], FOUR[1:3])
    for other in (note_of(OTHER, [FOUR[3]], []), note_of(OTHER, [], [FOUR[3]])):
        with pytest.raises(SignatureError):
            OPERATORS.open(good + other.partition("\n\n")[2])
    elsewhere = note_of(HEAD, [FOUR[3]], [], name="manta/elsewhere").partition("\n\n")[2]
    assert OPERATORS.signers(good + elsewhere).keys == {each.public_key for each in FOUR[:3]}  # another key name: passed over
    with pytest.raises(EncodingError):
        OPERATORS.open(good + "— bad\n")


def test_a_head_of_another_log_counts_for_nothing() -> None:
    with pytest.raises(ProofError, match="another log"):
        OPERATORS.open(note_of(TreeHead("manta/elsewhere", 7, bytes(32)), FOUR[:1], FOUR[1:]))


def test_of_two_heads_of_one_size_those_are_the_liars_who_signed_both() -> None:
    def shown(one: list[Identity], other: list[Identity]) -> Histories:
        made = Histories(SIGNED, (note_of(HEAD, one[:1], one[1:]), note_of(OTHER, other[:1], other[1:])))
        return unpack(Histories, pack(made), max_bytes=2**20)

    lied = shown([FOUR[1]], [FOUR[1], FOUR[2]]).check()
    assert lied.operators == (FOUR[1].public_key,)
    assert not lied.counts  # neither counts
    for one, other in itertools.product(itertools.combinations(FOUR, 3), repeat=2):
        twice = shown(list(one), list(other)).check()
        assert twice.counts
        assert set(twice.operators) == {each.public_key for each in one if each in other}
        assert len(twice.operators) >= OPERATORS.least_liars == 2
    with pytest.raises(ProofError, match="no operator signed both"):
        shown(FOUR[:2], FOUR[2:]).check()
    with pytest.raises(ProofError, match="continues the 7"):
        Histories(SIGNED, (note_of(HEAD, FOUR[:1], []), note_of(HEAD, FOUR[:1], []))).check()
