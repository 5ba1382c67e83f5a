"""`python -m cohive.as_hivemind script.py ...` or `-m module ...`: runs it where `import hivemind` means cohive.

What cohive does not have (MoE, the daemon, hivemind's internals) is not there: importing it is an ImportError that
names it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import runpy
import sys
import types
from typing import Any, Dict, Iterator, List, Optional, Sequence

_DHT = "DHT:dht DHTNode:node DHTID:node"
_VALIDATION = "CompositeValidator:validation DHTRecord:validation RecordValidatorBase:validation"
_TIMED = "DHTExpiration:timed ValueWithExpiration:timed get_dht_time:timed MAX_DHT_TIME_DISCREPANCY_SECONDS:timed"
_COMPRESSIONS = " ".join(
    f"{name}:compression"
    for name in """CompressionBase CompressionInfo TensorRole CompressionType NoCompression Float16Compression
    ScaledFloat16Compression Uniform8BitQuantization Quantile8BitQuantization BlockwiseQuantization
    SizeAdaptiveCompression RoleAdaptiveCompression PerTensorCompression serialize_torch_tensor
    deserialize_torch_tensor""".split()
)
_AVERAGING = "DecentralizedAverager:averaging StepControl:averaging"
_OPTIM = (
    "GradientAverager:optim PowerSGDGradientAverager:optim TrainingAverager:optim TrainingStateAverager:state_averager "
    "ProgressTracker:progress Optimizer:optimizer GradScaler:grad_scaler"
)
_NESTED = "nested_flatten:optim nested_pack:optim"
_SPEED = "PerformanceEMA:progress"
_DESCRIPTORS = "TensorDescriptor:compression"
_LOGGING = "get_logger:_like_hivemind use_hivemind_log_handler:_like_hivemind"

# module of hivemind -> NAME:MODULE of cohive
_MODULES: Dict[str, str] = {
    "hivemind": f"{_DHT} {_TIMED} get_logger:_like_hivemind {_COMPRESSIONS} {_AVERAGING} {_OPTIM}",
    "hivemind.averaging": _AVERAGING,
    "hivemind.averaging.averager": _AVERAGING,
    "hivemind.averaging.control": "AveragingStage:averaging StepControl:averaging",
    "hivemind.averaging.allreduce": "AveragingMode:averaging AllreduceException:averaging",
    "hivemind.averaging.matchmaking": "MatchmakingException:averaging",
    "hivemind.averaging.partition": "AllreduceException:averaging DEFAULT_PART_SIZE_BYTES:averaging",
    "hivemind.averaging.key_manager": "GroupKeyManager:_like_hivemind",
    "hivemind.averaging.load_balancing": "load_balance_peers:_like_hivemind",
    "hivemind.compression": _COMPRESSIONS,
    "hivemind.compression.base": _COMPRESSIONS,
    "hivemind.compression.adaptive": f"{_COMPRESSIONS} AdaptiveCompressionBase:compression",
    "hivemind.compression.floating": _COMPRESSIONS,
    "hivemind.compression.quantization": _COMPRESSIONS,
    "hivemind.compression.serialization": _COMPRESSIONS,
    "hivemind.proto": "",
    "hivemind.proto.runtime_pb2": "CompressionType:compression",
    "hivemind.optim": _OPTIM,
    "hivemind.optim.grad_averager": "GradientAverager:optim GradientAveragerFactory:optim",
    "hivemind.optim.power_sgd_averager": "PowerSGDGradientAverager:optim",
    "hivemind.optim.grad_scaler": "GradScaler:grad_scaler",
    "hivemind.optim.optimizer": "Optimizer:optimizer",
    "hivemind.optim.progress_tracker": "ProgressTracker:progress GlobalTrainingProgress:progress "
    f"LocalTrainingProgress:progress {_SPEED}",
    "hivemind.optim.state_averager": "TrainingStateAverager:state_averager "
    "ZERO_GRAD_SET_TO_NONE_DEFAULT:state_averager LRSchedulerBase:state_averager",
    "hivemind.optim.training_averager": "TrainingAverager:optim",
    "hivemind.dht": _DHT,
    "hivemind.dht.dht": "DHT:dht",
    "hivemind.dht.node": "DHTNode:node DHTID:node",
    "hivemind.dht.protocol": "DHTProtocol:node",
    "hivemind.dht.routing": "DHTID:node",
    "hivemind.dht.crypto": "RSASignatureValidator:validation",
    "hivemind.dht.schema": "SchemaValidator:schema BytesWithPublicKey:schema conbytes:schema",
    "hivemind.dht.validation": _VALIDATION,
    "hivemind.p2p": "PeerID:peer_id P2P:_like_hivemind P2PDaemonError:_like_hivemind",
    "hivemind.utils": f"{_TIMED} {_LOGGING} {_NESTED} {_SPEED} {_DESCRIPTORS} MPFuture:_like_hivemind "
    "MSGPackSerializer:_like_hivemind",
    "hivemind.utils.crypto": "RSAPrivateKey:crypto RSAPublicKey:crypto PrivateKey:crypto PublicKey:crypto",
    "hivemind.utils.logging": _LOGGING,
    "hivemind.utils.nested": _NESTED,
    "hivemind.utils.networking": "choose_ip_address:_like_hivemind log_visible_maddrs:_like_hivemind",
    "hivemind.utils.mpfuture": "MPFuture:_like_hivemind",
    "hivemind.utils.multiaddr": "Multiaddr:multiaddr",
    "hivemind.utils.performance_ema": _SPEED,
    "hivemind.utils.serializer": "MSGPackSerializer:_like_hivemind",
    "hivemind.utils.streaming": "split_for_streaming:compression combine_from_streaming:compression",
    "hivemind.utils.tensor_descr": _DESCRIPTORS,
    "hivemind.utils.timed_storage": _TIMED,
    "lightning_hivemind": "",
    "lightning_hivemind.strategy": "HivemindStrategy:_lightning_hivemind HiveMindScheduler:_lightning_hivemind",
}


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[types.ModuleType]:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        names = dict(pair.split(":") for pair in _MODULES[module.__name__].split())

        def find(name: str) -> Any:
            if name in names:
                value = getattr(importlib.import_module(f"cohive.{names[name]}"), name)
            elif f"{module.__name__}.{name}" in _MODULES:
                value = importlib.import_module(f"{module.__name__}.{name}")
            elif name == "__version__":
                value = "1.1.12"
            elif name.startswith("__"):
                raise AttributeError(name)
            else:
                raise AttributeError(f"cohive has no {module.__name__}.{name}")
            setattr(module, name, value)
            return value

        module.__getattr__ = find  # type: ignore[method-assign]
        module.__all__ = list(names)  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[types.ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name.split(".")[0] not in ("hivemind", "lightning_hivemind"):
            return None
        if name not in _MODULES:
            # Without the name: `from hivemind import X`, which looks for a module X where there is no attribute, drops
            # an error that has it, and raises one of its own that says less.
            raise ModuleNotFoundError(f"cohive has no {name}")
        return importlib.util.spec_from_loader(name, _Loader(), is_package=True)


def is_installed() -> bool:
    """Whether `import hivemind` means cohive."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def install() -> None:
    """Has `import hivemind` mean cohive in this process from now on, unless hivemind was imported before."""
    if is_installed():
        return
    if "hivemind" in sys.modules:
        raise RuntimeError("hivemind was imported before")
    sys.meta_path.insert(0, _Finder())
    importlib.import_module("multiprocessing.connection")  # programs count on hivemind's having done so


def program() -> List[str]:
    """The words with which Python runs this program, but its arguments: a script, or "-m" and a module."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "__main__" if spec is None else str(spec.name)  # a folder or an archive has this name, too
    words = [sys.argv[0]] if name == "__main__" else ["-m", name.removesuffix(".__main__")]
    return ["-m", "cohive.as_hivemind", *words] if is_installed() else words


@contextlib.contextmanager
def started_again() -> Iterator[None]:
    """A context for what starts this program again by `__main__` and sys.argv, as Lightning does for its ranks: these
    show as_hivemind, which runs the program, in place of the program itself."""
    main_module, argv = sys.modules["__main__"], sys.argv
    spec, words = main_module.__spec__, program()[2:]
    main_module.__spec__, sys.argv = __spec__, [argv[0], *words, *argv[1:]]
    try:
        yield
    finally:
        main_module.__spec__, sys.argv = spec, argv


def main(arguments: List[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit("usage: python -m cohive.as_hivemind script.py [arguments], or -m module [arguments]")
    install()
    # Not with "__main__", which its server would import before: each of its processes does that by itself.
    multiprocessing.set_forkserver_preload(["cohive._hivemind_preload"])
    if arguments[0] == "-m":
        if len(arguments) < 2:
            sys.exit("-m needs a module")
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        if not getattr(sys.flags, "safe_path", False):  # of Python 3.11
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))  # the script's own modules, as python has it
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    importlib.import_module("cohive.as_hivemind").main(sys.argv[1:])  # the module that others import
