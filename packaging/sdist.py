#!/usr/bin/env python3
"""Packs the source distribution of the Python package: all that is in the repository, from which pip builds the wheel by
tools/wheel.sh. Prints its path. Needs a clone."""

import argparse
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

from python_package import ROOT, metadata, package_version

TIME = 1577836800  # of every file: the same sources make the same archive


def sources() -> list[str]:
    """The files of the repository, as they are in the clone."""
    if not (git := shutil.which("git")):
        sys.exit("git, which knows the files of a source distribution, is not installed")
    listed = subprocess.run([git, "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode != 0 or not listed.stdout:
        sys.exit("a source distribution is packed in a clone of the repository, which this is not")
    names = [name for name in listed.stdout.split("\0") if name]
    return sorted(name for name in names if (ROOT / name).is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder for the archive")
    options = parser.parse_args()

    folder = f"cohive-{package_version()}"
    project = (ROOT / "python/pyproject.toml").read_text()
    # pip looks for both at the top.
    added = {
        "pyproject.toml": project.replace('backend-path = ["."]', 'backend-path = ["python"]').replace(
            'readme = "README.md"', 'readme = "python/README.md"'),
        "PKG-INFO": metadata(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{folder}.tar.gz"
    part = path.with_suffix(".part")
    with tarfile.open(part, "w:gz", format=tarfile.PAX_FORMAT) as archive:

        def add(name: str, content: bytes, mode: int) -> None:
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), mode, TIME
            archive.addfile(entry, io.BytesIO(content))

        for name in sources():
            executable = os.access(ROOT / name, os.X_OK)
            add(name, (ROOT / name).read_bytes(), 0o755 if executable else 0o644)
        for name, text in added.items():
            add(name, text.encode(), 0o644)
    os.replace(part, path)
    print(path)


main()
