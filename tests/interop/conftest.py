"""What the tests against Python hivemind share."""

import os
import pathlib

import pytest

SKIPPED = 77  # what CTest takes for "skipped", see CMakeLists.txt


@pytest.fixture(scope="session")
def bin_dir():
    """The folder of cohive's programs."""
    return pathlib.Path(os.environ["COHIVE_BIN_DIR"])


@pytest.fixture(scope="session")
def program(bin_dir):
    """program(NAME): the path of one of cohive's programs; the test is skipped where it was not built."""

    def find(name):
        path = bin_dir / name
        if not path.exists():
            pytest.skip(f"{name} is not built")
        return path

    return find


def pytest_sessionfinish(session, exitstatus):
    """A file whose tests were all skipped is skipped, not passed."""
    reports = session.config.pluginmanager.getplugin("terminalreporter").stats
    if exitstatus == 0 and reports.get("skipped") and not reports.get("passed"):
        session.exitstatus = SKIPPED
