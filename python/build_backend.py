"""Has pip build the wheel from the sources, by tools/wheel.sh: `pip install ./python` in a clone."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any, Dict, List, Optional

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "tools/wheel.sh"


def get_requires_for_build_wheel(config_settings: Optional[Dict[str, Any]] = None) -> List[str]:
    """Nothing: the script says what is missing."""
    return []


def build_wheel(
    wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None, metadata_directory: Optional[str] = None
) -> str:
    """Builds the wheel; returns its name."""
    if not SCRIPT.exists():
        sys.exit(f"{SCRIPT} is not there: cohive is built in a clone of its repository")
    if subprocess.run([str(SCRIPT), "--out", wheel_directory]).returncode != 0:
        sys.exit("cohive could not be built: see above")
    (wheel,) = pathlib.Path(wheel_directory).glob("cohive-*.whl")
    return wheel.name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    """There is none: the library is built in a clone."""
    raise NotImplementedError("cohive is built in a clone of its repository, by tools/wheel.sh")
