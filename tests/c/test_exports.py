"""test_exports.py HEADER LIBRARY: the library shows the functions of cohive.h, and nothing else."""

import pathlib
import re
import subprocess
import sys


def main(header: str, library: str) -> None:
    declared = set(re.findall(r"^COHIVE_API [^(]*?(\w+)\(", pathlib.Path(header).read_text(), re.MULTILINE))
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    shown = {line.split()[2].split("@")[0] for line in lines.splitlines()}
    assert len(declared) > 20, declared
    assert shown == declared, f"not declared: {sorted(shown - declared)}; not there: {sorted(declared - shown)}"


main(*sys.argv[1:])
