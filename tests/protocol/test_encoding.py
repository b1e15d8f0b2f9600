"""The encoding against RFC 8949's own examples, and the reader against everything that is not canonical."""

from dataclasses import dataclass
from typing import Any, NewType

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.encoding import MAX_DEPTH, MAX_ITEMS, Value, decode, encode, pack, unpack
from manta_swarm.protocol.errors import EncodingError

LIMIT = 4096
values = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.text(max_size=40) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=30).map(tuple),
    max_leaves=40,
)

# RFC 8949 appendix A.
EXAMPLES: list[tuple[Value, str]] = [
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (1000, "1903e8"),
    (65_536, "1a00010000"),
    (1_000_000_000_000, "1b000000e8d4a51000"),
    (-1, "20"),
    (-1000, "3903e7"),
    (-(2**63), "3b7fffffffffffffff"),
    (b"", "40"),
    (b"\x01\x02\x03\x04", "4401020304"),
    ("", "60"),
    ("IETF", "6449455446"),
    ("水", "63e6b0b4"),
    ((), "80"),
    ((1, (2, 3), (4, 5)), "8301820203820405"),
]

REFUSED = {
    "nothing": "",
    "a second value": "0000",
    "an integer in two bytes that fits one": "1817",
    "an integer in three bytes": "190001",
    "an integer in five bytes": "1a00000001",
    "an integer in nine bytes": "1b0000000000000001",
    "a negative integer in two bytes": "3800",
    "a length in two bytes": "580101",
    "a text's length in three bytes": "79000161",
    "an array's length in two bytes": "980100",
    "a string of indefinite length": "5f4101ff",
    "a text of indefinite length": "7f6161ff",
    "an array of indefinite length": "9f00ff",
    "a lone break": "ff",
    "a reserved length": "1c",
    "false": "f4",
    "true in an array": "81f5",
    "null": "f6",
    "undefined": "f7",
    "a simple value": "f8ff",
    "a half float": "f93c00",
    "a double": "fb3ff0000000000000",
    "an empty map": "a0",
    "a map with a key twice": "a2616100616100",
    "a tagged integer": "c100",
    "a bignum that fits an integer": "c24101",
    "a bignum": "c249010000000000000000",
    "the self-description tag": "d9d9f700",
    "a set": "d9010280",
    "a regular expression": "d823626161",
    "an integer above 63 bits": "1b8000000000000000",
    "an integer below 63 bits": "3b8000000000000000",
    "a cut integer": "19",
    "a cut string": "4401",
    "a string longer than memory": "5b7fffffffffffffff",
    "an array longer than memory": "9b7fffffffffffffff",
    "a cut array": "8201",
    "text that is not UTF-8": "61ff",
    "a surrogate in UTF-8": "63eda080",
    "arrays too deep": "81" * MAX_DEPTH + "80",
    "arrays far too deep": "81" * 4000 + "00",
}


@pytest.mark.parametrize(("value", "data"), EXAMPLES)
def test_values_are_encoded_as_the_standard_says(value: Value, data: str) -> None:
    assert encode(value).hex() == data
    assert decode(bytes.fromhex(data), max_bytes=LIMIT) == value


@given(values)
def test_every_value_comes_back(value: Value) -> None:
    assert decode(encode(value), max_bytes=2**20) == value


@given(st.binary(max_size=60))
def test_bytes_are_refused_or_the_one_encoding_of_their_value(data: bytes) -> None:
    try:
        value = decode(data, max_bytes=LIMIT)
    except EncodingError:
        return
    assert encode(value) == data


@given(values, st.data())
def test_a_changed_byte_is_refused_or_another_value(value: Value, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        changed = decode(bytes(encoded), max_bytes=2**20)
    except EncodingError:
        return
    assert changed != value


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_canonical_is_refused(data: str) -> None:
    with pytest.raises(EncodingError):
        decode(bytes.fromhex(data), max_bytes=2**20)


def test_shared_references_that_would_unfold_without_end_are_refused() -> None:
    bomb = b"\x87" + b"\xd8\x1c\x81\x00"  # tag 28: may be referred to
    for number in range(6):  # each array is 200 references (tag 29) to the one before it
        bomb += b"\xd8\x1c\x98\xc8" + (b"\xd8\x1d" + bytes([number])) * 200
    assert len(cbor2.loads(bomb)) == 7  # the library alone takes it: 5 kB that are 200^6 values
    with pytest.raises(EncodingError):  # unfolded, this would not end within the suite's timeout, nor fit the memory
        decode(bomb, max_bytes=2**20)


class Read(bytes):
    """Bytes that count how often one of them, or some, are looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(key)


def array_head(count: int) -> bytes:
    return b"\x9a" + count.to_bytes(4, "big")


MANY = 1_500_000
COSTLY = {
    "empty arrays side by side": b"\x80" * MANY,
    "integers side by side": b"\x00" * MANY,
    "a long array of empty arrays": array_head(MANY) + b"\x80" * MANY,
    "a long array of empty strings": array_head(MANY) + b"\x40" * MANY,
    "arrays in arrays": b"\x81" * MANY,
    "arrays of two in arrays of two": b"\x82" * MANY,
    "long arrays in a long array": array_head(MANY // 2) + (b"\x99\xff\xff" + b"\x00" * 65_535) * 10,
    "arrays that add up": array_head(10) + (b"\x99\xff\x00" + b"\x00" * 65_280) * 10,
    "an array longer than its bytes": b"\x99\xff\x00",
    "a string longer than its bytes": b"\x5a\x00\xff\xff\xff" + bytes(100),
    "an array of strings of nothing, cut": b"\x99\xff\x00" + b"\x40" * 1000,
}


@pytest.mark.parametrize("data", COSTLY.values(), ids=COSTLY.keys())
def test_bytes_that_would_cost_much_are_refused_early_and_never_reach_the_library(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbor2, "loads", lambda _: pytest.fail("decoded"))
    monkeypatch.setattr(Read, "looks", 0)
    with pytest.raises(EncodingError):
        decode(Read(data), max_bytes=2**21)
    assert Read.looks <= MAX_ITEMS + 100


def test_a_long_string_is_not_looked_at_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Read, "looks", 0)
    assert decode(Read(encode((b"x" * MANY, "y" * MANY))), max_bytes=2**22) == (b"x" * MANY, "y" * MANY)
    assert Read.looks < 10


def test_a_record_has_only_so_many_items() -> None:
    most = tuple(range(MAX_ITEMS - 1))  # and the array itself
    assert decode(encode(most), max_bytes=2**20) == most
    assert decode(encode((most[:1000], *most[1001:-1])), max_bytes=2**20)
    with pytest.raises(EncodingError, match=f"more than {MAX_ITEMS} items"):
        decode(encode((*most, 0)), max_bytes=2**20)
    with pytest.raises(EncodingError, match=f"more than {MAX_ITEMS} items"):
        decode(encode((most[:1000], *most[999:])), max_bytes=2**20)


def test_too_many_bytes_are_refused_before_they_are_read() -> None:
    data = encode(b"0" * 100)
    assert decode(data, max_bytes=len(data)) == b"0" * 100
    with pytest.raises(EncodingError, match="at most"):
        decode(data, max_bytes=len(data) - 1)


@pytest.mark.parametrize("value", [True, None, 1.0, [1], {1: 2}, (1, True), bytearray(b"a"), 2**63, -(2**63) - 1, "\ud800"])
def test_other_values_cannot_be_encoded(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(value)


def test_arrays_may_be_nested_only_so_deep() -> None:
    value: Value = ()
    for _ in range(MAX_DEPTH - 1):
        value = (value,)
    assert decode(encode(value), max_bytes=LIMIT) == value
    with pytest.raises(ValueError, match="nested"):
        encode((value,))


Digest = NewType("Digest", bytes)


@dataclass(frozen=True, slots=True)
class Inner:
    digest: Digest
    pair: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Outer:
    number: int
    text: str
    inner: Inner
    many: tuple[Inner, ...]

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


inners = st.builds(Inner, digest=st.binary().map(Digest), pair=st.tuples(st.text(), st.integers(0, 9)))
outers = st.builds(Outer, number=st.integers(0, 2**63 - 1), text=st.text(), inner=inners, many=st.lists(inners, max_size=3).map(tuple))


@given(outers)
def test_every_record_comes_back_with_its_types(record: Outer) -> None:
    read = unpack(Outer, pack(record), max_bytes=2**20)
    assert read == record
    assert type(read.inner) is Inner
    assert all(type(inner) is Inner for inner in read.many)


GOOD = (1, "a", (b"d", ("p", 2)), ())


@pytest.mark.parametrize(
    "value",
    [
        1,
        "a",
        (),
        GOOD[:3],
        (*GOOD, 0),
        (b"1", *GOOD[1:]),
        ("1", *GOOD[1:]),
        (-1, *GOOD[1:]),
        (1, b"a", *GOOD[2:]),
        (1, 1, *GOOD[2:]),
        (1, "a", b"d", ()),
        (1, "a", ("d", ("p", 2)), ()),
        (1, "a", (b"d", ("p",)), ()),
        (1, "a", (b"d", ("p", 2, 3)), ()),
        (1, "a", (b"d", ("p", "2")), ()),
        (1, "a", (b"d", b"p"), ()),
        (*GOOD[:3], b""),
        (*GOOD[:3], ((b"d",),)),
        (*GOOD[:3], (b"d",)),
    ],
)
def test_fields_that_are_missing_too_many_or_of_another_type_are_refused(value: Value) -> None:
    with pytest.raises(EncodingError):
        unpack(Outer, encode(value), max_bytes=LIMIT)
