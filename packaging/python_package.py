"""What the wheel and the source distribution of the Python package say of it."""

import pathlib
import re
import sys
import tomllib
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[1]


def package_version() -> str:
    """Ends the program where the package and the library have different ones."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "python/cohive/_version.py").read_text())[1]
    if version != re.search(r"project\(cohive VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]:
        sys.exit("python/cohive/_version.py and CMakeLists.txt have different versions")
    return version


def metadata(licenses: Iterable[str] = ()) -> str:
    """METADATA of a wheel, which is PKG-INFO of a source distribution.

    :param licenses: files beside our own
    """
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {package_version()}",
             f"Summary: {project['description']}", f"License-Expression: {project['license']}",
             *(f"License-File: {name}" for name in ("LICENSE", *licenses)),
             f"Requires-Python: {project['requires-python']}"]
    lines += [f"Classifier: {name}" for name in project["classifiers"]]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in requirements]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / "python" / project["readme"]).read_text()]
    return "\n".join(lines)
