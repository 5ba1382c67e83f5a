#!/usr/bin/env python3
"""Writes what programs are made of: a bill of materials as CycloneDX 1.5 JSON.

Usage: sbom.py OUTPUT VERSION REVISION [--built-in NAME=VERSION]... PROGRAM...

Shared libraries are those that the loader would load, with the hashes of their files and, on Debian, the package and
version that each belongs to. Libraries that are compiled in, as headers are, are told by --built-in. Needs nothing but
Python, ldd and, where there is one, dpkg-query. The same input gives the same bytes.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
from pathlib import Path


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def libraries_of(program):
    """{name: file} of what the loader loads."""
    lines = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for line in lines:
        if "not found" in line:
            raise SystemExit(f"{program}: {line.strip()}")
        if match := re.match(r"\s*(\S+) => (/\S+)", line) or re.match(r"\s*(/\S+()) \(", line):
            path = match[2] or match[1]
            found[os.path.basename(match[1])] = os.path.realpath(path)
    return found


def debian_package(path):
    """(name, version) of the installed package that the file is of; None where there is none."""
    # Files of packages that were installed under / are listed there, where it is a link to /usr.
    for name in (path, path.removeprefix("/usr")):
        try:
            owner = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        except FileNotFoundError:
            return None
        if owner.returncode == 0:
            package = owner.stdout.partition(": ")[0].split(",")[0].strip()
            shown = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}", package],
                                   capture_output=True, text=True)
            if shown.returncode == 0:
                return tuple(shown.stdout.split(" "))
    return None


def shared_component(name, path):
    package = debian_package(path)
    component = {"type": "library", "bom-ref": name, "name": package[0] if package else name,
                 "hashes": [{"alg": "SHA-256", "content": sha256(path)}],
                 "properties": [{"name": "cohive:linkage", "value": "shared"},
                                {"name": "cohive:file", "value": os.path.basename(path)}]}
    if package:
        component["version"] = package[1]
        component["purl"] = f"pkg:deb/debian/{package[0]}@{package[1]}"
    return component


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("version")
    parser.add_argument("revision")
    parser.add_argument("--built-in", action="append", default=[], metavar="NAME=VERSION")
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    options = parser.parse_args()

    shared, needs, programs = {}, {}, []
    for program in options.programs:
        name = os.path.basename(program)
        libraries = libraries_of(program)
        shared.update(libraries)
        needs[name] = sorted(libraries)
        programs.append({"type": "application", "bom-ref": name, "name": name, "version": options.version,
                         "hashes": [{"alg": "SHA-256", "content": sha256(program)}]})
    built_in = []
    for text in options.built_in:
        name, _, version = text.partition("=")
        component = {"type": "library", "bom-ref": f"{name} (compiled in)", "name": name,
                     "properties": [{"name": "cohive:linkage", "value": "compiled in"}]}
        if version:
            component["version"] = version
        built_in.append(component)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "cohive", "name": "cohive",
                                   "version": options.version,
                                   "properties": [{"name": "cohive:revision", "value": options.revision}]}},
        "components": programs + built_in + [shared_component(name, shared[name]) for name in sorted(shared)],
        "dependencies": [{"ref": "cohive", "dependsOn": [program["bom-ref"] for program in programs]}] +
                        [{"ref": name, "dependsOn": libraries + [one["bom-ref"] for one in built_in]}
                         for name, libraries in needs.items()],
    }
    Path(options.output).write_text(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    main()
