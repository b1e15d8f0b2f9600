"""Deterministic CBOR (RFC 8949 section 4.2.1) of nested arrays of int, text and bytes; nothing else.

A record is a frozen dataclass whose fields are int, str, bytes, another record, or a tuple of these. It travels as the array of
its fields in order. Reading re-encodes and compares, so that one value has one byte string, and checks the exact type of
every field.
"""

import dataclasses
from functools import cache
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import cbor2

from protocol.errors import EncodingError

Value: TypeAlias = Union[int, str, bytes, tuple["Value", ...]]  # noqa: UP007 - the recursive alias needs a string inside
Record = TypeVar("Record")

MAX_DEPTH = 8
MAX_ITEMS = 65_536  # of one record, arrays counted: reading them takes 60 ms; a manifest of 4,096 prices has 12,300
_INT_LIMIT = 2**63
# RFC 8949 section 3: the upper three bits of an item's first byte say what it is, the lower five its length or where that stands.
_BYTES, _TEXT, _ARRAY = 2, 3, 4
_ONE_BYTE, _EIGHT_BYTES = 24, 27


def encode(value: Value) -> bytes:
    """Return the canonical bytes of ``value``.

    Raises:
        ValueError: the value holds anything but int, str, bytes and tuples, or is nested too deep.
    """
    _check(value, 0)
    return cbor2.dumps(value)


def _check(value: object, depth: int) -> None:
    if type(value) is tuple:
        if depth == MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} arrays")
        for item in value:
            _check(item, depth + 1)
    elif type(value) is int:
        if not -_INT_LIMIT <= value < _INT_LIMIT:
            raise ValueError(f"integer {value} does not fit in 64 bits")
    elif type(value) is not str and type(value) is not bytes:
        raise ValueError(f"{type(value).__name__} cannot be encoded: use int, str, bytes or a tuple")


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
        canonical = encode(value)
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
                raise EncodingError(f"nested deeper than {MAX_DEPTH} arrays")
            outer.append(missing)
            missing = length
        elif major >= _BYTES:
            offset += length


def _freeze(value: Any, depth: int) -> Value:
    if type(value) is list:
        if depth == MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} arrays")
        return tuple(_freeze(item, depth + 1) for item in value)
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
    if dataclasses.is_dataclass(record):
        return tuple(to_value(getattr(record, field.name)) for field in dataclasses.fields(record))
    if type(record) is tuple:
        return tuple(to_value(item) for item in record)
    value: Value = record
    return value


def from_value(cls: type[Record], value: Value) -> Record:
    """Return ``value``, a decoded array, as a record of type ``cls``.

    Raises:
        EncodingError: a field is missing, too many, or not exactly of its type; or ``__post_init__`` refuses it.
    """
    record: Record = _typed(cls, value, cls.__name__)
    return record


@cache
def _field_types(cls: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls))


def _typed(kind: Any, value: Any, where: str) -> Any:
    kind = getattr(kind, "__supertype__", kind)  # a NewType is checked as what it wraps
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        fields = _field_types(kind)
        if type(value) is not tuple or len(value) != len(fields):
            raise EncodingError(f"{where}: expected an array of {len(fields)}")
        arguments = [_typed(hint, item, f"{where}.{name}") for (name, hint), item in zip(fields, value, strict=True)]
        try:
            return kind(*arguments)
        except ValueError as error:
            raise EncodingError(f"{where}: {error}") from error
    if get_origin(kind) is tuple:
        if type(value) is not tuple:
            raise EncodingError(f"{where}: expected an array")
        items = get_args(kind)
        if len(items) == 2 and items[1] is Ellipsis:
            return tuple(_typed(items[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(items):
            raise EncodingError(f"{where}: expected an array of {len(items)}")
        return tuple(_typed(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(items, value, strict=True)))
    if type(value) is not kind:
        raise EncodingError(f"{where}: expected {kind.__name__}, not {type(value).__name__}")
    return value
