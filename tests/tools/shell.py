"""Programs as a person at a shell starts them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PATIENCE = 60  # seconds until a program that hangs is a failure
NOBODY = "12D3KooWH3uVF6wv47WnArKHk5p6cvgCJEb74UTmxztmQDc298L3"
SKIPPED = 77  # the exit code that CTest takes for a skipped test
BIN = Path()

environment = {k: v for k, v in os.environ.items() if k not in ("INITIAL_PEERS", "PL_INITIAL_PEERS")}


class Result(unittest.TextTestResult):
    """Knows whether a test has passed. A test that is skipped has not."""

    passed = False

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed = True


class Runner(unittest.TextTestRunner):
    resultclass = Result


def main():
    """Runs the tests of the script that was started with a folder of programs and options of unittest. Exits with
    SKIPPED where every test was skipped."""
    global BIN
    BIN = Path(sys.argv.pop(1)).resolve()
    result = unittest.main(testRunner=Runner, verbosity=2, exit=False).result
    if result.wasSuccessful() and result.skipped and not result.passed:
        sys.exit(SKIPPED)
    sys.exit(not result.wasSuccessful())


def run(program, *arguments, env=None):
    return subprocess.run([BIN / program, *arguments], env=env or environment, capture_output=True, text=True,
                          timeout=PATIENCE)


@contextlib.contextmanager
def started(program, *arguments, env=None):
    """A program in the background; killed at the end if it still runs."""
    process = subprocess.Popen([BIN / program, *arguments], env=env or environment, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def bootstrap(*arguments, env=None):
    """A bootstrap node that is ready, and what it printed with --json."""
    with started("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json", *arguments, env=env) as process:
        yield process, json.loads(process.stdout.readline())


@contextlib.contextmanager
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def programs(*names):
    return [name for name in names if (BIN / name).exists()]


class TrainerTest(unittest.TestCase):
    """Tests of cohive-train, with a folder of their own; skipped where it is not built."""

    def setUp(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)


def small_trainer(folder, width=16, target=256):
    """Flags of a trainer that ends an epoch in a moment, with a text in the folder."""
    text = Path(folder, "text.txt")
    text.write_text("In the beginning was the Word, and the Word was with others. " * 200)
    return ["--text", str(text), "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--layers", "1", "--width", str(width), "--context", "16",
            "--batch-size", "32", "--target-batch-size", str(target), "--matchmaking-time", "1"]
