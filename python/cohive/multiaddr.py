"""Multiaddr: an address of a peer, "/ip4/203.0.113.7/tcp/31337/p2p/Qm..."."""

from __future__ import annotations

import ipaddress
from typing import Any, Iterator, List, Tuple, Union

from .peer_id import _decode

_WITHOUT_VALUE = {"p2p-circuit", "quic", "quic-v1", "ws", "wss", "tls", "noise"}
_NAMES = {"dns", "dns4", "dns6", "dnsaddr"}


def _checked(protocol: str, value: str) -> str:
    """The value as it is written; ValueError where it is none."""
    if protocol == "ip4":
        return str(ipaddress.IPv4Address(value))
    if protocol == "ip6":
        return str(ipaddress.IPv6Address(value))
    if protocol in ("tcp", "udp"):
        if not (value.isascii() and value.isdigit() and int(value) < 1 << 16):
            raise ValueError(f"{value!r} is no port")
        return str(int(value))
    if protocol in _NAMES:
        if not value or any(character.isspace() for character in value):
            raise ValueError(f"{value!r} is no name")
        return value
    if protocol == "p2p":
        if len(_decode(value)) < 2:
            raise ValueError(f"{value!r} is no id of a peer")
        return value
    raise ValueError(f"{protocol!r} is no protocol of an address that cohive knows")


def _parts(text: str) -> List[Tuple[str, str]]:
    words = text.rstrip("/").split("/")
    if words[0] or len(words) < 2:
        raise ValueError("it must begin with /")
    parts, at = [], 1
    while at < len(words):
        protocol = "p2p" if words[at] == "ipfs" else words[at]
        if protocol in _WITHOUT_VALUE:
            parts.append((protocol, ""))
            at += 1
        elif at + 1 < len(words):
            parts.append((protocol, _checked(protocol, words[at + 1])))
            at += 2
        else:
            raise ValueError(f"{protocol!r} lacks its value")
    return parts


class Multiaddr:
    """An address as text, checked and in its usual form. Immutable, hashable.

    ``address["tcp"]`` is the value of a protocol, ``"p2p" in address`` tells whether it is there.
    """

    __slots__ = ("_parts", "_text")
    _parts: Tuple[Tuple[str, str], ...]
    _text: str

    def __init__(self, addr: Union[str, "Multiaddr"]) -> None:
        if isinstance(addr, Multiaddr):
            self._parts, self._text = addr._parts, addr._text
            return
        if not isinstance(addr, str):
            raise TypeError(f"an address is a text, not {type(addr).__name__}")
        try:
            self._parts = tuple(_parts(addr))
        except ValueError as error:
            raise ValueError(f"{addr!r} is no multiaddr: {error}") from None
        self._text = "".join(f"/{name}/{value}" if value else f"/{name}" for name, value in self._parts)

    def encapsulate(self, other: Union[str, "Multiaddr"]) -> "Multiaddr":
        """This address, followed by another one."""
        return Multiaddr(self._text + str(Multiaddr(other)))

    def decapsulate(self, other: Union[str, "Multiaddr"]) -> "Multiaddr":
        """This address up to the last place where the other one stands in it."""
        inner = str(Multiaddr(other))
        at = self._text.rfind(inner)
        if at < 0:
            raise ValueError(f"{self} does not include {inner}")
        return Multiaddr(self._text[:at])

    def value_for_protocol(self, proto: str) -> str:
        """The value of the first component of a protocol; KeyError where there is none."""
        for name, value in self._parts:
            if name == proto:
                return value
        raise KeyError(proto)

    def items(self) -> Tuple[Tuple[str, str], ...]:
        """The components: protocol and value."""
        return self._parts

    __getitem__ = value_for_protocol

    def __contains__(self, proto: object) -> bool:
        return any(name == proto for name, _ in self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, _ in self._parts])

    def __len__(self) -> int:
        return len(self._parts)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Multiaddr {self._text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Multiaddr) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> Any:
        return Multiaddr, (self._text,)
