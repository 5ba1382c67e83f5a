"""Python with hivemind in it, for scripts that are started without it."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".deps/interop"  # made by tools/install-deps.sh --interop

sys.path.append(str(ROOT / "tests/interop"))


def with_hivemind():
    """Starts the running script again in the environment of Python hivemind, where there is one."""
    if sys.prefix != str(ENVIRONMENT) and (ENVIRONMENT / "bin/python").exists():
        os.execv(ENVIRONMENT / "bin/python", [str(ENVIRONMENT / "bin/python"), *sys.argv])
