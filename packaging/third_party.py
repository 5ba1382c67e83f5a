"""The licences of what a wheel for every Linux has compiled in."""

import pathlib
import sys

from python_package import ROOT

#: Libraries, and the Debian packages whose copyright files have their licences.
DEBIAN = {
    "cli11": "libcli11-dev",
    "fmt": "libfmt-dev",
    "libnatpmp": "libnatpmp-dev",
    "libsodium": "libsodium-dev",
    "miniupnpc": "libminiupnpc-dev",
    "nlohmann-json": "nlohmann-json3-dev",
    "openssl": "libssl-dev",
    "prometheus-cpp": "prometheus-cpp-dev",
    "protobuf": "libprotobuf-dev",
    "spdlog": "libspdlog-dev",
    "tomlplusplus": "libtomlplusplus-dev",
    "zlib": "zlib1g-dev",
}
#: Others: text files.
FILES = {
    "apache-2.0": "/usr/share/common-licenses/Apache-2.0",  # which Debian's files refer to
    "boost": "packaging/licenses/boost.txt",
    "cuda-runtime": ".deps/cuda/nvidia_cuda_runtime-*.dist-info/licenses/License.txt",
}


def licenses(cuda: bool = True) -> dict[str, bytes]:
    """{name: text}, with or without CUDA's. Ends the program where one is missing."""
    files = {name: pattern for name, pattern in FILES.items() if cuda or name != "cuda-runtime"}
    patterns = {**files, **{name: f"/usr/share/doc/{package}/copyright" for name, package in DEBIAN.items()}}
    texts = {}
    for name, pattern in sorted(patterns.items()):
        path = ROOT / pattern
        found = sorted(pathlib.Path("/").glob(str(path).lstrip("/")))
        if not found:
            sys.exit(f"the licence of {name} is not there: {path}")
        texts[name] = found[-1].read_bytes()
    return texts
