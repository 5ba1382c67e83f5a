"""The programs that the wheel brings: `python -m cohive.bootstrap` is `cohive-bootstrap`, and so on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import shutil
import sys
import sysconfig
from typing import Iterator, NoReturn


def _places(name: str) -> Iterator[pathlib.Path]:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        # pip has noted where it has put a program: with --user that is no folder of this Python.
        for file in importlib.metadata.files("cohive") or ():
            if file.name == name:
                yield pathlib.Path(str(file.locate()))
    yield pathlib.Path(sysconfig.get_path("scripts"), name)
    yield pathlib.Path(sys.executable).parent / name


def become(name: str) -> NoReturn:
    """Runs a program in place of this process, with its arguments."""
    for path in _places(name):
        if path.exists():
            os.execv(path, [name, *sys.argv[1:]])
    found = shutil.which(name)
    if found:
        os.execv(found, [name, *sys.argv[1:]])
    sys.exit(f"{name} is not beside this Python, nor in PATH: the wheel of cohive brings it")
