"""What of hivemind programs import beside its API, under its names; see as_hivemind."""

from __future__ import annotations

import ipaddress
import logging
import os
from typing import Any, Optional, Sequence

from . import _events, _msgpack
from ._native import CohiveError
from .futures import Future
from .multiaddr import Multiaddr


class MPFuture(Future):
    """A future; there are no other processes that could end it."""

    @classmethod
    def reset_backend(cls) -> None:
        """Nothing to do."""


class P2P:
    """The daemon of hivemind, which cohive has no need of."""

    @classmethod
    async def create(cls, *_: Any, **__: Any) -> "P2P":
        raise NotImplementedError("cohive has no daemon of its own: give the options to DHT()")


#: what joining a swarm raises
P2PDaemonError = CohiveError


class MSGPackSerializer:
    """See _msgpack."""

    dumps = staticmethod(_msgpack.dumps)
    loads = staticmethod(_msgpack.loads)

    @classmethod
    def ext_serializable(cls, type_code: int) -> Any:
        """Has a class with packb() and unpackb() become an extension."""

        def wrap(kind: Any) -> Any:
            _msgpack.register(kind, type_code, lambda value: bytes(value.packb()), kind.unpackb)
            return kind

        return wrap


class GroupKeyManager:
    """A part of hivemind's matchmaking, which is the library's here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("cohive's library keeps the keys of groups by itself")


def load_balance_peers(*_: Any, **__: Any) -> Any:
    """A part of hivemind's averaging, which is the library's here."""
    raise NotImplementedError("cohive's library divides the work of a group by itself")


def get_logger(name: Optional[str] = None) -> logging.Logger:
    """The logger of this name."""
    return logging.getLogger(name)


def use_hivemind_log_handler(where: Any) -> None:
    """With "in_root_logger", lines of all loggers go to stderr, from $HIVEMIND_LOGLEVEL on, which is INFO otherwise;
    levels of single modules, as in "info,dht=debug", are those of cohive's loggers."""
    root = logging.getLogger()
    if getattr(where, "value", where) != "in_root_logger" or root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] [%(name)s] %(message)s"))
    root.addHandler(handler)
    given = [part.strip() for part in _events.as_level(os.environ.get("HIVEMIND_LOGLEVEL", "")).split(",")]
    root.setLevel(next((_events.LEVELS[part] for part in given if part in _events.LEVELS), logging.INFO))


def choose_ip_address(
    maddrs: Sequence[Any], prefer_global: bool = True, protocol_priority: Sequence[str] = ("ip4", "ip6")
) -> str:
    """The IP address by which others most likely reach this machine."""
    found = [Multiaddr(str(one)) for one in maddrs]
    for is_global in (prefer_global, not prefer_global):
        for protocol in protocol_priority:
            for one in found:
                if protocol not in one:
                    continue
                value = one.value_for_protocol(protocol)
                if ipaddress.ip_address(value).is_global == is_global:
                    return value
    raise ValueError(f"there is no IP address in {maddrs}")


def log_visible_maddrs(visible_maddrs: Sequence[Any], only_p2p: bool) -> None:
    """Logs how others join."""
    shown = (
        {f"/p2p/{Multiaddr(str(one)).value_for_protocol('p2p')}" for one in visible_maddrs}
        if only_p2p
        else visible_maddrs
    )
    get_logger(__name__).info("To connect other peers, use --initial_peers %s", " ".join(map(str, shown)))
