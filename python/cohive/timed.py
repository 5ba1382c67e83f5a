"""Times of the DHT: records end at a moment that all peers agree on, roughly."""

from __future__ import annotations

import time
from typing import Any, Generic, Iterator, TypeVar

T = TypeVar("T")

#: Unix seconds
DHTExpiration = float
#: Unix seconds now
get_dht_time = time.time
#: by which the clocks of two peers may differ
MAX_DHT_TIME_DISCREPANCY_SECONDS = 3


class ValueWithExpiration(Generic[T]):
    """A value, and when it ends: a pair that has names.

    :ivar value: what was stored; of a dictionary, subkey -> ValueWithExpiration
    :ivar expiration_time: Unix seconds; of a dictionary, that of its last entry
    """

    __slots__ = ("value", "expiration_time")
    value: T
    expiration_time: DHTExpiration

    def __init__(self, value: T, expiration_time: DHTExpiration) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "expiration_time", expiration_time)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a ValueWithExpiration does not change")

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.expiration_time))

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            return getattr(self, item)
        return (self.value, self.expiration_time)[item]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ValueWithExpiration):
            return bool(self.value == other.value and self.expiration_time == other.expiration_time)
        return (self.value, self.expiration_time) == other if isinstance(other, tuple) else False

    def __hash__(self) -> int:
        return hash((self.value, self.expiration_time))

    def __repr__(self) -> str:
        return f"ValueWithExpiration(value={self.value!r}, expiration_time={self.expiration_time!r})"

    def __reduce__(self) -> Any:
        return ValueWithExpiration, (self.value, self.expiration_time)
