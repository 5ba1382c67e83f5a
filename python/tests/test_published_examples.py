"""The blocks of lightning-hivemind's documents run under as_hivemind, unchanged: each in two processes, the second
started by the line that the first has printed."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="no torch here")

SCRIPT = pathlib.Path(__file__).with_name("published_blocks.py")
BLOCKS = ["readme", "overlap", "offload", "reuse", "float16", "size-adaptive", "power-sgd"]
PACKAGES = ["lightning", "pytorch_lightning"]
PATIENCE = 180
BETWEEN_ENDS = 10  # seconds
ENVIRONMENT = {name: value for name, value in os.environ.items() if "INITIAL_PEERS" not in name}
ENVIRONMENT["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("block", BLOCKS)
def test_two_processes_train_together(block, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package} here")
    first, second = start([sys.executable, "-m", "cohive.as_hivemind", str(SCRIPT), block, package]), None
    try:
        line = next((line for line in first.stdout if line.startswith("INITIAL_PEERS=")), None)
        assert line is not None, first.communicate()
        second = start(["sh", "-c", line])
        told, ends = [], []
        for process in (first, second):
            told.append(process.communicate(timeout=PATIENCE))
            ends.append(time.monotonic())
        assert [process.returncode for process in (first, second)] == [0, 0], told
        numbers = [out.rstrip().splitlines()[-1].split() for out, _ in told]
        assert [one[:2] for one in numbers] == [["ended", "2"]] * 2, told
        assert abs(int(numbers[0][2]) - int(numbers[1][2])) <= 1, told
        assert ends[1] - ends[0] <= BETWEEN_ENDS
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()
