"""libcohive.so, by ctypes. Calls give Python's global lock back while they run; no thread of the library takes it."""

from __future__ import annotations

import ctypes
import json
import math
import os
import pathlib
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ._version import __version__

ABI_VERSION = 3


class Bytes(ctypes.Structure):
    """cohive_bytes"""

    _fields_ = [("data", POINTER(c_uint8)), ("size", c_size_t)]


class Tensor(ctypes.Structure):
    """cohive_tensor"""

    _fields_ = [
        ("data", c_void_p),
        ("shape", POINTER(c_uint32)),
        ("dtype", c_char_p),
        ("codec", c_char_p),
        ("size", c_size_t),
        ("rank", c_int32),
        ("requires_grad", c_int32),
        ("on_gpu", c_int32),
    ]


class Event(ctypes.Structure):
    """cohive_event"""

    _fields_ = [
        ("kind", c_int32),
        ("level", c_int32),
        ("tag", c_uint64),
        ("module", c_char_p),
        ("text", c_void_p),
        ("size", c_size_t),
    ]


FloatPointer = POINTER(c_float)
STEP_CALL = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(FloatPointer), c_uint64)
LOAD_CALL = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_uint8), c_size_t, POINTER(Tensor), c_size_t, c_uint64)
INTERRUPTED_CALL = ctypes.CFUNCTYPE(c_int32, c_void_p)
SUMS_CALL = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(FloatPointer), POINTER(c_double), POINTER(c_double))


class TrainerCalls(ctypes.Structure):
    """cohive_trainer_calls"""

    _fields_ = [
        ("context", c_void_p),
        ("step", STEP_CALL),
        ("load", LOAD_CALL),
        ("interrupted", INTERRUPTED_CALL),
        ("sums", SUMS_CALL),
    ]


class StepReport(ctypes.Structure):
    """cohive_step_report"""

    _fields_ = [
        ("epoch", c_uint64),
        ("grad_group", c_uint64),
        ("state_group", c_uint64),
        ("bytes_sent", c_uint64),
        ("epoch_changed", c_int32),
        ("loaded_state", c_int32),
        ("updated", c_int32),
        ("cleared", c_int32),
    ]


Handle = c_void_p
Data = POINTER(c_uint8)

# Every function of cohive.h; tests/test_native.py compares them with the header.
PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    "cohive_abi_version": (c_int32, []),
    "cohive_version": (c_char_p, []),
    "cohive_revision": (c_char_p, []),
    "cohive_last_error": (c_char_p, []),
    "cohive_code_name": (c_char_p, [c_int32]),
    "cohive_bytes_free": (None, [POINTER(Bytes)]),
    "cohive_event_next": (c_int32, [c_int64, POINTER(Event)]),
    "cohive_event_wake": (None, []),
    "cohive_event_answer": (c_int32, [c_uint64, c_int32]),
    "cohive_log_configure": (c_int32, [c_char_p]),
    "cohive_ticket_wait": (c_int32, [Handle, c_int64]),
    "cohive_ticket_result": (c_int32, [Handle, POINTER(Data), POINTER(c_size_t)]),
    "cohive_ticket_notify": (c_int32, [Handle, c_uint64]),
    "cohive_ticket_cancel": (c_int32, [Handle]),
    "cohive_ticket_free": (None, [Handle]),
    "cohive_validator_rsa": (c_int32, [Data, c_size_t, POINTER(Handle)]),
    "cohive_validator_custom": (c_int32, [c_uint64, c_int32, c_double, POINTER(Handle)]),
    "cohive_validator_free": (None, [Handle]),
    "cohive_validator_describe": (c_int32, [Handle, POINTER(Bytes)]),
    "cohive_rsa_sign": (c_int32, [Handle, Data, c_size_t, POINTER(Bytes)]),
    "cohive_rsa_verify": (c_int32, [c_char_p, Data, c_size_t, Data, c_size_t]),
    "cohive_swarm_open": (c_int32, [c_char_p, POINTER(Handle), c_size_t, POINTER(Handle), POINTER(Handle)]),
    "cohive_swarm_status": (c_int32, [Handle, POINTER(Handle)]),
    "cohive_swarm_close": (c_int32, [Handle, POINTER(Handle)]),
    "cohive_swarm_free": (None, [Handle]),
    "cohive_dht_store": (c_int32, [Handle, Data, c_size_t, c_char_p, POINTER(Handle)]),
    "cohive_dht_get": (c_int32, [Handle, Data, c_size_t, c_char_p, POINTER(Handle)]),
    "cohive_dht_ping": (c_int32, [Handle, c_char_p, c_char_p, POINTER(Handle)]),
    "cohive_dht_add_validator": (c_int32, [Handle, Handle]),
    "cohive_codec_encode": (c_int32, [POINTER(Tensor), POINTER(Bytes), POINTER(c_int32)]),
    "cohive_codec_decode": (c_int32, [POINTER(Tensor), POINTER(Bytes)]),
    "cohive_statistics_make_usable": (c_int32, [POINTER(Tensor), POINTER(c_char_p), c_size_t]),
    "cohive_averager_open": (c_int32, [Handle, c_char_p, c_uint64, POINTER(Tensor), c_size_t, POINTER(Handle)]),
    "cohive_averager_buffer": (c_int32, [Handle, c_size_t, POINTER(POINTER(c_float)), POINTER(c_size_t)]),
    "cohive_averager_begin": (c_int32, [Handle, Data, c_size_t, c_char_p, POINTER(Handle), POINTER(Handle)]),
    "cohive_averager_group_bits": (c_int32, [Handle, POINTER(Bytes)]),
    "cohive_averager_set_group_bits": (c_int32, [Handle, c_char_p]),
    "cohive_averager_share": (c_int32, [Handle, c_int32, c_double]),
    "cohive_averager_download": (c_int32, [Handle, c_char_p, POINTER(Handle)]),
    "cohive_averager_close": (c_int32, [Handle, c_double, POINTER(Handle)]),
    "cohive_averager_free": (None, [Handle]),
    "cohive_round_trigger": (c_int32, [Handle, c_double]),
    "cohive_round_reschedule": (c_int32, [Handle, c_double]),
    "cohive_round_stage": (c_int32, [Handle, POINTER(c_int32)]),
    "cohive_round_free": (None, [Handle]),
    "cohive_state_answer": (c_int32, [c_uint64, Data, c_size_t, POINTER(Tensor), c_size_t]),
    "cohive_tracker_open": (c_int32, [Handle, c_char_p, POINTER(Handle)]),
    "cohive_tracker_report": (c_int32, [Handle, c_uint64, c_double]),
    "cohive_tracker_enter": (c_int32, [Handle, c_uint64]),
    "cohive_tracker_resume": (c_int32, [Handle]),
    "cohive_tracker_snapshot": (c_int32, [Handle, POINTER(Bytes)]),
    "cohive_tracker_close": (c_int32, [Handle, POINTER(Handle)]),
    "cohive_tracker_free": (None, [Handle]),
    "cohive_ticket_tensor": (c_int32, [Handle, c_size_t, POINTER(Tensor)]),
    "cohive_trainer_open": (
        c_int32,
        [
            Handle,
            c_char_p,
            POINTER(Tensor),
            c_size_t,
            POINTER(Tensor),
            c_size_t,
            POINTER(TrainerCalls),
            POINTER(Handle),
        ],
    ),
    "cohive_trainer_describe": (
        c_int32,
        [Handle, Data, c_size_t, POINTER(Tensor), POINTER(c_char_p), c_size_t, c_char_p, POINTER(FloatPointer)],
    ),
    "cohive_trainer_step": (c_int32, [Handle, POINTER(FloatPointer), c_int64, c_double, POINTER(StepReport)]),
    "cohive_gpu_count": (c_int32, []),
    "cohive_trainer_stream": (c_int32, [Handle, c_void_p]),
    "cohive_trainer_settle": (c_int32, [Handle]),
    "cohive_trainer_forget": (c_int32, [Handle]),
    "cohive_trainer_changes": (c_int32, [Handle, c_int32]),
    "cohive_trainer_load": (c_int32, [Handle, POINTER(c_int32)]),
    "cohive_trainer_average": (c_int32, [Handle, POINTER(c_uint64)]),
    "cohive_trainer_finish": (c_int32, [Handle, POINTER(c_uint64)]),
    "cohive_trainer_restore": (c_int32, [Handle, c_uint64]),
    "cohive_trainer_save": (c_int32, [Handle, c_char_p]),
    "cohive_trainer_resume": (c_int32, [Handle, c_char_p, POINTER(c_uint64)]),
    "cohive_trainer_loss": (c_int32, [Handle, c_double]),
    "cohive_trainer_status": (c_int32, [Handle, POINTER(Bytes)]),
    "cohive_trainer_close": (c_int32, [Handle]),
    "cohive_trainer_free": (None, [Handle]),
    "cohive_dht_key_id": (c_int32, [Data, c_size_t, Data]),
}

OK, PENDING, INVALID_ARGUMENT, TIMEOUT, CANCELLED, CLOSED, NOT_FOUND, UNREACHABLE, REFUSED, INVALID_RECORD = range(10)
LIMIT_EXCEEDED, IN_USE, IO, UNAUTHORIZED, FORKED, FAILED, INTERNAL = range(10, 17)


def library_path() -> str:
    """Where the library is: $COHIVE_LIBRARY, or beside this file."""
    given = os.environ.get("COHIVE_LIBRARY")
    return given or str(pathlib.Path(__file__).resolve().parent / "_lib" / "libcohive.so")


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"cohive's library cannot be loaded: {error}") from None
    for name, (result, arguments) in PROTOTYPES.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise ImportError(
                f"{path} has no {name}: it is not the library of cohive {__version__}; reinstall"
            ) from None
        function.restype, function.argtypes = result, arguments
    if loaded.cohive_abi_version() != ABI_VERSION:
        found = loaded.cohive_version().decode()
        raise ImportError(f"libcohive is {found}, the package {__version__}: reinstall cohive")
    return loaded


lib = _load()


class CohiveError(RuntimeError):
    """What went wrong, in one sentence.

    :ivar code: the name that cohive.h has for it: "timeout", "unreachable", "refused", ...
    """

    code = "failed"


class InvalidArgument(CohiveError, ValueError):
    """An option, address, key or value that cannot be meant."""


class TimedOut(CohiveError, TimeoutError):
    """A deadline has passed."""


class Unreachable(CohiveError, ConnectionError):
    """Nobody answered."""


_CLASSES = {
    INVALID_ARGUMENT: InvalidArgument,
    LIMIT_EXCEEDED: InvalidArgument,
    TIMEOUT: TimedOut,
    UNREACHABLE: Unreachable,
}


def error_of(code: int, sentence: str) -> CohiveError:
    """The exception for a code of cohive.h."""
    error = _CLASSES.get(code, CohiveError)(sentence)
    error.code = lib.cohive_code_name(code).decode()
    return error


def check(code: int) -> None:
    """Raises for any code but OK."""
    if code != OK:
        raise error_of(code, lib.cohive_last_error().decode("utf-8", "replace"))


def options_text(options: Mapping[str, Any], endless: Sequence[str] = ()) -> bytes:
    """Options as the library reads them. ValueError for a number that is none.

    :param endless: names of seconds that may be infinite
    """
    given = dict(options)
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            if name not in endless or value != math.inf:
                raise ValueError(f"{name} must be a finite number, not {value}")
            given[name] = "inf"
    return json.dumps(given, allow_nan=False).encode()


def data(content: bytes) -> Any:
    """Bytes as a parameter; they must live as long as the call."""
    return ctypes.cast(ctypes.c_char_p(content), Data)


def taken(result: Bytes) -> bytes:
    """The content of bytes that the library has made, which are freed."""
    content = ctypes.string_at(result.data, result.size)
    lib.cohive_bytes_free(byref(result))
    return content


def tensor_array(described: Sequence[Any]) -> Any:
    """An array of tensors, each of which has its struct as `tensor`, as a parameter."""
    return (Tensor * max(len(described), 1))(*[one.tensor for one in described])


def handle_array(handles: Sequence[Optional[int]]) -> Any:
    """An array of handles as a parameter."""
    return (Handle * max(len(handles), 1))(*handles)
