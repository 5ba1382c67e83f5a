"""test_wheel.py WHEEL [PYTHON...]: the wheel in a fresh environment of each Python, by default of this one, without
torch. WHEEL may be the folder that it is in; exit code 77: there is none.

test_wheel.py --aarch64 WHEEL ROOT: one for that processor, by qemu and the Python in the root directory ROOT.

test_wheel.py --build FOLDER: one that is packed of what is built there, for this machine; and the source distribution of
this repository, of which pip makes a wheel by tools/wheel.sh. How long it takes is not looked at, the other one's
is."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile

LARGEST = 12_000_000
SLOWEST_INSTALL, SLOWEST_IMPORT = 10.0, 0.15  # seconds

USE = """
import time; begin = time.perf_counter()
import cohive
took = time.perf_counter() - begin
import sys
assert "torch" not in sys.modules
with cohive.DHT(start=True) as first, cohive.DHT(first.get_visible_maddrs(), start=True) as second:
    assert first.store("key", "value", cohive.get_dht_time() + 60)
    assert second.get("key").value == "value"
print(took)
"""


def run(*command, **how):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **how)
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
    return result.stdout


ROOT = pathlib.Path(__file__).resolve().parents[2]


def of_build(build):
    """Packs and tries what a build folder has."""
    with tempfile.TemporaryDirectory() as out:
        packed = run(
            sys.executable, ROOT / "packaging/wheel.py", "--this-machine", "--library", build / "libcohive.so",
            "--program", build / "bin/cohive", "--out", out,
        )
        try_wheel(packed.strip(), [sys.executable], in_time=False)
        git = shutil.which("git")
        if git and subprocess.run([git, "-C", ROOT, "ls-files"], capture_output=True).returncode == 0:
            try_sources(run(sys.executable, ROOT / "packaging/sdist.py", "--out", out).strip(), out)


def try_sources(archive, folder):
    """What pip does with a source distribution, up to the script that compiles."""
    run("tar", "-xzf", archive, "-C", folder)
    (unpacked,) = (path for path in pathlib.Path(folder).iterdir() if path.is_dir())
    listed = run("git", "-C", ROOT, "ls-files").splitlines()
    missing = [name for name in listed if (ROOT / name).is_file() and not (unpacked / name).is_file()]
    assert not missing, missing
    assert (unpacked / "PKG-INFO").read_text().startswith("Metadata-Version: 2.")
    script = unpacked / "tools/wheel.sh"
    assert os.access(script, os.X_OK)
    script.write_text('#!/bin/sh\ntest "$1" = --out && touch "$2/cohive-0-py3-none-any.whl"\n')
    backend = tomllib.loads((unpacked / "pyproject.toml").read_text())["build-system"]
    call = f"import {backend['build-backend']} as backend; print(backend.build_wheel({folder!r}))"
    path = os.pathsep.join(str(unpacked / entry) for entry in backend["backend-path"])
    made = run(sys.executable, "-c", call, env={**os.environ, "PYTHONPATH": path}, cwd=unpacked)
    assert made.strip() == "cohive-0-py3-none-any.whl"


def main(wheel, *pythons):
    if wheel == "--build":
        return of_build(pathlib.Path(*pythons))
    if wheel == "--aarch64":
        return try_foreign_wheel(*pythons)
    if pathlib.Path(wheel).suffix != ".whl":
        wheels = sorted(pathlib.Path(wheel).glob("cohive-*.whl"))
        if not wheels:
            sys.exit(77)
        wheel = str(wheels[-1])
    try_wheel(wheel, pythons or [sys.executable], in_time=True)


def try_foreign_wheel(wheel, root):
    check_content(wheel, {"openssl", "boost"})
    emulator = ["qemu-aarch64-static", "-L", root]
    (python,) = pathlib.Path(root, "usr/bin").glob("python3.[0-9]*[0-9]")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        environment = {"PYTHONPATH": folder, "PYTHONHOME": str(pathlib.Path(root, "usr")), "PATH": os.environ["PATH"]}
        took = float(run(*emulator, python, "-c", USE, env=environment, cwd=folder))
        (program,) = pathlib.Path(folder).glob("*.data/scripts/cohive")
        program.chmod(0o755)
        assert run(*emulator, program, "bootstrap", "--version").startswith("cohive-bootstrap ")
    print(f"{python.name} under qemu: imported in {took:.1f} s, {pathlib.Path(wheel).stat().st_size / 1e6:.1f} MB")


def check_content(wheel, compiled_in):
    size = pathlib.Path(wheel).stat().st_size
    assert size < LARGEST, f"the wheel has {size} bytes"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        (described,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    texts = re.findall(r"^License-File: (.+)$", described, re.M)
    assert all(any(name.endswith(f".dist-info/licenses/{text}") for name in names) for text in texts), texts
    # Where libraries of others are compiled in, so are their licences.
    assert "manylinux" not in pathlib.Path(wheel).name or compiled_in < {pathlib.Path(text).stem for text in texts}
    return size


def try_wheel(wheel, pythons, in_time):
    size = check_content(wheel, {"openssl", "boost", "cuda-runtime"})
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COHIVE_LIBRARY")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            run(python, "-m", "venv", folder)
            bin_dir = pathlib.Path(folder, "bin")
            begin = time.monotonic()
            run(bin_dir / "pip", "install", "--no-index", wheel, env=environment)
            installing = time.monotonic() - begin
            assert installing < SLOWEST_INSTALL or not in_time, f"{installing:.1f} s to install"
            listed = run(bin_dir / "pip", "list", "--format=freeze", env=environment)
            assert set(re.findall(r"^([\w-]+)==", listed, re.M)) <= {"cohive", "pip", "setuptools"}, listed
            importing = min(float(run(bin_dir / "python", "-c", USE, env=environment, cwd=folder)) for _ in range(3))
            assert importing < SLOWEST_IMPORT or not in_time, f"{importing:.2f} s to import"
            for program in ("cohive-bootstrap", "cohive-monitor", "cohive-dht"):
                version = run(bin_dir / program, "--version", env=environment)
                assert version.startswith(program + " "), version
                name = program.replace("-", ".")
                module = run(bin_dir / "python", "-m", name, "--version", env=environment, cwd=folder)
                assert module == version
            run(bin_dir / "pip", "uninstall", "-y", "cohive", env=environment)
            assert not list(pathlib.Path(folder).rglob("*cohive*")), "files are left"
            version = run(python, "--version").strip()
            took = f"installed in {installing:.1f} s, imported in {importing * 1000:.0f} ms"
            print(f"{version}: {took}, {size / 1e6:.1f} MB")


main(*sys.argv[1:])
