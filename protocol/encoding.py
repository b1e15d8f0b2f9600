"""Deterministic CBOR (RFC 8949 section 4.2.1) of nested arrays of int, text and bytes; nothing else.

A record is a frozen dataclass whose fields are int, str, bytes, another record, or a tuple of these. It travels as the array of
its fields in order. Reading re-encodes and compares, so that one value has one byte string, and checks the exact type of
every field. A generic record, such as ``Signed[Claim]``, has its type argument as its first field, which is not encoded.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import cbor2

from manta_swarm.protocol.errors import EncodingError

Value: TypeAlias = Union[int, str, bytes, tuple["Value", ...]]  # noqa: UP007 - the recursive alias needs a string inside
Record = TypeVar("Record")

NOT_ENCODED = {"encoded": False}  # the metadata of a field that does not travel

MAX_DEPTH = 8
MAX_ITEMS = 65_536  # of one record, arrays counted: reading them takes 60 ms; a manifest of 4,096 prices has 12,300
_INT_LIMIT = 2**63
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} arrays"
# RFC 8949 section 3: the upper three bits of an item's first byte say what it is, the lower five its length or where that stands.
_BYTES, _TEXT, _ARRAY = 2, 3, 4
_ONE_BYTE, _EIGHT_BYTES = 24, 27

_Reader = Callable[[Any], Any]  # returns a value as what it is read as, or raises _Fault


def encode(value: Value) -> bytes:
    """Return the canonical bytes of ``value``.

    Raises:
        ValueError: the value holds anything but int, str, bytes and tuples, or is nested too deep.
    """
    _check(value, 0)
    return cbor2.dumps(value)


def _check(value: object, depth: int) -> None:
    """Refuse what cannot be encoded. Strings come first, they are the most."""
    kind = type(value)
    if kind is bytes or kind is str:
        return
    if kind is int:
        _check_range(cast(int, value))
    elif kind is tuple:
        if depth == MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        for item in cast(tuple[object, ...], value):
            _check(item, depth + 1)
    else:
        raise ValueError(f"{kind.__name__} cannot be encoded: use int, str, bytes or a tuple")


def _check_range(value: int) -> None:
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise ValueError(f"integer {value} does not fit in 64 bits")


def decode(data: bytes, *, max_bytes: int) -> Value:
    """Return the value whose canonical encoding is ``data``.

    Raises:
        EncodingError: too long, not CBOR, not of our types, or not canonical.
    """
    if len(data) > max_bytes:
        raise EncodingError(f"{len(data)} bytes where at most {max_bytes} are allowed")
    _check_shape(data)
    try:
        value = _freeze(cbor2.loads(data), 0)
        canonical = cbor2.dumps(value)
    except (cbor2.CBORError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise EncodingError(f"not canonical CBOR: {error}") from error
    if canonical != data:
        raise EncodingError("not the canonical encoding of its value")
    return value


def _check_shape(data: bytes) -> None:
    """Refuse all but one item made of integers, strings and arrays of a stated length, before the library reads it.

    It knows tags that a few bytes turn into endless work: shared references, regular expressions, numbers with huge exponents.
    What is refused costs little: no string is read, and an array that promises too many items is refused for its promise.
    """
    outer: list[int] = []  # for each array around the innermost one: its items still to come
    missing, items, offset = 1, 1, 0
    while True:
        while missing == 0:
            if not outer:
                if offset != len(data):
                    raise EncodingError("a string that is cut, or bytes after the end")
                return
            missing = outer.pop()
        if offset >= len(data):
            raise EncodingError("an array that is cut")
        head = data[offset]
        major, length = head >> 5, head & 31
        offset += 1
        if major > _ARRAY or length > _EIGHT_BYTES:
            raise EncodingError("CBOR of another kind than integers, strings and arrays of a stated length")
        if length >= _ONE_BYTE:
            size = 1 << (length - _ONE_BYTE)
            length = int.from_bytes(data[offset : offset + size], "big")
            offset += size
        missing -= 1
        if major == _ARRAY:
            items += length
            if items > MAX_ITEMS:
                raise EncodingError(f"more than {MAX_ITEMS} items in one record")
            if len(outer) == MAX_DEPTH:
                raise EncodingError(_TOO_DEEP)
            outer.append(missing)
            missing = length
        elif major >= _BYTES:
            offset += length


def _freeze(value: Any, depth: int) -> Value:
    """Return what the library read, its lists as tuples; that there are only integers and strings else ``_check_shape`` has seen to."""
    if type(value) is list:
        if depth == MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        # Most items are strings: no call for these, a log has tens of millions of them.
        return tuple([item if type(item) is bytes or type(item) is str else _freeze(item, depth + 1) for item in value])
    if type(value) is int:
        _check_range(value)
    leaf: Value = value
    return leaf


def pack(record: Any) -> bytes:
    """Return the canonical bytes of a record (a frozen dataclass, see the module)."""
    return encode(to_value(record))


def unpack(cls: type[Record], data: bytes, *, max_bytes: int) -> Record:
    """Return the record of type ``cls`` whose encoding is ``data``.

    Raises:
        EncodingError: as ``decode``, or the fields are not those of ``cls``, or its ``__post_init__`` refuses them.
    """
    return from_value(cls, decode(data, max_bytes=max_bytes))


def to_value(record: Any) -> Value:
    """Return a record as the nested tuple that ``encode`` takes."""
    kind = type(record)
    if kind is bytes or kind is int or kind is str:
        leaf: Value = record
        return leaf
    if dataclasses.is_dataclass(kind):
        return tuple([to_value(getattr(record, name)) for name in _field_names(kind)])
    if kind is tuple:
        return tuple([to_value(item) for item in record])
    other: Value = record  # nothing that ``encode`` takes
    return other


def from_value(cls: type[Record], value: Value) -> Record:
    """Return ``value``, a decoded array, as a record of type ``cls``.

    Raises:
        EncodingError: a field is missing, too many, or not exactly of its type; or ``__post_init__`` refuses it.
    """
    try:
        record: Record = _reader(cast(Hashable, cls))(value)
    except _Fault as fault:
        raise EncodingError(f"{_name_of(cls)}{''.join(reversed(fault.path))}: {fault}") from fault.__cause__
    return record


class _Fault(Exception):
    """A value is not of its type; ``path`` says where in the record, the innermost part first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []

    def at(self, part: str) -> "_Fault":
        """Return this, one part further out."""
        self.path.append(part)
        return self


@cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.metadata != NOT_ENCODED)


def _name_of(kind: Any) -> str:
    """Return a type's name as people write it: ``Claim``, ``Signed[Claim]``."""
    arguments = ", ".join(map(_name_of, get_args(kind)))
    return f"{get_origin(kind).__name__}[{arguments}]" if arguments else str(kind.__name__)


def _leaf(kind: Any) -> Any:
    """Return the type of a leaf; None, which no value's type is: it is something that is read in parts."""
    kind = getattr(kind, "__supertype__", kind)
    return kind if kind in (int, str, bytes) else None


@cache
def _reader(kind: Any) -> _Reader:
    """Return what reads a value as ``kind``; put together once, for a log has millions of records."""
    kind = getattr(kind, "__supertype__", kind)  # a NewType is checked as what it wraps
    origin, items = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(origin or kind):
        return _record_reader(origin or kind, items)
    if origin is tuple:
        return _row_reader(items[0]) if len(items) == 2 and items[1] is Ellipsis else _tuple_reader(items)

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _Fault(f"expected {kind.__name__}, not {type(value).__name__}")
        return value

    return read


def _record_reader(cls: Any, of: tuple[Any, ...]) -> _Reader:
    """Return what reads a record of class ``cls``, whose type arguments are ``of``."""
    hints = get_type_hints(cls)
    names = _field_names(cls)
    readers = [(_leaf(hints[name]), _reader(hints[name])) for name in names]

    def read(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(names):
            raise _Fault(f"expected an array of {len(names)}")
        arguments: list[Any] = []
        try:
            for (leaf, reader), item in zip(readers, value, strict=True):
                arguments.append(item if type(item) is leaf else reader(item))  # a leaf of its type is read as it is
        except _Fault as fault:
            raise fault.at(f".{names[len(arguments)]}") from fault.__cause__
        try:
            return cls(*of, *arguments)
        except ValueError as error:
            raise _Fault(str(error)) from error

    return read


def _row_reader(of: Any) -> _Reader:
    """Return what reads a tuple of any length."""
    leaf, reader = _leaf(of), _reader(of)

    def read(value: Any) -> Any:
        if type(value) is not tuple:
            raise _Fault("expected an array")
        if all(type(item) is leaf for item in value):
            return value
        return _read_each([reader] * len(value), value)

    return read


def _tuple_reader(of: Sequence[Any]) -> _Reader:
    """Return what reads a tuple with a type for each place."""
    readers = [_reader(kind) for kind in of]

    def read(value: Any) -> Any:
        if type(value) is not tuple:
            raise _Fault("expected an array")
        if len(value) != len(readers):
            raise _Fault(f"expected an array of {len(readers)}")
        return _read_each(readers, value)

    return read


def _read_each(readers: Sequence[_Reader], value: tuple[Any, ...]) -> tuple[Any, ...]:
    items: list[Any] = []
    try:
        for reader, item in zip(readers, value, strict=True):
            items.append(reader(item))
    except _Fault as fault:
        raise fault.at(f"[{len(items)}]") from fault.__cause__
    return tuple(items)
