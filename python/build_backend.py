"""Has pip build the wheel from the sources, by tools/wheel.sh: `pip install ./python` in a clone, or a source
distribution."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
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
        sys.exit(
            f"{SCRIPT} is not there: cohive is built in a clone of its repository, or from its source distribution"
        )
    with tempfile.TemporaryDirectory(dir=wheel_directory) as alone:  # other wheels may be beside it
        if subprocess.run([str(SCRIPT), "--out", alone]).returncode != 0:
            sys.exit("cohive could not be built: see above")
        (wheel,) = pathlib.Path(alone).glob("cohive-*.whl")
        wheel.replace(pathlib.Path(wheel_directory, wheel.name))
    return wheel.name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    """Packs what is in the repository; returns the name of the archive."""
    command = [sys.executable, str(SCRIPT.parents[1] / "packaging/sdist.py"), "--out", sdist_directory]
    packed = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if packed.returncode != 0:
        sys.exit("no source distribution: see above")
    return pathlib.Path(packed.stdout.strip()).name
