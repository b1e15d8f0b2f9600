"""Tree heads against a head that Google's log of Go modules signed, and against notes that are none."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import EncodingError, SignatureError
from manta_swarm.protocol.merkle import root
from manta_swarm.protocol.notes import MAX_NOTE_BYTES, TreeHead, key_id, open_tree_head, origin, sign_tree_head
from manta_swarm.protocol.signing import Identity

# A checkpoint of sum.golang.org, and its key as the go command has it built in: "name+key id+base64(01 || key)".
GO_KEY = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
GO_TEXT = "go.sum database tree\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
GO_SIGNATURE = "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8="
GO_NAME, GO_KEY_ID, GO_ENCODED = GO_KEY.split("+", 2)
GO_PUBLIC = base64.b64decode(GO_ENCODED)[1:]
GO_NOTE = f"{GO_TEXT}\n— {GO_NAME} {GO_SIGNATURE}\n"

OPERATOR, OTHER = Identity(b"o" * 32), Identity(b"p" * 32)
NAME = origin(b"\xab" * 32)
HEAD = TreeHead(NAME, 3, root([b"l" * 32] * 3))
NOTE = sign_tree_head(HEAD, NAME, OPERATOR)


def signed(text: str, name: str = NAME, identity: Identity = OPERATOR) -> str:
    """A note of any text under a signature that holds."""
    return f"{text}\n— {name} {base64.b64encode(key_id(name, identity.public_key) + identity.sign_note(text)).decode()}\n"


def test_a_head_of_a_public_log_opens_with_that_log_s_key() -> None:
    assert key_id(GO_NAME, GO_PUBLIC).hex() == GO_KEY_ID
    head = open_tree_head(GO_NOTE, GO_NAME, GO_PUBLIC)
    assert (head.origin, head.size) == ("go.sum database tree", 20852163)
    assert base64.b64encode(head.root).decode() == "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
    with pytest.raises(SignatureError):
        open_tree_head(GO_NOTE.replace("20852163", "20852164"), GO_NAME, GO_PUBLIC)


def test_a_note_has_the_form_of_the_specification() -> None:
    key = base64.b64encode(HEAD.root).decode()
    text, _, signature = NOTE.partition("\n\n")
    assert text == f"manta/{'ab' * 32}\n3\n{key}"
    assert signature.startswith(f"— {NAME} ")
    assert signature.endswith("\n")
    assert signature.count("\n") == 1


@given(st.integers(0, 2**62), st.binary(min_size=32, max_size=32))
def test_every_head_comes_back(size: int, root_: bytes) -> None:
    head = TreeHead(NAME, size, root_)
    assert open_tree_head(sign_tree_head(head, NAME, OPERATOR), NAME, OPERATOR.public_key) == head


@given(st.data())
def test_a_changed_character_is_never_another_head(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(NOTE) - 1))
    changed = NOTE[:place] + data.draw(st.characters()) + NOTE[place + 1 :]
    try:
        head = open_tree_head(changed, NAME, OPERATOR.public_key)
    except (SignatureError, EncodingError):
        return
    assert changed == NOTE
    assert head == HEAD


def test_another_key_or_another_name_has_not_signed_it() -> None:
    with pytest.raises(SignatureError):
        open_tree_head(NOTE, NAME, OTHER.public_key)
    with pytest.raises(SignatureError):
        open_tree_head(NOTE, NAME + "x", OPERATOR.public_key)
    with pytest.raises(SignatureError):
        open_tree_head(sign_tree_head(HEAD, NAME, OTHER), NAME, OPERATOR.public_key)


def test_signatures_of_witnesses_are_passed_over_and_a_false_one_of_ours_is_not() -> None:
    witness = sign_tree_head(HEAD, "witness.example", OTHER).rpartition("\n\n")[2]
    own = NOTE.rpartition("\n\n")[2]
    text = NOTE.removesuffix(own)
    assert open_tree_head(text + witness + own + witness, NAME, OPERATOR.public_key) == HEAD
    assert open_tree_head(text + own * 2, NAME, OPERATOR.public_key) == HEAD
    false = f"— {NAME} {base64.b64encode(key_id(NAME, OPERATOR.public_key) + bytes(64)).decode()}\n"
    for lines in (witness, own + false, false + own):
        with pytest.raises(SignatureError):
            open_tree_head(text + lines, NAME, OPERATOR.public_key)


def test_a_long_post_quantum_signature_of_a_stranger_does_no_harm() -> None:
    line = f"— stranger {base64.b64encode(bytes(5000)).decode()}\n"
    assert open_tree_head(NOTE + line * 15, NAME, OPERATOR.public_key) == HEAD
    with pytest.raises(EncodingError):
        open_tree_head(NOTE + line * (MAX_NOTE_BYTES // len(line) + 1), NAME, OPERATOR.public_key)


ROOT = base64.b64encode(HEAD.root).decode()


NO_TREE_HEADS = [
    "\n",
    "\n\n",
    f"{NAME}\n",
    f"{NAME}\n3\n",
    f"\n3\n{ROOT}\n",
    f"{NAME}\n\n{ROOT}\n",
    f"{NAME}\n03\n{ROOT}\n",
    f"{NAME}\n-3\n{ROOT}\n",
    f"{NAME}\n+3\n{ROOT}\n",
    f"{NAME}\n 3\n{ROOT}\n",
    f"{NAME}\n٣\n{ROOT}\n",
    f"{NAME}\n{2**62 + 1}\n{ROOT}\n",
    f"{NAME}\n{'9' * 5000}\n{ROOT}\n",
    f"{NAME}\n3\n{ROOT[:-4]}\n",
    f"{NAME}\n3\n{ROOT.rstrip('=')}\n",
    f"{NAME}\n3\n {ROOT}\n",
    f"{NAME}\n3\n{ROOT}\n\n",
    f"{NAME}\n3\n{ROOT}\n\nextension\n",
    f"{NAME}\n3\n{base64.b64encode(bytes(31)).decode()}\n",
]


@pytest.mark.parametrize("text", NO_TREE_HEADS)
def test_a_signed_text_that_is_no_tree_head_is_refused(text: str) -> None:
    with pytest.raises(EncodingError):
        open_tree_head(signed(text), NAME, OPERATOR.public_key)


def test_extension_lines_are_allowed() -> None:
    assert open_tree_head(signed(f"{NAME}\n3\n{ROOT}\nan extension\n"), NAME, OPERATOR.public_key) == HEAD


def test_base64_with_spare_bits_set_is_refused() -> None:
    assert ROOT.endswith("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    spare = ROOT[:-2] + alphabet[alphabet.index(ROOT[-2]) + 1] + "="
    assert base64.b64decode(spare) == HEAD.root
    with pytest.raises(EncodingError):
        open_tree_head(signed(f"{NAME}\n3\n{spare}\n"), NAME, OPERATOR.public_key)


NO_NOTES = [
    "",
    "\n",
    "\n\n",
    "\n\n\n",
    NOTE[:-1],
    NOTE + "\n",
    NOTE + "— \n",
    NOTE + "— name\n",
    NOTE + "— na+me AAAAAAAA\n",
    NOTE + "— na\u00a0me AAAAAAAA\n",
    NOTE + "—  AAAAAAAA\n",
    NOTE + "- name AAAAAAAA\n",
    NOTE + "— name AAAA\n",
    NOTE + "— name AAAAAAA\n",
    NOTE + "— name AAAAAAAA \n",
    NOTE + "— name é\n",
    NOTE.replace("\n\n", "\n"),
    NOTE.replace("\n", "\r\n"),
    NOTE.replace("3", "3\t", 1),
    "\ud800" + NOTE,
]


@pytest.mark.parametrize("note", NO_NOTES)
def test_what_is_no_note_is_refused(note: str) -> None:
    with pytest.raises(EncodingError):
        open_tree_head(note, NAME, OPERATOR.public_key)


@pytest.mark.parametrize(
    "fields", [("", 0, bytes(32)), ("a\nb", 0, bytes(32)), ("a", -1, bytes(32)), ("a", 2**63, bytes(32)), ("a", 0, b"")]
)
def test_a_head_out_of_range_is_refused(fields: tuple[str, int, bytes]) -> None:
    with pytest.raises(ValueError, match=r"."):
        TreeHead(*fields)


@pytest.mark.parametrize("name", ["", "two words", "a+b", "a\nb", "a\u2003b"])
def test_a_name_that_may_not_stand_in_a_note_signs_nothing(name: str) -> None:
    with pytest.raises(ValueError, match="key name"):
        sign_tree_head(HEAD, name, OPERATOR)


def test_a_head_never_passes_for_a_signed_record() -> None:
    with pytest.raises(ValueError, match="record"):
        sign_tree_head(TreeHead("manta/claim/v1", 0, bytes(32)), NAME, OPERATOR)
