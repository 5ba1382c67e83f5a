"""DHTNode: a DHT for asyncio, with the names that Python hivemind's has; and DHTID, where a key is held."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Union

from . import _msgpack
from .multiaddr import Multiaddr
from .peer_id import PeerID
from .timed import DHTExpiration, ValueWithExpiration
from .validation import RecordValidatorBase

if TYPE_CHECKING:
    from .dht import DHT


class DHTID(int):
    """A place in the DHT: a number of 160 bits."""

    HASH_NBYTES = 20
    MIN, MAX = 0, 1 << 160

    def __new__(cls, value: int) -> "DHTID":
        if not cls.MIN <= value < cls.MAX:
            raise ValueError(f"DHTID must be in [{cls.MIN}, {cls.MAX}) but got {value}")
        return super().__new__(cls, value)

    @classmethod
    def generate(cls, source: Optional[Any] = None, nbits: int = 255) -> "DHTID":
        """The place of a key; of no key, a random one."""
        if source is None:
            source = random.getrandbits(nbits).to_bytes(nbits, byteorder="big")
        data = source if isinstance(source, bytes) else _msgpack.dumps(source)
        return cls(int.from_bytes(hashlib.sha1(data).digest(), "big"))

    def xor_distance(self, other: Union["DHTID", Sequence["DHTID"]]) -> Union[int, List[int]]:
        if isinstance(other, int):
            return int(self) ^ int(other)
        return [int(self) ^ int(one) for one in other]

    def to_bytes(self, length: Any = HASH_NBYTES, byteorder: Any = "big", *, signed: bool = False) -> bytes:
        return super().to_bytes(length, byteorder, signed=signed)

    @classmethod
    def from_bytes(cls, raw: Any, byteorder: Any = "big", *, signed: bool = False) -> "DHTID":
        return cls(int.from_bytes(raw, byteorder, signed=signed))

    def __repr__(self) -> str:
        return f"DHTID({hex(self)})"

    def __bytes__(self) -> bytes:
        return self.to_bytes()


class DHTProtocol:
    """What of a node's protocol programs use."""

    serializer: Any = _msgpack
    IS_REGULAR_VALUE, IS_DICTIONARY = b"\xc0", b"\xc1"
    RESERVED_SUBKEYS = {IS_REGULAR_VALUE, IS_DICTIONARY}

    def __init__(self, dht: "DHT") -> None:
        self._dht = dht

    @property
    def client_mode(self) -> bool:
        return self._dht.client_mode

    @property
    def record_validator(self) -> RecordValidatorBase:
        """The only validator where there is one, else all of them together."""
        return self._dht._record_validator_of_node()

    async def call_ping(self, peer: PeerID, **_: Any) -> Optional[DHTID]:
        """The place of another node, if it answers."""
        place: Optional[DHTID] = await self._dht._ping(peer)
        return place


class DHTNode:
    """A node for asyncio. `await DHTNode.create(...)` makes one; DHT.run_coroutine hands that of a DHT over."""

    def __init__(self, dht: "DHT") -> None:
        self._dht = dht
        self.protocol = DHTProtocol(dht)

    @classmethod
    async def create(
        cls,
        *,
        initial_peers: Optional[Sequence[Union[Multiaddr, str]]] = None,
        record_validator: Optional[RecordValidatorBase] = None,
        **kwargs: Any,
    ) -> "DHTNode":
        """Joins a swarm, or begins one; see DHT for the keywords."""
        from .dht import DHT

        validators = () if record_validator is None else (record_validator,)
        dht = DHT(initial_peers, start=True, await_ready=False, record_validators=validators, **kwargs)
        await dht._ready_future()
        return cls(dht)

    @property
    def peer_id(self) -> PeerID:
        return self._dht.peer_id

    @property
    def client_mode(self) -> bool:
        return self._dht.client_mode

    async def get(self, key: Any, latest: bool = False, return_futures: bool = False, **kwargs: Any) -> Any:
        """The record of a key, or with `return_futures` a future of it; see DHT.get."""
        future = asyncio.wrap_future(self._dht.get(key, latest, return_future=True, **kwargs))
        return future if return_futures else await future

    async def get_many(
        self, keys: Iterable[Any], latest: bool = False, return_futures: bool = False, **kwargs: Any
    ) -> Dict[Any, Any]:
        """The records of several keys, None where there is none.

        :param return_futures: return a future for each key at once; one that is cancelled ends its search
        """
        if return_futures:
            return {key: await self.get(key, latest, return_futures=True, **kwargs) for key in keys}
        found: Dict[Any, Optional[ValueWithExpiration[Any]]] = await self._dht._get_many(list(keys), latest, **kwargs)
        return found

    async def store(
        self, key: Any, value: Any, expiration_time: DHTExpiration, subkey: Optional[Any] = None, **kwargs: Any
    ) -> bool:
        """Stores a record; see DHT.store."""
        stored: bool = await self._dht.store(key, value, expiration_time, subkey, return_future=True, **kwargs)
        return stored

    async def store_many(
        self,
        keys: List[Any],
        values: List[Any],
        expiration_time: Union[DHTExpiration, List[DHTExpiration]],
        subkeys: Optional[Union[Any, List[Any]]] = None,
        **kwargs: Any,
    ) -> Dict[Any, bool]:
        """Stores several records; returns which keys, or pairs of key and subkey, were stored. One that never could be,
        as it has expired or is too large, is logged, and does not keep the others from it."""
        times = [expiration_time] * len(keys) if isinstance(expiration_time, (int, float)) else list(expiration_time)
        parts = list(subkeys) if isinstance(subkeys, (list, tuple)) else [subkeys] * len(keys)
        if not len(keys) == len(values) == len(times) == len(parts):
            raise ValueError("keys, values, expirations and subkeys must be as many")
        stored = await self._dht._store_many(list(zip(keys, values, times, parts)), **kwargs)
        return {(key if part is None else (key, part)): ok for key, part, ok in zip(keys, parts, stored)}

    async def get_visible_maddrs(self, latest: bool = False) -> List[Multiaddr]:
        """The addresses by which others join."""
        maddrs: List[Multiaddr] = await self._dht._visible_maddrs()
        return maddrs

    async def shutdown(self, timeout: Optional[float] = None) -> None:
        """Leaves the swarm."""
        await self._dht._closing()
