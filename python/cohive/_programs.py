"""The programs that the wheel brings: `python -m cohive.bootstrap` is `cohive-bootstrap`, and so on."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import sysconfig
from typing import NoReturn


def become(name: str) -> NoReturn:
    """Runs a program in place of this process, with its arguments."""
    for folder in (sysconfig.get_path("scripts"), str(pathlib.Path(sys.executable).parent)):
        path = pathlib.Path(folder, name)
        if path.exists():
            os.execv(path, [name, *sys.argv[1:]])
    found = shutil.which(name)
    if found:
        os.execv(found, [name, *sys.argv[1:]])
    sys.exit(f"{name} is not beside this Python, nor in PATH: the wheel of cohive brings it")
