"""Lets a Python environment import the CUDA build of torch on a machine without CUDA.

torch's Python half loads libtorch_cuda.so, and that the libraries of NVIDIA (1.5 GB) which no CPU computation calls.
This puts small libraries of the same names into the environment instead: they define the functions torch refers to, and
a call to one of them stops the process. PyPI has no CPU build of torch.

    python torch_on_cpu.py WHEELS SITE_PACKAGES
        WHEELS         directory that holds torch/, as tools/install-deps.sh lays it out
        SITE_PACKAGES  the environment's packages: torch becomes importable there
"""

import pathlib
import re
import subprocess
import sys

# Library -> how the names of its functions begin.
STAND_INS = {
    "libcublas.so.13": "cublas(?!Lt)",
    "libcublasLt.so.13": "cublasLt",
    "libcudnn.so.9": "cudnn",
    "libcufft.so.12": "cufft",
    "libcufile.so.0": "cuFile",
    "libcurand.so.10": "curand",
    "libcusparse.so.12": "cusparse(?!Lt)",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "p?nccl",
    "libnvshmem_host.so.3": "nvshmem",
}

LOADER = '''"""Written by tests/interop/torch_on_cpu.py: loads the stand-ins before torch asks for the real libraries."""
import ctypes
import os
import pathlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # never reach for a GPU: the stand-ins cannot drive one
for library in (pathlib.Path(__file__).parent / "cohive_stand_ins").glob("*.so.*"):
    ctypes.CDLL(str(library))
'''


def undefined_symbols(library):
    """(name, version) of every dynamic symbol that `library` expects from elsewhere; the version may be empty."""
    table = subprocess.run(["readelf", "-W", "--dyn-syms", library], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r" UND (\w+)(?:@(\S+))?", table))


def build_stand_in(path, symbols):
    """A library that defines `symbols`, each under the version its users expect."""
    names_of = {}
    for name, version in sorted(symbols):
        names_of.setdefault(version, []).append(name)
    versions = "".join(f"{v} {{ {'; '.join(names)}; }};\n" for v, names in names_of.items() if v)
    version_script = path.with_suffix(".map")
    version_script.write_text(versions)
    command = ["clang-19", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", path, f"-Wl,-soname,{path.name}"]
    if versions:
        command.append(f"-Wl,--version-script,{version_script}")
    source = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name, _ in symbols)
    subprocess.run(command, input=source, text=True, check=True)
    version_script.unlink()


def main(wheels, site_packages):
    wheels, site_packages = pathlib.Path(wheels).resolve(), pathlib.Path(site_packages)
    wanted = set()
    for library in (wheels / "torch" / "lib").glob("*.so*"):
        wanted |= undefined_symbols(library)
    folder = site_packages / "cohive_stand_ins"
    folder.mkdir(exist_ok=True)
    for name, prefix in STAND_INS.items():
        build_stand_in(folder / name, {symbol for symbol in wanted if re.match(prefix, symbol[0])})
    (site_packages / "cohive_torch_on_cpu.py").write_text(LOADER)
    (site_packages / "cohive.pth").write_text(f"{wheels}\nimport cohive_torch_on_cpu\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
