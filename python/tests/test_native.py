"""The prototypes that ctypes has, and those of cohive.h."""

import ctypes
import json
import pathlib
import re

import pytest

from cohive import _native

HEADER = pathlib.Path(__file__).resolve().parents[2] / "include/cohive/cohive.h"
TYPES = {
    "void*": ctypes.c_void_p,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
    "const char*": ctypes.c_char_p,
    "void": None,
    "uint8_t*": _native.Data,
    "const uint8_t*": _native.Data,
    "const uint8_t**": ctypes.POINTER(_native.Data),
    "size_t*": ctypes.POINTER(ctypes.c_size_t),
    "int32_t*": ctypes.POINTER(ctypes.c_int32),
    "int64_t*": ctypes.POINTER(ctypes.c_int64),
    "double*": ctypes.POINTER(ctypes.c_double),
    "cohive_bytes*": ctypes.POINTER(_native.Bytes),
    "const uint32_t*": ctypes.POINTER(ctypes.c_uint32),
    "uint64_t*": ctypes.POINTER(ctypes.c_uint64),
    "const char* const*": ctypes.POINTER(ctypes.c_char_p),
    "float* const*": ctypes.POINTER(_native.FloatPointer),
    "const float* const*": ctypes.POINTER(_native.FloatPointer),
    "const cohive_trainer_calls*": ctypes.POINTER(_native.TrainerCalls),
    "cohive_step_report*": ctypes.POINTER(_native.StepReport),
    "float**": ctypes.POINTER(ctypes.POINTER(ctypes.c_float)),
    "const cohive_tensor*": ctypes.POINTER(_native.Tensor),
    "cohive_tensor*": ctypes.POINTER(_native.Tensor),
    "cohive_event*": ctypes.POINTER(_native.Event),
    "cohive_validator* const*": ctypes.POINTER(_native.Handle),
}


def type_of(text: str):
    text = re.sub(r"\s+", " ", text).strip().replace(" *", "*")
    if text in TYPES:
        return TYPES[text]
    handle = re.fullmatch(r"(?:const )?cohive_\w+(\*+)", text)
    assert handle, f"a type that the test does not know: {text}"
    return _native.Handle if handle[1] == "*" else ctypes.POINTER(_native.Handle)


def functions():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    for result, name, parameters in re.findall(r"COHIVE_API ([^;()]*?)(\w+)\(([^)]*)\);", text):
        types = []
        for parameter in parameters.split(","):
            parameter = parameter.strip()
            if parameter == "void":
                continue
            array = parameter.endswith("]")
            kind = re.sub(r"\w+(\[\d+\])?$", "", parameter)
            types.append(type_of(kind.strip() + ("*" if array else "")))
        yield name, type_of(result), types


@pytest.mark.skipif(not HEADER.exists(), reason="the sources are not here")
def test_prototypes_are_those_of_the_header():
    declared = {name: (result, types) for name, result, types in functions()}
    assert len(declared) > 20
    assert declared == _native.PROTOTYPES


@pytest.mark.skipif(not HEADER.exists(), reason="the sources are not here")
def test_codes_are_those_of_the_header():
    codes = dict(re.findall(r"^  COHIVE_([A-Z_]+) = (\d+)", HEADER.read_text(), re.MULTILINE))
    for name, number in codes.items():
        if not name.startswith("EVENT_") and hasattr(_native, name):
            assert getattr(_native, name) == int(number)
    assert {name for name in codes if not hasattr(_native, name)} <= {name for name in codes if "_" in name}
    assert str(_native.ABI_VERSION) == re.search(r"COHIVE_ABI_VERSION (\d+)", HEADER.read_text())[1]


def test_the_version_is_that_of_the_library():
    import cohive

    assert _native.lib.cohive_version().decode() == cohive.__version__


def test_another_library_is_refused(run_python):
    result = run_python("import os; os.environ['COHIVE_LIBRARY'] = 'libc.so.6'; import cohive; cohive.DHT(start=True)")
    assert result.returncode == 1
    assert "it is not the library of cohive" in result.stderr.splitlines()[-1]


def test_numbers_of_options_are_finite_but_for_seconds_without_a_limit():
    given = dict(timeout=float("inf"), weight=1.5)
    assert json.loads(_native.options_text(given, endless=("timeout",))) == dict(timeout="inf", weight=1.5)
    for wrong in (given, dict(timeout=float("nan")), dict(timeout=float("-inf"))):
        with pytest.raises(ValueError, match="timeout must be a finite number, not"):
            _native.options_text(wrong, endless=() if wrong is given else ("timeout",))
