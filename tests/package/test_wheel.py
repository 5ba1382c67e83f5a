"""test_wheel.py WHEEL [PYTHON...]: the wheel in a fresh environment of each Python, by default of this one, without
torch. WHEEL may be the folder that it is in; exit code 77: there is none."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile

LARGEST = 12 << 20
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


def main(wheel, *pythons):
    if pathlib.Path(wheel).suffix != ".whl":
        wheels = sorted(pathlib.Path(wheel).glob("cohive-*.whl"))
        if not wheels:
            sys.exit(77)
        wheel = str(wheels[-1])
    size = pathlib.Path(wheel).stat().st_size
    assert size < LARGEST, f"the wheel has {size} bytes"
    assert zipfile.ZipFile(wheel).testzip() is None
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COHIVE_LIBRARY")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    for python in pythons or (sys.executable,):
        with tempfile.TemporaryDirectory() as folder:
            run(python, "-m", "venv", folder)
            bin_dir = pathlib.Path(folder, "bin")
            begin = time.monotonic()
            run(bin_dir / "pip", "install", "--no-index", wheel, env=environment)
            installing = time.monotonic() - begin
            assert installing < SLOWEST_INSTALL, f"{installing:.1f} s to install"
            listed = run(bin_dir / "pip", "list", "--format=freeze", env=environment)
            assert set(re.findall(r"^([\w-]+)==", listed, re.M)) <= {"cohive", "pip", "setuptools"}, listed
            importing = min(float(run(bin_dir / "python", "-c", USE, env=environment, cwd=folder)) for _ in range(3))
            assert importing < SLOWEST_IMPORT, f"{importing:.2f} s to import"
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
