"""cohive: train one network together on unreliable, mixed machines.

What stands here is imported when it is used first: ``import cohive`` alone loads neither the library nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

from ._version import __version__

if TYPE_CHECKING:
    from ._native import CohiveError as CohiveError
    from .crypto import RSAPrivateKey as RSAPrivateKey
    from .crypto import RSAPublicKey as RSAPublicKey
    from .dht import DHT as DHT
    from .dht import start_bootstrap as start_bootstrap
    from .futures import Future as Future
    from .multiaddr import Multiaddr as Multiaddr
    from .node import DHTID as DHTID
    from .node import DHTNode as DHTNode
    from .peer_id import PeerID as PeerID
    from .schema import BytesWithPublicKey as BytesWithPublicKey
    from .schema import SchemaValidator as SchemaValidator
    from .timed import DHTExpiration as DHTExpiration
    from .timed import ValueWithExpiration as ValueWithExpiration
    from .timed import get_dht_time as get_dht_time
    from .validation import CompositeValidator as CompositeValidator
    from .validation import DHTRecord as DHTRecord
    from .validation import RecordValidatorBase as RecordValidatorBase
    from .validation import RSASignatureValidator as RSASignatureValidator

_WHERE = {
    "CohiveError": "_native",
    "RSAPrivateKey": "crypto",
    "RSAPublicKey": "crypto",
    "DHT": "dht",
    "start_bootstrap": "dht",
    "Future": "futures",
    "Multiaddr": "multiaddr",
    "DHTID": "node",
    "DHTNode": "node",
    "PeerID": "peer_id",
    "BytesWithPublicKey": "schema",
    "SchemaValidator": "schema",
    "DHTExpiration": "timed",
    "ValueWithExpiration": "timed",
    "get_dht_time": "timed",
    "CompositeValidator": "validation",
    "DHTRecord": "validation",
    "RecordValidatorBase": "validation",
    "RSASignatureValidator": "validation",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'cohive' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(set(globals()) | set(__all__))
