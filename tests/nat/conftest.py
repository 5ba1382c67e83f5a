"""What the tests in the laboratory share."""

import os
import pathlib
import shutil
import sys

import pytest

import namespaces
from lab import World
from link import EMULATOR, programs

SKIPPED = 77  # what CTest takes for "skipped", see CMakeLists.txt
LOGS = pathlib.Path(os.environ.get("COHIVE_NAT_LOGS", programs().parent / "nat-logs"))  # of failed tests

sys.path.append(str(pathlib.Path(__file__).parents[1] / "interop"))


def pytest_collection_modifyitems(items):
    if reason := namespaces.unavailable():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.failed = report.failed
    return report


@pytest.fixture
def worlds(request):
    """worlds(): an empty World. What programs printed in it is kept where the test fails."""
    if not (programs() / EMULATOR).exists():
        pytest.skip(f"{EMULATOR} is not built")
    logs = LOGS / request.node.name
    shutil.rmtree(logs, ignore_errors=True)  # of an earlier failure: tests look for what is printed now
    made = []

    def make():
        made.append(World(logs / str(len(made))))
        return made[-1]

    yield make
    for world in made:
        world.close()
    if getattr(request.node, "failed", True):
        print(f"\nlogs: {logs}")
    else:
        shutil.rmtree(logs, ignore_errors=True)


@pytest.fixture
def world(worlds):
    return worlds()


@pytest.fixture
def program():
    """program(NAME): the path of one of cohive's programs; the test is skipped where it was not built."""

    def find(name):
        if not (path := programs() / name).exists():
            pytest.skip(f"{name} is not built")
        return path

    return find


def pytest_sessionfinish(session, exitstatus):
    """A file whose tests were all skipped is skipped, not passed."""
    reports = session.config.pluginmanager.getplugin("terminalreporter").stats
    if exitstatus == 0 and reports.get("skipped") and not reports.get("passed"):
        session.exitstatus = SKIPPED
