"""PeerID: who a peer is, the hash of its public key."""

from __future__ import annotations

import functools
from typing import Any

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}


def _encode(data: bytes) -> str:
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def _decode(text: str) -> bytes:
    number = 0
    for letter in text:
        if letter not in _VALUES:
            raise ValueError(f"{letter!r} is no character of base58")
        number = number * 58 + _VALUES[letter]
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


@functools.total_ordering
class PeerID:
    """A peer's id, as it stands behind /p2p/ in addresses. Immutable, hashable, and equal to its base58 text and bytes.

    :param peer_id_bytes: the multihash
    """

    __slots__ = ("_bytes", "_text")

    def __init__(self, peer_id_bytes: bytes) -> None:
        if not isinstance(peer_id_bytes, bytes) or not peer_id_bytes:
            raise TypeError("PeerID takes the bytes of an id; PeerID.from_base58() takes its text")
        self._bytes = peer_id_bytes
        self._text = _encode(peer_id_bytes)

    @classmethod
    def from_base58(cls, base58_id: str) -> "PeerID":
        """The id of a text such as "12D3KooW..." or "Qm..."."""
        return cls(_decode(base58_id))

    def to_bytes(self) -> bytes:
        """The multihash."""
        return self._bytes

    def to_base58(self) -> str:
        """The text, as it stands in addresses."""
        return self._text

    pretty = to_string = to_base58

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<libp2p.peer.id.ID ({self._text})>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PeerID):
            return self._bytes == other._bytes
        if isinstance(other, str):
            return self._text == other
        return self._bytes == other if isinstance(other, bytes) else False

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, PeerID):
            raise TypeError(f"'<' not supported between instances of 'PeerID' and '{type(other)}'")
        return self._text < other._text

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> Any:
        return PeerID, (self._bytes,)
