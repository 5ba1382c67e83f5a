#!/usr/bin/env python3
"""Packs the Python package into a wheel: python/cohive, the library, the programs. Prints the path of the wheel.

The tag is manylinux, where the library needs nothing but what that promises, which is looked up in the library itself;
or that of this machine, whose libraries it needs then.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from python_package import ROOT, metadata, package_version
from third_party import licenses

PROGRAMS = ("bootstrap", "monitor", "dht")
# What pip puts into PATH: all of them are one program, since a wheel holds no links.
SCRIPT = """#!/bin/sh
exec "$(dirname -- "$(readlink -f -- "$0")")/cohive" {name} "$@"
"""
# What every Linux with such a glibc has, by PEP 600.
LIBRARIES = {"libc.so.6", "libm.so.6", "libresolv.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1"}
NEWEST_GLIBC = (2, 34)
TIME = (2020, 1, 1, 0, 0, 0)  # of every file: the same sources make the same wheel


def run(*command: object) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def check_library(library: pathlib.Path, tools: str) -> None:
    """Ends the program where the library would not load on every Linux of the tag, or shows names of others."""
    needed = set(re.findall(r"NEEDED\s+(\S+)", run(tools.format("objdump"), "-p", library)))
    if other := {name for name in needed - LIBRARIES if not name.startswith("ld-linux")}:
        sys.exit(f"{library} needs {', '.join(sorted(other))}, which not every Linux has")
    symbols = run(tools.format("objdump"), "-T", library)
    newest = max(tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", symbols))
    if newest[:2] > NEWEST_GLIBC:
        names = re.findall(rf"GLIBC_{'.'.join(map(str, newest))}\)?\s+(\w+)", symbols)
        sys.exit(f"{library} needs glibc {'.'.join(map(str, newest))} for {', '.join(names)}")
    listed = run(tools.format("nm"), "-D", "--defined-only", "--extern-only", library)
    shown = {line.split()[2] for line in listed.splitlines()}
    if foreign := {name for name in shown if not name.startswith("cohive_")}:
        sys.exit(f"{library} shows {', '.join(sorted(foreign)[:5])}")


def stripped(binary: pathlib.Path, folder: pathlib.Path, tools: str) -> bytes:
    copy = folder / binary.name
    run(tools.format("strip"), "-o", copy, binary)
    return copy.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libcohive.so, built by the preset wheel")
    parser.add_argument("--program", type=pathlib.Path, required=True, help="the programs in one, of the same preset")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder for the wheel")
    parser.add_argument("--this-machine", action="store_true", help="a wheel for systems like this one alone")
    parser.add_argument("--machine", default=platform.machine(), help="the processor it is for; default: this one's")
    parser.add_argument("--no-cuda", action="store_true", help="the library is built without CUDA")
    options = parser.parse_args()

    tools = "{}" if options.machine == platform.machine() else "llvm-{}-19"  # binutils know one processor
    if not options.this_machine:
        check_library(options.library, tools)
    version = package_version()
    system = "linux" if options.this_machine else "manylinux_{}_{}".format(*NEWEST_GLIBC)
    tag = f"py3-none-{system}_{options.machine}"
    info, scripts = f"cohive-{version}.dist-info", f"cohive-{version}.data/scripts"

    files: dict[str, tuple[bytes, int]] = {}
    for path in sorted((ROOT / "python/cohive").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and "_lib" not in path.parts:
            files[str(path.relative_to(ROOT / "python"))] = (path.read_bytes(), 0o644)
    with tempfile.TemporaryDirectory() as folder:
        files["cohive/_lib/libcohive.so"] = (stripped(options.library.resolve(), pathlib.Path(folder), tools), 0o755)
        files[f"{scripts}/cohive"] = (stripped(options.program, pathlib.Path(folder), tools), 0o755)
    for name in PROGRAMS:
        files[f"{scripts}/cohive-{name}"] = (SCRIPT.format(name=name).encode(), 0o755)
    files[f"{info}/licenses/LICENSE"] = ((ROOT / "LICENSE").read_bytes(), 0o644)
    others = {} if options.this_machine else licenses(not options.no_cuda)
    texts = {f"third-party/{name}.txt": text for name, text in others.items()}
    files.update({f"{info}/licenses/{name}": (text, 0o644) for name, text in texts.items()})
    files[f"{info}/METADATA"] = (metadata(texts).encode(), 0o644)
    wheel_file = f"Wheel-Version: 1.0\nGenerator: cohive\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = (wheel_file.encode(), 0o644)
    record = ""
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = ((record + f"{info}/RECORD,,\n").encode(), 0o644)

    path = options.out / f"cohive-{version}-{tag}.whl"
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (content, mode) in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)
    os.replace(part, path)
    if not options.this_machine and (auditwheel := shutil.which("auditwheel")):
        told = re.sub(r"\s+", " ", run(auditwheel, "show", path))
        if f'"manylinux_{NEWEST_GLIBC[0]}_{NEWEST_GLIBC[1]}_' not in told:
            sys.exit(f"auditwheel is of another opinion: {told}")
    print(path)


main()
