"""MSGPack as Python hivemind writes it: strict types, a tuple is extension 0x40 around an array.

Values from peers come checked by the library, which bounds their depth and their number.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, List, Tuple, Type

TUPLE = 0x40
#: stands for what strangers have written and nobody can decode
UNREADABLE: Any = object()
_DEPTH = 64  # levels that a value may have, as in the library
_DEPTH_OF_ANSWERS = 8  # levels that the library's answers have around values, at most

_encoders: Dict[Type[Any], Tuple[int, Callable[[Any], bytes]]] = {}
_decoders: Dict[int, Callable[[bytes], Any]] = {}


def register(kind: Type[Any], code: int, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
    """Has values of exactly this type become extensions, and these values of this type."""
    _encoders[kind] = (code, encode)
    _decoders[code] = decode


def _head(out: List[bytes], size: int, fix: int, fix_limit: int, codes: Tuple[int, int, int]) -> None:
    """The head of text, bytes, arrays and maps; a code of 0 has no such form."""
    if size < fix_limit:
        out.append(bytes((fix | size,)))
    elif size < 1 << 8 and codes[0]:
        out.append(struct.pack(">BB", codes[0], size))
    elif size < 1 << 16:
        out.append(struct.pack(">BH", codes[1], size))
    elif size < 1 << 32:
        out.append(struct.pack(">BI", codes[2], size))
    else:
        raise ValueError("msgpack holds no more than 2^32 - 1 bytes or items")


def _integer(out: List[bytes], value: int) -> None:
    if 0 <= value < 0x80:
        out.append(bytes((value,)))
    elif -0x20 <= value < 0:
        out.append(struct.pack(">b", value))
    elif value >= 0:
        for code, form, limit in ((0xCC, ">BB", 8), (0xCD, ">BH", 16), (0xCE, ">BI", 32), (0xCF, ">BQ", 64)):
            if value < 1 << limit:
                out.append(struct.pack(form, code, value))
                return
        raise OverflowError(f"{value} is too large for msgpack")
    else:
        for code, form, limit in ((0xD0, ">Bb", 7), (0xD1, ">Bh", 15), (0xD2, ">Bi", 31), (0xD3, ">Bq", 63)):
            if value >= -(1 << limit):
                out.append(struct.pack(form, code, value))
                return
        raise OverflowError(f"{value} is too small for msgpack")


def _extension(out: List[bytes], code: int, data: bytes) -> None:
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(len(data))
    if fixed is not None:
        out.append(bytes((fixed,)))
    else:
        _head(out, len(data), 0, 0, (0xC7, 0xC8, 0xC9))
    out.append(struct.pack(">b", code))
    out.append(data)


def _put(out: List[bytes], value: Any, depth: int) -> None:
    if depth > _DEPTH:
        raise ValueError(f"a value that is nested more than {_DEPTH} times")
    kind = type(value)
    if value is None:
        out.append(b"\xc0")
    elif kind is bool:
        out.append(b"\xc3" if value else b"\xc2")
    elif kind is int:
        _integer(out, value)
    elif kind is float:
        out.append(struct.pack(">Bd", 0xCB, value))
    elif kind is str:
        data = value.encode("utf-8", "strict")
        _head(out, len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB))
        out.append(data)
    elif kind in (bytes, bytearray, memoryview):
        data = bytes(value)
        _head(out, len(data), 0, 0, (0xC4, 0xC5, 0xC6))
        out.append(data)
    elif kind is list:
        _head(out, len(value), 0x90, 16, (0, 0xDC, 0xDD))
        for item in value:
            _put(out, item, depth + 1)
    elif kind is dict:
        _head(out, len(value), 0x80, 16, (0, 0xDE, 0xDF))
        for key, item in value.items():
            _put(out, key, depth + 1)
            _put(out, item, depth + 1)
    elif kind in _encoders:
        code, encode = _encoders[kind]
        _extension(out, code, encode(value))
    elif isinstance(value, tuple):
        inner: List[bytes] = []
        _put(inner, list(value), depth + 1)
        _extension(out, TUPLE, b"".join(inner))
    else:
        raise TypeError(f"can not serialize {kind.__name__!r} object")


def dumps(value: Any) -> bytes:
    """Encodes a value. TypeError for what msgpack does not know, subclasses of its types included."""
    out: List[bytes] = []
    _put(out, value, 0)
    return b"".join(out)


class _Reader:
    def __init__(self, data: bytes, lenient: bool) -> None:
        self.data, self.lenient = data, lenient
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise ValueError("msgpack that ends too early")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: str, size: int) -> Any:
        return struct.unpack(form, self.take(size))[0]

    def items(self, count: int, depth: int) -> List[Any]:
        if count > len(self.data) - self.at:
            raise ValueError("msgpack that ends too early")
        return [self.value(depth) for _ in range(count)]

    def mapping(self, count: int, depth: int) -> Dict[Any, Any]:
        if count > len(self.data) - self.at:
            raise ValueError("msgpack that ends too early")
        result = {}
        for _ in range(count):
            key = self.value(depth)
            if not isinstance(key, (str, bytes)) and key is not UNREADABLE:
                raise ValueError("a map of msgpack whose key is neither text nor bytes")
            result[key] = self.value(depth)
        return result

    def decoded(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:  # a decoder of the user's may raise anything
            if self.lenient:
                return UNREADABLE
            raise ValueError(f"bytes of msgpack that do not decode: {error}") from error

    def text(self, size: int) -> Any:
        return self.decoded(bytes.decode, self.take(size))

    def extension(self, size: int, depth: int) -> Any:
        code = self.number(">b", 1)
        data = self.take(size)
        if code in _decoders:
            return self.decoded(_decoders[code], data)
        if code == TUPLE:
            items = _Reader(data, self.lenient).whole(depth)
            if not isinstance(items, list):
                raise ValueError("a tuple of msgpack that is no array")
            return tuple(items)
        return data

    def whole(self, depth: int) -> Any:
        value = self.value(depth)
        if self.at != len(self.data):
            raise ValueError("bytes that follow a msgpack value")
        return value

    def value(self, depth: int) -> Any:
        if depth > _DEPTH + _DEPTH_OF_ANSWERS:
            raise ValueError(f"a value that is nested more than {_DEPTH} times")
        head = self.take(1)[0]
        if head < 0x80:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head < 0x90:
            return self.mapping(head & 0x0F, depth + 1)
        if head < 0xA0:
            return self.items(head & 0x0F, depth + 1)
        if head < 0xC0:
            return self.text(head & 0x1F)
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head in _NUMBERS:
            return self.number(*_NUMBERS[head])
        if head in _SIZED:
            kind, form, size = _SIZED[head]
            count = self.number(form, size) if form else size
            if kind == "bin":
                return self.take(count)
            if kind == "str":
                return self.text(count)
            if kind == "array":
                return self.items(count, depth + 1)
            if kind == "map":
                return self.mapping(count, depth + 1)
            return self.extension(count, depth + 1)
        raise ValueError("a byte that msgpack does not use")


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCA: (">f", 4),
    0xCB: (">d", 8),
    0xCC: (">B", 1),
    0xCD: (">H", 2),
    0xCE: (">I", 4),
    0xCF: (">Q", 8),
    0xD0: (">b", 1),
    0xD1: (">h", 2),
    0xD2: (">i", 4),
    0xD3: (">q", 8),
}
_SIZED = {
    0xC4: ("bin", ">B", 1),
    0xC5: ("bin", ">H", 2),
    0xC6: ("bin", ">I", 4),
    0xC7: ("ext", ">B", 1),
    0xC8: ("ext", ">H", 2),
    0xC9: ("ext", ">I", 4),
    0xD4: ("ext", "", 1),
    0xD5: ("ext", "", 2),
    0xD6: ("ext", "", 4),
    0xD7: ("ext", "", 8),
    0xD8: ("ext", "", 16),
    0xD9: ("str", ">B", 1),
    0xDA: ("str", ">H", 2),
    0xDB: ("str", ">I", 4),
    0xDC: ("array", ">H", 2),
    0xDD: ("array", ">I", 4),
    0xDE: ("map", ">H", 2),
    0xDF: ("map", ">I", 4),
}


def loads(data: bytes, lenient: bool = False) -> Any:
    """Decodes exactly one value. ValueError for anything else.

    :param lenient: put UNREADABLE in the place of texts and extensions that do not decode: one stranger's value must
        not spoil those of others
    """
    return _Reader(bytes(data), lenient).whole(0)


def is_readable(value: Any) -> bool:
    """Tells whether nothing in a value is UNREADABLE."""
    if isinstance(value, dict):
        return all(map(is_readable, value)) and all(map(is_readable, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_readable, value))
    return value is not UNREADABLE
