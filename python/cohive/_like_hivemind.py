"""What of hivemind programs import beside its API, under its names; see as_hivemind."""

from __future__ import annotations

import logging
from typing import Any, Optional

from . import _msgpack
from ._native import CohiveError
from .futures import Future


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
    """Lines go where Python's loggers send them."""
