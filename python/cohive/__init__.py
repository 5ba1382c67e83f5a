"""cohive: train one network together on unreliable, mixed machines.

What stands here is imported when it is used first: ``import cohive`` alone loads neither the library nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

from ._version import __version__

if TYPE_CHECKING:
    from ._native import CohiveError as CohiveError
    from .averaging import AllreduceException as AllreduceException
    from .averaging import AveragingMode as AveragingMode
    from .averaging import AveragingStage as AveragingStage
    from .averaging import DecentralizedAverager as DecentralizedAverager
    from .averaging import StepControl as StepControl
    from .compression import BlockwiseQuantization as BlockwiseQuantization
    from .compression import CompressionBase as CompressionBase
    from .compression import CompressionInfo as CompressionInfo
    from .compression import Float16Compression as Float16Compression
    from .compression import NoCompression as NoCompression
    from .compression import PerTensorCompression as PerTensorCompression
    from .compression import Quantile8BitQuantization as Quantile8BitQuantization
    from .compression import RoleAdaptiveCompression as RoleAdaptiveCompression
    from .compression import ScaledFloat16Compression as ScaledFloat16Compression
    from .compression import SizeAdaptiveCompression as SizeAdaptiveCompression
    from .compression import TensorRole as TensorRole
    from .compression import Uniform8BitQuantization as Uniform8BitQuantization
    from .compression import deserialize_torch_tensor as deserialize_torch_tensor
    from .compression import serialize_torch_tensor as serialize_torch_tensor
    from .crypto import RSAPrivateKey as RSAPrivateKey
    from .crypto import RSAPublicKey as RSAPublicKey
    from .dht import DHT as DHT
    from .dht import start_bootstrap as start_bootstrap
    from .distributed import LocalOptimizer as LocalOptimizer
    from .futures import Future as Future
    from .grad_scaler import GradScaler as GradScaler
    from .joining import join_line as join_line
    from .multiaddr import Multiaddr as Multiaddr
    from .node import DHTID as DHTID
    from .node import DHTNode as DHTNode
    from .optim import GradientAverager as GradientAverager
    from .optim import PowerSGDGradientAverager as PowerSGDGradientAverager
    from .optim import TrainingAverager as TrainingAverager
    from .optimizer import Optimizer as Optimizer
    from .peer_id import PeerID as PeerID
    from .progress import ProgressTracker as ProgressTracker
    from .schema import BytesWithPublicKey as BytesWithPublicKey
    from .schema import SchemaValidator as SchemaValidator
    from .state_averager import TrainingStateAverager as TrainingStateAverager
    from .timed import DHTExpiration as DHTExpiration
    from .timed import ValueWithExpiration as ValueWithExpiration
    from .timed import get_dht_time as get_dht_time
    from .validation import CompositeValidator as CompositeValidator
    from .validation import DHTRecord as DHTRecord
    from .validation import RecordValidatorBase as RecordValidatorBase
    from .validation import RSASignatureValidator as RSASignatureValidator

_WHERE = {
    "CohiveError": "_native",
    "DecentralizedAverager": "averaging",
    "StepControl": "averaging",
    "AveragingStage": "averaging",
    "AveragingMode": "averaging",
    "AllreduceException": "averaging",
    "CompressionBase": "compression",
    "CompressionInfo": "compression",
    "TensorRole": "compression",
    "NoCompression": "compression",
    "Float16Compression": "compression",
    "ScaledFloat16Compression": "compression",
    "Uniform8BitQuantization": "compression",
    "Quantile8BitQuantization": "compression",
    "BlockwiseQuantization": "compression",
    "SizeAdaptiveCompression": "compression",
    "RoleAdaptiveCompression": "compression",
    "PerTensorCompression": "compression",
    "serialize_torch_tensor": "compression",
    "deserialize_torch_tensor": "compression",
    "RSAPrivateKey": "crypto",
    "RSAPublicKey": "crypto",
    "DHT": "dht",
    "start_bootstrap": "dht",
    "LocalOptimizer": "distributed",
    "Future": "futures",
    "GradientAverager": "optim",
    "PowerSGDGradientAverager": "optim",
    "TrainingAverager": "optim",
    "GradScaler": "grad_scaler",
    "join_line": "joining",
    "Multiaddr": "multiaddr",
    "DHTID": "node",
    "DHTNode": "node",
    "Optimizer": "optimizer",
    "PeerID": "peer_id",
    "BytesWithPublicKey": "schema",
    "SchemaValidator": "schema",
    "ProgressTracker": "progress",
    "TrainingStateAverager": "state_averager",
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
